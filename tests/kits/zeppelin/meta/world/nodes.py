"""A node as the meta server sees it: partitions as lists of records, a lease, and a clock."""

from raftwood.zeppelin.meta.deltas import Delta, applied
from raftwood.zeppelin.meta.heartbeats import LeaderMoment, NodeHeartbeat, ReplicaOffset
from raftwood.zeppelin.model import (
    NodeId,
    Partition,
    PartitionId,
    PartitionState,
    Table,
    Topology,
)

RECORD_BYTES = 100
TAKES_MAX = 8
"""Records of one partition with one message."""
Entry = tuple[int, int]
"""Epoch, and the number of a write; the place in the list is the sequence."""


class Replica:
    def __init__(self) -> None:
        self.log: list[Entry] = []
        self.lag = 0
        self.contact_ms: float | None = None
        """With the present master."""
        self.is_open = True
        self.is_whole = True
        """False from when it was made to repair until a master has mended it."""

    @property
    def can_lead(self) -> bool:
        return self.is_open and self.is_whole


class FakeNode:
    """`rate` is how fast its clock runs."""

    def __init__(self, name: str, rate: float) -> None:
        self.id = NodeId(name)
        self.rate = rate
        self.run = 0
        self.is_running = False
        self.is_registered = False
        self.is_leaving = False
        self.stalled_until_ms = 0.0
        self.slow_until_ms = 0.0
        self.takes_to_move = TAKES_MAX
        """Instead of that, of what moves to it."""
        self.topology = Topology()
        self.lease_until = -1.0
        """By its own clock."""
        self.answered: LeaderMoment | None = None
        self.replicas: dict[PartitionId, Replica] = {}

    def clock(self, now_ms: float) -> float:
        return now_ms * self.rate

    def is_awake(self, now_ms: float) -> bool:
        return self.is_running and now_ms >= self.stalled_until_ms

    def serves(self, key: PartitionId, partition: Partition | None, now_ms: float) -> bool:
        """Whether it would take a write for a partition now."""
        return (
            partition is not None
            and self.is_awake(now_ms)
            and self.clock(now_ms) < self.lease_until
            and partition.master == self.id
            and partition.state is not PartitionState.STUCK
            and key in self.replicas
            and self.replicas[key].can_lead
        )

    def table(self, incarnation: int) -> Table | None:
        tables = self.topology.tables.values()
        return next((each for each in tables if each.incarnation == incarnation), None)

    def partition(self, key: PartitionId) -> Partition | None:
        table = self.table(key[0])
        return table.partitions[key[1]] if table is not None else None

    def takes_of(self, key: PartitionId) -> int:
        partition = self.partition(key)
        moved = partition.migration if partition is not None else None
        is_target = moved is not None and moved.target == self.id
        return self.takes_to_move if is_target else TAKES_MAX

    def apply(self, delta: Delta) -> None:
        before = {key: self.partition(key) for key in self.replicas}
        self.topology = applied(self.topology, delta)
        wanted = {
            PartitionId(table.incarnation, number): partition
            for table in self.topology.tables.values()
            for number, partition in enumerate(table.partitions)
            if self.id in partition.replicas
        }
        self.replicas = {
            key: self.replicas.get(key) or self._new_replica(partition)
            for key, partition in wanted.items()
        }
        for key, partition in wanted.items():
            old = before.get(key)
            if old is None or old.master != partition.master:
                self.replicas[key].contact_ms = None
            if partition.master == self.id:
                self.replicas[key].lag = 0

    def _new_replica(self, partition: Partition) -> Replica:
        """That of a migration's target is a copy at first, now and then."""
        replica, moved = Replica(), partition.migration
        is_target = moved is not None and moved.target == self.id
        replica.is_whole = not is_target or partition.epoch % 2 == 0
        return replica

    def heartbeat(self, now_ms: float) -> NodeHeartbeat:
        return NodeHeartbeat(
            self.id,
            self.run,
            self.topology.epoch,
            tuple(
                self._offset(key, replica, now_ms)
                for key, replica in self.replicas.items()
                if replica.is_open
            ),
            self.answered,
            is_leaving=self.is_leaving,
        )

    def _offset(self, key: PartitionId, replica: Replica, now_ms: float) -> ReplicaOffset:
        contact_ms = None if replica.contact_ms is None else int(now_ms - replica.contact_ms)
        epoch = replica.log[-1][0] if replica.log else 0
        lag_bytes = replica.lag * RECORD_BYTES
        length = len(replica.log)
        whole = replica.is_whole
        is_streaming = whole and contact_ms is not None
        return ReplicaOffset(
            key[0], key[1], epoch, length, lag_bytes, contact_ms, whole, is_streaming=is_streaming
        )

    def crash(self, lost: dict[PartitionId, int]) -> None:
        """Its lease is gone, and as many of the last records of some partitions."""
        self.is_running = self.is_registered = self.is_leaving = False
        self.answered = None
        self.lease_until = -1.0
        for key, count in lost.items():
            log = self.replicas[key].log
            del log[len(log) - count :]
        for replica in self.replicas.values():
            replica.contact_ms = None


def common_length(one: list[Entry], other: list[Entry]) -> int:
    """How far two logs are the same; as those of raft they are from there on down."""
    length = min(len(one), len(other))
    while length and one[length - 1][0] != other[length - 1][0]:
        length -= 1
    return length
