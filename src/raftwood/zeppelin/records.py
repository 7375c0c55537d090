"""Records of a partition, which of them are done, and the seam `PartitionStore` that stores them.

A record is one entry of a binlog: writes that happen together. It always holds the outcome of a
command, never the operation, so applying it twice equals applying it once. `Acks` knows which are
done:

    acks = Acks(is_immediate=False, count=lambda sequence: 0)
    if acks.reached < sequence:
        acks.wait(sequence, heard)          # calls back once it is reached, or never will be
    acks.reach(sequence)                    # called as more records are done
"""

import heapq
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count as counting
from typing import Final, Protocol, TypeAlias

import msgspec

from raftwood.base.errors import Overloaded, ProtocolError
from raftwood.base.files import Buffer

OnReached: TypeAlias = Callable[[], None]
_LEFT_MAX: Final = 64
"""How many cancelled waits stay in the heap, besides one for each wait that is left."""
KEYS_MAX: Final = 16_384
"""Number of keys in each of the two generations of `LastWrites`."""


class LastWrites:
    """Which record wrote a key last: a read of the key may answer once that record is done.

    The master can read a write at once, but the write is lost with the master while too few
    replicas have it. A client that had read it would have read what never was. So a read waits for
    the record that it read from, as the writer does.

    Bounded: exact for the latest keys, in two generations. For all others, a floor: no later record
    wrote them.
    """

    __slots__ = ("_newer", "_older", "_older_last", "floor")

    def __init__(self, floor: int) -> None:
        self._newer: dict[bytes, int] = {}
        self._older: dict[bytes, int] = {}
        self.begin(floor)

    def begin(self, floor: int) -> None:
        """Forgets all keys; no record behind `floor` wrote any."""
        self._newer.clear()
        self._older.clear()
        self.floor = self._older_last = floor

    def put(self, keys: Iterable[bytes], sequence: int) -> None:
        newer = self._newer
        newer.update(dict.fromkeys(keys, sequence))
        if len(newer) >= KEYS_MAX:
            self.floor, self._older_last = self._older_last, sequence
            self._newer, self._older = {}, newer

    def of(self, key: bytes) -> int:
        """Returns the record that wrote a key last, or a later one."""
        return self._newer.get(key) or self._older.get(key) or self.floor

    def of_all(self, keys: Iterable[bytes]) -> int:
        return max(map(self.of, keys), default=0)


class Acks:
    """The done records of one tenure of a master. The next tenure may give a sequence to another
    record, so it has its own `Acks`. A slave's `Acks`, for its readers, follow its master's
    reports.
    """

    __slots__ = (
        "_asked",
        "_callers",
        "_count",
        "_numbers",
        "_waiting",
        "is_immediate",
        "is_over",
        "is_paced",
        "reached",
    )

    def __init__(
        self,
        *,
        is_immediate: bool,
        count: Callable[[int], int],
        asked: Callable[[], None] | None = None,
    ) -> None:
        """`count` returns how many slaves have all records up to a sequence. A slave passes
        `asked`, which each new wait calls to ask the master for progress.
        """
        self._count = count
        self._asked = asked
        self._waiting: list[tuple[int, int]] = []
        """A heap of sequences and wait numbers; some waits may be cancelled."""
        self._callers: dict[int, OnReached] = {}
        self._numbers = counting()
        self.is_immediate = is_immediate
        """A committed record counts as done at once: nothing waits."""
        self.is_paced = False
        """Answers wait for a slave, to slow clients down; none writes before its answer."""
        self.is_over = False
        """The tenure has ended: sequences not reached never will be."""
        self.reached = 0
        """All records up to this sequence are done."""

    def wait(self, sequence: int, heard: OnReached) -> int:
        """Calls `heard` once: when the sequence is reached, or the tenure ends. The sequence must
        not be reached yet. Returns a number for `forget`.
        """
        number = next(self._numbers)
        self._callers[number] = heard
        heapq.heappush(self._waiting, (sequence, number))
        if self._asked is not None:
            self._asked()
        return number

    @property
    def is_awaited(self) -> bool:
        """Whether any caller waits."""
        return bool(self._callers)

    def forget(self, number: int) -> None:
        """Cancels a wait, by its number."""
        waiting, callers = self._waiting, self._callers
        callers.pop(number, None)
        if len(waiting) > 2 * len(callers) + _LEFT_MAX:
            waiting[:] = [entry for entry in waiting if entry[1] in callers]
            heapq.heapify(waiting)

    def replicas_with(self, sequence: int) -> int:
        """How many slaves have all records up to a sequence."""
        return 0 if self.is_over else self._count(sequence)

    def reach(self, sequence: int) -> None:
        """Marks all records up to a sequence as done; it must be above `reached`."""
        self.reached = sequence
        waiting = self._waiting
        while waiting and waiting[0][0] <= sequence:
            heard = self._callers.pop(heapq.heappop(waiting)[1], None)
            if heard is not None:
                heard()

    def end(self) -> None:
        """Ends the tenure and calls all that wait."""
        self.is_over = True
        self._waiting.clear()
        waiting, self._callers = self._callers, {}
        for heard in waiting.values():
            heard()


