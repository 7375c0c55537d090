"""The replicated toy is linearizable, in simulation with faults and on real loops with kills."""

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import uvloop

from raftwood.base.files import Operation
from raftwood.disk.real_environment import real_environment
from raftwood.disk.segment_log import recovery
from raftwood.simulation import History, SimulationError, SwarmProfile, check_registers
from tests.kits.simulation.toy.cluster import REPEAT_COMMAND, NotLinearizable, Toy, run_toy
from tests.kits.simulation.toy.mutants import MUTANTS, ForgetsItsLog
from tests.kits.simulation.toy.replica import ReplicaAddress
from tests.kits.simulation.toy.workload import Load, audit, run_client

MUTANT_SEEDS_MAX = 25


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_seed_is_linearizable_and_runs_the_same_twice(seed: int) -> None:
    outcome = run_toy(seed, twice=True).result
    assert sum(event.outcome == "ok" for event in outcome.events) > 40


def test_a_short_run_is_linearizable_and_the_same_twice() -> None:
    profile = SwarmProfile(seed=1, every_s={"power_loss_of_all": 3.0, "kill": 3.0, "reset": 3.0})
    outcome = run_toy(1, Toy(faults_s=6.0), profile=profile, twice=True).result
    assert set(outcome.faults) == {"power_loss_of_all", "kill", "reset"}


def test_a_calm_run_is_under_load_and_nothing_fails_in_it() -> None:
    profile = SwarmProfile(seed=1, every_s={"wall_jump": 1.0}, drift=0.05)
    outcome = run_toy(1, Toy(faults_s=6.0), profile=profile).result
    assert outcome.is_under_load
    asked = [event for event in outcome.events if event.client != "auditor" and event.called > 1.0]
    assert {event.outcome for event in asked} == {"ok"}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    mutant = MUTANTS[name]
    for seed in range(MUTANT_SEEDS_MAX):
        try:
            run_toy(seed, mutant.toy, profile=mutant.profile(seed))
        except (AssertionError, TimeoutError):
            return
    pytest.fail(f"{MUTANT_SEEDS_MAX} seeds did not show that the toy {name}")


@pytest.mark.slow
def test_a_log_that_trusts_the_page_cache_after_a_failed_sync_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nothing(*_: object) -> list[Operation]:
        return []

    monkeypatch.setattr(recovery, "_written_again", nothing)
    for seed in range(MUTANT_SEEDS_MAX):
        profile = SwarmProfile(seed=seed, every_s={"sync_error": 0.7, "power_loss": 1.5})
        try:
            run_toy(seed, Toy(faults_s=12.0), profile=profile)
        except (AssertionError, TimeoutError, SimulationError):
            return
    pytest.fail(f"{MUTANT_SEEDS_MAX} seeds did not show it")


@pytest.mark.parametrize("name", ["acks before sync", "forgets its log", "shares timestamps"])
def test_without_the_bug_the_same_faults_do_no_harm(name: str) -> None:
    mutant, whole = MUTANTS[name], Toy()
    toy = msgspec.structs.replace(mutant.toy, replica=whole.replica, registers=whole.registers)
    for seed in range(2):
        run_toy(seed, toy, profile=mutant.profile(seed))


def test_a_failing_seed_says_how_to_repeat_it() -> None:
    mutant = MUTANTS["forgets its log"]
    broken = Toy(replica=ForgetsItsLog, faults_s=mutant.toy.faults_s)
    seed = 17
    with pytest.raises((NotLinearizable, AssertionError)) as caught:
        run_toy(seed, broken, profile=mutant.profile(seed))
    (note,) = caught.value.__notes__
    assert note.endswith(f"repeat: {REPEAT_COMMAND.format(seed=17)}")
    assert "-m tests.soak toy --seed 17" in note


class RealReplicas:
    """Three processes with real files, sockets and authentication."""

    def __init__(self, folder: Path, loop: str) -> None:
        self._folder = folder
        self._loop = loop
        self.addresses = [
            ReplicaAddress(f"r{number}", number, "127.0.0.1", port)
            for number, port in enumerate(_free_ports(3), 1)
        ]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, number: int) -> None:
        address = self.addresses[number - 1]
        command = [
            sys.executable,
            "-m",
            "tests.kits.simulation.toy",
            str(number),
            str(address.port),
        ]
        command += [str(self._folder / address.name), self._loop]
        self._processes[number] = subprocess.Popen(command)

    def kill(self, number: int) -> None:
        process = self._processes.pop(number)
        process.kill()
        process.wait()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        try:
            for address in self.addresses:
                self.start(address.number)
            yield
        finally:
            for number in list(self._processes):
                self.kill(number)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


async def _under_kills(replicas: RealReplicas) -> History:
    loop = asyncio.get_running_loop()
    history = History(loop.time)
    with real_environment() as environment:
        addresses = replicas.addresses
        # The first answers come when the processes have started.
        warm_up = History(loop.time)
        warm_up.call("warm-up", "read", key="0")
        await audit(environment, addresses, warm_up, timeout_s=20)
        load = Load(until=loop.time() + 2.5, pause_s=0.02)
        async with asyncio.TaskGroup() as group:
            for name in ("c1", "c2"):
                group.create_task(run_client(environment, name, addresses, history, load))
            for number in (1, 3):
                await asyncio.sleep(0.4)
                replicas.kill(number)
                await asyncio.sleep(0.2)
                replicas.start(number)
                await asyncio.sleep(0.4)
        await audit(environment, addresses, history, timeout_s=20)
    return history


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_the_same_code_is_linearizable_on_a_real_loop_under_kills(
    tmp_path: Path, loop: str
) -> None:
    replicas = RealReplicas(tmp_path, loop)
    with replicas.running():
        run = uvloop.run if loop == "uvloop" else asyncio.run
        history = run(_under_kills(replicas))
    assert sum(event.outcome == "ok" for event in history.events) > 200
    assert check_registers(history.events, initial="") is None
