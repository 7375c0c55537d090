"""Virtual time, order, determinism, crashes and pauses of the simulated loop."""

import asyncio
import gc
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator

import pytest

from raftwood.base.environment import Environment
from raftwood.base.files import Open, perform
from raftwood.testing import (
    Deadlock,
    Leaked,
    NotDeterministic,
    Overrun,
    SimulatedLoop,
    Simulation,
    SimulationError,
    assert_deterministic,
    simulate,
)


async def chatter(simulation: Simulation) -> list[str]:
    """Three nodes that sleep, draw random numbers and talk."""
    seen: list[str] = []

    async def program(environment: Environment) -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readline())
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(answer, "0.0.0.0", 7000)
        for _ in range(20):
            await asyncio.sleep(environment.random.random())
            try:
                reader, writer = await asyncio.open_connection(
                    environment.random.choice("abc"), 7000
                )
                writer.write(b"hello\n")
                seen.append((await reader.readline()).decode())
                writer.close()
                await writer.wait_closed()
            except OSError as error:
                seen.append(type(error).__name__)
        await asyncio.sleep(20)
        server.close()
        await server.wait_closed()

    for name in "abc":
        simulation.add_node(name).start(program)
    await asyncio.sleep(2)
    simulation.machines["b"].kill()
    await asyncio.sleep(2)
    simulation.machines["b"].start()
    await simulation.wait_until(lambda: not any(m.running for m in simulation.machines.values()))
    return seen


@pytest.mark.parametrize("seed", range(5))
def test_a_seed_gives_the_same_run_twice(seed: int) -> None:
    report = assert_deterministic(seed, chatter)
    assert report.result.count("hello\n") > 30


def test_different_seeds_give_different_runs() -> None:
    assert len({simulate(seed, chatter).trace_hash for seed in range(5)}) == 5


def test_code_that_takes_something_from_outside_is_found() -> None:
    async def scenario(_: Simulation) -> None:
        await asyncio.sleep(time.perf_counter_ns() % 1000 / 1000 + 0.001)

    def run_until_different() -> None:
        for _ in range(50):
            assert_deterministic(1, scenario)

    with pytest.raises(NotDeterministic, match="takes something from outside") as caught:
        run_until_different()
    assert "two more runs" in str(caught.value)


def test_hours_pass_in_no_time() -> None:
    async def scenario(_: Simulation) -> float:
        await asyncio.sleep(5 * 3600)
        return asyncio.get_running_loop().time()

    assert simulate(1, scenario).result == pytest.approx(5 * 3600)


def test_callbacks_of_one_process_run_in_the_order_they_were_scheduled() -> None:
    order: list[int] = []

    async def scenario(_: Simulation) -> None:
        loop = asyncio.get_running_loop()
        for number in range(10):
            loop.call_soon(order.append, number)
        for number in range(10, 20):
            loop.call_later(1.0, order.append, number)
        await asyncio.sleep(2)

    simulate(1, scenario)
    assert order == list(range(20))


def test_a_cancelled_timer_does_not_run() -> None:
    ran: list[int] = []

    async def scenario(_: Simulation) -> None:
        loop = asyncio.get_running_loop()
        for number in range(1000):
            handle = loop.call_later(1 + number / 1000, ran.append, number)
            if number % 10:
                handle.cancel()
        await asyncio.sleep(3)

    simulate(1, scenario)
    assert ran == list(range(0, 1000, 10))


def test_waiting_for_what_never_comes_is_a_deadlock_that_names_the_task() -> None:
    async def scenario(_: Simulation) -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock, match="scenario"):
        simulate(1, scenario)


def test_virtual_time_has_a_bound() -> None:
    async def scenario(_: Simulation) -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(1)

    with pytest.raises(Overrun, match="virtual seconds"):
        simulate(1, scenario, virtual_seconds_max=100)


def test_steps_have_a_bound() -> None:
    async def scenario(_: Simulation) -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(1e-6)

    with pytest.raises(Overrun, match="steps are over"):
        simulate(1, scenario, steps_max=10_000)


def test_spinning_without_waiting_is_found() -> None:
    loop = SimulatedLoop(1, steps_at_one_instant_max=1000)

    async def spin() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    with pytest.raises(Overrun, match="time still stands"):
        loop.run_until_complete(spin())
    loop.close()


def test_threads_are_refused() -> None:
    async def scenario(_: Simulation) -> None:
        await asyncio.to_thread(print)

    with pytest.raises(NotImplementedError, match="threads are not simulated"):
        simulate(1, scenario)


def test_a_failing_seed_says_how_to_repeat_it() -> None:
    async def scenario(_: Simulation) -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken") as caught:
        simulate(41, scenario, repeat_command="make simulate SEED={seed}")
    assert "make simulate SEED=41" in caught.value.__notes__[0]


def test_a_task_left_running_is_a_leak() -> None:
    async def scenario(_: Simulation) -> None:
        task = asyncio.create_task(asyncio.sleep(1000))
        await asyncio.sleep(0)
        assert not task.done()

    with pytest.raises(Leaked, match="still runs"):
        simulate(1, scenario)


