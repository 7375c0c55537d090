"""Receivers over one storage, and applications that ship; faults by seed, then peace.

Shippers and receivers are the real ones. What is simulated is machines, disks, network and storage,
an application on each shipper's machine, and an operator who changes the ring.
"""

import asyncio
import random
from collections.abc import Callable
from functools import partial

import msgspec

from raftwood.testing import DISK_ERRORS, FAULTS, FaultInjector, Simulation, SwarmProfile
from raftwood.testing.runner import Machine, SimulationReport
from tests.kits.clogs.memory_sink import MemoryStorage
from tests.kits.clogs.ring import ACCESS
from tests.kits.clogs.simulation.nodes import Application, receive, ship
from tests.kits.clogs.simulation.notebook import Harm, Life, check_stored
from tests.kits.clogs.simulation.weather import PORT, Rings, Weather
from tests.kits.models import Violation, run_scenario

SHIPPERS = ("a", "b")
_FAULTS = tuple(fault for fault in FAULTS if fault != "power_loss_of_all")
_SETTLE_S_MAX = 120.0
_AMPLE_BYTES = 64 << 20
_TIGHT_BYTES = 1 << 20
"""The least that a spool may have."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How a run goes."""

    receivers: int = 3
    files: int = 3
    faults_s: float = 20.0
    gone_s: float = 0.0
    """All receivers are gone for so long after that."""
    is_isolated: bool = False
    """One is gone, and the ring changes meanwhile."""
    calm: float = 1.0
    has_disk_errors: bool = False
    when_full: str = "spool"
    spool: str = "always"
    has_spool: bool = True
    memory_bytes_max: int = 64 << 10
    spool_bytes_max: int = _AMPLE_BYTES
    batch_lines_max: int = 16
    batches_max: int = 64
    in_flight_max: int = 64
    line_bytes: int = 60
    pause_s: float = 0.05
    sync: float = 0.1
    move_s: float = 1.0
    """How often a place ends, on average; as the next two, 0 for never."""
    weather_s: float = 3.0
    ring_s: float = 3.0


def choose_plan(seed: int) -> Plan:
    source = random.Random(f"clogs plan {seed}")
    mode = source.choice(("always", "always", "overflow", "drop", "block"))
    is_tight = source.random() < 0.2
    return Plan(
        receivers=source.choice((3, 4)),
        gone_s=source.choice((0.0, 0.0, 60.0)),
        is_isolated=source.random() < 0.5,
        calm=source.choice((0.5, 1.0, 3.0)),
        has_disk_errors=source.random() < 0.3,
        when_full={"drop": "drop-oldest", "block": "block"}.get(mode, "spool"),
        spool="always" if mode in ("always", "block") else "overflow",
        has_spool=mode != "drop",
        batch_lines_max=source.choice((8, 64)),
        batches_max=source.choice((2, 64)),
        in_flight_max=source.choice((1, 2, 64)),
        line_bytes=6_000 if is_tight else source.choice((40, 400)),
        spool_bytes_max=_TIGHT_BYTES if is_tight else _AMPLE_BYTES,
        move_s=source.choice((0.0, 0.3, 2.0)),
        weather_s=source.choice((0.0, 2.0, 5.0)),
        ring_s=source.choice((0.0, 1.0, 5.0)),
    )


class Outcome(msgspec.Struct, frozen=True):
    """What a run came to."""

    stored: int
    promised: int
    dropped: int
    lives: int
    moves: int
    retried: int
    spooled: int
    resumed: int
    faults: int
    faults_s: float
    """Without any fault, 0."""


