"""Records of a partition, which of them are done, and the seam `PartitionStore` that keeps them.

A record is one entry of a binlog: writes that happen together. It always has the outcome of a
command, never the operation: applied twice, it is the same as once. `Acks` says which are done:

    acks = Acks(is_immediate=False, count=lambda sequence: 0)
    if acks.reached < sequence:
        acks.wait(sequence, heard)          # calls back once it is reached, or never will be
    acks.reach(sequence)                    # whoever leads the partition says how far it is
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
"""So many who have left stay in the heap, besides as many as wait."""
KEYS_MAX: Final = 16_384
"""So many keys are in each of the two generations of `LastWrites`."""


class LastWrites:
    """Which record wrote a key last: what is read of the key may be told once that one is done.

    A write can be read at once where it is made, and is lost if that node is, for as long as it is
    on too few replicas: whoever was answered before would have read what never was. So a read waits
    for the record that it has read of, as the writer does.

    Bounded: exact for the keys written last, in two generations; of all others it is known which
    record they are not behind.
    """

    __slots__ = ("_newer", "_older", "_older_last", "floor")

    def __init__(self, floor: int) -> None:
        self._newer: dict[bytes, int] = {}
        self._older: dict[bytes, int] = {}
        self.begin(floor)

    def begin(self, floor: int) -> None:
        """Know nothing of keys but that no record behind this one wrote them."""
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
        """The record that wrote a key last, or a later one."""
        return self._newer.get(key) or self._older.get(key) or self.floor

    def of_all(self, keys: Iterable[bytes]) -> int:
        return max(map(self.of, keys), default=0)


class Acks:
    """Of one tenure of a master: in the next one a sequence may be another record's, so that one
    has acks of its own. A slave has some too, for those who read there, by what its master tells.
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
        """`count` tells how many slaves have all up to a sequence; `asked` hears that somebody
        waits, where it is not told by itself how far things are.
        """
        self._count = count
        self._asked = asked
        self._waiting: list[tuple[int, int]] = []
        """A heap of sequences and the numbers of those who wait, some of whom may have left."""
        self._callers: dict[int, OnReached] = {}
        self._numbers = counting()
        self.is_immediate = is_immediate
        """What is committed is done: nobody has to wait."""
        self.is_paced = False
        """Answers wait for a slave, so that clients write less: they may not write on meanwhile."""
        self.is_over = False
        """The tenure has ended: what was not reached never will be."""
        self.reached = 0
        """All up to this sequence is done."""

    def wait(self, sequence: int, heard: OnReached) -> int:
        """Be called once, when a sequence is reached, which it is not yet, or the tenure ends; the
        number is for `forget`.
        """
        number = next(self._numbers)
        self._callers[number] = heard
        heapq.heappush(self._waiting, (sequence, number))
        if self._asked is not None:
            self._asked()
        return number

    @property
    def is_awaited(self) -> bool:
        """Whether anybody waits."""
        return bool(self._callers)

    def forget(self, number: int) -> None:
        """Who waits by this number is not called any more."""
        waiting, callers = self._waiting, self._callers
        callers.pop(number, None)
        if len(waiting) > 2 * len(callers) + _LEFT_MAX:
            waiting[:] = [entry for entry in waiting if entry[1] in callers]
            heapq.heapify(waiting)

    def replicas_with(self, sequence: int) -> int:
        """How many slaves have all up to a sequence."""
        return 0 if self.is_over else self._count(sequence)

    def reach(self, sequence: int) -> None:
        """All up to a sequence is done, and that is more than before."""
        self.reached = sequence
        waiting = self._waiting
        while waiting and waiting[0][0] <= sequence:
            heard = self._callers.pop(heapq.heappop(waiting)[1], None)
            if heard is not None:
                heard()

    def end(self) -> None:
        """The tenure is over; whoever waits hears that."""
        self.is_over = True
        self._waiting.clear()
        waiting, self._callers = self._callers, {}
        for heard in waiting.values():
            heard()


# Who reads a partition's binlog by command, and from where on: that holds it, as a slave does.
#
# In memory alone: whoever reads comes again, to the next master too. One that has not come for a
# while is forgotten, and holds nothing any more.

