"""The client among nodes that die, move and stall, in virtual time: each write is done once."""

import asyncio
import random
from collections import Counter

import msgspec

from raftwood.base.environment import Environment
from raftwood.testing import Simulation, SimulationReport
from raftwood.zeppelin.client import AnswerLost, AsyncKv
from raftwood.zeppelin.client.nodes import SlotMap
from raftwood.zeppelin.commands.session import KvSession
from raftwood.zeppelin.node.data_server import DataServer
from tests.kits.models import Mutant, Violation, replaced, run_scenario
from tests.kits.zeppelin.static_cluster import StaticCluster
from tests.kits.zeppelin.static_view import PASSWORD, WRITER

NAMES = ("a", "b", "c")
CLIENT = "client"
WORKERS = 4
ROUNDS = 60
MANY = 40


class World:
    """Nodes, a client with some callers, and what its calls are to lead to."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.random = random.Random(f"zeppelin client {simulation.seed}")
        self.cluster = StaticCluster(NAMES)
        self.cluster.hosts = {name: name for name in NAMES}
        self.machines = {name: simulation.add_node(name) for name in (*NAMES, CLIENT)}
        self.counts: Counter[str] = Counter()
        self.logs: dict[str, list[str]] = {}
        self.answers_lost = 0
        self.is_done = asyncio.Event()

    def start(self, name: str) -> None:
        async def serve(environment: Environment) -> None:
            async with DataServer(self.cluster.views[name], environment) as server:
                await server.listen(name, 7000)
                await asyncio.get_running_loop().create_future()

        self.machines[name].start(serve)

    async def run(self) -> float:
        """Returns how long there was trouble."""
        for name in NAMES:
            self.start(name)
        self.machines[CLIENT].start(self._call)
        faults = asyncio.create_task(self._trouble())
        began = self.simulation.now
        await self.simulation.wait_until(self.is_done.is_set, timeout_s=600)
        faults_s = self.simulation.now - began
        faults.cancel()
        await asyncio.gather(faults, return_exceptions=True)
        for name in NAMES:
            self.machines[name].kill()
        self.check()
        return faults_s

    # The client

    async def _call(self, environment: Environment) -> None:
        async with (
            await AsyncKv.connect(
                self.cluster.addresses,
                user=WRITER,
                password=PASSWORD,
                timeout_ms=60_000,
                environment=environment,
            ) as kv,
            asyncio.TaskGroup() as group,
        ):
            for number in range(WORKERS):
                group.create_task(self._work(kv, number))
        self.is_done.set()

    async def _work(self, kv: AsyncKv, number: int) -> None:
        source = random.Random(f"{self.simulation.seed}/{number}")
        log = self.logs.setdefault(f"log{number}", [])
        for turn in range(ROUNDS):
            key = f"n{source.randrange(20)}"
            await kv.incr(key)
            self.counts[key] += 1
            await kv.append(f"log{number}", f"{turn};")
            log.append(f"{turn};")
            some = {f"m{each}": source.randrange(5) for each in source.sample(range(300), MANY)}
            await kv.incr_many(some)
            self.counts.update(some)
            try:
                await kv.transaction([("INCR", f"{{{key}}}x"), ("INCRBY", f"{{{key}}}y", 2)])
            except AnswerLost:
                self.answers_lost += 1
            self.counts.update({f"{{{key}}}x": 1, f"{{{key}}}y": 2})
            if await kv.set(f"once{turn}", number, nx=True):
                self.counts["winners"] += 1
            while not await kv.cas("cas", held := await kv.get("cas") or b"", int(held or 0) + 1):
                await kv.set("cas", 0, nx=True)
            self.counts["cas"] += 1
            await asyncio.sleep(source.uniform(0, 0.2))

    # What goes wrong

    async def _trouble(self) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(0.02, 0.5))
            name = self.random.choice(NAMES)
            await self.random.choice(
                (self._reset, self._lose_answers, self._cut, self._die, self._move, self._freeze)
            )(name)

    async def _reset(self, name: str) -> None:
        self.simulation.network.reset(CLIENT, name)

    async def _lose_answers(self, name: str) -> None:
        """What the client asks in this while is done, and it does not hear so."""
        self.simulation.network.cut(source=name, target=CLIENT)
        await asyncio.sleep(self.random.uniform(0.01, 0.2))
        await self._reset(name)
        self.simulation.network.heal()

    async def _cut(self, name: str) -> None:
        ways = [(CLIENT, name), (name, CLIENT)]
        for source, target in self.random.sample(ways, self.random.randint(1, 2)):
            self.simulation.network.cut(source=source, target=target)
        await asyncio.sleep(self.random.choice((0.3, 9.0)))
        self.simulation.network.heal()

    async def _die(self, name: str) -> None:
        self.machines[name].kill()
        await asyncio.sleep(self.random.uniform(0.1, 1.0))
        self.cluster.fail_over(name)
        await asyncio.sleep(self.random.uniform(0.1, 2.0))
        self.cluster.down.discard(name)
        self.cluster.epoch += 1
        self.start(name)

    async def _move(self, name: str) -> None:
        stale = self.cluster.views[self.random.choice(NAMES)]
        stale.hears_no_more()
        for partition in self.random.sample(range(6), 3):
            self.cluster.promote(partition, name)
        await asyncio.sleep(self.random.uniform(0, 1.0))
        stale.hears_again()

    async def _freeze(self, _: str) -> None:
        self.cluster.frozen.add(self.random.randrange(6))
        await asyncio.sleep(self.random.uniform(0, 2.0))
        self.cluster.frozen.clear()

    # The end

    def check(self) -> None:
        values = {key.decode(): value.decode() for key, value in self.cluster.values().items()}
        for key, count in self.counts.items():
            if key != "winners" and int(values.get(key, "0")) != count:
                raise Violation(f"{key} is {values.get(key)}, and {count} were added")
        if self.counts["winners"] != ROUNDS:
            raise Violation(f"{self.counts['winners']} winners of {ROUNDS}")
        for key, log in self.logs.items():
            if values[key] != "".join(log):
                raise Violation(f"{key} is {values[key]}")


class Outcome(msgspec.Struct, frozen=True):
    """What a run came to."""

    answers_lost: int
    calls: int
    faults_s: float


async def _scenario(simulation: Simulation) -> Outcome:
    world = World(simulation)
    faults_s = await world.run()
    return Outcome(world.answers_lost, sum(world.counts.values()), faults_s)


def run_client(seed: int, *, twice: bool = False) -> SimulationReport[Outcome]:
    """One seed; raises `Violation` where what was written is not what is there."""
    return run_scenario("zeppelin_client", seed, _scenario, twice=twice)


MUTANTS = {
    "writes whose names nobody knows are done twice": Mutant(
        run_client, replaced(KvSession, sequence_done=lambda *_: None)
    ),
    "rows of a partition that go apart are lost": Mutant(
        run_client,
        replaced(SlotMap, told=property(lambda found: found.masters, lambda *_: None)),
        first=15,
    ),
}