class World:
    def __init__(self, simulation: Simulation, plan: Plan) -> None:
        self.simulation = simulation
        self.plan = plan
        self.random = random.Random(f"clogs {simulation.seed}")
        self.storage = MemoryStorage()
        self.weather = Weather()
        self.lives: list[Life] = []
        self.applications: dict[str, Application] = {}
        self.violations: list[Violation] = []
        self.is_over = False
        self.closing = asyncio.Event()
        self.moves = 0
        self.access = ACCESS
        self.receivers = [simulation.add_node(f"r{number}") for number in range(plan.receivers)]
        self.shippers = [simulation.add_node(name) for name in SHIPPERS]
        addresses = {machine.name: (machine.name, PORT) for machine in self.receivers}
        self.rings = Rings(addresses, self.random)

    async def start(self) -> None:
        for machine in self.receivers:
            machine.start(partial(receive, self, machine.name))
        for machine in self.shippers:
            machine.start(partial(ship, self, machine.name))
        await self.wait(lambda: len(self.applications) == len(SHIPPERS), Harm.STUCK)

    # What goes wrong

    async def befall(self) -> dict[str, int]:
        allowed = (*_FAULTS, *DISK_ERRORS) if self.plan.has_disk_errors else _FAULTS
        profile = SwarmProfile.choose(self.simulation.seed, allowed=allowed, calm=self.plan.calm)
        machines = [*self.receivers, *self.shippers]
        injector = FaultInjector(self.simulation, profile, machines=machines, others=())
        plan = self.plan
        others = [
            asyncio.create_task(self._now_and_then(every_s, action))
            for every_s, action in (
                (plan.move_s, self._move),
                (plan.weather_s, self._change_weather),
                (plan.ring_s, self._change_ring),
            )
            if every_s
        ]
        await injector.run(until=self.simulation.now + plan.faults_s)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self.weather.unavailable = self.weather.answers_lost = self.weather.slow_s = 0.0
        self.rings.settle()
        return injector.counts

    async def _now_and_then(self, every_s: float, action: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(self.random.expovariate(1 / every_s))
            action()

    def _move(self) -> None:
        if self.storage.places:
            self.storage.move(self.random.choice(list(self.storage.places)))
            self.moves += 1

    def _change_weather(self) -> None:
        chosen = self.random.choice
        self.weather.unavailable = chosen((0.0, 0.0, 0.3, 1.0))
        self.weather.answers_lost = chosen((0.0, 0.2, 0.5))
        self.weather.slow_s = chosen((0.0, 0.01, 0.2, 2.5))

    def _change_ring(self) -> None:
        self.rings.change(list(self.storage.places))

    async def be_gone(self) -> None:
        """All receivers, for a while."""
        for machine in self.receivers:
            machine.kill()
        await asyncio.sleep(self.plan.gone_s)
        for machine in self.receivers:
            machine.start()

    async def isolate(self) -> None:
        """A receiver is gone, and is known to be though the ring changes."""
        gone = self.receivers[0]
        await self.wait(self._none_isolated, Harm.ISOLATED)
        gone.kill()
        await self.wait(partial(self._all_see, self._isolates, gone), Harm.STUCK)
        version = self.rings.settle()
        await self.wait(partial(self._all_see, self._has_version, version), Harm.STUCK)
        if not self._all_see(self._isolates, gone):
            raise Violation(Harm.FORGOTTEN, gone.name)
        gone.start()

    # What is seen

    async def wait(self, condition: Callable[[], bool], harm: Harm) -> None:
        try:
            await self.simulation.wait_until(
                lambda: bool(self.violations) or condition(), timeout_s=_SETTLE_S_MAX, every_s=0.05
            )
        except TimeoutError:
            raise Violation(harm, f"after {_SETTLE_S_MAX} s") from None
        if self.violations:
            raise self.violations[0]

    def _all_see(self, seen: Callable[..., bool], what: object) -> bool:
        return all(seen(self.applications[name], what) for name in SHIPPERS)

    @staticmethod
    def _isolates(application: Application, machine: Machine) -> bool:
        servers = application.shipper.status().servers
        return any(each.is_isolated for each in servers if each.server == machine.name)

    @staticmethod
    def _has_version(application: Application, version: int) -> bool:
        return application.shipper.status().version == version

    def _none_isolated(self) -> bool:
        return all(
            len(status.servers) == self.rings.size
            and all(each.is_connected and not each.is_isolated for each in status.servers)
            for status in (self.applications[name].shipper.status() for name in SHIPPERS)
        )

    async def settle(self) -> None:
        """All is well: all that waits is stored, and all servers are used."""
        # One that found no room for its spool looks again: what an earlier life left is in there.
        opened = lambda: all(each.has_spool for each in self.applications.values())  # noqa: E731
        await self.wait(opened, Harm.STUCK)
        self.is_over = True
        flushed = lambda: all(each.is_flushed for each in self.applications.values())  # noqa: E731
        await self.wait(flushed, Harm.STUCK)
        await self.wait(self._none_isolated, Harm.ISOLATED)
        self.closing.set()
        ended = lambda: not any(machine.running for machine in self.shippers)  # noqa: E731
        await self.wait(ended, Harm.STUCK)
        for machine in self.receivers:
            machine.kill()

    def check(self, faults: dict[str, int], faults_s: float) -> Outcome:
        stored = {name: self.storage.lines(name) for name in self.storage.places}
        when_full = self.plan.when_full
        # Where the spool takes nothing, the oldest lines are dropped.
        is_short = self.plan.spool_bytes_max < _AMPLE_BYTES or any(
            fault in faults for fault in ("disk_full", *DISK_ERRORS)
        )
        may_drop = when_full == "drop-oldest" or (when_full == "spool" and is_short)
        check_stored(self.lives, stored, may_drop=may_drop)
        counters = [life.counters for life in self.lives if life.counters is not None]
        servers = [each for counter in counters for each in counter.servers.values()]
        return Outcome(
            stored=sum(map(len, stored.values())),
            promised=sum(sum(life.is_promised.values()) for life in self.lives),
            dropped=sum(life.dropped for life in self.lives),
            lives=len(self.lives),
            moves=self.moves,
            retried=sum(each.retried for each in servers),
            spooled=sum(each.spooled for each in servers),
            resumed=sum(each.resumed for each in counters),
            faults=sum(faults.values()),
            faults_s=faults_s if faults else 0.0,
        )


async def run_world(world: World) -> Outcome:
    await world.start()
    began = world.simulation.now
    faults = await world.befall()
    if world.plan.gone_s:
        await world.be_gone()
    if world.plan.is_isolated:
        await world.isolate()
    faults_s = world.simulation.now - began
    await world.settle()
    return world.check(faults, faults_s)


def run_clogs(
    seed: int, plan: Plan | None = None, *, twice: bool = False
) -> SimulationReport[Outcome]:
    """All promises hold, or it raises; with `twice`, both runs are the same."""
    chosen = plan or choose_plan(seed)

    async def scenario(simulation: Simulation) -> Outcome:
        return await run_world(World(simulation, chosen))

    return run_scenario("clogs", seed, scenario, twice=twice)
