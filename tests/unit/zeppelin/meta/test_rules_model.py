"""Tens of thousands of random changes: what must hold after each of them, whoever proposed it."""

import random

import pytest

from raftwood.zeppelin.meta import deltas
from raftwood.zeppelin.meta.changes import (
    AddSlave,
    AddTarget,
    AddUser,
    BeginHandover,
    BeginSplit,
    CancelHandover,
    CancelMigration,
    CancelSplit,
    Change,
    ChangeMaster,
    CreateTable,
    DoublePartitions,
    DropTable,
    EndHandover,
    EndMigration,
    EndSplit,
    ForceMaster,
    MarkSlaves,
    Migrate,
    NodeDown,
    NodeUp,
    RegisterNode,
    RemoveNode,
    RemoveSlave,
    RemoveTarget,
    RemoveUser,
    SetDraining,
    SetMaster,
    SetPassword,
    SlowDown,
    decode_batch,
    encode_batch,
)
from raftwood.zeppelin.meta.partition_rules import TopologyDraft
from raftwood.zeppelin.meta.topology_state import TopologyState
from raftwood.zeppelin.model import (
    NodeAddresses,
    NodeId,
    Partition,
    PartitionState,
    TableConfig,
    Topology,
    User,
)

NODES = [NodeId(f"n{each}") for each in range(7)]
HISTORY_MAX = 20


