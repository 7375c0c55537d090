"""What the simulated disk keeps, loses, tears and refuses."""

import asyncio
import errno
import random
from collections.abc import Callable
from typing import Any

import pytest

from raftwood.base.environment import Environment
from raftwood.base.files import (
    Close,
    Completion,
    DataSync,
    ListDirectory,
    Lock,
    MakeDirectory,
    Open,
    Operation,
    Preallocate,
    Read,
    Rename,
    Size,
    SyncDirectory,
    Truncate,
    Unlink,
    Write,
    perform,
)
from raftwood.testing import DiskProfile, FileSystem, Machine, Simulation, simulate
from raftwood.testing.file_system import Content, DescriptorTable, Fate

FILE = "/data/file"
SYNCED_FILE = (Open(FILE, create=True), SyncDirectory("/data"))


def run(program: Callable[[Environment, Machine], Any], *, seed: int = 1, **options: Any) -> Any:
    """Run a program on one node and return its result."""

    async def scenario(simulation: Simulation) -> Any:
        machine = simulation.add_node("a")
        results: list[Any] = []

        async def main(environment: Environment) -> None:
            results.append(await program(environment, machine))

        machine.start(main)
        await simulation.wait_until(lambda: not machine.running)
        return results[0]

    return simulate(seed, scenario, **options).result


def system(*operations: Operation) -> tuple[FileSystem, DescriptorTable]:
    file_system, session = FileSystem(["/data"]), DescriptorTable()
    for operation in operations:
        file_system.apply(session, operation)
    return file_system, session


def contents_after_loss(file_system: FileSystem, rounds: int = 400) -> set[bytes | None]:
    """All contents of FILE that power losses left."""
    found: set[bytes | None] = set()
    for number in range(rounds):
        image = file_system.after_power_loss(Fate(random.Random(number)))
        found.add(image.contents(FILE) if FILE in image.files else None)
    return found


def names_after_loss(file_system: FileSystem, rounds: int = 300) -> set[tuple[str, ...]]:
    return {
        tuple(sorted(file_system.after_power_loss(Fate(random.Random(number))).files))
        for number in range(rounds)
    }


def test_every_operation_does_what_the_seam_says() -> None:
    async def program(environment: Environment, _machine: Machine) -> None:
        files = environment.files
        assert await perform(files, Size(FILE), ListDirectory("/data/none")) == [None, None]
        await perform(files, Open(FILE, create=True), Write(FILE, 2, [b"ab", memoryview(b"cd")]))
        assert await perform(files, Size(FILE), Read(FILE, 0, 100)) == [6, b"\0\0abcd"]
        await perform(files, Preallocate(FILE, 10), Truncate(FILE, 4), DataSync(FILE))
        assert (await perform(files, Read(FILE, 3, 100)))[0] == b"b"
        await perform(files, MakeDirectory("/data/x/y"), MakeDirectory("/data/x/y"))
        await perform(files, Rename(FILE, "/data/x/y/other"), SyncDirectory("/data"))
        # The descriptor follows the file.
        assert (await perform(files, Read("/data/x/y/other", 0, 2)))[0] == b"\0\0"
        listed = await perform(files, ListDirectory("/data"), ListDirectory("/data/x/y"))
        assert listed == [["x"], ["other"]]
        await perform(files, Unlink("/data/x/y/other"), Close("/data/x/y/other"))
        for operation, number in (
            (Open(FILE), errno.ENOENT),
            (Read(FILE, 0, 1), errno.ENOENT),
            (Write(FILE, 0, [b""]), errno.EBADF),
            (Unlink(FILE), errno.ENOENT),
            (Rename(FILE, "/data/b"), errno.ENOENT),
            (Open("/data/none/file", create=True), errno.ENOENT),
            (Open("/data/x"), errno.EISDIR),
            (SyncDirectory("/data/none"), errno.ENOENT),
        ):
            with pytest.raises(OSError, match="Errno") as caught:
                await perform(files, operation)
            assert caught.value.errno == number, operation

    run(program)


def test_the_first_failure_ends_a_submission() -> None:
    async def program(environment: Environment, _machine: Machine) -> None:
        done: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        failing = Open("/data/none")
        environment.files.submit(
            [Open(FILE, create=True), failing, Write(FILE, 0, [b"x"])], done.set_result
        )
        completion = await done
        assert completion.results == [None]
        assert completion.failed == failing
        assert isinstance(completion.error, FileNotFoundError)
        assert await perform(environment.files, Size(FILE)) == [0]

    run(program)


