"""A few nodes, faults and clients by seed; in the end everything has to be as it was told.

The nodes are whole servers, the meta server has its real rules and plans, and clients speak Redis's
protocol over the network: what is simulated is the disks, the network, the clocks and the faults.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from unittest.mock import patch

import msgspec

from raftwood.base.errors import Conflict, RaftwoodError, Unavailable
from raftwood.testing import Simulation, SimulationReport
from raftwood.zeppelin.model import PartitionId, TableConfig, User
from raftwood.zeppelin.node import server
from raftwood.zeppelin.node.store import NodeStore
from raftwood.zeppelin.node.stored_partition import StoredPartition
from raftwood.zeppelin.settings import StoreSettings
from tests.kits.models import Violation, run_scenario
from tests.kits.zeppelin.harms import Harm
from tests.kits.zeppelin.simulation.clients import HASH, Client
from tests.kits.zeppelin.simulation.faults import inject
from tests.kits.zeppelin.simulation.meta import MetaGroup
from tests.kits.zeppelin.simulation.node import NodeMachine
from tests.kits.zeppelin.simulation.oracle import Mark, Oracle

NAMES = ("n1", "n2", "n3")
TABLE = "table"
PASSING = "passing"
"""A table that is dropped and made anew now and then."""
CLIENTS = 4
TROUBLES = 2
"""So many things go wrong at the same time."""
FAULTS = 5
"""Of each of them."""
QUIET_S = 20.0
DONE_MIN = 50
"""Writes in about ten seconds, however many faults there are."""
NOISE_S = (0.01, 0.05)
CUT_OFF_S = 3.0
CLOCK_DRIFT = 0.02
SETTINGS = [
    StoreSettings(
        binlog_bytes_min=1 << 10,
        binlog_bytes_max=4 << 10,
        flush_bytes=1 << 10,
        flush_interval_ms=500,
    ),
    StoreSettings(sync_interval_ms=50),
]
"""Of nodes: small binlogs, or late syncs."""
SAFE = TableConfig(partitions=2, replicas=3, ack="synced", min_replicas=2)
FAST = TableConfig(partitions=2, replicas=3, ack="written", min_replicas=1)


class Outcome(msgspec.Struct, frozen=True):
    """What a run came to."""

    done: int
    failovers: int
    handovers: int
    rewinds: int
    copies: int
    faults_s: float


class World:
    """All there is in one run."""

    def __init__(
        self, simulation: Simulation, config: TableConfig | None, *, pace: float = 1.0
    ) -> None:
        self.simulation = simulation
        self.pace = pace
        """So much longer than usual are the pauses of clients, of faults and of changes."""
        self.random = random.Random(f"zeppelin {simulation.seed}")
        self.meta = MetaGroup(simulation)
        self.oracle = Oracle(simulation, self.meta)
        self.config = config or (SAFE if self.random.random() < 0.7 else FAST)
        self._settings = self.random.choice(SETTINGS)
        self.nodes: dict[str, NodeMachine] = {}
        for name in NAMES:
            self.add(name)
        self.is_writing = True
        self._is_making = False

    def add(self, name: str) -> NodeMachine:
        """A machine for one more node, which is not started yet."""
        machine = self.simulation.add_node(name)
        machine.clock.set_rate(1 + self.random.uniform(-CLOCK_DRIFT, CLOCK_DRIFT))
        self.nodes[name] = NodeMachine(machine, self.meta, self._settings)
        return self.nodes[name]

    async def run(self) -> Outcome:
        async with self.running():
            clients = [
                asyncio.create_task(Client(self, number, TABLE if number else PASSING).run())
                for number in range(CLIENTS + 1)
            ]
            began = self.simulation.now
            await asyncio.gather(*(self._trouble() for _ in range(TROUBLES)))
            faults_s = self.simulation.now - began
            self.heal()
            await asyncio.sleep(2)
            self.is_writing = False
            await asyncio.gather(*clients)
            await self.become_equal()
        return Outcome(
            done=len(self.oracle.done),
            failovers=self.meta.failovers,
            handovers=self.meta.handovers,
            rewinds=self.oracle.rewinds,
            copies=self.oracle.copies,
            faults_s=faults_s,
        )

    async def run_cut_off(self) -> None:
        """A slave that does not reach the meta server, where much changes, follows its master."""
        async with self.running():
            partition = self.meta.partitions()[0]
            slave = next(name for name in NAMES if name != self.meta.machine_of(partition))
            self.meta.cut_off[slave] = None
            clients = [asyncio.create_task(Client(self, each, TABLE).run()) for each in range(4)]
            await asyncio.sleep(CUT_OFF_S)
            self.is_writing = False
            await asyncio.gather(*clients)
            await self._until(lambda: self._are_equal(partition), timeout_s=1)

    @asynccontextmanager
    async def running(self, *, has_noise: bool = True) -> AsyncIterator[None]:
        """Nodes, tables, and a topology that changes all the time."""
        for node in self.nodes.values():
            node.start()
        background = [asyncio.create_task(self.meta.run())]
        await self._begin()
        if has_noise:
            background.append(asyncio.create_task(self._noise()))
        yield
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await self._stop()

    async def _begin(self) -> None:
        await self.simulation.wait_until(lambda: len(self.meta.topology.nodes) == len(NAMES))
        await self.meta.client.create_table(TABLE, self.config)
        await self.meta.client.create_table(PASSING, TableConfig(partitions=1))
        for name in (TABLE, PASSING):
            await self._add_user(name)
        await self.meta.client.wait_applied(self.meta.topology.epoch)

    async def _add_user(self, name: str) -> None:
        user = User(name=name, table=name, password_hash=HASH)
        await self.meta.client.add_user(user)

    # What faults do.

    async def prefer(self, partition: PartitionId, machine: str) -> None:
        """The operator wants the master to be there: it is handed over."""
        table = self.meta.table(partition.incarnation)
        if table is None:
            return
        with suppress(RaftwoodError):  # it is none of its replicas
            node = self.meta.node_on(machine)
            await self.meta.client.set_master(table.name, partition.number, node)

    async def make_again(self) -> None:
        """Drop a table, and make another one of its name, soon or later."""
        if self._is_making:
            return
        self._is_making = True
        client = self.meta.client
        await _once_possible(lambda: client.drop_table(PASSING))
        await asyncio.sleep(self.random.choice((0.0, 0.5)))
        await _once_possible(lambda: client.create_table(PASSING, TableConfig(partitions=1)))
        await self._add_user(PASSING)
        self._is_making = False

    async def _trouble(self) -> None:
        for _ in range(FAULTS):
            await inject(self)

    async def _noise(self) -> None:
        """The topology changes all the time, by what is none of the partitions' business."""
        while True:
            await asyncio.sleep(self.random.uniform(*NOISE_S) * self.pace)
            await self.meta.client.add_user(User(name="noise", table=TABLE, password_hash=HASH))
            await self.meta.client.remove_user("noise")

    def heal(self) -> None:
        self.simulation.network.heal()
        self.meta.cut_off.clear()
        for node in self.nodes.values():
            node.machine.resume()
            node.start()

    def called_done(
        self, machine: str, table: str, partition: PartitionId, mark: Mark, *, since: float
    ) -> None:
        if table == TABLE:
            self.oracle.called_done(machine, partition, mark, since=since)

    # The end.

    async def become_equal(self) -> None:
        await self._until(self._is_equal, timeout_s=QUIET_S)
        if self.writes_done() < DONE_MIN:
            raise Violation(Harm.STALLED, f"{self.writes_done()} writes were called done")
        now_ms = max(node.now_ms for node in self.nodes.values())
        for partition in self.meta.partitions():
            table = self.meta.table(partition.incarnation)
            assert table is not None
            stores = [
                (name, replica.store)
                for name in self.meta.machines_of(partition)
                if (replica := self.nodes[name].replica(partition)) is not None
            ]
            self.oracle.check(partition, table.config, stores, now_ms=now_ms)

    def writes_done(self) -> int:
        return len(self.oracle.done)

    async def _until(self, condition: Callable[[], bool], *, timeout_s: float) -> None:
        try:
            await self.simulation.wait_until(condition, timeout_s=timeout_s)
        except TimeoutError as error:
            raise Violation(Harm.STALLED, "; ".join(self._describe())) from error

    def _is_equal(self) -> bool:
        """Whether each node has what it is to have, and replicas have the same."""
        partitions = sorted(self.meta.partitions())
        placed: dict[str, list[PartitionId]] = {name: [] for name in self.nodes}
        for partition in partitions:
            for name in self.meta.machines_of(partition):
                placed[name].append(partition)
        return all(node.held() == placed[name] for name, node in self.nodes.items()) and all(
            self._are_equal(partition) for partition in partitions
        )

    def _are_equal(self, partition: PartitionId) -> bool:
        replicas = [
            self.nodes[name].replica(partition) for name in self.meta.machines_of(partition)
        ]
        stores = [replica.store for replica in replicas if replica is not None]
        if len(stores) < len(replicas) or not any(each and each.may_write for each in replicas):
            return False
        ends = [(store.epoch, store.last_sequence, store.synced_sequence) for store in stores]
        return all(end == ends[0] for end in ends) and ends[0][1] == ends[0][2]

    def _describe(self) -> Iterator[str]:
        for partition in self.meta.partitions():
            known = self.meta.partition(partition)
            yield f"{partition}: {self.meta.masters[partition][-1]} {known}"
            for name, node in self.nodes.items():
                replica = node.replica(partition)
                if replica is None:
                    yield f"{name}: not there, {node.problem()}"
                    continue
                store = replica.store
                yield (
                    f"{name}: {replica.role.name} {store.epoch} {store.last_sequence} "
                    f"{store.synced_sequence} {store.repairing} {replica.may_write}"
                )

    async def _stop(self) -> None:
        machines = [node.machine for node in self.nodes.values()]
        for node in self.nodes.values():
            node.stop()
        await self.simulation.wait_until(lambda: not any(each.running for each in machines))