def test_a_task_left_running_by_a_returning_program_is_a_leak() -> None:
    kept: list[object] = []

    async def scenario(simulation: Simulation) -> None:
        async def program(_: Environment) -> None:
            kept.append(asyncio.create_task(asyncio.sleep(1000)))

        simulation.add_node("a").start(program)
        await asyncio.sleep(1)

    with pytest.raises(Leaked, match="still ran when its process returned"):
        simulate(1, scenario)


def test_a_program_that_fails_fails_the_simulation() -> None:
    async def scenario(simulation: Simulation) -> None:
        async def program(_: Environment) -> None:
            raise ValueError("broken")

        simulation.add_node("a").start(program)
        await asyncio.sleep(1)

    with pytest.raises(Leaked, match="main failed") as caught:
        simulate(1, scenario)
    assert "in program" in str(caught.value)


@pytest.mark.parametrize("way", ["kill", "power_off", "end_process"])
def test_a_crash_runs_no_finally_block(way: str) -> None:
    cleaned: list[str] = []
    alive_after: list[str] = []

    async def scenario(simulation: Simulation) -> list[str]:
        async def child(environment: Environment) -> None:
            try:
                await asyncio.sleep(1)
                if way == "end_process":
                    environment.end_process("the disk failed")
                await asyncio.sleep(1)
                alive_after.append("child")
            finally:
                # By then the process is dead: what it does here must reach nothing.
                asyncio.get_running_loop().call_soon(alive_after.append, "scheduled")

        async def generator() -> AsyncIterator[int]:
            try:
                while True:
                    yield 1
                    await asyncio.sleep(0.1)
            finally:
                cleaned.append("generator")

        async def program(environment: Environment) -> None:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(child(environment))
                    async for _ in generator():
                        pass
            finally:
                cleaned.append("program")

        a = simulation.add_node("a")
        a.start(program)
        await asyncio.sleep(1.5)
        if way != "end_process":
            getattr(a, way)()
        assert not a.running
        gc.collect()
        await asyncio.sleep(100)
        return list(cleaned)

    assert simulate(1, scenario).result == []
    assert alive_after == []


def test_a_killed_node_restarts_with_new_random_numbers() -> None:
    drawn: list[float] = []

    async def scenario(simulation: Simulation) -> None:
        async def program(environment: Environment) -> None:
            drawn.append(environment.random.random())
            await asyncio.sleep(1000)

        a = simulation.add_node("a")
        for _ in range(2):
            a.start(program)
            await asyncio.sleep(1)
            a.kill()

    simulate(1, scenario)
    simulate(1, scenario)
    assert drawn[0] != drawn[1]
    assert drawn[:2] == drawn[2:]


def test_a_paused_node_does_nothing_and_then_goes_on() -> None:
    ticks: list[float] = []

    async def scenario(simulation: Simulation) -> None:
        async def program(_: Environment) -> None:
            while True:
                await asyncio.sleep(1)
                ticks.append(simulation.now)

        a = simulation.add_node("a")
        a.start(program)
        await asyncio.sleep(2.5)
        a.pause()
        await asyncio.sleep(10)
        assert len(ticks) == 2
        a.resume()
        await asyncio.sleep(2.1)
        a.kill()

    simulate(1, scenario)
    assert ticks == pytest.approx([1, 2, 12.5, 13.5, 14.5])


def test_clocks_drift_and_jump_per_node() -> None:
    async def scenario(simulation: Simulation) -> dict[str, tuple[float, float, float]]:
        seen: dict[str, tuple[float, float, float]] = {}

        async def program(environment: Environment) -> None:
            loop = asyncio.get_running_loop()
            begin, wall = loop.time(), environment.clock.wall_ns()
            monotonic = environment.clock.monotonic_ns()
            await asyncio.sleep(100)
            assert loop.time() - begin == pytest.approx(100, abs=1e-3)
            assert environment.clock.monotonic_ns() - monotonic == pytest.approx(100e9, abs=1e6)
            seen[name_of[environment.clock]] = (
                simulation.now, loop.time(), (environment.clock.wall_ns() - wall) / 1e9,
            )  # fmt: skip

        name_of: dict[object, str] = {}
        for name, rate, offset in (("a", 1.0, 0.0), ("fast", 1.25, 50.0), ("slow", 0.8, 0.0)):
            machine = simulation.add_node(name)
            name_of[machine.clock] = name
            machine.clock.advance(offset)
            machine.clock.set_rate(rate)
            machine.start(program)
        await asyncio.sleep(10)
        simulation.machines["a"].clock.jump_wall(-3600)
        await asyncio.sleep(200)
        return seen

    seen = simulate(1, scenario).result
    assert seen["a"] == pytest.approx((100, 100, 100 - 3600), abs=1e-3)
    assert seen["fast"] == pytest.approx((80, 150, 100), abs=1e-3)
    assert seen["slow"] == pytest.approx((125, 100, 100), abs=1e-3)


