"""A few nodes, faults and clients by seed; in the end everything has to be as it was told."""

import asyncio
import random
from collections.abc import Iterator

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import RaftwoodError
from raftwood.simulation import Simulation, simulate
from raftwood.simulation.runner import Report, assert_deterministic
from raftwood.zeppelin.model import PartitionId, PartitionState, TableConfig
from raftwood.zeppelin.node.store_settings import StoreSettings
from raftwood.zeppelin.replication.replicator import Replicator
from tests.simulation.zeppelin.faults import inject
from tests.simulation.zeppelin.meta import ScriptedMeta
from tests.simulation.zeppelin.node import Disk, ZeppelinNode
from tests.simulation.zeppelin.oracle import Oracle
from tests.simulation.zeppelin.requests import random_change
from tests.simulation.zeppelin.storage import DiskStorage, ImageStorage, Storage
from tests.zeppelin_kit.violations import Broken, Harm

NAMES = ("n1", "n2", "n3")
PARTITIONS = 2
CLIENTS = 4
TROUBLES = 2
"""So many things go wrong at the same time."""
FAULTS = 5
"""Of each of them."""
QUIET_S = 20.0
GIVES_UP = 0.5
"""The share of failed requests that are not tried again: what they did is a ghost, if it stays."""
NOISE_S = 0.05
SMALL_RECORDS = 40
SMALL_BINLOGS = StoreSettings(
    binlog_bytes_min=1 << 10, binlog_bytes_max=4 << 10, flush_bytes=1 << 10, flush_interval_ms=500
)
_CONFIG = TableConfig(partitions=PARTITIONS, replicas=3, ack="synced", min_replicas=2)


class Outcome(msgspec.Struct, frozen=True):
    """What a run came to."""

    done: int
    failovers: int
    handovers: int
    rewinds: int
    copies: int


