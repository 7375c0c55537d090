"""What the listener for clients knows of its node: the topology, and the copies that are here."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from raftwood.zeppelin.model import NodeId, Topology
from raftwood.zeppelin.records import (
    WRITE_BYTES,
    Acks,
    BinlogRecord,
    KeyWrite,
    LastWrites,
    PartitionStore,
)


class PartitionCopy:
    """This node's copy of one partition, and what may be done with it now.

    Whoever assembles the node changes what may be done as the topology and the lease say. Each time
    that the node becomes master there is another one: what clients remember of the one before (what
    they wrote, what they watch) is not of this one.
    """

    __slots__ = (
        "acks",
        "epoch",
        "is_leading",
        "is_reading_behind",
        "is_serving",
        "last_writes",
        "recent",
        "store",
        "watched",
    )

    def __init__(self, store: PartitionStore, acks: Acks, *, epoch: int) -> None:
        self.store = store
        self.recent = store.recent
        """Looked up for nearly every request."""
        self.last_writes: LastWrites | None = store.last_writes
        """What reads have to wait for; None: they tell the latest, whatever becomes of it."""
        self.acks = acks
        self.epoch = epoch
        """Of the partition: a master's records have it."""
        self.is_leading = False
        """This is the master, as far as it knows, and its lease is on."""
        self.is_serving = False
        """The same, and it is not being handed over: then another may be master before this node
        hears of it, so that it neither writes nor reads."""
        self.is_reading_behind = False
        """This is a slave, for those who asked for that."""
        self.watched: dict[bytes, dict[Callable[[], None], None]] = {}
        """Who is to be told when a key changes."""

    @property
    def may_read_behind(self) -> bool:
        """A slave whose values are of some moment."""
        return self.is_reading_behind and self.store.repairing is None

    def seen(self, keys: Iterable[bytes]) -> int:
        """The last record that what is read of keys depends on; 0: reads do not wait."""
        return 0 if self.last_writes is None else self.last_writes.of_all(keys)

    def seen_of_all(self) -> int:
        """As `seen`, of all keys, and of those that are not there."""
        return 0 if self.last_writes is None else self.store.last_sequence

    def is_undone(self, sequence: int) -> bool:
        """Whether a read that depends on this record has to wait."""
        acks = self.acks
        return sequence > acks.reached and not acks.is_immediate

    def commit(
        self,
        writes: tuple[KeyWrite, ...],
        *,
        flushes: bool = False,
        origin: tuple[bytes, int] | None = None,
    ) -> int:
        """Make writes part of one record of the binlog; its sequence.

        What a flush or a request with a name leaves is a record of its own.
        """
        if writes and not flushes and origin is None:
            size = sum(len(each.key) + len(each.data or b"") + WRITE_BYTES for each in writes)
            return self.write({each.key: each for each in writes}, size)
        store = self.store
        sequence = store.last_sequence + 1
        store.commit(BinlogRecord(self.epoch, sequence, writes, flushes, origin))
        if self.watched:
            self._touch([*self.watched] if flushes else [write.key for write in writes])
        return sequence

    def write(self, writes: Mapping[bytes, KeyWrite], size: int) -> int:
        """As `PartitionStore.write`."""
        sequence = self.store.write(writes, size=size, epoch=self.epoch)
        if self.watched:
            self._touch(writes)
        return sequence

    def _touch(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            for touched in self.watched.pop(key, ()):
                touched()


class NodeView(Protocol):
    """The node as its clients' commands see it."""

    @property
    def node_id(self) -> NodeId: ...

    @property
    def topology(self) -> Topology: ...

    @property
    def has_lease(self) -> bool:
        """The meta server was heard from lately enough."""
        ...

    async def wait_for_news(self, timeout_s: float) -> None:
        """Until something else may be done with some copy, or for as long."""
        ...

    def copies(self, table: str) -> Sequence[PartitionCopy | None]:
        """By place, so that a partition which stands at two has its copy twice; none where the
        table is not known.

        Asked anew for each turn of the loop, so that a lease that has run out is noticed before
        anything is answered, even where the process stood still: what a copy says then has to be
        true for this turn.
        """
        ...
