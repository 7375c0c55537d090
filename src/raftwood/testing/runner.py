"""Runs a scenario on a seed, twice if asked, and says how to repeat a failure.

async def scenario(simulation: Simulation) -> None:
    a = simulation.add_node("a")
    a.start(serve)                      # async def serve(environment: Environment)
    await asyncio.sleep(10)             # virtual seconds
    a.power_off()

report = simulate(7, scenario)
"""

import asyncio
import gc
import random
import time
from collections.abc import Callable, Coroutine
from functools import cache, cached_property
from typing import Any, Generic, NoReturn, TypeVar

import msgspec

from raftwood.base.environment import Environment
from raftwood.testing.disk import DiskProfile, SimulatedDisk
from raftwood.testing.errors import Leaked, NotDeterministic, SimulationError
from raftwood.testing.kv import SimulatedKvDisk
from raftwood.testing.loop import SimulatedLoop
from raftwood.testing.network import Network, NetworkProfile
from raftwood.testing.nodes import PROCESS, NodeClock, Process, SimulatedNode


def simulated_environment(process: Process, disk: SimulatedDisk) -> Environment:
    """The environment of a program on a node, for as long as its process lives."""
    node = process.node
    # A restarted process draws other numbers than its predecessor, the same in every run.
    source = random.Random(f"{node.loop.seed}/{node.name}/{process.number}")
    return Environment(
        clock=node.clock,
        random=source,
        files=disk.session(process),
        end_process=process.end_itself,
    )


Result = TypeVar("Result")
Program = Callable[[Environment], Coroutine[Any, Any, Any]]
_SHOWN_PROBLEMS_MAX = 10
_COLLECT_EVERY_STEPS = 100_000


class Machine:
    """A node of a simulation with its disks; start, break and restart it."""

    def __init__(
        self, simulation: "Simulation", node: SimulatedNode, profile: DiskProfile | None
    ) -> None:
        self.simulation = simulation
        self.node = node
        self.disk = SimulatedDisk(simulation.loop, node.name, profile=profile)
        self.kv_disk = SimulatedKvDisk(simulation.loop, node.name)
        self.environment: Environment | None = None
        self._program: Program | None = None
        node.on_power_loss.append(self.disk.power_loss)

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def clock(self) -> NodeClock:
        return self.node.clock

    @property
    def running(self) -> bool:
        return self.node.running

    def start(self, program: Program | None = None) -> Process:
        """Starts a program, or the last one again."""
        self._program = program or self._program
        if self._program is None:
            raise RuntimeError(f"{self.name} was never started: give it a program")
        chosen = self._program

        def main() -> Coroutine[Any, Any, Any]:
            process = PROCESS.get()
            assert process is not None
            self.environment = simulated_environment(process, self.disk)
            self.kv_disk.process_started(process)
            return chosen(self.environment)

        return self.node.start(main)

    def kill(self) -> None:
        self.node.kill()

    def power_off(self) -> None:
        self.node.power_off()

    def pause(self) -> None:
        self.node.pause()

    def resume(self) -> None:
        self.node.resume()


def _scenario_cannot_end(reason: str) -> NoReturn:
    raise SimulationError(f"the scenario asked for the end of its process: {reason}")


class Simulation:
    """One world: a loop, a network and machines."""

    def __init__(
        self,
        seed: int | str,
        *,
        network: NetworkProfile | None = None,
        disk: DiskProfile | None = None,
        virtual_seconds_max: float = 36_000.0,
        steps_max: int = 100_000_000,
    ) -> None:
        self.seed = seed
        self.loop = SimulatedLoop(
            seed, network=network, virtual_seconds_max=virtual_seconds_max, steps_max=steps_max
        )
        self.machines: dict[str, Machine] = {}
        self._disk_profile = disk

    @cached_property
    def environment(self) -> Environment:
        """The environment of clients in the scenario itself; its `end_process` is an error."""
        disk = SimulatedDisk(self.loop, "outside", profile=self._disk_profile)
        given = simulated_environment(self.loop.outside, disk)
        return msgspec.structs.replace(given, end_process=_scenario_cannot_end)

    @property
    def network(self) -> Network:
        return self.loop.network

    @property
    def now(self) -> float:
        return self.loop.now

    def add_node(self, name: str, *, disk: DiskProfile | None = None) -> Machine:
        machine = Machine(self, self.loop.add_node(name), disk or self._disk_profile)
        self.machines[name] = machine
        return machine

    async def wait_until(
        self, condition: Callable[[], bool], *, timeout_s: float = 60.0, every_s: float = 0.05
    ) -> None:
        """Polls until a condition is true."""
        deadline = self.now + timeout_s
        while not condition():
            if self.now >= deadline:
                raise TimeoutError(f"seed {self.seed}: not true within {timeout_s} virtual seconds")
            await asyncio.sleep(every_s)

    def problems(self) -> list[str]:
        """Lists leftovers and failures that no code has reported."""
        found = list(self.loop.errors)
        for machine in self.machines.values():
            found += machine.node.leaks
        for task in self.loop.outside.tasks:
            if not task.done():
                found.append(f"scenario: {task!r} still runs")
            elif not task.cancelled() and task._log_traceback:
                found.append(f"scenario: {task!r} failed and nobody asked")
        found += [
            f"scenario: {resource!r} still open"
            for resource in self.loop.outside.resources
            if getattr(resource, "reports_leak", False)
        ]
        return found