def test_writes_run_in_order_and_reads_overtake_them() -> None:
    async def program(environment: Environment, _machine: Machine) -> list[str]:
        order: list[str] = []
        await perform(environment.files, *SYNCED_FILE)
        for number in range(3):
            name = f"write {number}"

            def note(_: Completion, name: str = name) -> None:
                order.append(name)

            environment.files.submit([Write(FILE, number, [b"x"]), DataSync(FILE)], note)
        environment.files.submit([Read(FILE, 0, 10)], lambda _: order.append("read"))
        await asyncio.sleep(1)
        return order

    assert run(program) == ["read", "write 0", "write 1", "write 2"]


def test_operations_take_virtual_time_and_a_slow_disk_takes_more() -> None:
    async def program(environment: Environment, _machine: Machine) -> float:
        began = environment.clock.monotonic_ns()
        await perform(environment.files, *SYNCED_FILE)
        for _ in range(20):
            await perform(environment.files, Write(FILE, 0, [bytes(10_000)]), DataSync(FILE))
        return (environment.clock.monotonic_ns() - began) / 1e9

    fast = run(program)
    slow = run(program, disk=DiskProfile(sync_s=(0.05, 0.05), bytes_per_s=1e6))
    stalled = run(program, disk=DiskProfile(stall_probability=0.5, stall_s=(1.0, 1.0)))
    assert 0.005 < fast < 0.1
    assert slow > 20 * (0.05 + 0.01)
    assert stalled > 3


def test_a_synced_write_survives_power_loss() -> None:
    file_system, _ = system(*SYNCED_FILE, Write(FILE, 0, [b"synced"]), DataSync(FILE))
    assert contents_after_loss(file_system) == {b"synced"}


def test_an_unsynced_write_is_kept_lost_or_torn_at_any_byte() -> None:
    file_system, session = system(*SYNCED_FILE, Preallocate(FILE, 6), DataSync(FILE))
    file_system.apply(session, Write(FILE, 0, [b"abcdef"]))
    found = contents_after_loss(file_system)
    assert {b"abcdef", bytes(6), b"abc\0\0\0", b"\0\0\0def"} <= found


def test_a_large_write_is_torn_at_sectors_in_any_order() -> None:
    file_system, session = system(*SYNCED_FILE, Preallocate(FILE, 2048), DataSync(FILE))
    file_system.apply(session, Write(FILE, 0, [b"x" * 2048]))
    patterns = {
        tuple(content[start : start + 512] == b"x" * 512 for start in range(0, 2048, 512))
        for content in contents_after_loss(file_system)
        if content is not None
    }
    assert (False, True, False, True) in patterns
    assert len(patterns) >= 12


def test_unsynced_writes_survive_independently_of_their_order() -> None:
    file_system, session = system(*SYNCED_FILE, Preallocate(FILE, 2), DataSync(FILE))
    file_system.apply(session, Write(FILE, 0, [b"1"]))
    file_system.apply(session, Write(FILE, 1, [b"2"]))
    assert contents_after_loss(file_system) == {b"\0\0", b"1\0", b"\0002", b"12"}


def test_an_unsynced_extension_reads_zeros_or_is_cut() -> None:
    file_system, session = system(*SYNCED_FILE, Write(FILE, 0, [b"ab"]), DataSync(FILE))
    file_system.apply(session, Write(FILE, 2, [b"cd"]))
    found = contents_after_loss(file_system)
    assert {b"ab", b"ab\0\0", b"abcd"} <= found
    assert all(content is not None and content.startswith(b"ab") for content in found)


def test_an_unsynced_length_may_be_lost() -> None:
    file_system, session = system(*SYNCED_FILE, Write(FILE, 0, [b"abcd"]), DataSync(FILE))
    file_system.apply(session, Truncate(FILE, 2))
    assert contents_after_loss(file_system) == {b"ab", b"abcd"}
    file_system.apply(session, DataSync(FILE))
    file_system.apply(session, Preallocate(FILE, 4))
    assert contents_after_loss(file_system) == {b"ab", b"ab\0\0"}


def test_a_file_whose_directory_was_not_synced_may_have_no_name() -> None:
    file_system, session = system(Open(FILE, create=True), Write(FILE, 0, [b"x"]), DataSync(FILE))
    assert contents_after_loss(file_system) == {None, b"x"}
    file_system.apply(session, SyncDirectory("/data"))
    assert contents_after_loss(file_system) == {b"x"}