def test_a_wait_until_a_deadline_never_wakes_early() -> None:
    async def scenario(simulation: Simulation) -> int:
        turns = 0

        async def program(_: Environment) -> None:
            nonlocal turns
            loop = asyncio.get_running_loop()
            for number in range(1, 2000):
                deadline = number * 0.0137
                while loop.time() < deadline:
                    turns += 1
                    await asyncio.sleep(deadline - loop.time())

        machine = simulation.add_node("a")
        machine.clock.set_rate(1.0371)
        machine.start(program)
        await simulation.wait_until(lambda: not machine.running)
        return turns

    assert simulate(1, scenario).result < 2100


def test_timeouts_work_in_virtual_time() -> None:
    async def scenario(simulation: Simulation) -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.sleep(60)
        return simulation.now

    assert simulate(1, scenario).result == pytest.approx(30)


def test_a_seed_gives_the_same_run_whatever_the_hash_seed_of_the_interpreter() -> None:
    code = (
        "from test_simulated_loop import chatter\n"
        "from raftwood.testing import simulate\n"
        "print(simulate(7, chatter).trace_hash)"
    )
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert hashes == {simulate(7, chatter).trace_hash + "\n"}


@pytest.mark.parametrize("way", ["kill", "power_off", "nothing"])
def test_coroutines_of_dead_processes_go_without_a_warning(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(1000)
            finally:
                await asyncio.sleep(1)

    async def scenario(simulation: Simulation) -> None:
        async def program(_: Environment) -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(stubborn())
                group.create_task(failing())
                await asyncio.start_server(stream, "0.0.0.0", 1)
                writer = (await asyncio.open_connection("localhost", 1))[1]
                await asyncio.sleep(1000)
                writer.close()

        async def failing() -> None:
            await asyncio.sleep(0.5)
            raise ValueError("while the others are stubborn")

        async def stream(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(1000)
            writer.close()

        a = simulation.add_node("a")
        a.start(program)
        await asyncio.sleep(1)
        if way != "nothing":
            getattr(a, way)()

    simulate(1, scenario)
    gc.collect()
    assert caplog.records == []


def test_clean_up_that_awaits_inside_another_coroutine_goes_without_a_warning() -> None:
    async def inner() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(0)
            asyncio.get_running_loop()

    async def program(_: Environment) -> None:
        try:
            await inner()
        finally:
            await asyncio.sleep(0)
            asyncio.get_running_loop()

    async def scenario(simulation: Simulation) -> None:
        a = simulation.add_node("a")
        a.start(program)
        await asyncio.sleep(1)
        a.kill()

    simulate(1, scenario)
    gc.collect()  # what the interpreter would complain of fails this test


def test_what_has_no_simulated_form_is_refused() -> None:
    async def scenario(_: Simulation) -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(NotImplementedError):
            await loop.create_datagram_endpoint(asyncio.DatagramProtocol, ("a", 1))
        with pytest.raises(NotImplementedError):
            loop.add_reader(0, print)
        with pytest.raises(NotImplementedError):
            await loop.create_unix_server(asyncio.Protocol, "/tmp/socket")
        assert (await loop.getaddrinfo("localhost", 80))[0][4] == ("outside", 80)

    simulate(1, scenario)


def test_after_a_pause_sockets_come_before_timers_as_with_a_real_loop() -> None:
    order: list[str] = []

    async def scenario(simulation: Simulation) -> None:
        class Noting(asyncio.Protocol):
            def data_received(self, _data: bytes) -> None:
                order.append("data")

        async def program(_: Environment) -> None:
            loop = asyncio.get_running_loop()
            await loop.create_server(Noting, "a", 7000)
            loop.call_later(2, order.append, "timer")
            await asyncio.sleep(1e6)

        a = simulation.add_node("a")
        a.start(program)
        await asyncio.sleep(0.1)
        _, writer = await asyncio.open_connection("a", 7000)
        await asyncio.sleep(0.1)
        a.pause()
        await asyncio.sleep(5)
        writer.write(b"x")
        await asyncio.sleep(5)
        a.resume()
        await asyncio.sleep(1)
        writer.close()
        await writer.wait_closed()

    simulate(1, scenario)
    assert order == ["data", "timer"]


def test_a_scenario_has_an_environment_of_its_own() -> None:
    async def scenario(simulation: Simulation) -> None:
        environment = simulation.environment
        await perform(environment.files, Open("/data/file", create=True))
        assert environment.clock.monotonic_ns() == int(simulation.now * 1e9)
        with pytest.raises(SimulationError, match="no reason"):
            environment.end_process("no reason")

    simulate(1, scenario)


def test_what_a_dead_program_waited_for_in_a_generator_is_let_go_without_a_word() -> None:
    async def waiting() -> None:
        task = asyncio.ensure_future(asyncio.sleep(1000))
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def steps() -> AsyncIterator[int]:
        while True:
            yield 1
            await waiting()

    async def program(_: Environment) -> None:
        async for _step in steps():
            pass

    async def scenario(simulation: Simulation) -> None:
        machine = simulation.add_node("a")
        machine.start(program)
        await asyncio.sleep(1)
        machine.kill()

    simulate(1, scenario)  # what cannot be raised is an error in tests
    gc.collect()
