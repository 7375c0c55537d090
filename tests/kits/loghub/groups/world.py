"""Three gateways over one metastore and one set of logs; consumers come, go, crash and freeze."""

import asyncio
import random
from dataclasses import dataclass

from raftwood.base.environment import Environment
from raftwood.base.errors import RaftwoodError
from raftwood.base.metrics import Metrics
from raftwood.loghub.server.gateway import Gateway
from raftwood.loghub.settings import GatewaySettings, LogHubSettings
from raftwood.loghub.shards import hash_key
from raftwood.metastore.file_store import FileMetaStore
from raftwood.testing import Simulation
from tests.kits.loghub.groups.consumer import TIMEOUT_S, Consumer
from tests.kits.loghub.groups.notebook import Notebook
from tests.kits.loghub.groups.slow_store import SlowStore
from tests.kits.loghub.memory_logs import MemoryLogs
from tests.kits.loghub.streams import log_group
from tests.kits.models import Violation, run_scenario

GATEWAYS = 3
KEYS = 12
CONSUMERS_MAX = 5
FAULTS_S = 60.0
END_S_MAX = 200.0


@dataclass(frozen=True)
class Weather:
    """How often, per second, what happens."""

    slow: float = 0.02
    """Of a call to the metastore."""
    join: float = 0.1
    leave: float = 0.05
    crash: float = 0.0
    freeze: float = 0.0
    reshard: float = 0.1

    @property
    def is_bad(self) -> bool:
        return bool(self.slow or self.crash or self.freeze)

    @classmethod
    def choose(cls, seed: int) -> "Weather":
        source = random.Random(f"consumer groups {seed}")
        return cls(
            slow=source.choice((0.0, 0.02, 0.1)),
            join=source.choice((0.05, 0.2)),
            leave=source.choice((0.0, 0.1)),
            crash=source.choice((0.0, 0.1)),
            freeze=source.choice((0.0, 0.2)),
            reshard=source.choice((0.0, 0.1, 0.3)),
        )


@dataclass(frozen=True)
class Report:
    """What a run came to."""

    put: int
    doubles: int
    consumers: int
    faults_s: float


class World:
    def __init__(self, seed: int, weather: Weather, environment: Environment) -> None:
        self.random = random.Random(seed)
        self.weather = weather
        self.environment = environment
        self.notebook = Notebook()
        self.gateways: list[Gateway] = []
        self.consumers: dict[str, tuple[Consumer, asyncio.Task[None]]] = {}
        self.is_putting = True
        self.joined = 0
        self.violations: list[Exception] = []

    async def start(self, store: FileMetaStore) -> None:
        logs = MemoryLogs()
        for _ in range(GATEWAYS):
            slow = SlowStore(store, self.random, slow=self.weather.slow)
            gateway = Gateway(
                self.environment,
                slow,
                logs,
                settings=GatewaySettings(),
                loghub=LogHubSettings(),
                metrics=Metrics(),
            )
            await gateway.start()
            self.gateways.append(gateway)
        catalog = self.gateways[0].catalog
        await catalog.create_project("p")
        await catalog.create_logstore("p", "s", shard_count=3)
        await self.gateways[0].groups.create("p", "s", "g", timeout_s=TIMEOUT_S, is_ordered=True)

    def gateway(self) -> Gateway:
        return self.random.choice(self.gateways)

    async def put_all(self) -> None:
        number = 0
        while self.is_putting:
            number += 1
            for key in range(KEYS):
                await self._put(key, number)
            await asyncio.sleep(1.0)

    async def _put(self, key: int, number: int) -> None:
        batch, digest = log_group(f"{key}-{number}"), hash_key(str(key).encode())
        await self.gateway().streams.put("p", "s", batch, key=digest)
        self.notebook.put[key] = number

    # What happens, once a second by chance.

    def happen(self, tasks: asyncio.TaskGroup) -> None:
        chance = self.random.random
        if chance() < self.weather.join and len(self.consumers) < CONSUMERS_MAX:
            self.join()
        if chance() < self.weather.leave and len(self.consumers) > 1:
            self._one().stop()
        if chance() < self.weather.crash and self.consumers:
            self.consumers[self._one().name][1].cancel()
        if chance() < self.weather.freeze and self.consumers:
            frozen_s = self.random.uniform(0.5, 2.5 * TIMEOUT_S)
            self._one().frozen_until = asyncio.get_running_loop().time() + frozen_s
        if chance() < self.weather.reshard:
            tasks.create_task(self._reshard())

    def join(self) -> None:
        """Also under the name of one that crashed a moment ago."""
        name = next(
            name for name in map("c{}".format, range(CONSUMERS_MAX)) if name not in self.consumers
        )
        consumer = Consumer(name, gateway=self.gateway, notebook=self.notebook, source=self.random)
        task = asyncio.create_task(self._run(consumer))
        task.add_done_callback(lambda _: self.consumers.pop(name))
        self.consumers[name] = consumer, task
        self.joined += 1

    async def _run(self, consumer: Consumer) -> None:
        try:
            await consumer.run()
        except* Violation as violations:
            self.violations += violations.exceptions

    def check(self) -> None:
        if self.violations:
            raise self.violations[0]

    def _one(self) -> Consumer:
        return self.consumers[self.random.choice(sorted(self.consumers))][0]

    async def _reshard(self) -> None:
        streams = self.gateway().streams
        try:
            shard = self.random.choice(await streams.shards("p", "s"))
            if self.random.random() < 0.6:
                await streams.split("p", "s", shard.id, None)
            else:
                await streams.merge("p", "s", shard.id)
        except RaftwoodError:
            pass  # not every shard can be split or merged

    # How it ends: nothing goes wrong any more.

    async def end(self) -> None:
        self.is_putting = False
        for name in sorted(self.consumers):
            self.consumers[name][0].frozen_until = 0.0
        if not self.consumers:
            self.join()
        for _ in range(int(END_S_MAX)):
            self.check()
            if self.notebook.is_all_read():
                break
            if not self.consumers:
                self.join()
            await asyncio.sleep(1.0)
        else:
            raise Violation("not all is read in the end")
        for name in sorted(self.consumers):
            self.consumers[name][0].stop()
        await asyncio.wait([task for _, task in self.consumers.values()])

    async def close(self) -> None:
        for gateway in self.gateways:
            await gateway.close()


def run_groups(seed: int, weather: Weather | None = None, *, twice: bool = False) -> Report:
    weather = weather or Weather.choose(seed)

    async def scenario(simulation: Simulation) -> Report:
        store = await FileMetaStore.open(simulation.environment, "metastore")
        world = World(seed, weather, simulation.environment)
        await world.start(store)
        try:
            world.join()
            began = simulation.now
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(world.put_all())
                for _ in range(int(FAULTS_S)):
                    await asyncio.sleep(1.0)
                    world.happen(tasks)
                world.is_putting = False
            faults_s = simulation.now - began if weather.is_bad else 0.0
            await world.end()
        finally:
            await world.close()
            await store.close()
        world.check()
        put = sum(world.notebook.put.values())
        return Report(put, world.notebook.doubles, world.joined, faults_s)

    return run_scenario("groups", seed, scenario, twice=twice).result