READERS_MAX: Final = 64
FORGOTTEN_NS: Final = 600_000_000_000
"""After so long without a read."""


class BinlogReaders:
    """Of one partition, by the names that they give."""

    __slots__ = ("_readers",)

    def __init__(self) -> None:
        self._readers: dict[bytes, tuple[int, int]] = {}
        """The first record that is needed, and when it was said."""

    def note(self, name: bytes, *, needs: int, now_ns: int) -> None:
        """A reader needs records from a sequence on."""
        if name not in self._readers and len(self._readers) >= READERS_MAX:
            self._forget(now_ns)
            if len(self._readers) >= READERS_MAX:
                raise Overloaded(
                    f"{READERS_MAX} others read this binlog already: stop one, or wait until it is "
                    "forgotten"
                )
        self._readers[name] = (needs, now_ns)

    def needed_from(self, now_ns: int) -> int | None:
        """The first record that any of them needs; None where nobody does."""
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


# The seam between a partition's storage and those who use it: commands, and replication.
#
# Everything runs on one event loop, and whatever changes a partition does so without awaiting: the
# loop is the lock of every key and tag, and binlog order is the order of execution.

KEY_BYTES_MAX: Final = 16 << 10
"""What is not larger as a whole has no key in it that is."""


class Value(msgspec.Struct, frozen=True, gc=False):
    """What a key has; `expires_ms` is absolute, 0 for never."""

    data: bytes
    expires_ms: int = 0


