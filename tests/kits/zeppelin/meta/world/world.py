"""`World`: leaders that change, nodes that crash, stall and are cut off, and what must hold then.

Raft itself is taken for granted: what a leader proposes is committed in order, or lost with its
term; a question is answered only by a store that still leads when it was confirmed.
"""

import heapq
import random
from collections.abc import Callable

from raftwood.base.errors import RaftwoodError
from raftwood.zeppelin.meta.changes import (
    AddSlave,
    Change,
    CreateTable,
    EndHandover,
    EndMigration,
    RegisterNode,
    RemoveSlave,
    SetMaster,
    decode_applied,
    encode_batch,
)
from raftwood.zeppelin.meta.queries import LeaseAnswer, decode_answer, encode_query
from raftwood.zeppelin.meta.state_machine import MetaMachine
from raftwood.zeppelin.model import (
    NodeAddresses,
    Partition,
    PartitionId,
    PartitionState,
    Table,
    TableConfig,
    Topology,
)
from raftwood.zeppelin.settings import ZeppelinMetaSettings
from tests.kits.models import Violation
from tests.kits.zeppelin.meta.world.nodes import FakeNode, Replica, common_length

SETTINGS = ZeppelinMetaSettings(
    heartbeat_ms=200,
    lease_ms=800,
    down_ms=1_200,
    plan_ms=50,
    handover_stuck_ms=600,
    handover_every_ms=100,
    handover_pause_ms=2_000,
)
LAG_MAX = 1_000
STORES = 3


class _Entry:
    """A command as a log has it."""

    def __init__(self, index: int, payload: bytes) -> None:
        self.index, self.payload = index, payload


