"""Swarm faults: varied, repeatable, and over when they are said to be over."""

import asyncio

import pytest

from raftwood.base.environment import Environment
from raftwood.base.files import DataSync, Open, Read, Size, SyncDirectory, Write, perform
from raftwood.testing import (
    FAULTS,
    Event,
    FaultInjector,
    History,
    Simulation,
    SwarmProfile,
    Violation,
    assert_deterministic,
    check_registers,
    simulate,
)

FILE = "/data/register"


def register(*, sync: bool) -> object:
    """A register on one node's disk: each request is a line, answered when it is durable."""

    async def program(environment: Environment) -> None:
        files = environment.files
        await perform(files, Open(FILE, create=True), SyncDirectory("/data"))
        if sync:
            # What is read from the cache of a killed process may not be on the disk yet.
            await perform(files, DataSync(FILE))
        (size,) = await perform(files, Size(FILE))
        (data,) = await perform(files, Read(FILE, 0, size))
        records = [bytes(data[start : start + 8]) for start in range(0, size - 7, 8)]
        value = int(next((each for each in reversed(records) if each.isdigit()), b"0"))
        lock = asyncio.Lock()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal size, value
            try:
                while line := await reader.readline():
                    async with lock:
                        if line.startswith(b"w"):
                            offset = size - size % 8
                            await perform(files, Write(FILE, offset, [b"%08d" % int(line[1:])]))
                            if sync:
                                await perform(files, DataSync(FILE))
                            size = offset + 8
                            value = int(line[1:])
                    writer.write(b"%d\n" % value)
            except OSError:
                pass
            finally:
                writer.close()

        await asyncio.start_server(serve, "0.0.0.0", 7000)
        await asyncio.sleep(1e6)

    return program


def swarm(profile: SwarmProfile, *, sync: bool = True, until: float = 30.0) -> object:
    async def scenario(simulation: Simulation) -> tuple[dict[str, int], list[Event]]:
        machine = simulation.add_node("a")
        machine.start(register(sync=sync))  # type: ignore[arg-type]
        history = History(lambda: simulation.now)
        injector = FaultInjector(simulation, profile, machines=[machine])

        async def ask(line: bytes) -> int:
            async with asyncio.timeout(2):
                reader, writer = await asyncio.open_connection("a", 7000)
                try:
                    writer.write(line)
                    answer = await reader.readline()
                    if not answer:
                        raise ConnectionResetError
                    return int(answer)
                finally:
                    writer.transport.abort()

        async def client(name: int) -> None:
            number = 0
            while simulation.now < until + 5:
                number += 1
                await asyncio.sleep(0.1)
                if number % 2:
                    value = name * 10_000 + number
                    await history.run(f"{name}", "write", ask(b"w%d\n" % value), given=value)
                else:
                    await history.run(f"{name}", "read", ask(b"r\n"))

        async with asyncio.TaskGroup() as group:
            group.create_task(injector.run(until=until))
            for name in range(1, 3):
                group.create_task(client(name))
        assert machine.running
        return injector.counts, history.events

    return scenario


POWER = SwarmProfile(seed=1, every_s={"power_loss": 2.0, "kill": 4.0})


def violation(seed: int, *, sync: bool) -> Violation | None:
    scenario = swarm(POWER, sync=sync)
    _, events = simulate(seed, scenario).result  # type: ignore[arg-type, var-annotated]
    assert sum(event.outcome == "ok" for event in events) > 100
    return check_registers(events, initial=0)


def test_profiles_differ_by_seed_and_use_every_fault() -> None:
    profiles = [SwarmProfile.choose(seed) for seed in range(100)]
    assert profiles == [SwarmProfile.choose(seed) for seed in range(100)]
    assert len({tuple(profile.every_s) for profile in profiles}) > 60
    assert {fault for profile in profiles for fault in profile.every_s} == set(FAULTS)
    only = [SwarmProfile.choose(seed, allowed=("kill",)) for seed in range(20)]
    assert {fault for profile in only for fault in profile.every_s} == {"kill"}


@pytest.mark.parametrize("seed", range(6))
def test_a_run_with_faults_is_the_same_twice(seed: int) -> None:
    profile = SwarmProfile.choose(seed)
    assert_deterministic(
        seed,
        swarm(profile),  # type: ignore[arg-type]
        network=profile.network,
        disk=profile.disk,
    )


def test_every_fault_happens_and_everything_is_mended_after() -> None:
    profile = SwarmProfile(seed=3, every_s=dict.fromkeys(FAULTS, 3.0), drift=0.05)
    counts, events = simulate(3, swarm(profile)).result  # type: ignore[arg-type, var-annotated]
    assert set(counts) == set(FAULTS)
    assert [event.outcome for event in events[-4:]] == ["ok"] * 4
    assert check_registers(events, initial=0) is None


def test_disk_errors_that_have_not_struck_are_called_off_in_the_end() -> None:
    profile = SwarmProfile(seed=1, every_s={"sync_error": 0.5, "write_error": 0.5})

    async def scenario(simulation: Simulation) -> None:
        async def write(environment: Environment) -> None:
            files = environment.files
            await perform(files, Open(FILE, create=True), Write(FILE, 0, [b"x"]), DataSync(FILE))

        async def idle(_: Environment) -> None:
            await asyncio.sleep(1e6)

        machine = simulation.add_node("a")
        machine.start(idle)
        await FaultInjector(simulation, profile, others=()).run(until=10.0)
        machine.kill()
        machine.start(write)
        await simulation.wait_until(lambda: not machine.running)

    simulate(1, scenario)


def test_a_register_that_syncs_is_linearizable_under_power_loss() -> None:
    assert [violation(seed, sync=True) for seed in range(5)] == [None] * 5


def test_a_register_that_acks_before_it_syncs_is_caught() -> None:
    assert any(violation(seed, sync=False) for seed in range(5))