def test_an_unsynced_rename_is_done_or_undone_and_nothing_between() -> None:
    file_system, session = system(
        *SYNCED_FILE,
        Write(FILE, 0, [b"old"]),
        DataSync(FILE),
        Open("/data/new", create=True),
        Write("/data/new", 0, [b"new"]),
        DataSync("/data/new"),
        SyncDirectory("/data"),
        Rename("/data/new", FILE),
    )
    assert contents_after_loss(file_system) == {b"old", b"new"}
    assert names_after_loss(file_system) == {(FILE,), ("/data/file", "/data/new")}
    file_system.apply(session, SyncDirectory("/data"))
    assert contents_after_loss(file_system) == {b"new"}


def test_an_unsynced_removal_may_be_undone() -> None:
    file_system, session = system(*SYNCED_FILE, Unlink(FILE))
    assert names_after_loss(file_system) == {(), (FILE,)}
    file_system.apply(session, SyncDirectory("/data"))
    assert names_after_loss(file_system) == {()}


def test_a_rename_across_directories_needs_both_synced() -> None:
    file_system, session = system(
        MakeDirectory("/data/x"), *SYNCED_FILE, Rename(FILE, "/data/x/file")
    )
    file_system.apply(session, SyncDirectory("/data/x"))
    assert names_after_loss(file_system) == {(FILE,), ("/data/x/file",)}
    file_system.apply(session, SyncDirectory("/data"))
    assert names_after_loss(file_system) == {("/data/x/file",)}


def test_a_directory_that_was_not_synced_takes_its_files_with_it() -> None:
    file_system, session = system(
        MakeDirectory("/data/x"), Open("/data/x/file", create=True), SyncDirectory("/data/x")
    )
    assert names_after_loss(file_system) == {(), ("/data/x/file",)}
    file_system.apply(session, SyncDirectory("/data"))
    assert names_after_loss(file_system) == {("/data/x/file",)}


def test_only_preallocation_meets_a_full_disk() -> None:
    async def program(environment: Environment, machine: Machine) -> None:
        machine.disk.capacity_bytes = 1000
        files = environment.files
        await perform(files, *SYNCED_FILE, Preallocate(FILE, 900))
        await perform(files, Open("/data/b", create=True))
        with pytest.raises(OSError, match="No space") as caught:
            await perform(files, Preallocate("/data/b", 101))
        assert caught.value.errno == errno.ENOSPC
        await perform(files, Write("/data/b", 0, [bytes(500)]), DataSync("/data/b"))
        await perform(files, Unlink(FILE), Preallocate("/data/b", 1000))

    run(program)


def test_an_injected_write_error_leaves_a_short_write() -> None:
    async def program(environment: Environment, machine: Machine) -> int:
        await perform(environment.files, *SYNCED_FILE)
        machine.disk.fail_next(Write, FILE)
        with pytest.raises(OSError, match="injected"):
            await perform(environment.files, Write(FILE, 0, [bytes(1000)]))
        (size,) = await perform(environment.files, Size(FILE))
        return int(size)

    assert 0 <= run(program) < 1000


def test_after_a_failed_sync_a_later_one_says_yes_and_the_data_may_be_gone() -> None:
    found: set[bytes] = set()

    async def program(environment: Environment, machine: Machine) -> None:
        files = environment.files
        await perform(files, *SYNCED_FILE, Preallocate(FILE, 1), DataSync(FILE))
        await perform(files, Write(FILE, 0, [b"x"]))
        machine.disk.fail_next(DataSync)
        with pytest.raises(OSError, match="injected"):
            await perform(files, DataSync(FILE))
        await perform(files, DataSync(FILE))
        assert (await perform(files, Read(FILE, 0, 1)))[0] == b"x"
        image = machine.disk.file_system.after_power_loss(Fate(random.Random(1)))
        found.add(image.contents(FILE))

    for seed in range(20):
        run(program, seed=seed)
    assert found == {b"x", b"\0"}


def test_errors_come_by_chance_as_often_as_the_profile_says() -> None:
    async def program(environment: Environment, _machine: Machine) -> tuple[int, int]:
        await perform(environment.files, *SYNCED_FILE)
        failed = [0, 0]
        for _ in range(200):
            operations: tuple[Operation, ...] = (Write(FILE, 0, [b"ab"]), DataSync(FILE))
            for index, operation in enumerate(operations):
                try:
                    await perform(environment.files, operation)
                except OSError:
                    failed[index] += 1
        return failed[0], failed[1]

    writes, syncs = run(
        program, disk=DiskProfile(write_error_probability=0.1, sync_error_probability=0.3)
    )
    assert 5 < writes < 45
    assert 35 < syncs < 90


