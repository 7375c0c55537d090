"""A meta server by script: it grants leases, and makes another node master only if that is safe."""

import asyncio
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from raftwood.zeppelin.model import (
    Node,
    NodeAddresses,
    NodeId,
    Partition,
    PartitionId,
    PartitionState,
    Table,
    TableConfig,
    Topology,
)
from raftwood.zeppelin.replication.progress import ReplicaReport

LEASE_MS = 600
DOWN_S = 0.8
"""More than the lease by the slowest clock."""
PORT = 7_000
TABLE = "table"
NOISE = "noise"
_INCARNATION = 1
Reports = Mapping[PartitionId, ReplicaReport]


class HeartbeatAnswer(msgspec.Struct, frozen=True):
    """To a heartbeat; `moment` is when it was given, and comes back with the next one."""

    moment: float
    topology: Topology


class Heard(msgspec.Struct):
    """What a node told last."""

    at: float
    after: float
    """Its reports are of a moment after this one."""
    applied_epoch: int
    reports: Reports


class ScriptedMeta:
    """Lives outside of all machines; nodes that are cut off do not reach it."""

    def __init__(self, names: Sequence[str], config: TableConfig) -> None:
        self.config = config
        self.cut_off: dict[str, None] = {}
        self.heard: dict[NodeId, Heard] = {}
        self.failovers = 0
        self.handovers = 0
        self._changed_at: dict[PartitionId, tuple[int, float]] = {}
        """The epoch at which a partition changed last, and when that was."""
        nodes = {
            NodeId(name): Node(
                id=NodeId(name),
                addresses=NodeAddresses(
                    data=f"{name}:1", replication=f"{name}:{PORT}", admin=f"{name}:2"
                ),
                is_up=True,
            )
            for name in names
        }
        ids = [*nodes]
        partitions = tuple(
            Partition(
                epoch=1,
                master=ids[number % len(ids)],
                slaves=tuple(each for each in ids if each != ids[number % len(ids)]),
            )
            for number in range(config.partitions)
        )
        table = Table(name=TABLE, incarnation=_INCARNATION, config=config, partitions=partitions)
        noise = Table(
            name=NOISE,
            incarnation=_INCARNATION + 1,
            config=TableConfig(partitions=1),
            partitions=(Partition(epoch=1, master=None),),
        )
        self.topology = Topology(epoch=2, tables={TABLE: table, NOISE: noise}, nodes=nodes)
        self.partitions = [PartitionId(_INCARNATION, number) for number in range(len(partitions))]

    def known(self, partition: PartitionId) -> Partition:
        return self.topology.tables[TABLE].partitions[partition.number]

    # What nodes ask.

    def heartbeat(
        self, node: NodeId, *, after: float, applied_epoch: int, reports: Reports
    ) -> HeartbeatAnswer:
        now = self.now()
        self.heard[node] = Heard(now, after, applied_epoch, reports)
        return HeartbeatAnswer(now, self.topology)

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    # What it decides.

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            for partition in self.partitions:
                self._fail_over(partition)
                self._end_handover(partition)

    def _fail_over(self, partition: PartitionId) -> None:
        known = self.known(partition)
        assert known.master is not None
        master = self.heard.get(known.master)
        if master is None:
            return
        since = master.at + LEASE_MS / 1000
        if self.now() - master.at < DOWN_S:
            if not self._is_unfit(partition, master):
                return
            since = self._changed_at[partition][1]
        reports = self.fresh_reports(partition, since)
        chosen = safe_successor(
            reports,
            replicas=len(known.replicas),
            min_replicas=self.config.min_replicas,
        )
        if chosen is not None:
            self.failovers += 1
            self._make_master(partition, chosen)

    def _is_unfit(self, partition: PartitionId, master: Heard) -> bool:
        """Whether it was chosen and then, by word of the one before, has cut what it was chosen
        for: it repairs, does not lead, and nobody mends it.
        """
        epoch, _ = self._changed_at.get(partition, (1 << 60, 0.0))
        report = master.reports.get(partition)
        return master.applied_epoch >= epoch and report is not None and not report.is_whole

    def fresh_reports(self, partition: PartitionId, since: float) -> dict[NodeId, ReplicaReport]:
        """Those of a moment after the last master's lease had ended, not merely heard after it."""
        return {
            node: heard.reports[partition]
            for node, heard in self.heard.items()
            if heard.after >= since and partition in heard.reports
        }

    def begin_handover(self, partition: PartitionId) -> None:
        self._change(partition, replace(self.known(partition), state=PartitionState.STUCK))

    def _end_handover(self, partition: PartitionId) -> None:
        known = self.known(partition)
        if known.state is not PartitionState.STUCK:
            return
        assert known.master is not None
        master = self.heard.get(known.master)
        if master is None or master.applied_epoch < self._changed_at[partition][0]:
            return
        frozen = master.reports.get(partition)
        for slave in known.slaves:
            heard = self.heard.get(slave)
            report = None if heard is None else heard.reports.get(partition)
            if report is None or frozen is None or not report.is_whole:
                continue
            if report.position == frozen.position:
                self.handovers += 1
                self._make_master(partition, slave)
                return

    def bump(self, partition: PartitionId) -> None:
        """Another epoch with the same master, and no hand-over any more."""
        self._change(partition, replace(self.known(partition), state=PartitionState.ACTIVE))

    def make_noise(self) -> None:
        """Something changes that is none of these partitions' business."""
        noise = self.topology.tables[NOISE]
        (known,) = noise.partitions
        changed = replace(noise, partitions=(replace(known, epoch=known.epoch + 1),))
        self._publish({**self.topology.tables, NOISE: changed})

    def _make_master(self, partition: PartitionId, chosen: NodeId) -> None:
        known = self.known(partition)
        slaves = tuple(each for each in known.replicas if each != chosen)
        self._change(
            partition,
            replace(known, master=chosen, slaves=slaves, state=PartitionState.ACTIVE),
        )

    def _change(self, partition: PartitionId, changed: Partition) -> None:
        table = self.topology.tables[TABLE]
        partitions = [*table.partitions]
        partitions[partition.number] = replace(changed, epoch=changed.epoch + 1)
        self._publish({**self.topology.tables, TABLE: replace(table, partitions=tuple(partitions))})
        self._changed_at[partition] = self.topology.epoch, self.now()

    def _publish(self, tables: dict[str, Table]) -> None:
        self.topology = replace(self.topology, epoch=self.topology.epoch + 1, tables=tables)


def safe_successor(
    reports: Mapping[NodeId, ReplicaReport], *, replicas: int, min_replicas: int
) -> NodeId | None:
    """Who has all that was ever called done; None while that cannot be known.

    What is done is on `min_replicas` of all, so of any `replicas - min_replicas + 1` one has it,
    and that which is furthest has it. Where the furthest one repairs, it may be the only one.
    """
    if len(reports) < replicas - min_replicas + 1:
        return None
    best = max(reports, key=lambda node: (reports[node].position, reports[node].is_whole))
    return best if reports[best].is_whole else None