async def _once_possible(change: Callable[[], Awaitable[int]]) -> None:
    """While the table is being handed over, or too few nodes are up, it is refused."""
    while True:
        with suppress(Conflict, Unavailable):
            await change()
            return
        await asyncio.sleep(0.2)


def watched(oracle: Oracle) -> type[NodeStore]:
    class WatchedStore(NodeStore):
        """Its partitions are looked at by the oracle."""

        async def partition(self, partition: PartitionId) -> StoredPartition:
            is_new = partition not in self._open
            opened = await super().partition(partition)
            if is_new:
                oracle.watch(partition, opened)
            return opened

    return WatchedStore


def run(
    seed: int, *, config: TableConfig | None = None, pace: float = 1.0, twice: bool = False
) -> SimulationReport[Outcome]:
    """One seed; raises `Violation` where an invariant does not hold."""

    async def scenario(simulation: Simulation) -> Outcome:
        world = World(simulation, config, pace=pace)
        with patch.object(server, "NodeStore", watched(world.oracle)):
            return await world.run()

    return run_scenario("zeppelin", seed, scenario, twice=twice)


def run_cut_off(seed: int) -> None:
    """See `World.run_cut_off`."""

    async def scenario(simulation: Simulation) -> None:
        await World(simulation, SAFE).run_cut_off()

    run_scenario("zeppelin", seed, scenario)
