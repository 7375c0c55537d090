"""`ServedCopies`: the copies that clients may use, by the node's topology, replicas and lease."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from raftwood.base.environment import Clock
from raftwood.zeppelin.model import NodeId, PartitionId, Topology
from raftwood.zeppelin.node.view import PartitionCopy
from raftwood.zeppelin.replication.replica import PartitionReplica, ReplicaRole, ServingLease
from raftwood.zeppelin.slots import place_of_slot

_NEVER_NS: Final = 1 << 63


class ServedCopies:
    """Implements `NodeView`.

    A change of a replica updates its copy at once, so a turn of the loop only looks at the clock:
    only the end of a lease comes without a notification.
    """

    def __init__(self, node_id: NodeId, clock: Clock, lease: ServingLease) -> None:
        self.node_id = node_id
        self.topology = Topology()
        self._clock = clock
        self.lease = lease
        self._lease_end_ns = _NEVER_NS
        """End of the lease that the copies are based on."""
        self._is_noted = False
        """All copies were updated while the lease was on."""
        self._replicas: dict[PartitionId, PartitionReplica] = {}
        self._copies: dict[PartitionId, PartitionCopy] = {}
        self._tables: dict[str, list[PartitionCopy | None]] = {}
        """The copies of each table, by place."""
        self._news = asyncio.Event()
        """Set and replaced at each change."""

    @property
    def has_lease(self) -> bool:
        return self.lease.is_on(self._clock.monotonic_ns())

    async def wait_for_news(self, timeout_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._news.wait()

    def copies(self, table: str) -> Sequence[PartitionCopy | None]:
        if self._clock.monotonic_ns() >= self._lease_end_ns:
            self.lease_changed()
        return self._tables.get(table, ())

    # Called by the node's other parts.

    def learn(self, topology: Topology, replicas: Mapping[PartitionId, PartitionReplica]) -> None:
        """Takes a new topology, and the replicas; copies of all other replicas go."""
        self.topology = topology
        for partition in [each for each in self._copies if each not in replicas]:
            del self._copies[partition], self._replicas[partition]
        self._tables = {
            table.name: [
                self._copies.get(PartitionId(table.incarnation, number)) for number in table.places
            ]
            for table in topology.tables.values()
        }
        self._tell()

    def replica_changed(self, replica: PartitionReplica) -> None:
        """Updates the copy of a replica, before this returns."""
        partition = replica.partition
        copy = self._copies.get(partition)
        if copy is None or copy.acks is not replica.acks or copy.store is not replica.store:
            if copy is not None:
                copy.is_leading = copy.is_serving = copy.is_reading_behind = False
            copy = PartitionCopy(replica.store, replica.acks, epoch=replica.epoch)
            self._copies[partition] = copy
            self._put(partition, copy)
        self._replicas[partition] = replica
        if self.has_lease:
            self._lease_end_ns = self.lease.until_ns
        else:
            self._is_noted = False
        _note(copy, replica)
        self._tell()

    def lease_changed(self) -> None:
        """Updates all copies once the lease has ended or was renewed."""
        now_ns = self._clock.monotonic_ns()
        is_on = self.lease.is_on(now_ns)
        was_on, self._is_noted = self._is_noted and now_ns < self._lease_end_ns, is_on
        self._lease_end_ns = self.lease.until_ns if is_on else _NEVER_NS
        if was_on and is_on:
            return  # the lease was on all the time: the copies are up to date
        for partition, copy in self._copies.items():
            _note(copy, self._replicas[partition])
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _put(self, partition: PartitionId, copy: PartitionCopy) -> None:
        for table in self.topology.tables.values():
            if table.incarnation == partition.incarnation:
                slots, places = table.slots_of(partition.number), len(table.places)
                first, last = (place_of_slot(each, places) for each in (slots[0], slots[-1]))
                self._tables[table.name][first : last + 1] = [copy] * (last + 1 - first)


def _note(copy: PartitionCopy, replica: PartitionReplica) -> None:
    copy.epoch = replica.epoch
    copy.last_writes = replica.store.last_writes
    copy.is_leading = replica.is_leading
    copy.is_serving = replica.may_write
    copy.is_reading_behind = replica.role is ReplicaRole.SLAVE
