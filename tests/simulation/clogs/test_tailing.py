"""Files that are written, rotated and removed while their tailer is killed: each line once."""

import asyncio
import errno
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from raftwood.base.errors import InvalidInput, SequenceForgotten
from raftwood.clogs.frames import LineBatch
from raftwood.clogs.tail import tailer
from raftwood.disk.segment_log import LogSettings
from raftwood.testing import Simulation, simulate
from raftwood.testing.runner import assert_deterministic
from tests.kits.clogs.tail.tail_world import (
    FOLDER,
    TailWorld,
    run_watched,
    run_with_other_rules,
    run_world,
)


@pytest.mark.parametrize("seed", range(100, 102))
def test_rotated_files_that_match_too_are_shipped_once(seed: int) -> None:
    def match_all(world: TailWorld) -> None:
        world.settings = msgspec.structs.replace(world.settings, paths=(f"{FOLDER}/*.log*",))

    run_world(seed, change=match_all)


@pytest.mark.parametrize("seed", range(200, 202))
def test_few_open_files_are_enough(seed: int) -> None:
    def one_at_a_time(world: TailWorld) -> None:
        world.settings = msgspec.structs.replace(world.settings, open_files_max=1)

    # Without crashes: what is renamed to a name that does not match is looked for by its inode.
    world = run_world(seed, change=one_at_a_time)
    assert world.files is not None
    assert world.files.opened_most == 1


def test_each_line_is_stored_once_and_in_order_whatever_happens() -> None:
    # Crashes lead to batches that are made again.
    assert sum(run_world(seed).log.duplicates for seed in range(4)) > 0


@pytest.mark.parametrize("seed", range(300, 303))
def test_a_watch_tells_of_files_that_are_rotated_before_a_scan_could_find_them(seed: int) -> None:
    run_watched(seed)


@pytest.mark.parametrize("seed", range(400, 404))
def test_a_batch_has_the_same_lines_for_ever_though_rules_change(seed: int) -> None:
    run_with_other_rules(seed)


def test_a_run_depends_on_its_seed_alone() -> None:
    async def scenario(simulation: Simulation) -> None:
        await TailWorld(simulation).run(steps=20, crashes=0.2)

    assert_deterministic(7, scenario)


# Single cases, in virtual time


def _simulated(scenario: Callable[[TailWorld], Awaitable[None]]) -> TailWorld:
    worlds: list[TailWorld] = []

    async def run(simulation: Simulation) -> None:
        world = TailWorld(simulation)
        worlds.append(world)
        server = asyncio.create_task(world.log.serve())
        await scenario(world)
        world.stop.set()
        await simulation.wait_until(lambda: not world.machine.running)
        server.cancel()
        await asyncio.wait([server])

    simulate(1, run)
    return worlds[0]


async def _comes(world: TailWorld, *lines: bytes) -> None:
    await world.simulation.wait_until(lambda: world.log.lines() >= len(lines), timeout_s=200.0)
    assert world.log.stored.get("a.log", []) == list(lines)


def test_a_full_disk_for_the_state_holds_files_up_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = LogSettings(segment_bytes=16 << 10, flush_bytes_max=4 << 10, full_retry_ms=50)
    monkeypatch.setattr(tailer, "STATE_SETTINGS", small)

    async def scenario(world: TailWorld) -> None:
        world.machine.start(world.program)
        world.disk.append(f"{FOLDER}/a.log", b"one\n")
        await _comes(world, b"one")
        assert world.tailer is not None
        counters, disk = world.tailer.counters, world.machine.disk
        disk.capacity_bytes = disk.file_system.used_bytes()
        lines = [b"one"]
        while counters.troubles < 4:
            lines.append(b"line %d" % len(lines))
            world.disk.append(f"{FOLDER}/a.log", lines[-1] + b"\n")
            await asyncio.sleep(0.05)
        assert world.log.lines() < len(lines), "held up"
        disk.capacity_bytes = None
        await _comes(world, *lines)
        assert world.tailer.status().file_list[0].problem == ""

    _simulated(scenario)


