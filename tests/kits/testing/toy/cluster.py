"""Three replicas and their clients in a simulation with faults, from start to verdict."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from raftwood.base.environment import Environment
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
from tests.kits.testing.toy.replica import ReplicaAddress, serve_replica
from tests.kits.testing.toy.workload import Load, audit, run_client

REPLICAS = tuple(ReplicaAddress(f"r{number}", number, f"r{number}", 7000) for number in (1, 2, 3))
CLIENTS = ("c1", "c2", "c3")
FOLDER = "/data/store"
FAULTS_S = 20.0
PAUSE_S = 0.3
"""Between two operations of a worker, on average."""
OPERATIONS_PER_S_MIN = 20.0
"""Below it, a run does not count as one under load."""
_WARM_UP_S = 1.0
_CALM = (1.0, 2.0, 4.0)
"""With many faults at once little is done; with few, more is done while they last."""
_CONVERGENCE_S = 60.0


class Toy(msgspec.Struct, frozen=True, kw_only=True):
    """What runs."""

    faults_s: float = FAULTS_S
    pause_s: float = PAUSE_S
    read_share: float = 0.5


class Outcome(msgspec.Struct, frozen=True):
    """What a run did, for tallies and for the checks."""

    events: list[Event]
    faults: dict[str, int]
    faults_s: float
    """How long they were really on."""

    @property
    def operations(self) -> int:
        """Sent while the faults were on; what a client itself refuses is no load."""
        return sum(
            event.outcome != "failed" and _WARM_UP_S <= event.called < _WARM_UP_S + self.faults_s
            for event in self.events
        )

    @property
    def is_under_load(self) -> bool:
        return bool(self.faults) and self.operations >= OPERATIONS_PER_S_MIN * self.faults_s


def scenario_of(
    toy: Toy, profile: SwarmProfile
) -> Callable[[Simulation], Coroutine[Any, Any, Outcome]]:
    async def scenario(simulation: Simulation) -> Outcome:
        history = History(lambda: simulation.now)
        replicas = [_start_replica(simulation, address) for address in REPLICAS]
        until = _WARM_UP_S + toy.faults_s
        clients = [simulation.add_node(name) for name in CLIENTS]
        for client in clients:
            load = Load(until, toy.pause_s, toy.read_share)
            client.start(_client(client.name, history, load))
        await asyncio.sleep(_WARM_UP_S)
        injector = FaultInjector(simulation, profile, machines=replicas, others=CLIENTS)
        began = simulation.now
        await injector.run(until=until)
        faults_s = simulation.now - began
        await _converge(simulation, clients, history)
        await _stop(simulation, replicas)
        violation = check_registers(history.events, initial="")
        if violation is not None:
            raise Violation(str(violation))
        return Outcome(history.events, injector.counts, faults_s)

    return scenario


async def _converge(simulation: Simulation, clients: Sequence[Machine], history: History) -> None:
    await simulation.wait_until(
        lambda: not any(client.running for client in clients), timeout_s=_CONVERGENCE_S
    )
    environment = simulation.environment
    await audit(environment, REPLICAS, history, timeout_s=_CONVERGENCE_S)


def _start_replica(simulation: Simulation, address: ReplicaAddress) -> Machine:
    async def program(environment: Environment) -> None:
        await serve_replica(environment, address, FOLDER)

    machine = simulation.add_node(address.name)
    machine.start(program)
    return machine


def _client(
    name: str, history: History, load: Load
) -> Callable[[Environment], Coroutine[Any, Any, None]]:
    async def program(environment: Environment) -> None:
        await run_client(environment, name, REPLICAS, history, load)

    return program


async def _stop(simulation: Simulation, replicas: Sequence[Machine]) -> None:
    """An orderly end, so that a task or file left open shows as a leak."""
    for machine in replicas:
        process = machine.node.process
        assert process is not None
        assert process.main is not None
        process.main.cancel()
    await simulation.wait_until(lambda: not any(machine.running for machine in replicas))


def run_toy(
    seed: int,
    toy: Toy | None = None,
    *,
    profile: SwarmProfile | None = None,
    twice: bool = False,
) -> SimulationReport[Outcome]:
    """Run one seed, with a profile drawn from it; raises what it found."""
    profile = profile or SwarmProfile.choose(
        seed, allowed=(*FAULTS, *DISK_ERRORS), calm=_CALM[seed % len(_CALM)]
    )
    return run_scenario(
        "toy",
        seed,
        scenario_of(toy or Toy(), profile),
        twice=twice,
        disk=profile.disk,
        virtual_seconds_max=600.0,
    )