class World:
    """All there is in one run."""

    def __init__(
        self,
        simulation: Simulation,
        *,
        meta: type[ScriptedMeta],
        replicator: type[Replicator],
        is_on_disk: bool,
    ) -> None:
        self.simulation = simulation
        self.random = random.Random(f"zeppelin {simulation.seed}")
        self.meta = meta(NAMES, _CONFIG)
        self.oracle = Oracle(self.meta)
        self.machines = {name: simulation.add_node(name) for name in NAMES}
        self.disks = {name: Disk() for name in NAMES}
        self.nodes: dict[str, ZeppelinNode] = {}
        self._replicator = replicator
        self._is_on_disk = is_on_disk
        self._are_binlogs_small = self.random.random() < 0.5
        self._is_writing = True

    def start(self, name: str) -> None:
        """A machine's program, after a crash or for the first time."""

        async def program(environment: Environment) -> None:
            node = ZeppelinNode(
                name,
                environment,
                self.disks[name],
                meta=self.meta,
                oracle=self.oracle,
                replicator=self._replicator,
                storage=self._storage(name, environment),
            )
            self.nodes[name] = node
            await node.run()

        if not self.machines[name].running:
            self.machines[name].start(program)

    def _storage(self, name: str, environment: Environment) -> Storage:
        if self._is_on_disk:
            settings = SMALL_BINLOGS if self._are_binlogs_small else StoreSettings()
            return DiskStorage(environment, settings)
        records_max = SMALL_RECORDS if self._are_binlogs_small else None
        return ImageStorage(self.disks[name].images, environment, records_max=records_max)

    def kill(self, name: str) -> None:
        """Pull the plug: what was not synced may be lost."""
        self.machines[name].power_off()
        self.nodes.pop(name, None)

    async def _client(self, number: int) -> None:
        source = random.Random(f"{self.simulation.seed}/{number}")
        request = 0
        while self._is_writing:
            request += 1
            partition = source.choice(self.meta.partitions)
            await self._until_done(partition, (b"c%d" % number, request), source)
            await asyncio.sleep(source.uniform(0.01, 0.1))

    async def _until_done(
        self, partition: PartitionId, origin: tuple[bytes, int], source: random.Random
    ) -> None:
        """The same request, again and again, with whoever may be master; some give up."""
        change = random_change(source, origin)
        while self._is_writing:
            name = self.meta.known(partition).master
            if name is None or source.random() < 0.2:
                name = source.choice(NAMES)  # type: ignore[assignment]
            node = self.nodes.get(str(name))
            if node is not None:
                work = node.execute(partition, origin, change)
                task = asyncio.get_running_loop().create_task(work, context=node.context)
                await asyncio.wait([task], timeout=source.uniform(0.5, 3))
                if _is_done(task) or source.random() < GIVES_UP:
                    return
            await asyncio.sleep(source.uniform(0.01, 0.2))

    async def _trouble(self) -> None:
        for _ in range(FAULTS):
            await inject(self)

    async def _noise(self) -> None:
        while True:
            await asyncio.sleep(NOISE_S)
            self.meta.make_noise()

    async def run(self) -> Outcome:
        for name in NAMES:
            self.start(name)
        background = [
            asyncio.create_task(self.meta.run()),
            asyncio.create_task(self._noise()),
        ]
        clients = [asyncio.create_task(self._client(number)) for number in range(CLIENTS)]
        await asyncio.gather(*(self._trouble() for _ in range(TROUBLES)))
        self._heal()
        await asyncio.sleep(2)
        self._is_writing = False
        await asyncio.gather(*clients)
        try:
            await self.simulation.wait_until(self._is_equal, timeout_s=QUIET_S)
        except TimeoutError as error:
            raise Broken(Harm.STALLED, "; ".join(self._describe())) from error
        self._check()
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await self._stop()
        return Outcome(
            done=len(self.oracle.done),
            failovers=self.meta.failovers,
            handovers=self.meta.handovers,
            rewinds=self.oracle.rewinds,
            copies=self.oracle.copies,
        )

    def _heal(self) -> None:
        self.simulation.network.heal()
        self.meta.cut_off.clear()
        for name in NAMES:
            self.machines[name].resume()
            self.start(name)
        for partition in self.meta.partitions:
            if self.meta.known(partition).state is PartitionState.STUCK:
                self.meta.bump(partition)

    def _is_equal(self) -> bool:
        if len(self.nodes) < len(NAMES):
            return False
        for partition in self.meta.partitions:
            master = self.meta.known(partition).master
            assert master is not None
            replica = self.nodes[master].replicator.replica(partition)
            if replica is None or not replica.may_write:
                return False
            ends = [
                (node.stores[partition].epoch, node.stores[partition].synced_sequence)
                for node in self.nodes.values()
                if partition in node.stores
            ]
            last = self.nodes[master].stores[partition].last_sequence
            if any(end != ends[0] for end in ends) or ends[0][1] != last:
                return False
        return True

    def _describe(self) -> Iterator[str]:
        for partition in self.meta.partitions:
            known = self.meta.known(partition)
            yield f"{partition}: {known.master} {known.state}"
            for name, node in self.nodes.items():
                store = node.stores.get(partition)
                replica = node.replicator.replica(partition)
                if store is not None and replica is not None:
                    yield (
                        f"{name}: {replica.role.name} {store.epoch} {store.last_sequence} "
                        f"{store.synced_sequence} {store.repairing}"
                    )

    def _check(self) -> None:
        now_ms = max(node.now_ms for node in self.nodes.values())
        for partition in self.meta.partitions:
            stores = [(name, node.stores[partition]) for name, node in self.nodes.items()]
            self.oracle.check(partition, stores, now_ms=now_ms)

    async def _stop(self) -> None:
        for machine in self.machines.values():
            process = machine.node.process
            if process is not None and process.main is not None:
                process.main.cancel()
        await self.simulation.wait_until(
            lambda: not any(machine.running for machine in self.machines.values())
        )


def _is_done(task: asyncio.Task[None]) -> bool:
    """Whether a request was answered so; one that hangs is given up."""
    if not task.done():
        task.cancel()
        return False
    error = task.exception()
    if error is not None and not isinstance(error, RaftwoodError):
        raise error
    return error is None


def run(
    seed: int,
    *,
    meta: type[ScriptedMeta] = ScriptedMeta,
    replicator: type[Replicator] = Replicator,
    is_on_disk: bool = False,
    twice: bool = False,
) -> Report[Outcome]:
    """One seed; raises `Broken` where an invariant does not hold."""

    async def scenario(simulation: Simulation) -> Outcome:
        world = World(simulation, meta=meta, replicator=replicator, is_on_disk=is_on_disk)
        return await world.run()

    return (assert_deterministic if twice else simulate)(seed, scenario)
