"""The seam between a partition's storage and those who use it: commands, and replication.

Everything runs on one event loop, and whatever changes a partition does so without awaiting: the
loop is the lock of every key and tag, and binlog order is the order of execution.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from raftwood.base.errors import ProtocolError
from raftwood.base.files import Buffer
from raftwood.zeppelin.node.acks import LastWrites
from raftwood.zeppelin.node.binlog_readers import BinlogReaders

KEY_BYTES_MAX: Final = 16 << 10
"""What is not larger as a whole has no key in it that is."""


class Value(msgspec.Struct, frozen=True, gc=False):
    """What a key has; `expires_ms` is absolute, 0 for never."""

    data: bytes
    expires_ms: int = 0


class Write(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one key has from now on; None: nothing.

    Always the outcome, never an operation: applied twice, it is the same as once.
    """

    key: bytes
    data: bytes | None
    expires_ms: int = 0


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry of a binlog: writes that happen together, or the end of all keys before them.

    Sequences go up by one, from 1 on. The epoch is that of the master that wrote it: of two records
    with the same sequence those of equal epochs are the same.
    """

    epoch: int
    sequence: int
    writes: tuple[Write, ...]
    flushes: bool = False
    """All keys that there were are gone; then come the writes."""
    origin: tuple[bytes, int] | None = None
    """Of a retried request: who sent it, and its number there; it is known again by that."""


WRITE_BYTES: Final = 24
"""What a write takes in a record besides its key and data, at the most."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


def encode_record(record: Record) -> bytes:
    """As it stands in binlogs and travels between nodes."""
    return _encoder.encode(record)


def decode_record(encoded: Buffer) -> Record:
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
    def recent(self) -> Mapping[bytes, Write]:
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

    def write(self, writes: Mapping[bytes, Write], *, size: int, epoch: int) -> int:
        """Make writes, by their keys, part of the record that this turn of the loop ends with, all
        in one and at once; answers its sequence. `size` is that of keys and data, and `WRITE_BYTES`
        for each. It is what a master does; there has to be a write.
        """
        ...

    def commit(self, record: Record, encoded: Buffer | None = None) -> None:
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

    async def rewind(self, *, after: int, values: Sequence[Write], until: BinlogPosition) -> None:
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