class World:
    def __init__(
        self, seed: int, *, nodes: int = 4, settings: ZeppelinMetaSettings = SETTINGS
    ) -> None:
        self.rng = random.Random(seed)
        self.settings = settings
        self.now_ms = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self.events = 0
        self.term, self.leader = 1, 0
        self.leader_stalled_until_ms = 0.0
        self.machines = [self._machine(store) for store in range(STORES)]
        self._index = 0
        self._pending: list[tuple[bytes, Callable[[bytes], None]]] = []
        self.is_planning = False
        self.nodes = {
            name: FakeNode(name, 1 + self.rng.uniform(-0.01, 0.01))
            for name in (f"n{each}" for each in range(nodes))
        }
        self.cut_from_meta: dict[str, None] = {}
        self.cut_links: dict[frozenset[str], None] = {}
        self.acked: dict[PartitionId, dict[int, float]] = {}
        """Writes that must not be lost, by when they were acked."""
        self.forgiven: dict[int, None] = {}
        """Those that a crash took from their only replica."""
        self.mastered: dict[PartitionId, tuple[str, int]] = {}
        self.writes = 0
        self.handovers = 0
        self.failovers = 0

    def _machine(self, store: int) -> MetaMachine:
        return MetaMachine(
            self.settings,
            now_ms=lambda: int(self.now_ms),
            term=lambda: self.term if self.leader == store else None,
        )

    @property
    def topology(self) -> Topology:
        return self.machines[0].topology

    # Time

    def later(self, delay_ms: float, event: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._queue, (self.now_ms + delay_ms, self._number, event))

    def run(self, duration_ms: float) -> None:
        end_ms = self.now_ms + duration_ms
        while self._queue and self._queue[0][0] <= end_ms:
            self.now_ms, _, event = heapq.heappop(self._queue)
            event()
            self.events += 1
        self.now_ms = end_ms

    def delay(self) -> float:
        return self.rng.uniform(1, 20)

    # The meta server

    def begin(self) -> None:
        self.start()
        self.run(300)
        self.create_tables()
        self.run(2_000)

    def end(self, *, quiet_ms: int) -> None:
        self.heal()
        self.run(quiet_ms)
        self.check_settled()

    def start(self) -> None:
        for node in self.nodes.values():
            self.start_node(node)
            self.later(self.rng.uniform(0, 200), lambda node=node: self._beat(node))  # type: ignore[misc]
            self.later(self.rng.uniform(0, 20), lambda node=node: self._replicate(node))  # type: ignore[misc]
        self.later(self.settings.plan_ms, self._plan)
        self.later(5, self._write)

    def propose(self, changes: tuple[Change, ...], done: Callable[[bytes], None]) -> None:
        """At the leader; it is committed a little later, unless its term ends before."""
        self._pending.append((encode_batch(changes), done))
        self.later(self.delay(), self._commit_first)

    def _commit_first(self) -> None:
        if self._pending:
            self._commit(*self._pending.pop(0))

    def _commit(self, payload: bytes, done: Callable[[bytes], None]) -> None:
        self._index += 1
        before = self.topology
        entry = _Entry(self._index, payload)
        results = [machine.update([entry])[0] for machine in self.machines]
        if any(result != results[0] for result in results):
            raise Violation("replicas disagree")
        self._check_topology(before, self.topology)
        done(results[0])

    def change_leader(self) -> None:
        kept = self.rng.randint(0, len(self._pending))
        for payload, done in self._pending[:kept]:
            self._commit(payload, done)
        self._pending.clear()
        self.is_planning = False
        self.term += 1
        self.leader = self.rng.randrange(STORES)

    def _plan(self) -> None:
        self.later(self.settings.plan_ms, self._plan)
        if self.is_planning or self.now_ms < self.leader_stalled_until_ms:
            return
        planned_on = self.topology
        changes = self.machines[self.leader].plan()
        if not changes:
            return
        self.is_planning = True
        self.check_plan(planned_on, changes)

        def done(result: bytes) -> None:
            self.is_planning = False
            for change, refused in zip(changes, decode_applied(result).results, strict=True):
                if refused is None and isinstance(change, EndHandover):
                    table = planned_on.tables[change.table]
                    before = table.partitions[change.partition]
                    assert before.master is not None
                    assert before.target is not None
                    key = PartitionId(table.incarnation, change.partition)
                    self._check_handed_over(key, old=before.master, new=before.target)
                elif refused is None and isinstance(change, EndMigration):
                    self.check_moved(planned_on.tables[change.table], change.partition)

        self.propose(changes, done)

    def check_plan(self, topology: Topology, changes: tuple[Change, ...]) -> None:
        """For worlds in which replicas move."""

    def check_moved(self, table: Table, number: int) -> None:
        """When a migration has ended; `table` is as it was before that."""

    # Nodes and the meta server

    def start_node(self, node: FakeNode) -> None:
        node.is_running = True
        node.run = self.rng.randrange(1 << 40)
        self._register(node, node.run)

    def _register(self, node: FakeNode, run: int) -> None:
        if not node.is_running or node.run != run or node.is_registered:
            return
        self.later(500, lambda: self._register(node, run))
        if node.id in self.cut_from_meta or not node.is_awake(self.now_ms):
            return
        addresses = NodeAddresses(data=f"{node.id}:1", replication=f"{node.id}:2", admin="x:3")
        domain = f"d{int(node.id[1:]) % 3}"

        def done(_: bytes) -> None:
            if node.run == run:
                node.is_registered = True

        change = RegisterNode(node.id, addresses, domain, run)
        self.later(self.delay(), lambda: self.propose((change,), done))

    def _beat(self, node: FakeNode) -> None:
        heartbeat_ms = self.settings.heartbeat_ms * self.rng.uniform(0.8, 1.0)
        self.later(heartbeat_ms, lambda: self._beat(node))
        if not node.is_awake(self.now_ms) or not node.is_registered or not self._reaches(node):
            return
        asked, run = node.clock(self.now_ms), node.run
        query = encode_query(node.heartbeat(self.now_ms))

        def arrive() -> None:
            term = self.term
            if self.now_ms >= self.leader_stalled_until_ms and self._reaches(node):
                self.later(self.delay(), lambda: confirmed(term))

        def confirmed(term: int) -> None:
            if self.term != term:
                return
            answer = self.machines[self.leader].lookup(query)
            if isinstance(answer, RaftwoodError):
                raise Violation(f"a leader says {answer!r}")
            self.later(self.delay(), lambda: answered(answer))

        def answered(answer: bytes) -> None:
            if not node.is_awake(self.now_ms) or node.run != run or not self._reaches(node):
                return
            try:
                lease = decode_answer(answer, LeaseAnswer)
            except RaftwoodError:  # it is known by another run: an old request came late
                node.is_registered = False
                self._register(node, run)
                return
            node.apply(lease.delta)
            node.answered = lease.moment
            if lease.lease_ms:
                node.lease_until = max(node.lease_until, asked + lease.lease_ms)
            self._check_one_master()

        is_slow = self.now_ms < node.slow_until_ms
        self.later(self.rng.uniform(0, 1_500) if is_slow else self.delay(), arrive)

    def _reaches(self, node: FakeNode) -> bool:
        return node.id not in self.cut_from_meta

    # Data

    def _write(self) -> None:
        self.later(self.rng.uniform(2, 15), self._write)
        self._check_one_master()
        tables = [*self.topology.tables.values()]
        if not tables:
            return
        table = self.rng.choice(tables)
        key = PartitionId(table.incarnation, self.rng.randrange(len(table.partitions)))
        for node in self.nodes.values():
            partition = node.partition(key)
            if partition is not None and node.serves(key, partition, self.now_ms):
                if self.is_held_back(partition):
                    continue
                self._check_nothing_lost(node, key, partition.epoch)
                self.writes += 1
                replica = node.replicas[key]
                replica.log.append((partition.epoch, self.writes))
                if table.config.min_replicas == 1:
                    self.acked.setdefault(key, {})[self.writes] = self.now_ms

    def is_held_back(self, partition: Partition) -> bool:
        """Whether a writer waits for now."""
        return partition.state is PartitionState.SLOWDOWN and self.rng.random() < 0.9

    def _replicate(self, slave: FakeNode) -> None:
        """Whatever its masters have, as far as one message goes."""
        self.later(self.rng.uniform(10, 30), lambda: self._replicate(slave))
        if not slave.is_awake(self.now_ms):
            return
        for key, replica in slave.replicas.items():
            partition = slave.partition(key)
            assert partition is not None
            name = partition.master
            if name is None or name == slave.id or not self._has_link(slave.id, name):
                continue
            master = self.nodes[name]
            theirs = master.partition(key)
            if not master.is_awake(self.now_ms) or theirs is None or theirs.master != name:
                continue
            if theirs.epoch < partition.epoch or key not in master.replicas:
                continue  # it has not heard that it is master
            if not master.replicas[key].can_lead or not replica.is_open:
                continue
            self._take(slave, replica, master, key)

    def _take(self, slave: FakeNode, replica: Replica, master: FakeNode, key: PartitionId) -> None:
        source = master.replicas[key].log
        same = common_length(replica.log, source)
        del replica.log[same:]
        count = self.rng.randint(0, slave.takes_of(key))
        replica.log += source[same : same + count]
        replica.lag = len(source) - len(replica.log)
        replica.contact_ms = self.now_ms
        replica.is_whole = replica.is_whole or not replica.lag
        table = slave.table(key[0])
        assert table is not None
        if (
            table.config.min_replicas == 2
            and replica.is_whole
            and master.serves(key, master.partition(key), self.now_ms)
        ):
            acked = self.acked.setdefault(key, {})
            for _, write in replica.log[same:]:
                acked.setdefault(write, self.now_ms)

    def _has_link(self, one: str, other: str) -> bool:
        return frozenset((one, other)) not in self.cut_links

    # What must hold

    def _check_one_master(self) -> None:
        for table in self.topology.tables.values():
            for number in range(len(table.partitions)):
                key = PartitionId(table.incarnation, number)
                serving = [
                    node.id
                    for node in self.nodes.values()
                    if node.serves(key, node.partition(key), self.now_ms)
                ]
                if len(serving) > 1:
                    raise Violation(f"{serving} are masters of {key} at once")

    def _check_topology(self, before: Topology, after: Topology) -> None:
        for name, table in after.tables.items():
            old = before.tables.get(name)
            for number, partition in enumerate(table.partitions):
                replicas = partition.replicas
                if len(set(replicas)) != len(replicas):
                    raise Violation(f"{name}/{number} is twice on a node: {replicas}")
                if old is None:
                    continue
                previous = old.partitions[number]
                if partition.epoch < previous.epoch:
                    raise Violation("an epoch goes back")
                if (partition.epoch == previous.epoch) != (partition == previous):
                    raise Violation("a partition changes, and its epoch does not")
                is_other = partition.master not in (None, previous.master)
                self.failovers += is_other

    def _check_handed_over(self, key: PartitionId, *, old: str, new: str) -> None:
        """A hand-over loses nothing at all, unless the new master crashes just then."""
        self.handovers += 1
        if not self.nodes[new].is_registered:
            return
        had, has = self.nodes[old].replicas[key].log, self.nodes[new].replicas[key].log
        if had != has:
            raise Violation(
                f"{key} was handed over to {new} at {has[-1:]}, its master is at {had[-1:]}"
            )

    def _check_nothing_lost(self, node: FakeNode, key: PartitionId, epoch: int) -> None:
        """When a master writes at a new epoch for the first time, it has all that was acked."""
        if self.mastered.get(key) == (node.id, epoch):
            return
        self.mastered[key] = (node.id, epoch)
        table = node.table(key[0])
        assert table is not None
        has = {write for _, write in node.replicas[key].log}
        acked = self.acked.setdefault(key, {})
        lost = {
            write: at_ms
            for write, at_ms in acked.items()
            if write not in has and write not in self.forgiven
        }
        if not lost:
            return
        if table.config.min_replicas > 1:
            raise Violation(f"{node.id} lacks acked writes of {key}: {sorted(lost)[:5]}")
        # Behind the lag bound, and behind a master that went on without its slave for so long.
        last_ms = max(acked.values())
        long_ago_ms = last_ms - 4 * self.settings.down_ms
        old = [write for write, at_ms in lost.items() if at_ms < long_ago_ms]
        if old:
            raise Violation(f"{node.id} is stale: it lacks old acked writes of {key}: {old[:5]}")
        for write in lost:
            del acked[write]

    # Faults

    def crash(self, node: FakeNode) -> None:
        lost: dict[PartitionId, int] = {}
        for key, replica in node.replicas.items():
            table = node.table(key[0])
            if table is None or table.config.min_replicas > 1 or not replica.log:
                continue
            count = min(len(replica.log), self.rng.choice([0, 0, 3]))
            lost[key] = count
            for _, write in replica.log[len(replica.log) - count :]:
                self.forgiven[write] = None
        node.crash(lost)

    def fault(self) -> None:
        """Something goes wrong, or a wrong thing ends."""
        rng = self.rng
        node = rng.choice([*self.nodes.values()])
        kind = rng.randrange(13)
        if kind == 0 and node.is_running:
            self.crash(node)
        elif kind in (0, 1, 2) and not node.is_running:
            self.start_node(node)
        elif kind == 3:
            node.stalled_until_ms = self.now_ms + rng.choice([300, 900, 1_500, 3_000])
        elif kind == 4:
            self._toggle(self.cut_from_meta, node.id)
        elif kind == 5:
            self._toggle(self.cut_links, frozenset(rng.sample([*self.nodes], 2)))
        elif kind == 6:
            self.change_leader()
        elif kind == 7:
            self.leader_stalled_until_ms = self.now_ms + rng.choice([100, 1_000, 2_500])
        elif kind == 8:
            # Its heartbeats take long from now on, and overtake one another.
            node.slow_until_ms = self.now_ms + rng.choice([1_000, 3_000, 6_000])
        elif kind == 10 and self.topology.tables:
            self._lose_master()
        elif kind == 12 and "two" in self.topology.tables:
            self._change_replicas()
        elif kind == 11 and node.replicas:
            key = rng.choice([*node.replicas])
            if rng.random() < 0.5:
                self._shut(node, key)
            else:
                self._make_repair(key)
        elif kind == 9 and self.topology.tables:
            table = rng.choice([*self.topology.tables.values()])
            number = rng.randrange(len(table.partitions))
            replica = rng.choice(table.partitions[number].replicas)
            self.propose((SetMaster(table.name, number, replica),), lambda _: None)

    def leave(self) -> None:
        """A node is about to stop: then it does, or it was not meant."""
        node = self.rng.choice([*self.nodes.values()])
        node.is_leaving = not node.is_leaving

    def _lose_master(self) -> None:
        """A master goes on with one slave, whose word takes long to arrive, and is then lost."""
        table = self.rng.choice([*self.topology.tables.values()])
        partition = self.rng.choice(table.partitions)
        if partition.master is None:
            return
        near, *others = self.rng.sample(partition.slaves, len(partition.slaves))
        for other in others:
            self.cut_links[frozenset((partition.master, other))] = None
        self.nodes[near].slow_until_ms = self.now_ms + 3_000
        self.run(self.rng.uniform(0, 800))
        self.cut_from_meta[partition.master] = None

    def _change_replicas(self) -> None:
        """An operator takes a slave away, or gives one."""
        number = self.rng.randrange(len(self.topology.tables["two"].partitions))
        partition = self.topology.tables["two"].partitions[number]
        others = [node for node in self.nodes.values() if node.id not in partition.replicas]
        change: Change
        key = PartitionId(self.topology.tables["two"].incarnation, number)
        found = [self.nodes[each].replicas.get(key) for each in partition.replicas]
        if not all(each is not None and each.is_whole for each in found):
            return  # the one that goes may be all that can mend another
        if len(partition.replicas) > 2 and partition.slaves:
            change = RemoveSlave("two", number, self.rng.choice(partition.slaves))
        else:
            change = AddSlave("two", number, self.rng.choice(others).id)
        self.propose((change,), lambda _: None)

    def _shut(self, node: FakeNode, key: PartitionId) -> None:
        """A replica cannot be opened for a while; meanwhile its node's words may take long."""
        replica = node.replicas[key]
        replica.is_open = False
        if self.rng.random() < 0.5:
            node.slow_until_ms = self.now_ms + 2_000

        def open_again() -> None:
            replica.is_open = True

        self.later(self.rng.choice([300, 600, 900, 4_000]), open_again)

    def _make_repair(self, key: PartitionId) -> None:
        """A master has cut what it had and others have not, at the word of the one before."""
        partition = next(
            table.partitions[key.number]
            for table in self.topology.tables.values()
            if table.incarnation == key.incarnation
        )
        found = {
            name: self.nodes[name].replicas[key]
            for name in partition.replicas
            if key in self.nodes[name].replicas
        }
        if partition.master not in found or not all(each.is_whole for each in found.values()):
            return
        master = found.pop(partition.master)
        if any(each.log == master.log for each in found.values()):
            master.is_whole = False

    def _toggle(self, those: dict, one: object) -> None:  # type: ignore[type-arg]
        if one in those or len(those) >= 2:
            those.pop(one if one in those else next(iter(those)))
        else:
            those[one] = None

    def heal(self) -> None:
        self.cut_from_meta.clear()
        self.cut_links.clear()
        self.leader_stalled_until_ms = 0
        for node in self.nodes.values():
            node.stalled_until_ms = node.slow_until_ms = 0
            node.is_leaving = False
            for replica in node.replicas.values():
                replica.is_open = True
            if not node.is_running:
                self.start_node(node)

    def create_tables(self) -> None:
        one = TableConfig(partitions=3, replicas=2, lag_max_bytes=LAG_MAX)
        two = TableConfig(partitions=3, replicas=3, min_replicas=2, lag_max_bytes=LAG_MAX)

        def done(result: bytes) -> None:
            if any(decode_applied(result).results):
                raise Violation(f"no tables: {decode_applied(result)}")

        self.propose((CreateTable("one", one),), done)
        self.propose((CreateTable("two", two),), done)

    def check_settled(self) -> None:
        """After quiet time: all is where it belongs, and the same everywhere."""
        for table in self.topology.tables.values():
            for number, partition in enumerate(table.partitions):
                key = PartitionId(table.incarnation, number)
                where = f"{table.name}/{number}: {partition}"
                if partition.master is None or partition.master != partition.preferred:
                    raise Violation(f"not back with its preferred master: {where}")
                if partition.state is not PartitionState.ACTIVE or partition.lagging:
                    raise Violation(f"not settled: {where}")
                master = self.nodes[partition.master]
                if not master.serves(key, master.partition(key), self.now_ms):
                    raise Violation(f"its master does not serve: {where}")
                self._check_nothing_lost(master, key, -1)
                for slave in partition.slaves:
                    log = self.nodes[slave].replicas[key].log
                    if log != master.replicas[key].log[: len(log)]:
                        raise Violation(f"{slave} has something else than its master: {where}")


def live_through(
    seed: int, *, faults_ms: int = 20_000, more_faults: Callable[[World], None] | None = None
) -> World:
    """Some time with faults, then peace, in which all has to come right."""
    world = World(seed)
    world.begin()
    pace_ms = world.rng.choice([150, 400, 1_000])
    end_ms = world.now_ms + faults_ms
    while world.now_ms < end_ms:
        world.run(world.rng.uniform(0, 2 * pace_ms))
        world.fault()
        if more_faults is not None:
            more_faults(world)
    world.end(quiet_ms=12_000)
    return world
