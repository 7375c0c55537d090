"""Progress of ordered migrations: from the topology, and from nodes' reports."""

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from raftwood.zeppelin.meta.changes import AddSlave
from raftwood.zeppelin.meta.heartbeats import ReplicaOffset
from raftwood.zeppelin.meta.plans import ClusterPlan, ReplicaMove
from raftwood.zeppelin.meta.queries import NodeReport
from raftwood.zeppelin.model import Migration, NodeId, Partition, PartitionState, Table, Topology

MigrationStage = Literal["waiting", "copying", "catching up", "slowed down", "frozen", "ending"]
STEPS: tuple[MigrationStage, ...] = (
    "waiting",
    "copying",
    "catching up",
    "slowed down",
    "frozen",
    "ending",
)


class MovingReplica(msgspec.Struct, frozen=True, kw_only=True):
    """A migration that is not over."""

    table: str
    partition: int
    source: NodeId
    target: NodeId
    order: int
    """Epoch of the order."""
    step: MigrationStage
    copied_bytes: int = 0
    copy_bytes: int = 0
    """Size of the whole copy; 0 once it is done."""
    lag_bytes: int | None = None
    is_target_up: bool = True


class MigrationProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of one order, or of all orders."""

    epoch: int
    total: int
    moving: tuple[MovingReplica, ...]
    """Migrations that are not over, in the order of tables and partitions."""
    handovers: int
    """Masters that are not on their preferred node, though that node is up."""
    behind: int
    """Slaves that a plan has added, and that have to catch up."""

    @property
    def done(self) -> int:
        return self.total - len(self.moving)

    @property
    def steps(self) -> dict[MigrationStage, int]:
        """Number of migrations at each step."""
        counts = dict.fromkeys(STEPS, 0)
        for each in self.moving:
            counts[each.step] += 1
        return counts

    @property
    def copied_bytes(self) -> int:
        return sum(each.copied_bytes for each in self.moving)

    @property
    def copy_bytes(self) -> int:
        return sum(each.copy_bytes for each in self.moving)


def progress_of(
    topology: Topology,
    reports: Mapping[NodeId, NodeReport],
    order: int | None = None,
    *,
    plan: ClusterPlan | None = None,
) -> MigrationProgress:
    """Returns the progress of an epoch's order, else of all; with a plan, also of its masters."""
    moving: list[MovingReplica] = []
    totals: dict[int, int] = {}
    masters = {(each.table, each.partition) for each in plan.masters} if plan is not None else set()
    offsets = {
        (node, offset.incarnation, offset.partition): offset
        for node, report in reports.items()
        for offset in report.offsets
    }
    for table, number, partition in _all(topology):
        for place, migration in enumerate(partition.migrations):
            if order not in (None, migration.plan):
                continue
            totals[migration.plan] = migration.of
            offset = offsets.get((migration.target, table.incarnation, number))
            moving.append(
                _moving(topology, table, number, migration, offset if place == 0 else None)
            )
    return MigrationProgress(
        epoch=topology.epoch,
        total=sum(totals.values()),
        moving=tuple(moving),
        handovers=sum(
            _is_away(topology, each)
            for table, number, each in _all(topology)
            if plan is None or (table.name, number) in masters
        ),
        behind=sum(
            isinstance(each, AddSlave)
            and each.table in topology.tables
            and each.node in topology.tables[each.table].partitions[each.partition].lagging
            for each in (plan.changes if plan is not None else ())
        ),
    )


def is_under_way(topology: Topology) -> bool:
    """Whether a migration is running, and not only waiting."""
    return any(
        each.migration is not None and each.migration.target in each.replicas
        for *_, each in _all(topology)
    )


def unmoved(plan: ClusterPlan, topology: Topology) -> list[ReplicaMove]:
    """Returns the moves of a finished plan that were cancelled."""

    def is_made(move: ReplicaMove) -> bool:
        table = topology.tables.get(move.table)
        if table is None:
            return True
        replicas = table.partitions[move.partition].replicas
        return move.target in replicas and move.source not in replicas

    return [move for move in plan.moves if not is_made(move)]


def _all(topology: Topology) -> Iterator[tuple[Table, int, Partition]]:
    for _, table in sorted(topology.tables.items()):
        for number, partition in enumerate(table.partitions):
            yield table, number, partition


def _moving(
    topology: Topology,
    table: Table,
    number: int,
    migration: Migration,
    offset: ReplicaOffset | None,
) -> MovingReplica:
    partition = table.partitions[number]
    step = _step(partition, migration, offset)
    is_told = offset is not None and step != "waiting"
    target = topology.nodes.get(migration.target)
    return MovingReplica(
        table=table.name,
        partition=number,
        source=migration.source,
        target=migration.target,
        order=migration.plan,
        step=step,
        copied_bytes=offset.copied_bytes if offset is not None and is_told else 0,
        copy_bytes=offset.copy_bytes if offset is not None and is_told else 0,
        lag_bytes=offset.lag_bytes if offset is not None and is_told else None,
        is_target_up=target is not None and target.is_up,
    )


def _step(
    partition: Partition, migration: Migration, offset: ReplicaOffset | None
) -> MigrationStage:
    target = migration.target
    if migration != partition.migration or target not in partition.replicas:
        return "waiting"
    if partition.state is PartitionState.STUCK:
        return "frozen"
    if target == partition.master:
        return "ending"
    if partition.state is PartitionState.SLOWDOWN:
        return "slowed down"
    if offset is None or offset.copy_bytes or not offset.is_candidate:
        return "copying"
    return "catching up"


def _is_away(topology: Topology, partition: Partition) -> bool:
    home = partition.preferred
    return (
        home is not None
        and home != partition.master
        and home in partition.replicas
        and topology.nodes[home].is_up
    )
