"""Stores, clients and faults in a simulation, from start to verdict."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import StoreError
from raftwood.raft.client import AsyncRaftClient
from raftwood.testing import (
    DISK_ERRORS,
    FAULTS,
    Event,
    FaultInjector,
    History,
    Machine,
    Simulation,
    SimulationReport,
    SwarmProfile,
    check_registers,
)
from tests.kits.models import Violation, run_scenario
from tests.kits.raft.hosts.damage import SEGMENTS, SNAPSHOTS, Damage
from tests.kits.raft.hosts.machine import Registers
from tests.kits.raft.hosts.operator import Operator
from tests.kits.raft.hosts.store import (
    CLIENT_NETWORK,
    GROUPS,
    StorePlan,
    address_of,
    name_of,
    serve_store,
)
from tests.kits.raft.hosts.watch import Watch
from tests.kits.raft.hosts.witness import Witness
from tests.kits.raft.hosts.workload import Load, Recorder, run_client

FOUNDERS = (1, 2, 3)
STORES_WITH_CHANGES = (1, 2, 3, 4, 5)
VICTIM = 2
CLIENTS = ("c1", "c2", "c3")
FAULTS_S = 120.0
PAUSE_S = 0.42
"""Between two bursts of a client, on average."""
OPERATIONS_PER_S_MIN = 20.0
"""Below it, a run does not count as one under load."""
LIVENESS_S = 20.0
"""Once the faults have stopped, every group takes a write within this time."""
_WARM_UP_S = 4.0
_CALM = (2.0, 4.0, 8.0)
"""With many faults at once little is done; with few, more is done while they last."""
_CONVERGENCE_S = 60.0


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """What runs."""

    faults_s: float = FAULTS_S
    pause_s: float = PAUSE_S
    read_share: float = 0.5
    change_every_s: float | None = None
    """Between two changes of members, leaders or snapshots on average; None for no changes."""
    flip_every_s: float | None = None
    """Between two flipped bits on the disk of one store, on average; None for none."""
    flip_kinds: tuple[str, ...] = (SEGMENTS, SNAPSHOTS)

    @property
    def stores(self) -> tuple[int, ...]:
        return FOUNDERS if self.change_every_s is None else STORES_WITH_CHANGES


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did, for tallies and for the checks."""

    events: list[Event]
    faults: dict[str, int]
    changes: dict[str, int]
    flips: int
    halted: list[str]
    """What a store says that does not start, because its disk went bad."""
    repaired: int
    """Replicas that were halted, and serve again."""
    faults_s: float
    """How long they were really on."""
    terms: int
    snapshots_restored: int
    live_after_s: float

    @property
    def operations(self) -> int:
        """Begun while the faults were on."""
        return sum(_WARM_UP_S <= event.called < _WARM_UP_S + self.faults_s for event in self.events)

    @property
    def is_under_load(self) -> bool:
        return bool(self.faults) and self.operations >= OPERATIONS_PER_S_MIN * self.faults_s


class Stuck(AssertionError):
    """The faults are over, and a group does not come back to life."""


