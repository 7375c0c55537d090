"""A node as its listener for clients sees it: the topology, and the copies that are here."""

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
    """This node's copy of one partition, and what clients may do with it now.

    `ServedCopies` updates it from the topology and the lease. Each time the node becomes master it
    makes a new copy, because the waits and watches of clients belong to the former tenure.
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
        """The store's `recent`, looked up for nearly every request."""
        self.last_writes: LastWrites | None = store.last_writes
        """Present if reads wait for the records that they read; None: they return the latest."""
        self.acks = acks
        self.epoch = epoch
        """The partition's epoch, which a master's records carry."""
        self.is_leading = False
        """The node believes that it is master, and its lease is on."""
        self.is_serving = False
        """Leading, and no hand-over is running: in a hand-over another node may be master before
        this one learns of it, so this one neither writes nor reads."""
        self.is_reading_behind = False
        """The node is a slave; serves clients that asked for slave reads."""
        self.watched: dict[bytes, dict[Callable[[], None], None]] = {}
        """By key: the clients to notify when it changes."""

    @property
    def may_read_behind(self) -> bool:
        """Whether this slave's values are of one moment."""
        return self.is_reading_behind and self.store.repairing is None

    def seen(self, keys: Iterable[bytes]) -> int:
        """Returns the last record that a read of these keys depends on; 0: reads do not wait."""
        return 0 if self.last_writes is None else self.last_writes.of_all(keys)

    def seen_of_all(self) -> int:
        """Like `seen`, for reads that depend on all keys, also missing ones."""
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
        """Commits writes in one record of the binlog; returns its sequence.

        A flush or a request with an origin gets a record of its own.
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
        """Like `PartitionStore.write`; also notifies watching clients."""
        sequence = self.store.write(writes, size=size, epoch=self.epoch)
        if self.watched:
            self._touch(writes)
        return sequence

    def _touch(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            for touched in self.watched.pop(key, ()):
                touched()


class NodeView(Protocol):
    """A node as its clients' commands see it."""

    @property
    def node_id(self) -> NodeId: ...

    @property
    def topology(self) -> Topology: ...

    @property
    def has_lease(self) -> bool:
        """Whether the meta server answered recently enough."""
        ...

    async def wait_for_news(self, timeout_s: float) -> None:
        """Waits until a copy's permissions change, at most this long."""
        ...

    def copies(self, table: str) -> Sequence[PartitionCopy | None]:
        """The copies by place: a partition with two places is there twice. Empty if the table is
        not known.

        Each turn of the loop asks again, so that the node notices an expired lease before it
        answers, even if the process stood still. The copies must be right for the whole turn.
        """
        ...