class RandomChanges:
    """Made of what there is, so that most are near to being allowed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def batch(self, topology: Topology) -> tuple[Change, ...]:
        return tuple(self.change(topology) for _ in range(self.rng.choice([1, 1, 2, 5])))

    def change(self, topology: Topology) -> Change:
        rng = self.rng
        name, node = rng.choice("tuvw"), rng.choice(NODES)
        run = topology.nodes[node].run if node in topology.nodes else 1
        table = topology.tables.get(name)
        kind = rng.randrange(100)
        if kind < 6:
            replicas = rng.randint(1, 4)
            least = rng.randint(1, replicas)
            partitions = rng.randint(1, 8)
            config = TableConfig(partitions=partitions, replicas=replicas, min_replicas=least)
            return CreateTable(name, config)
        if kind < 11:
            return DropTable(name)
        if kind < 20:
            return self.register(node, run)
        if kind < 40:
            run += rng.random() < 0.05
            return NodeUp(node, run) if rng.random() < 0.8 else NodeDown(node, run)
        if kind < 44:
            user = rng.choice(["ann", "bob"])
            is_new = rng.random() < 0.6
            added = AddUser(User(name=user, table=name, password_hash="h"))
            return added if is_new else rng.choice((RemoveUser(user), SetPassword(user, "other")))
        if kind < 46 or table is None:
            return RemoveNode(node)
        if kind < 48:
            return SetDraining(node, rng.random() < 0.3)
        number = rng.randrange(len(table.partitions))
        return self.of_partition(name, number, table.partitions[number], kind)

    def register(self, node: NodeId, run: int) -> Change:
        addresses = NodeAddresses(data="a:1", replication="a:2", admin="a:3")
        domain = f"rack-{int(node[1:]) % 3}"
        return RegisterNode(node, addresses, domain, run + self.rng.randrange(2))

    def of_partition(self, name: str, number: int, found: Partition, kind: int) -> Change:
        rng = self.rng
        epoch = found.epoch if rng.random() < 0.9 else found.epoch - 1
        replica = rng.choice(found.replicas)
        if found.migration is not None and rng.random() < 0.6:
            return self.of_migration(name, number, found, epoch)
        slaves = tuple(each for each in found.replicas if rng.random() < 0.5)
        planned: list[Change] = [
            ChangeMaster(name, number, epoch, rng.choice([replica, None]), slaves),
            BeginHandover(name, number, epoch, replica),
            EndHandover(name, number, epoch),
            CancelHandover(name, number, epoch),
            DoublePartitions(name),
            BeginSplit(name, number, epoch),
            EndSplit(name, number, epoch, 5, 7),
            CancelSplit(name, number, epoch),
            MarkSlaves(name, number, epoch, slaves, slaves[:1]),
            ForceMaster(name, number, replica),
            SetMaster(name, number, replica),
            AddSlave(name, number, rng.choice(NODES)),
            Migrate(name, number, replica, rng.choice(NODES)),
            RemoveSlave(name, number, replica),
        ]
        return planned[kind % len(planned)]

    def of_migration(self, name: str, number: int, found: Partition, epoch: int) -> Change:
        moved = found.migration
        steps: list[Change] = [
            AddTarget(name, number, epoch),
            RemoveTarget(name, number, epoch),
            SlowDown(name, number, epoch),
            EndMigration(name, number, epoch),
            BeginHandover(name, number, epoch, moved.target if moved else found.replicas[0]),
            EndHandover(name, number, epoch),
            CancelMigration(name, number),
        ]
        return self.rng.choices(steps, weights=[2, 1, 1, 2, 2, 2, 2])[0]


class Followed:
    """A state, whoever follows it by deltas, and what was seen of it."""

    def __init__(self) -> None:
        self.state = TopologyState(history_max=HISTORY_MAX)
        self.follower = Topology()
        self.incarnations: dict[int, str] = {}
        self.made = 0

    def apply(self, changes: tuple[Change, ...]) -> None:
        before = self.state.topology
        decoded = decode_batch(encode_batch(changes))
        results = self.state.apply(decoded).results
        self.made += sum(each is None for each in results)
        after = self.state.topology
        assert after.epoch >= before.epoch
        assert (after.epoch == before.epoch) == (after == before)
        for name, table in after.tables.items():
            if name not in before.tables or before.tables[name].incarnation != table.incarnation:
                assert table.incarnation == after.epoch
                assert table.incarnation not in self.incarnations
                self.incarnations[table.incarnation] = name
            elif table is not before.tables[name]:
                olds = before.tables[name].partitions
                assert len(table.partitions) <= table.config.partitions
                assert all(each.parent is not None for each in table.partitions[len(olds) :])
                # Not strict: there may be more than there were.
                for old, new in zip(olds, table.partitions, strict=False):
                    self.check_change(old, new, after)
                    if len(changes) == 1:
                        self.check_masters(old, new, before, after)
            for each in table.partitions:
                check_partition(each, after)
        assert all(each.table in after.tables for each in after.users.values())

    def check_change(self, old: Partition, new: Partition, after: Topology) -> None:
        assert (new.epoch == old.epoch) == (new == old)
        assert new.epoch in (old.epoch, after.epoch)

    def check_masters(
        self, old: Partition, new: Partition, before: Topology, after: Topology
    ) -> None:
        """Nobody is replaced by another who is up, but by a hand-over or after a restart."""
        if new.master not in (old.master, None):
            assert new.master in old.replicas
            assert after.nodes[new.master].is_up
        assert old.master is None or set(old.replicas) - set(new.replicas) <= {*old.slaves}, (
            "a master leaves"
        )
        handed_over = old.state is PartitionState.STUCK and new.master == old.target
        is_replaced = old.master is not None and new.master not in (None, old.master)
        if is_replaced and not handed_over:
            assert old.master is not None
            was_down = not before.nodes[old.master].is_up
            is_other = after.nodes[old.master].run != before.nodes[old.master].run
            assert was_down or is_other

    def follow(self) -> None:
        delta = self.state.delta(self.follower.epoch)
        self.follower = deltas.applied(self.follower, delta)
        assert self.follower == self.state.topology


def check_partition(partition: Partition, topology: Topology) -> None:
    replicas = partition.replicas
    assert len(set(replicas)) == len(replicas)
    assert all(each in topology.nodes for each in replicas)
    assert partition.master not in partition.slaves
    assert set(partition.lagging) <= set(partition.slaves)
    assert set(partition.unproven) <= set(partition.slaves)
    is_frozen = partition.target is not None or partition.is_splitting
    assert (partition.state is PartitionState.ACTIVE) != is_frozen
    assert partition.target is None or not partition.is_splitting
    assert partition.target is None or partition.target in partition.slaves
    check_migrations(partition)


def check_migrations(partition: Partition) -> None:
    migrations, replicas = partition.migrations, partition.replicas
    sources, targets = [each.source for each in migrations], [each.target for each in migrations]
    assert set(sources) <= set(replicas)
    assert not set(targets[1:]) & set(replicas), "one after the other"
    assert len({*sources, *targets}) == 2 * len(migrations)
    assert len({each.plan for each in migrations}) <= 1
    assert partition.preferred in (*replicas, *targets)
    assert partition.preferred not in sources, "it would be handed over to and fro"
    if partition.state is PartitionState.SLOWDOWN:
        assert partition.target == targets[0]


def live_through(seed: int, batches: int = 2_500) -> Followed:
    changes, followed = RandomChanges(seed), Followed()
    for _ in range(batches):
        batch = changes.batch(followed.state.topology)
        followed.apply(batch)
        if changes.rng.random() < 0.1:
            followed.follow()
    followed.follow()
    return followed


@pytest.mark.parametrize("seed", range(4))
def test_random_changes_keep_what_must_hold(seed: int) -> None:
    followed = live_through(seed)
    assert followed.made > 1_500
    assert len(followed.incarnations) > 20


def test_a_delta_from_every_epoch_leads_to_the_present() -> None:
    changes, state = RandomChanges(9), TopologyState(history_max=HISTORY_MAX)
    known = [state.topology]
    for _ in range(400):
        state.apply(changes.batch(state.topology))
        if state.topology.epoch != known[-1].epoch:
            known.append(state.topology)
    wholes = 0
    for topology in known:
        delta = state.delta(topology.epoch)
        assert deltas.applied(topology, delta) == state.topology
        wholes += delta.is_whole
    assert wholes == len(known) - HISTORY_MAX - 1
    assert state.delta(state.topology.epoch + 7).is_whole, "known from a meta server that is gone"


def test_a_rule_that_compares_the_wrong_epoch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        TopologyDraft, "planned", lambda self, table, number, _: self.partition(table, number)
    )
    monkeypatch.setattr(TopologyDraft, "is_up", lambda _self, _node: True)
    with pytest.raises(AssertionError):
        for seed in range(5):
            live_through(seed)