# The readers of a partition's binlog by command. Records that they need stay, as for a slave.
#
# Kept in memory only: readers read again, also from the next master. A reader that has not read for
# a while is forgotten, and its records may go.

READERS_MAX: Final = 64
FORGOTTEN_NS: Final = 600_000_000_000
"""Time without a read after which a reader is forgotten."""


class BinlogReaders:
    """The binlog readers of one partition, by the names that they give."""

    __slots__ = ("_readers",)

    def __init__(self) -> None:
        self._readers: dict[bytes, tuple[int, int]] = {}
        """The first record that a reader needs, and when it said so."""

    def note(self, name: bytes, *, needs: int, now_ns: int) -> None:
        """Notes that a reader needs records from a sequence on."""
        if name not in self._readers and len(self._readers) >= READERS_MAX:
            self._forget(now_ns)
            if len(self._readers) >= READERS_MAX:
                raise Overloaded(
                    f"{READERS_MAX} others read this binlog already: stop one, or wait until it is "
                    "forgotten"
                )
        self._readers[name] = (needs, now_ns)

    def needed_from(self, now_ns: int) -> int | None:
        """Returns the first record that any reader needs; None if there are no readers."""
        if not self._readers:
            return None
        self._forget(now_ns)
        return min((needs for needs, _ in self._readers.values()), default=None)

    def _forget(self, now_ns: int) -> None:
        self._readers = {
            name: (needs, heard_ns)
            for name, (needs, heard_ns) in self._readers.items()
            if now_ns - heard_ns < FORGOTTEN_NS
        }


# The seam between a partition's storage and its users: commands, and replication.
#
# Everything runs on one event loop, and every change of a partition happens without awaiting: the
# loop is the lock of every key and tag, and binlog order is the order of execution.

KEY_BYTES_MAX: Final = 16 << 10
"""A request of at most this size cannot hold a longer key."""


class Value(msgspec.Struct, frozen=True, gc=False):
    """A key's value; `expires_ms` is absolute, 0 for never."""

    data: bytes
    expires_ms: int = 0