class _Run:
    """One simulation under way."""

    def __init__(self, simulation: Simulation, cluster: Cluster) -> None:
        self._simulation = simulation
        self._cluster = cluster
        self._history = History(lambda: simulation.now)
        self._witness = Witness()
        self._watch = Watch(self._witness, self._is_victim)
        self._addresses: Mapping[int, str] = {store: address_of(store) for store in cluster.stores}
        self._founders = {store: address_of(store) for store in FOUNDERS}
        self._operator: Operator | None = None
        self._damage: Damage | None = None
        self._halted: list[str] = []

    async def run(self, profile: SwarmProfile) -> Outcome:
        """The whole course, given up at once when the watch sees a promise broken."""
        course = asyncio.create_task(self._course(profile))
        watching = asyncio.create_task(self._watch.look())
        await asyncio.wait([course, watching], return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            course.cancel()
            await asyncio.wait([course])
            watching.result()
        watching.cancel()
        await asyncio.wait([watching])
        return course.result()

    async def _course(self, profile: SwarmProfile) -> Outcome:
        simulation, cluster = self._simulation, self._cluster
        stores = [self._start_store(store) for store in cluster.stores]
        until = _WARM_UP_S + cluster.faults_s
        clients = [simulation.add_node(name) for name in CLIENTS]
        load = Load(until=until, pause_s=cluster.pause_s, read_share=cluster.read_share)
        for client in clients:
            client.start(self._client(client.name, load))
        await asyncio.sleep(_WARM_UP_S)
        clients += self._start_operator(until)
        others = [client.name for client in clients]
        injector = FaultInjector(simulation, profile, machines=stores, others=others)
        began = simulation.now
        await asyncio.gather(injector.run(until=until), self._go_bad(stores, until=until))
        faults_s = simulation.now - began
        live_after_s = await self._come_to_life()
        await self._converge(clients)
        repaired = self._count_repaired()
        await self._stop(stores)
        violation = check_registers(self._history.events, initial="")
        if violation is not None:
            raise Violation(str(violation))
        return Outcome(
            events=self._history.events,
            faults=injector.counts,
            changes=self._operator.counts if self._operator is not None else {},
            flips=self._damage.flips if self._damage is not None else 0,
            halted=self._halted,
            repaired=repaired,
            faults_s=faults_s,
            terms=self._watch.terms,
            snapshots_restored=self._witness.snapshots_restored,
            live_after_s=live_after_s,
        )

    def _start_store(self, store: int) -> Machine:
        witness = self._witness
        plan = StorePlan(
            store=store,
            members=self._founders,
            machine=lambda group: Registers(witness, f"store {store}", group),
            opened=self._watch.opened,
            halted=self._on_halted if self._is_victim(store) else None,
        )

        async def program(environment: Environment) -> None:
            await serve_store(environment, plan)

        machine = self._simulation.add_node(name_of(store))
        machine.start(program)
        return machine

    def _is_victim(self, store: int) -> bool:
        """Only a minority goes bad: one store."""
        return self._cluster.flip_every_s is not None and store == VICTIM

    def _on_halted(self, error: StoreError) -> None:
        self._halted.append(str(error))

    async def _go_bad(self, stores: Sequence[Machine], *, until: float) -> None:
        if self._cluster.flip_every_s is not None:
            victim = stores[self._cluster.stores.index(VICTIM)]
            self._damage = Damage(
                self._simulation,
                victim,
                kinds=self._cluster.flip_kinds,
                every_s=self._cluster.flip_every_s,
            )
            await self._damage.run(until=until)

    def _start_operator(self, until: float) -> list[Machine]:
        if self._cluster.change_every_s is None:
            return []
        operator = Operator(self._addresses, every_s=self._cluster.change_every_s)

        async def program(environment: Environment) -> None:
            await operator.run(environment, until=until)

        self._operator = operator
        machine = self._simulation.add_node("operator")
        machine.start(program)
        return [machine]

    def _client(self, name: str, load: Load) -> Callable[[Environment], Coroutine[Any, Any, None]]:
        async def program(environment: Environment) -> None:
            await run_client(environment, name, self._addresses, self._history, self._witness, load)

        return program

    async def _come_to_life(self) -> float:
        """Bounded liveness: a write to each group; answers how long it took."""
        simulation = self._simulation
        began = simulation.now
        environment = simulation.environment
        async with AsyncRaftClient(environment, CLIENT_NETWORK, self._addresses) as client:
            recorder = Recorder(client, "liveness", self._history, self._witness)
            timeout_ms = int(LIVENESS_S * 1000)
            results = await asyncio.gather(
                *(recorder.write(group, "live", timeout_ms=timeout_ms) for group in GROUPS)
            )
        stuck = [group for group, done in zip(GROUPS, results, strict=True) if not done]
        if stuck:
            raise Stuck(
                f"groups {stuck} take no write {LIVENESS_S} s after the faults\n"
                f"{self._watch.describe()}"
            )
        return simulation.now - began

    async def _converge(self, clients: Sequence[Machine]) -> None:
        """Every key can be read, and all replicas come to the end of what was applied."""
        simulation = self._simulation
        await simulation.wait_until(
            lambda: not any(client.running for client in clients), timeout_s=_CONVERGENCE_S
        )
        environment = simulation.environment
        async with AsyncRaftClient(environment, CLIENT_NETWORK, self._addresses) as client:
            auditor = Recorder(client, "auditor", self._history, self._witness)
            keys = dict.fromkeys(event.key for event in self._history.events)
            for key in keys:
                group, _, name = key.partition("/")
                if not await auditor.read(int(group), name):
                    raise Stuck(f"{key} cannot be read\n{self._watch.describe()}")
        try:
            await simulation.wait_until(self._is_even, timeout_s=_CONVERGENCE_S)
        except TimeoutError as error:
            raise Stuck(f"some replicas stay behind\n{self._watch.describe()}") from error
        self._watch.look_once()

    def _is_even(self) -> bool:
        return all(
            self._is_at_the_end(store, group)
            for group in GROUPS
            for store in self._watch.members(group) or (0,)
        )

    def _is_at_the_end(self, store: int, group: int) -> bool:
        host = self._watch.hosts.get(store)
        if host is None or not self._simulation.machines[name_of(store)].running:
            return False
        if self._is_victim(store) and (self._halted or group in host.halted()):
            return True  # it says that it does not serve, and why
        if group not in host.groups():
            return False
        machine = host._replicas[group].applier.machine
        assert isinstance(machine, Registers)
        return machine.position == self._witness.length(group)

    def _count_repaired(self) -> int:
        if self._halted:
            return 0
        return sum(
            group not in self._watch.hosts[store].halted() for store, group in self._watch.halted
        )

    async def _stop(self, stores: Sequence[Machine]) -> None:
        """An orderly end, so that a task or file left open shows as a leak."""
        for machine in stores:
            process = machine.node.process
            assert process is not None
            assert process.main is not None
            process.main.cancel()
        await self._simulation.wait_until(lambda: not any(store.running for store in stores))


def choose_cluster(seed: int, *, faults_s: float = FAULTS_S) -> Cluster:
    """Half of the seeds change members, some of them often."""
    return Cluster(faults_s=faults_s, change_every_s=(None, 1.5, None, 5.0)[seed % 4])


def choose_profile(seed: int) -> SwarmProfile:
    return SwarmProfile.choose(seed, allowed=(*FAULTS, *DISK_ERRORS), calm=_CALM[seed % len(_CALM)])


def run_hosts(
    seed: int,
    cluster: Cluster | None = None,
    *,
    profile: SwarmProfile | None = None,
    twice: bool = False,
) -> SimulationReport[Outcome]:
    """Run one seed, with a profile drawn from it; raises what it found."""
    chosen, plan = profile or choose_profile(seed), cluster or choose_cluster(seed)

    async def scenario(simulation: Simulation) -> Outcome:
        return await _Run(simulation, plan).run(chosen)

    return run_scenario(
        "hosts", seed, scenario, twice=twice, disk=chosen.disk, virtual_seconds_max=1200.0
    )