def test_a_flipped_bit_is_read_and_stays() -> None:
    async def program(environment: Environment, machine: Machine) -> None:
        files = environment.files
        await perform(files, *SYNCED_FILE, Write(FILE, 0, [b"abc"]), DataSync(FILE))
        machine.disk.flip_bit(FILE, offset=1, bit=0)
        assert (await perform(files, Read(FILE, 0, 3)))[0] == b"acc"
        image = machine.disk.file_system.after_power_loss(Fate(random.Random(1)))
        assert image.contents(FILE) == b"acc"

    run(program)


@pytest.mark.parametrize("way", ["kill", "power_off"])
def test_a_crash_frees_locks_and_descriptors(way: str) -> None:
    async def scenario(simulation: Simulation) -> None:
        locked: list[bool] = []

        async def program(environment: Environment) -> None:
            with pytest.raises(OSError, match="open it first"):
                await perform(environment.files, Lock(FILE))
            await perform(environment.files, *SYNCED_FILE)
            locked.append((await perform(environment.files, Lock(FILE)))[0])
            other = machine.disk.session(machine.node.process)  # type: ignore[arg-type]
            locked.append((await perform(other, Open(FILE), Lock(FILE)))[1])
            await asyncio.sleep(1e6)

        machine = simulation.add_node("a")
        for _ in range(2):
            machine.start(program)
            await asyncio.sleep(1)
            getattr(machine, way)()
        assert locked == [True, False, True, False]

    simulate(1, scenario)


def test_the_page_cache_survives_a_kill_but_not_a_power_loss() -> None:
    def contents(way: str, seed: int) -> bytes:
        async def scenario(simulation: Simulation) -> bytes:
            async def program(environment: Environment) -> None:
                await perform(environment.files, *SYNCED_FILE, Write(FILE, 0, [b"unsynced"]))
                await asyncio.sleep(1e6)

            machine = simulation.add_node("a")
            machine.start(program)
            await asyncio.sleep(1)
            getattr(machine, way)()
            return machine.disk.file_system.contents(FILE)

        return simulate(seed, scenario).result

    assert {contents("kill", seed) for seed in range(10)} == {b"unsynced"}
    assert len({contents("power_off", seed) for seed in range(10)}) > 2


def test_power_lost_during_a_sync_may_tear_what_was_being_synced() -> None:
    found: set[bytes] = set()
    for seed in range(30):

        async def scenario(simulation: Simulation) -> None:
            async def program(environment: Environment) -> None:
                await perform(environment.files, *SYNCED_FILE)
                await perform(environment.files, Write(FILE, 0, [b"abcdefgh"]), DataSync(FILE))
                raise AssertionError("acked")

            machine = simulation.add_node("a", disk=DiskProfile(sync_s=(1.0, 1.0)))
            machine.start(program)
            await asyncio.sleep(1.5)
            machine.power_off()
            found.add(machine.disk.file_system.contents(FILE))

        simulate(seed, scenario)
    assert b"abcdefgh" in found
    assert b"" in found
    assert len(found) > 4


def test_contents_behave_as_a_bytearray_would() -> None:
    source = random.Random(5)
    for _ in range(200):
        content, model = Content(), bytearray()
        for _ in range(12):
            offset, size = source.randrange(20_000), source.randrange(12_000)
            kind = source.randrange(3)
            if kind == 0:
                data = source.randbytes(size)
                model.extend(bytes(max(0, offset - len(model))) if data else b"")
                if data:
                    model[offset : offset + size] = data
                    content.write(offset, data)
            elif kind == 1:
                content.set_length(offset)
                del model[offset:]
                model.extend(bytes(offset - len(model)))
            copy = content.copy()
            copy.write(0, b"another")
            assert content.length == len(model)
            assert content.read(offset, size) == model[offset : offset + size]
        assert content.read(0, 40_000) == model


def test_what_a_process_submits_in_the_moment_of_its_death_does_not_happen() -> None:
    async def scenario(simulation: Simulation) -> None:
        async def program(environment: Environment) -> None:
            await asyncio.sleep(1)
            environment.files.submit([Open(FILE, create=True)], lambda _: None)
            environment.end_process("it is over")

        machine = simulation.add_node("a")
        machine.start(program)
        await asyncio.sleep(2)
        assert not machine.running
        assert machine.disk.file_system.files == {}

    simulate(1, scenario)
