"""What operators ordered of a simulated meta server, and what became of it."""

from collections import Counter

from raftwood.testing import Simulation
from raftwood.zeppelin.meta.changes import (
    CancelMigration,
    Change,
    EndMigration,
    Migrate,
    SetDraining,
)
from raftwood.zeppelin.model import NodeId, Partition, PartitionId, PartitionState
from tests.kits.models import Violation
from tests.kits.zeppelin.harms import Harm
from tests.kits.zeppelin.simulation.meta import SETTINGS, MetaGroup

FREEZE_S_MAX = (SETTINGS.handover_stuck_ms + 2 * SETTINGS.plan_ms) / 1000
"""Where nobody fails."""
FAILURE_S = (2 * SETTINGS.down_ms + SETTINGS.handover_stuck_ms) / 1000
"""By so much each failure makes a freeze longer, at the most."""
Move = tuple[NodeId, NodeId]
"""From one node to another."""


class Orders:
    """Sees each change of the topology; what is wrong is told by `check`."""

    def __init__(self, simulation: Simulation, meta: MetaGroup) -> None:
        self._simulation = simulation
        self._meta = meta
        self.pending: dict[PartitionId, tuple[Move, ...]] = {}
        """In the order in which they are to be made."""
        self.ended: Counter[str] = Counter()
        self.failures = 0
        """How often somebody has failed by now."""
        self.longest_freeze_s = 0.0
        self._frozen: dict[PartitionId, tuple[float, int]] = {}
        """Since when, and how many had failed a while before."""
        self._broken: Violation | None = None
        meta.watchers.append(self._made)

    def failure(self) -> None:
        """Somebody fails now; a freeze that begins soon after may be longer, too."""
        self.failures += 1

    def check(self) -> None:
        """Raises what was broken."""
        for partition in self._frozen:
            self._judge_freeze(partition)
        if self._broken is not None:
            raise self._broken

    def _made(self, changes: tuple[Change, ...]) -> None:
        topology = self._meta.topology
        for change in changes:
            if isinstance(change, Migrate | EndMigration | CancelMigration):
                table = topology.tables[change.table]
                partition = PartitionId(table.incarnation, change.partition)
                self._note(partition, table.partitions[change.partition], change)
            elif isinstance(change, SetDraining) and change.is_draining:
                self._note_drained(change.id)
        for table in topology.tables.values():
            for number, known in enumerate(table.partitions):
                partition = PartitionId(table.incarnation, number)
                expected = self.pending.get(partition, ())
                if _moves(known) != expected:
                    self._break(Harm.FORGOTTEN, f"{partition} is {known}, ordered was {expected}")
                self._note_freeze(partition, known)

    def _note(
        self,
        partition: PartitionId,
        known: Partition,
        change: Migrate | EndMigration | CancelMigration,
    ) -> None:
        pending = self.pending.get(partition, ())
        match change:
            case Migrate():
                pending = (*pending, (change.source, change.target))
            case EndMigration():
                (source, target), *others = pending
                pending = tuple(others)
                self.ended["done"] += 1
                if source in known.replicas or target not in known.replicas:
                    self._break(Harm.FORGOTTEN, f"{partition} is {known}, moved {source}, {target}")
            case _:
                # Where it is too late for the first, those after it do not begin.
                pending = pending[: len(_moves(known))]
                self.ended["cancelled"] += 1
        self.pending[partition] = pending

    def _note_drained(self, node: NodeId) -> None:
        """It gets nothing more, but for what it is needed for already."""
        for partition, pending in self.pending.items():
            known = self._meta.partition(partition)
            if known is not None and node != known.master:
                left = tuple(each for each in pending if each[1] != node)
                if left != pending and _moves(known) == left:
                    self.ended["cancelled"] += len(pending) - len(left)
                    self.pending[partition] = left

    def _note_freeze(self, partition: PartitionId, known: Partition) -> None:
        if known.state is PartitionState.STUCK:
            self._frozen.setdefault(partition, (self._simulation.now, self.failures))
        elif partition in self._frozen:
            self._judge_freeze(partition)
            del self._frozen[partition]

    def _judge_freeze(self, partition: PartitionId) -> None:
        began, failures = self._frozen[partition]
        lasted_s = self._simulation.now - began
        self.longest_freeze_s = max(self.longest_freeze_s, lasted_s)
        # One that came before may not be known yet.
        counted = self.failures - max(0, failures - 1)
        if lasted_s > FREEZE_S_MAX + FAILURE_S * counted:
            self._break(Harm.FROZEN, f"{partition} was frozen for {lasted_s:.2f} s")

    def _break(self, harm: Harm, detail: str) -> None:
        self._broken = self._broken or Violation(harm, detail)


def _moves(known: Partition) -> tuple[Move, ...]:
    return tuple((each.source, each.target) for each in known.migrations)
