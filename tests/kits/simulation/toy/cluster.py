"""Three replicas and their clients in a simulation with faults, from start to verdict."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from raftwood.base.environment import Environment
from raftwood.simulation import (
    DISK_ERRORS,
    FAULTS,
    Event,
    FaultInjector,
    History,
    Machine,
    Report,
    Simulation,
    SwarmProfile,
    assert_deterministic,
    check_registers,
    simulate,
)
from tests.kits.simulation.toy.register import Registers
from tests.kits.simulation.toy.replica import Replica, ReplicaAddress, serve_replica
from tests.kits.simulation.toy.workload import Load, audit, run_client

REPLICAS = tuple(ReplicaAddress(f"r{number}", number, f"r{number}", 7000) for number in (1, 2, 3))
CLIENTS = ("c1", "c2", "c3")
FOLDER = "/data/store"
FAULTS_S = 20.0
PAUSE_S = 0.3
"""Between two operations of a worker, on average."""
OPERATIONS_PER_S_MIN = 20.0
"""Below it, a run does not count as one under load."""
REPEAT_COMMAND = ".venv/bin/python -m tests.soak toy --seed {seed}"
_WARM_UP_S = 1.0
_CALM = (1.0, 2.0, 4.0)
"""With many faults at once little is done; with few, more is done while they last."""
_CONVERGENCE_S = 60.0
_SHOWN_ERRORS_MAX = 3


class Toy(msgspec.Struct, frozen=True, kw_only=True):
    """What runs; mutants replace a part of it."""

    replica: type[Replica] = Replica
    registers: type[Registers] = Registers
    environment: Callable[[Environment], Environment] = lambda given: given
    """What a replica is given in place of its environment."""
    faults_s: float = FAULTS_S
    pause_s: float = PAUSE_S
    read_share: float = 0.5


class Outcome(msgspec.Struct, frozen=True):
    """What a run did, for tallies and for the checks."""

    events: list[Event]
    faults: dict[str, int]
    faults_s: float

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


class NotLinearizable(AssertionError):
    """A history that no order of its operations explains."""


def scenario_of(
    toy: Toy, profile: SwarmProfile
) -> Callable[[Simulation], Coroutine[Any, Any, Outcome]]:
    async def scenario(simulation: Simulation) -> Outcome:
        history = History(lambda: simulation.now)
        replicas = [_start_replica(simulation, toy, address) for address in REPLICAS]
        until = _WARM_UP_S + toy.faults_s
        clients = [simulation.add_node(name) for name in CLIENTS]
        for client in clients:
            client.start(
                _client(toy, client.name, history, Load(until, toy.pause_s, toy.read_share))
            )
        await asyncio.sleep(_WARM_UP_S)
        injector = FaultInjector(simulation, profile, machines=replicas, others=CLIENTS)
        await injector.run(until=until)
        try:
            await _converge(simulation, toy, clients, history)
        except TimeoutError as error:
            # What keeps a replica down says more than that it is down.
            error.add_note("\n".join(simulation.loop.errors[:_SHOWN_ERRORS_MAX]))
            raise
        await _stop(simulation, replicas)
        violation = check_registers(history.events, initial="")
        if violation is not None:
            raise NotLinearizable(str(violation))
        return Outcome(history.events, injector.counts, toy.faults_s)

    return scenario


async def _converge(
    simulation: Simulation, toy: Toy, clients: Sequence[Machine], history: History
) -> None:
    await simulation.wait_until(
        lambda: not any(client.running for client in clients), timeout_s=_CONVERGENCE_S
    )
    environment = simulation.environment
    await audit(environment, REPLICAS, history, toy.registers, timeout_s=_CONVERGENCE_S)


def _start_replica(simulation: Simulation, toy: Toy, address: ReplicaAddress) -> Machine:
    async def program(environment: Environment) -> None:
        given = toy.environment(environment)
        await serve_replica(given, address, FOLDER, toy.replica)

    machine = simulation.add_node(address.name)
    machine.start(program)
    return machine


def _client(
    toy: Toy, name: str, history: History, load: Load
) -> Callable[[Environment], Coroutine[Any, Any, None]]:
    async def program(environment: Environment) -> None:
        await run_client(environment, name, REPLICAS, history, load, toy.registers)

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
) -> Report[Outcome]:
    """Run one seed, with a profile drawn from it; raises what it found."""
    profile = profile or SwarmProfile.choose(
        seed, allowed=(*FAULTS, *DISK_ERRORS), calm=_CALM[seed % len(_CALM)]
    )
    run = assert_deterministic if twice else simulate
    return run(
        seed,
        scenario_of(toy or Toy(), profile),
        disk=profile.disk,
        repeat_command=REPEAT_COMMAND,
        virtual_seconds_max=600.0,
    )