class KeyWrite(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The new value of one key; None: the key is deleted.

    Always an outcome, never an operation: applying it twice equals applying it once.
    """

    key: bytes
    data: bytes | None
    expires_ms: int = 0


class BinlogRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry of a binlog: writes that happen together, after a flush of all keys if `flushes`.

    Sequences rise by one, from 1 on. The epoch is that of the master that wrote the record: two
    records of equal sequence and epoch are the same.
    """

    epoch: int
    sequence: int
    writes: tuple[KeyWrite, ...]
    flushes: bool = False
    """All keys are deleted before the writes are made."""
    origin: tuple[bytes, int] | None = None
    """For a retried request: its producer and its number there, which identify a repetition."""


WRITE_BYTES: Final = 24
"""Upper bound of a write's bytes in a record besides its key and data."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(BinlogRecord)


def encode_record(record: BinlogRecord) -> bytes:
    """Encodes a record, as it stands in binlogs and travels between nodes."""
    return _encoder.encode(record)


def decode_record(encoded: Buffer) -> BinlogRecord:
    try:
        return _decoder.decode(encoded)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ProtocolError(f"a record of a binlog cannot be read: {error}") from error


class BinlogPosition(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A record's place. The replica with the larger position has more."""

    epoch: int = 0
    sequence: int = 0


class EpochStart(msgspec.Struct, frozen=True, array_like=True):
    """An epoch of a binlog, and the sequence of its first record there."""

    epoch: int
    sequence: int


class PartitionStore(Protocol):
    """The keys of one partition and its binlog.

    A committed record can be read at once. It is `written` when the operating system has its binlog
    and `synced` when the disk has. The storage engine gets it after that, so the engine is never
    ahead of the binlog that a crash leaves.
    """

    needed_from: int | None
    """The first record that a connected slave still needs; a purge by the store itself keeps it.
    None: no slave needs any."""

    readers: BinlogReaders
    """Readers of the binlog by command; the records that they need stay as well."""

    last_writes: LastWrites | None
    """Present while reads wait for the records that they read from; see `note_last_writes`."""

    def note_last_writes(self, *, is_on: bool) -> None:
        """Keeps `last_writes` from now on, always the same object, or stops keeping it."""
        ...

    @property
    def recent(self) -> Mapping[bytes, KeyWrite]:
        """Some keys with their latest writes, always the same mapping; `get` has the others."""
        ...

    @property
    def epoch(self) -> int:
        """Epoch of the last record; 0: there is no record."""
        ...

    @property
    def epochs(self) -> Sequence[EpochStart]:
        """Epochs of all records, in order. Of purged records, at least the last one's epoch is
        included if it is known.
        """
        ...

    @property
    def repairing(self) -> BinlogPosition | None:
        """After a rewind, the position at which the keys are again those of one moment; None from
        then on. Survives restarts.
        """
        ...

    @property
    def is_well(self) -> bool:
        """Whether the last write to the engine succeeded, so that it takes records."""
        ...

    @property
    def first_sequence(self) -> int:
        """Sequence of the oldest record that is left; last + 1 if there is none."""
        ...

    @property
    def last_sequence(self) -> int: ...

    @property
    def written_sequence(self) -> int: ...

    @property
    def synced_sequence(self) -> int: ...

    def get(self, key: bytes, *, now_ms: int) -> Value | None:
        """Returns a key's value; None if it has none or has expired."""
        ...

    def multi_get_cached(self, keys: Sequence[bytes], *, now_ms: int) -> list[Value | None] | None:
        """Like `multi_get`, but at once; None if the engine must be asked."""
        ...

    async def multi_get(self, keys: Sequence[bytes], *, now_ms: int) -> list[Value | None]:
        """Returns values as of the call; reads cold keys off the loop."""
        ...

    def scan(self, *, after: bytes | None, now_ms: int) -> Iterator[tuple[bytes, Value]]:
        """Yields the keys behind one in the store's own order; a key that stays appears once."""
        ...

    def scan_tag(self, tag: bytes, *, now_ms: int) -> Iterator[tuple[bytes, Value]]:
        """Yields all keys with the tag."""
        ...

    def sequence_of(self, producer: bytes, number: int) -> int | None:
        """Returns the sequence of the record with this origin; None if it is not known."""
        ...

    def last_number(self, producer: bytes) -> int | None:
        """The largest number of a producer in known records; None if there is none."""
        ...

    async def count(self) -> int | None:
        """Counts the keys, with expired ones that still take room; None if the count is unknown for
        now. Waits for writes on their way to the engine.
        """
        ...

    @property
    def about_keys(self) -> int:
        """Estimated number of keys, at once."""
        ...

    def random_key(self, source: random.Random, *, now_ms: int) -> bytes | None:
        """Returns a key, each about as likely as any other; None if there are none."""
        ...

    @property
    def next_ending_ms(self) -> int:
        """No key that takes room expires before this time; 0: not known."""
        ...

    def expired(self, *, now_ms: int, keys_max: int) -> list[bytes]:
        """Returns some expired keys that take room; the master then commits their removal.

        Looks at a bounded number of keys, starting where the last call ended.
        """
        ...

    def write(self, writes: Mapping[bytes, KeyWrite], *, size: int, epoch: int) -> int:
        """Adds writes, by their keys, to the record that ends this turn of the loop; all at once.
        Returns the record's sequence. `size` counts keys, data, and `WRITE_BYTES` for each write.
        Only a master calls this, with at least one write.
        """
        ...

    def commit(self, record: BinlogRecord, encoded: Buffer | None = None) -> None:
        """Appends a record at once; it must be the next one, at this epoch or a later one.

        `encoded` is the record as the binlog stores it, if the caller has it.
        """
        ...

    async def records(self, *, first: int, bytes_max: int) -> list[Buffer]:
        """Returns some encoded records from a sequence on, also unwritten ones; at least one if
        there is one. Raises `OutOfRange` if they were purged.
        """
        ...

    def listen(self, heard: Callable[[], None]) -> Callable[[], None]:
        """Calls `heard` whenever one of the sequences rises; returns a function that stops this."""
        ...

    async def touched(self, *, after: int) -> list[bytes] | None:
        """Returns the keys that records behind a sequence wrote; None if one of them flushed."""
        ...

    async def rewind(
        self, *, after: int, values: Sequence[KeyWrite], until: BinlogPosition
    ) -> None:
        """Removes the records behind a sequence from the binlog, and gives the keys that they
        touched the values that the master had at `until`. Durable, and one step under any crash.
        """
        ...

    async def purge(self, *, before: int) -> None:
        """Drops records below a sequence, except those that the engine has not applied."""
        ...

    async def checkpoint(self, folder: str) -> int:
        """Copies the engine into a new folder; returns the sequence of its last record."""
        ...

    async def restore(self, folder: str, *, sequence: int, epochs: Sequence[EpochStart]) -> None:
        """Replaces everything with another replica's copy; the binlog begins behind it.

        Durable, and one step under any crash; the store owns the folder from now on.
        """
        ...

    async def close(self) -> None: ...