class KeyWrite(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one key has from now on; None: nothing.

    Always the outcome, never an operation: applied twice, it is the same as once.
    """

    key: bytes
    data: bytes | None
    expires_ms: int = 0


class BinlogRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry of a binlog: writes that happen together, or the end of all keys before them.

    Sequences go up by one, from 1 on. The epoch is that of the master that wrote it: of two records
    with the same sequence those of equal epochs are the same.
    """

    epoch: int
    sequence: int
    writes: tuple[KeyWrite, ...]
    flushes: bool = False
    """All keys that there were are gone; then come the writes."""
    origin: tuple[bytes, int] | None = None
    """Of a retried request: who sent it, and its number there; it is known again by that."""


WRITE_BYTES: Final = 24
"""What a write takes in a record besides its key and data, at the most."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(BinlogRecord)


def encode_record(record: BinlogRecord) -> bytes:
    """As it stands in binlogs and travels between nodes."""
    return _encoder.encode(record)


def decode_record(encoded: Buffer) -> BinlogRecord:
    try:
        return _decoder.decode(encoded)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ProtocolError(f"a record of a binlog cannot be read: {error}") from error


class BinlogPosition(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A record's place; of two replicas that which is further by this order has more of worth."""

    epoch: int = 0
    sequence: int = 0


class EpochStart(msgspec.Struct, frozen=True, array_like=True):
    """An epoch of a binlog, and the sequence of its first record there."""

    epoch: int
    sequence: int


class PartitionStore(Protocol):
    """The keys of one partition and its binlog.

    What is committed can be read at once. It is `written` when the operating system has its binlog
    and `synced` when the disk has; the storage engine gets it after that, so that it is never ahead
    of what a crash leaves of the binlog.
    """

    needed_from: int | None
    """The first record that a slave which is connected still needs, and which is not purged by
    itself therefore; None: there is none."""

    readers: BinlogReaders
    """Who reads the binlog by command: what they need stays as well."""

    last_writes: LastWrites | None
    """Kept where reads wait for what they have read; see `note_last_writes`."""

    def note_last_writes(self, *, is_on: bool) -> None:
        """Keep `last_writes` from now on, always the same object, or do not."""
        ...

    @property
    def recent(self) -> Mapping[bytes, KeyWrite]:
        """Some keys by the write that gave them what they have now, always the same mapping; what
        the others have tells `get`.
        """
        ...

    @property
    def epoch(self) -> int:
        """Of the last record; 0: there is none."""
        ...

    @property
    def epochs(self) -> Sequence[EpochStart]:
        """Of all records in their order. Of those that are purged at least that of the last one is
        there, where it is known from.
        """
        ...

    @property
    def repairing(self) -> BinlogPosition | None:
        """The position from which on the keys are those of one moment again, after a rewind; None
        from then on. Kept over restarts.
        """
        ...

    @property
    def is_well(self) -> bool:
        """Whether it takes records, as far as is known: its engine did the last time."""
        ...

    @property
    def first_sequence(self) -> int:
        """Of the oldest record that is still here; last + 1 where there is none."""
        ...

    @property
    def last_sequence(self) -> int: ...

    @property
    def written_sequence(self) -> int: ...

    @property
    def synced_sequence(self) -> int: ...

    def get(self, key: bytes, *, now_ms: int) -> Value | None:
        """None where there is nothing, or it has expired."""
        ...

    def multi_get_cached(self, keys: Sequence[bytes], *, now_ms: int) -> list[Value | None] | None:
        """As `multi_get`, at once, or None where the engine must be asked."""
        ...

    async def multi_get(self, keys: Sequence[bytes], *, now_ms: int) -> list[Value | None]:
        """As of the moment of the call; cold ones are fetched beside the loop."""
        ...

    def scan(self, *, after: bytes | None, now_ms: int) -> Iterator[tuple[bytes, Value]]:
        """Keys behind one in the store's own order; each that stays is told once."""
        ...

    def scan_tag(self, tag: bytes, *, now_ms: int) -> Iterator[tuple[bytes, Value]]:
        """All keys with the tag."""
        ...

    def sequence_of(self, producer: bytes, number: int) -> int | None:
        """Of the record with an origin; None where it is not known (any more)."""
        ...

    def last_number(self, producer: bytes) -> int | None:
        """The largest number of a producer whose record is known; None where there is none."""
        ...

    async def count(self) -> int | None:
        """How many keys there are, those among them that have expired and still take room; None
        where that is not known for now. Waits for what is on its way to the engine.
        """
        ...

    @property
    def about_keys(self) -> int:
        """At once, and about so many."""
        ...

    def random_key(self, source: random.Random, *, now_ms: int) -> bytes | None:
        """Each key about as likely as any other; None where there is none."""
        ...

    @property
    def next_ending_ms(self) -> int:
        """No key that takes room expires before; 0: not known."""
        ...

    def expired(self, *, now_ms: int, keys_max: int) -> list[bytes]:
        """Some keys that have expired and take room, for the master to commit their removal.

        Looks at a bounded number of keys, on from where the last call ended.
        """
        ...

    def write(self, writes: Mapping[bytes, KeyWrite], *, size: int, epoch: int) -> int:
        """Make writes, by their keys, part of the record that this turn of the loop ends with, all
        in one and at once; answers its sequence. `size` is that of keys and data, and `WRITE_BYTES`
        for each. It is what a master does; there has to be a write.
        """
        ...

    def commit(self, record: BinlogRecord, encoded: Buffer | None = None) -> None:
        """Make a record the last one, at once; it has to be the next, at this epoch or a later.

        `encoded` is what the binlog keeps, where it is there already.
        """
        ...

    async def records(self, *, first: int, bytes_max: int) -> list[Buffer]:
        """Some from a sequence on, encoded, those that are not written yet too; at least one where
        there is one. `OutOfRange` once purged.
        """
        ...

    def listen(self, heard: Callable[[], None]) -> Callable[[], None]:
        """Be told whenever one of the sequences has gone up; returns how to stop that."""
        ...

    async def touched(self, *, after: int) -> list[bytes] | None:
        """The keys that records behind a sequence wrote; None where one of them flushed."""
        ...

    async def rewind(
        self, *, after: int, values: Sequence[KeyWrite], until: BinlogPosition
    ) -> None:
        """Take the records behind a sequence out of the binlog, and give the keys that they touched
        the values that the master has had at `until`. Durable, and one step whatever crashes.
        """
        ...

    async def purge(self, *, before: int) -> None:
        """Forget records below a sequence; those that the engine has not got stay."""
        ...

    async def checkpoint(self, folder: str) -> int:
        """A copy of the engine in a new folder, and the sequence of the last record in it."""
        ...

    async def restore(self, folder: str, *, sequence: int, epochs: Sequence[EpochStart]) -> None:
        """Take another replica's copy in place of all there is; the binlog begins behind it.

        Durable, and one step whatever crashes; the folder is the store's from now on.
        """
        ...

    async def close(self) -> None: ...
