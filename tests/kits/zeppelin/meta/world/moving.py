"""`MovingWorld`: replicas are ordered from node to node all the time, amid all faults."""

from collections import Counter

import msgspec

from raftwood.zeppelin.meta.changes import (
    AddTarget,
    BeginHandover,
    CancelMigration,
    Change,
    Migrate,
    NodeDown,
    NodeUp,
    SetDraining,
    SlowDown,
)
from raftwood.zeppelin.model import NodeId, Partition, PartitionId, PartitionState, Table, Topology
from tests.kits.models import Violation
from tests.kits.zeppelin.meta.world.nodes import TAKES_MAX
from tests.kits.zeppelin.meta.world.world import SETTINGS, World

MOVING = msgspec.structs.replace(
    SETTINGS,
    handover_close_bytes=400,
    handover_stuck_ms=1_500,
    migrations_max=3,
    target_gone_ms=2_500,
    migrations_per_node_max=2,
    catch_up_look_ms=300,
    catch_up_ms_max=3_000,
    slowdown_ms_max=1_500,
)
SLACK_MS = 5 * MOVING.down_ms
"""Until whoever is silent is down, others have said how far they are, and that is decided."""
BOUNDS_MS = {
    PartitionState.STUCK: MOVING.handover_stuck_ms + SLACK_MS,
    PartitionState.SLOWDOWN: MOVING.slowdown_ms_max + SLACK_MS,
}