class SimulationReport(msgspec.Struct, Generic[Result], kw_only=True):
    """The result of a run."""

    seed: int | str
    result: Result
    trace_hash: str
    steps: int
    virtual_seconds: float
    cpu_seconds: float


def simulate(
    seed: int | str,
    scenario: Callable[[Simulation], Coroutine[Any, Any, Result]],
    *,
    repeat_command: str = "",
    check_leaks: bool = True,
    **options: Any,
) -> SimulationReport[Result]:
    """Runs a scenario; a failure names the seed and, from `repeat_command`, how to repeat it.

    `repeat_command` is a template such as "make simulate SEED={seed}".
    """
    # The collector closes abandoned generators, so it has to run at the same steps in every run;
    # earlier objects are frozen, because scanning them again and again takes long.
    collects = gc.isenabled()
    freezes = not _is_frozen()
    gc.disable()
    if freezes:
        gc.freeze()
    try:
        return _simulate(seed, scenario, repeat_command, check_leaks=check_leaks, **options)
    finally:
        gc.collect()
        if freezes:
            gc.unfreeze()
        if collects:
            gc.enable()


@cache
def _is_frozen() -> bool:
    """Whether the process has frozen its objects; computed once, since Python counts one by one."""
    return gc.get_freeze_count() > 0


def _simulate(
    seed: int | str,
    scenario: Callable[[Simulation], Coroutine[Any, Any, Result]],
    repeat_command: str,
    *,
    check_leaks: bool,
    **options: Any,
) -> SimulationReport[Result]:
    started = time.process_time()
    simulation = Simulation(seed, **options)
    loop = simulation.loop
    loop.collect_every_steps = _COLLECT_EVERY_STEPS
    try:
        result = loop.run_until_complete(scenario(simulation))
        # A last turn, so that closed objects can report.
        loop.run_until_complete(asyncio.sleep(0.01))
        problems = simulation.problems() if check_leaks else []
        if problems:
            raise Leaked("\n".join(problems[:_SHOWN_PROBLEMS_MAX]))
        return SimulationReport(
            seed=seed,
            result=result,
            trace_hash=loop.trace_hash,
            steps=loop.steps,
            virtual_seconds=loop.now,
            cpu_seconds=time.process_time() - started,
        )
    except BaseException as error:
        command = repeat_command.format(seed=seed) or f"simulate({seed!r}, …)"
        error.add_note(f"seed {seed} failed at {loop.now:.6f} virtual s; repeat: {command}")
        raise
    finally:
        loop.close()


def assert_deterministic(
    seed: int | str,
    scenario: Callable[[Simulation], Coroutine[Any, Any, Result]],
    **options: Any,
) -> SimulationReport[Result]:
    """Runs a scenario twice and compares the traces."""
    first = simulate(seed, scenario, **options)
    second = simulate(seed, scenario, **options)
    if first.trace_hash != second.trace_hash:
        where = _first_difference(seed, scenario, **options)
        raise NotDeterministic(
            f"seed {seed}: {first.trace_hash} ({first.steps} steps, {first.virtual_seconds:.6f} s)"
            f" then {second.trace_hash} ({second.steps} steps, {second.virtual_seconds:.6f} s):"
            f" the code takes something from outside (time, random, a set's order, id())\n{where}"
        )
    return second


def _first_difference(
    seed: int | str,
    scenario: Callable[[Simulation], Coroutine[Any, Any, Result]],
    **options: Any,
) -> str:
    """Finds where two more runs differ; slower, because they keep their traces."""
    traces: list[list[str]] = []

    async def traced(simulation: Simulation) -> Result:
        traces.append([])
        simulation.loop.trace_lines = traces[-1]
        return await scenario(simulation)

    for _ in range(2):
        simulate(seed, traced, **options)
    for number, (one, other) in enumerate(zip(*traces, strict=False)):
        if one != other:
            before = "".join(f"  {line}\n" for line in traces[0][max(0, number - 3) : number])
            return f"two more runs part at line {number} of the trace:\n{before}- {one}\n+ {other}"
    return "two more runs did the same"
