"""One suite for every implementation of the `Files` seam: threads, simulated disk, memory."""

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from raftwood.base import files as seam
from raftwood.base.environment import Environment
from raftwood.base.files import Completion, Files, Operation, perform
from raftwood.disk.real_environment import real_environment
from raftwood.testing import ImageRunner, ImmediateFiles, Simulation, simulate
from tests.kits.running import run

Check = Callable[[Files, str], Awaitable[None]]


def on_threads(check: Check, folder: Path) -> None:
    async def main(environment: Environment) -> None:
        await check(environment.files, str(folder))

    with real_environment() as environment:
        run(main(environment))


def on_a_simulated_disk(check: Check, _: Path) -> None:
    async def scenario(simulation: Simulation) -> None:
        finished = asyncio.Event()

        async def program(environment: Environment) -> None:
            await check(environment.files, "/data")
            finished.set()

        simulation.add_node("a").start(program)
        await asyncio.wait_for(finished.wait(), 3600)

    simulate(1, scenario)


def in_memory(check: Check, _: Path) -> None:
    async def main() -> None:
        await check(ImmediateFiles(), "/data")

    with ImageRunner() as runner:
        runner.run(main())


@pytest.fixture(params=[on_threads, on_a_simulated_disk, in_memory])
def check_on(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Check], None]:
    return lambda check: request.param(check, tmp_path)


CheckOn = Callable[[Check], None]


def test_what_is_written_is_read(check_on: CheckOn) -> None:
    async def check(files: Files, root: str) -> None:
        path = f"{root}/a/b/file"
        results = await perform(
            files,
            seam.MakeDirectory(f"{root}/a/b"),
            seam.MakeDirectory(f"{root}/a/b"),
            seam.Open(path, create=True),
            seam.Open(path),
            seam.Write(path, 2, [b"cd", bytearray(b"e"), memoryview(b"xfgx")[1:3]]),
            seam.DataSync(path),
            seam.SyncDirectory(f"{root}/a/b"),
        )
        assert len(results) == 7
        assert await perform(files, seam.Size(path)) == [7]
        for offset, length, expected in ((0, 7, b"\0\0cdefg"), (4, 100, b"efg"), (9, 1, b"")):
            (data,) = await perform(files, seam.Read(path, offset, length))
            assert bytes(data) == expected
        await perform(files, seam.Truncate(path, 3), seam.Close(path), seam.Close(path))
        (data,) = await perform(files, seam.Read(path, 0, 100))
        assert bytes(data) == b"\0\0c"

    check_on(check)


def test_preallocation_sets_the_length_and_keeps_the_contents(check_on: CheckOn) -> None:
    async def check(files: Files, root: str) -> None:
        path = f"{root}/file"
        await perform(
            files,
            seam.Open(path, create=True),
            seam.Write(path, 0, [b"abc"]),
            seam.Preallocate(path, 10),
        )
        (data,) = await perform(files, seam.Read(path, 0, 100))
        assert bytes(data) == b"abc" + bytes(7)
        await perform(files, seam.Preallocate(path, 4))
        assert await perform(files, seam.Size(path)) == [10]

    check_on(check)


def test_names_are_listed_renamed_and_removed(check_on: CheckOn) -> None:
    async def check(files: Files, root: str) -> None:
        one, two = f"{root}/d/one", f"{root}/d/two"
        assert await perform(files, seam.ListDirectory(f"{root}/d")) == [None]
        assert await perform(files, seam.Size(one)) == [None]
        await perform(files, seam.MakeDirectory(f"{root}/d"))
        for path, data in ((one, b"1"), (two, b"2")):
            await perform(files, seam.Open(path, create=True), seam.Write(path, 0, [data]))
        assert await perform(files, seam.ListDirectory(f"{root}/d")) == [["one", "two"]]
        (before,) = await perform(files, seam.Read(two, 0, 9))
        await perform(files, seam.Rename(one, two), seam.SyncDirectory(f"{root}/d"))
        (after,) = await perform(files, seam.Read(two, 0, 9))
        assert (bytes(before), bytes(after)) == (b"2", b"1")
        await perform(files, seam.Write(two, 1, [b"!"]))  # still open under its new name
        (data,) = await perform(files, seam.Read(two, 0, 9))
        assert bytes(data) == b"1!"
        await perform(files, seam.Unlink(two), seam.SyncDirectory(f"{root}/d"))
        assert await perform(files, seam.ListDirectory(f"{root}/d")) == [[]]

    check_on(check)


@pytest.mark.parametrize(
    ("make", "number"),
    [
        (lambda root: seam.Open(f"{root}/none"), errno.ENOENT),
        (lambda root: seam.Open(f"{root}/none/file", create=True), errno.ENOENT),
        (lambda root: seam.Read(f"{root}/none", 0, 1), errno.ENOENT),
        (lambda root: seam.Unlink(f"{root}/none"), errno.ENOENT),
        (lambda root: seam.Rename(f"{root}/none", f"{root}/other"), errno.ENOENT),
        (lambda root: seam.SyncDirectory(f"{root}/none"), errno.ENOENT),
        (lambda root: seam.Write(f"{root}/none", 0, [b"x"]), errno.EBADF),
        (lambda root: seam.DataSync(f"{root}/none"), errno.EBADF),
        (lambda root: seam.Truncate(f"{root}/none", 0), errno.EBADF),
    ],
)
def test_the_first_failure_ends_a_submission(
    check_on: CheckOn, make: Callable[[str], Operation], number: int
) -> None:
    async def check(files: Files, root: str) -> None:
        failing = make(root)
        told: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        operations = (seam.MakeDirectory(f"{root}/x"), failing, seam.MakeDirectory(f"{root}/y"))
        files.submit(operations, told.set_result)
        completion = await told
        assert completion.failed is failing
        assert len(completion.results) == 1
        assert completion.error is not None
        assert completion.error.errno == number
        (names,) = await perform(files, seam.ListDirectory(root))
        assert "x" in names
        assert "y" not in names

    check_on(check)


def test_writing_submissions_run_in_order(check_on: CheckOn) -> None:
    async def check(files: Files, root: str) -> None:
        path = f"{root}/file"
        await perform(files, seam.Open(path, create=True))
        order: list[int] = []
        finished = asyncio.Event()

        def answer(number: int) -> Callable[[Completion], Any]:
            def note(completion: Completion) -> None:
                assert completion.error is None
                order.append(number)
                if number == 19:
                    finished.set()

            return note

        for number in range(20):
            write = seam.Write(path, 0, [b"%02d" % number])
            files.submit((write, seam.DataSync(path)), answer(number))
        await finished.wait()
        assert order == list(range(20))
        (data,) = await perform(files, seam.Read(path, 0, 2))
        assert bytes(data) == b"19"

    check_on(check)