def test_a_file_that_cannot_be_read_is_read_once_it_can_be() -> None:
    async def scenario(world: TailWorld) -> None:
        world.disk.append(f"{FOLDER}/a.log", b"one\n")
        world.machine.start(world.program)
        await asyncio.sleep(1.0)
        assert world.files is not None
        assert world.tailer is not None
        world.files.errors[f"{FOLDER}/a.log"] = errno.EIO
        world.disk.append(f"{FOLDER}/a.log", b"two\n")
        await asyncio.sleep(10.0)
        (status,) = world.tailer.status().file_list
        assert "cannot be read" in status.problem
        assert 2 < world.tailer.counters.troubles < 20, "tried again, less and less often"
        world.files.errors.clear()
        await _comes(world, b"one", b"two")
        assert world.tailer.status().file_list[0].problem == ""

    _simulated(scenario)


class _Refusing:
    """Refuses the first batches."""

    def __init__(self, world: TailWorld, *errors: Exception) -> None:
        self._world = world
        self._errors = list(errors)
        self.sequences: list[int] = []

    async def deliver(self, batch: LineBatch) -> None:
        self.sequences.append(batch.sequence)
        if self._errors:
            raise self._errors.pop(0)
        self._world.log.store(batch)


def test_a_refused_batch_is_sent_again_and_again_before_the_next() -> None:
    async def scenario(world: TailWorld) -> None:
        refusing = _Refusing(world, InvalidInput("no"), InvalidInput("no"))
        world.delivering = refusing
        world.disk.append(f"{FOLDER}/a.log", b"one\n")
        world.machine.start(world.program)
        await asyncio.sleep(0.05)
        world.disk.append(f"{FOLDER}/a.log", b"two\n")
        await _comes(world, b"one", b"two")
        assert refusing.sequences == [1, 1, 1, 2]
        assert world.tailer is not None
        assert world.tailer.counters.retries == 2

    _simulated(scenario)


def test_a_batch_that_the_log_has_forgotten_is_counted_and_passed() -> None:
    async def scenario(world: TailWorld) -> None:
        world.delivering = _Refusing(world, SequenceForgotten("long ago"))
        world.disk.append(f"{FOLDER}/a.log", b"one\n")
        world.machine.start(world.program)
        await asyncio.sleep(1.0)
        world.disk.append(f"{FOLDER}/a.log", b"two\n")
        await _comes(world, b"two")
        assert world.tailer is not None
        assert world.tailer.counters.unknown_batches == 1

    _simulated(scenario)


def test_a_line_waits_for_its_end_as_long_as_it_may() -> None:
    async def scenario(world: TailWorld) -> None:
        path = f"{FOLDER}/a.log"
        world.disk.append(path, b"one\ntw")
        world.machine.start(world.program)
        await _comes(world, b"one")
        await asyncio.sleep(0.25)
        world.disk.append(path, b"o")
        await asyncio.sleep(0.3)
        assert world.log.lines() == 1, "it grew, and so waits anew"
        await _comes(world, b"one", b"two")
        world.machine.kill()
        assert world.files is not None
        world.files.killed()
        world.disk.append(path, b"\nthree\n")
        world.machine.start()
        await _comes(world, b"one", b"two", b"three")

    _simulated(scenario)


def test_an_inode_that_is_used_again_while_nobody_looks_is_another_file() -> None:
    async def scenario(world: TailWorld) -> None:
        path = f"{FOLDER}/a.log"
        first = world.disk.append(path, b"one\n")
        world.machine.start(world.program)
        await _comes(world, b"one")
        world.machine.kill()
        assert world.files is not None
        world.files.killed()
        world.disk.unlink(path)
        second = world.disk.append(path, b"two, longer than it was\n")
        assert second.number == first.number
        world.machine.start()
        await _comes(world, b"one", b"two, longer than it was")

    _simulated(scenario)


def test_a_batch_of_a_file_that_was_cut_is_delivered_from_memory() -> None:
    async def scenario(world: TailWorld) -> None:
        path = f"{FOLDER}/a.log"
        world.disk.append(path, b"one\n")
        world.machine.start(world.program)
        await asyncio.sleep(0.3)
        world.disk.append(path, b"two\n")
        await asyncio.sleep(0.05)
        world.disk.truncate(path)
        world.disk.append(path, b"three, after the cut\n")
        await _comes(world, b"one", b"two", b"three, after the cut")
        assert world.tailer is not None
        assert world.tailer.counters.cuts == 1

    _simulated(scenario)