class MovingWorld(World):
    def __init__(self, seed: int) -> None:
        super().__init__(seed, nodes=5, settings=MOVING)
        self.moved = self.cancelled = self.slowed_down = 0
        self.is_healed = False
        self.calm_until_ms = 0.0
        """Until then nothing else is to go wrong."""
        self._since: dict[PartitionId, tuple[PartitionState, float]] = {}
        """In which state a partition is, and since when under a leader that could change it."""

    # Orders

    def order(self) -> None:
        """What operators ask for."""
        rng = self.rng
        if not self.topology.tables:
            return
        kind = rng.randrange(20)
        table = rng.choice([*self.topology.tables.values()])
        number = rng.randrange(len(table.partitions))
        partition = table.partitions[number]
        node = rng.choice([*self.nodes.values()])
        if kind < 12:
            sources = [*partition.replicas]
            targets = [each.id for each in self.nodes.values() if each.id not in sources]
            rng.shuffle(targets)
            if kind < 8:
                rng.shuffle(sources)
            # Now and then all of a partition's replicas at once; its master first, or not.
            count = rng.choice([1, 1, 1, len(sources)])
            moves = [*zip(sources, targets, strict=False)][:count]
            self._ask(*(Migrate(table.name, number, *move, of=len(moves)) for move in moves))
        elif kind == 12:
            self._ask(CancelMigration(table.name, number))
            self.cancelled += partition.migration is not None
        elif kind < 15:
            draining = [each.id for each in self.topology.nodes.values() if each.is_draining]
            self._ask(SetDraining(*((draining[0], False) if draining else (node.id, True))))
        else:
            # Behind what is written, or as fast as it was.
            node.takes_to_move = rng.choice([0, 1, TAKES_MAX, TAKES_MAX])

    def _ask(self, *changes: Change) -> None:
        if changes:
            self.propose(changes, lambda _: None)

    def heal(self) -> None:
        super().heal()
        self.is_healed = True
        for node in self.nodes.values():
            node.takes_to_move = TAKES_MAX

    def _cut_off(self, partition: Partition, target: NodeId) -> None:
        """Whom writers are about to wait for gets nothing any more, now and then for so long that
        it shows whether they wait for ever; then nothing else goes wrong.
        """
        rng = self.rng
        if self.is_healed or rng.random() < 0.5:
            return
        assert partition.master is not None
        link = frozenset((partition.master, target))
        self.cut_links[link] = None
        if rng.random() < 0.3:
            self.calm_until_ms = self.now_ms + max(BOUNDS_MS.values()) + 500
        else:
            self.nodes[partition.master].slow_until_ms = self.now_ms + 1_500
            self.later(1_500, lambda: self.cut_links.pop(link, None))

    # What must hold

    def change_leader(self) -> None:
        super().change_leader()
        self._since.clear()

    def _plan(self) -> None:
        super()._plan()
        if self.now_ms < self.leader_stalled_until_ms:
            self._since.clear()
        for table in self.topology.tables.values():
            for number, partition in enumerate(table.partitions):
                key, state = PartitionId(table.incarnation, number), partition.state
                known, since_ms = self._since.get(key, (None, 0.0))
                if known is not state:
                    self._since[key] = state, self.now_ms
                    self.slowed_down += state is PartitionState.SLOWDOWN
                elif self.now_ms - since_ms > BOUNDS_MS.get(state, 1e9):
                    raise Violation(f"{key} is {state} since {since_ms} and it is {self.now_ms}")

    def check_plan(self, topology: Topology, changes: tuple[Change, ...]) -> None:
        for each in changes:
            if isinstance(each, BeginHandover | SlowDown):
                partition = topology.tables[each.table].partitions[each.partition]
                if partition.migration is not None:
                    self._cut_off(partition, partition.migration.target)
        begun = {(each.table, each.partition) for each in changes if isinstance(each, AddTarget)}
        if not begun:
            return
        up = self._up(topology, changes)
        at_once, by_node = 0, Counter[NodeId]()
        for table in topology.tables.values():
            for number, partition in enumerate(table.partitions):
                moved, master = partition.migration, partition.master
                if moved is None or master is None or not {master, moved.target} <= up:
                    continue
                if moved.target in partition.replicas or (table.name, number) in begun:
                    at_once += 1
                    by_node.update({master, moved.target})
        busiest = max(by_node.values(), default=0)
        settings = self.settings
        if at_once > settings.migrations_max and begun:
            raise Violation(f"{at_once} replicas move at once")
        if busiest > settings.migrations_per_node_max:
            raise Violation(f"{busiest} replicas go from or to one node at once")

    def _up(self, topology: Topology, changes: tuple[Change, ...]) -> set[NodeId]:
        reign = self.machines[self.leader]._reign
        assert reign is not None
        downs = {each.id for each in changes if isinstance(each, NodeDown)}
        ups = {each.id for each in changes if isinstance(each, NodeUp)}
        known = {each.id for each in topology.nodes.values() if each.is_up}
        return (known | ups) - downs - reign.condemned.keys()

    def check_moved(self, table: Table, number: int) -> None:
        """The target has what was written long ago, unless it has just crashed."""
        self.moved += 1
        moved, key = table.partitions[number].migration, PartitionId(table.incarnation, number)
        assert moved is not None
        target = self.nodes[moved.target]
        if not target.is_registered:
            return
        has = {write for _, write in target.replicas[key].log} if key in target.replicas else {}
        long_ago_ms = self.now_ms - 4 * self.settings.down_ms
        for write, at_ms in self.acked.get(key, {}).items():
            if at_ms < long_ago_ms and write not in has and write not in self.forgiven:
                raise Violation(f"{moved.source} has left {key}, and {moved.target} lacks {write}")

    def check_settled(self) -> None:
        super().check_settled()
        for table in self.topology.tables.values():
            for number, partition in enumerate(table.partitions):
                if partition.migration is not None or partition.unproven:
                    raise Violation(f"{table.name}/{number} has not moved: {partition}")
                if len(partition.replicas) < table.config.min_replicas:
                    raise Violation(f"{table.name}/{number} has too few replicas: {partition}")


def move_through(seed: int, *, faults_ms: int = 20_000) -> MovingWorld:
    """As `live_through`, with more orders than faults."""
    world = MovingWorld(seed)
    world.begin()
    pace_ms = world.rng.choice([150, 400, 1_000])
    end_ms = world.now_ms + faults_ms
    while world.now_ms < end_ms:
        world.run(world.rng.uniform(0, 2 * pace_ms))
        if world.now_ms < world.calm_until_ms:
            continue
        for _ in range(world.rng.randint(2, 4)):
            world.order()
        if world.rng.random() < 0.4:
            world.fault()
    world.end(quiet_ms=15_000)
    return world
