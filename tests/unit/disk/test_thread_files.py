"""The real `Files`: each operation, their order, their errors, and what threads leave behind."""

import asyncio
import errno
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from raftwood.base import files as seam
from raftwood.base.errors import ShuttingDown
from raftwood.base.files import Completion, Operation, perform
from raftwood.disk import real_environment
from raftwood.disk.real_environment import ThreadFiles
from tests.kits.running import run


@pytest.fixture
def files() -> Iterator[ThreadFiles]:
    made = ThreadFiles()
    yield made
    made.close()


def do(files: ThreadFiles, *operations: Operation) -> list[Any]:
    async def main() -> list[Any]:
        async with asyncio.timeout(60):
            return await perform(files, *operations)

    return run(main())


def outcome(files: ThreadFiles, *operations: Operation) -> Completion:
    async def main() -> Completion:
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        files.submit(operations, answer.set_result)
        async with asyncio.timeout(60):
            return await answer

    return run(main())


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "did not come true"
        gc.collect()
        time.sleep(0.005)


def test_a_file_is_made_written_read_cut_renamed_and_removed(
    files: ThreadFiles, tmp_path: Path
) -> None:
    folder, one, two = f"{tmp_path}/a/b", f"{tmp_path}/a/b/one", f"{tmp_path}/a/b/two"
    made = do(
        files,
        seam.MakeDirectory(folder),
        seam.MakeDirectory(folder),
        seam.Open(one, create=True),
        seam.Preallocate(one, 10_000),
        seam.Write(one, 4, [b"ab", bytearray(b"cd"), memoryview(b"ef"), b""]),
        seam.DataSync(one),
        seam.SyncDirectory(folder),
        seam.Size(one),
        seam.Read(one, 2, 8),
    )
    assert made[-2:] == [10_000, b"\0\0abcdef"]
    assert os.stat(one).st_blocks * 512 >= 10_000
    assert do(files, seam.Read(one, 9_990, 100)) == [bytes(10)], "short only at the file's end"
    assert do(files, seam.Read(one, 20_000, 5)) == [b""]
    assert do(files, seam.Truncate(one, 6), seam.Size(one)) == [None, 6]
    assert do(files, seam.ListDirectory(folder)) == [["one"]]
    assert do(files, seam.Rename(one, two), seam.SyncDirectory(folder)) == [None, None]
    assert do(files, seam.ListDirectory(folder), seam.Size(one)) == [["two"], None]
    # The descriptor has moved with the name.
    assert do(files, seam.Write(two, 0, [b"xyz"]), seam.Read(two, 0, 9))[1] == b"xyz\0ab"
    do(files, seam.Unlink(two))
    assert do(files, seam.ListDirectory(folder), seam.Size(two)) == [[], None]
    assert do(files, seam.ListDirectory(f"{tmp_path}/nothing")) == [None]


def test_more_buffers_than_one_call_takes_are_written(files: ThreadFiles, tmp_path: Path) -> None:
    path = f"{tmp_path}/many"
    buffers = [b"%05d" % number for number in range(2500)]
    do(files, seam.Open(path, create=True), seam.Write(path, 3, buffers))
    assert (tmp_path / "many").read_bytes() == bytes(3) + b"".join(buffers)


def test_the_first_error_ends_its_submission_and_no_other(
    files: ThreadFiles, tmp_path: Path
) -> None:
    path = f"{tmp_path}/file"
    missing = seam.Open(f"{tmp_path}/missing")
    failed = outcome(
        files, seam.Open(path, create=True), missing, seam.Write(path, 0, [b"not written"])
    )
    assert failed.results == [None]
    assert failed.failed is missing
    assert isinstance(failed.error, FileNotFoundError)
    assert do(files, seam.Write(path, 0, [b"ok"]), seam.Read(path, 0, 99))[1] == b"ok"


@pytest.mark.parametrize(
    "operation", [seam.Write("/x", 0, [b"x"]), seam.DataSync("/x"), seam.Truncate("/x", 0)]
)
def test_what_is_not_open_cannot_be_written(files: ThreadFiles, operation: Operation) -> None:
    failed = outcome(files, operation)
    assert failed.error is not None
    assert failed.error.errno == errno.EBADF
    assert do(files, seam.Close("/x")) == [None]


def test_a_short_write_is_an_error(
    files: ThreadFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{tmp_path}/file"
    monkeypatch.setattr(os, "pwritev", lambda *_: 3)
    failed = outcome(files, seam.Open(path, create=True), seam.Write(path, 0, [b"four"]))
    assert failed.error is not None
    assert failed.error.errno == errno.EIO
    assert "3 of 4 bytes" in str(failed.error)


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([seam.Open("/tmp/nul\0byte", create=True)], errno.EINVAL),
        ([seam.Size("/tmp/nul\0byte")], errno.EINVAL),
        ([seam.Read("/dev/zero", 0, -1)], errno.EINVAL),
        ([seam.Read("/dev/zero", 0, 1 << 60)], errno.ENOMEM),
        ([seam.Read("/dev/zero", 1 << 70, 10)], errno.EINVAL),
        (["no operation"], errno.EINVAL),
    ],
)
def test_an_unexpected_failure_is_told_and_does_not_end_the_thread(
    files: ThreadFiles, operations: Sequence[Operation], expected: int
) -> None:
    failed = outcome(files, *operations)
    assert failed.error is not None
    assert failed.error.errno == expected
    assert do(files, seam.Size("/"), seam.MakeDirectory("/"))[1] is None
    assert do(files, seam.Size("/nothing")) == [None]


def test_a_buffer_that_is_no_buffer_does_not_end_the_thread(
    files: ThreadFiles, tmp_path: Path
) -> None:
    path = f"{tmp_path}/file"
    scattered = memoryview(b"abcdef")[::2]
    failed = outcome(files, seam.Open(path, create=True), seam.Write(path, 0, [scattered]))
    assert failed.error is not None
    assert do(files, seam.Write(path, 0, [b"ok"]), seam.Size(path))[1] == 2


def test_writes_keep_their_order_and_reads_overtake_them(
    files: ThreadFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{tmp_path}/file"
    do(files, seam.Open(path, create=True), seam.Write(path, 0, [b"-"]))
    may_sync = threading.Event()
    monkeypatch.setattr(os, "fdatasync", lambda _: may_sync.wait(10))

    async def main() -> None:
        answers: list[str] = []
        files.submit((seam.DataSync(path),), lambda _: answers.append("sync"))
        for letter in "abc":
            write = seam.Write(path, 0, [letter.encode()])
            files.submit((write,), lambda _, letter=letter: answers.append(letter))  # type: ignore[misc]
        # Only reads: they need not wait for the disk.
        assert await perform(files, seam.Read(path, 0, 1), seam.Size(path)) == [b"-", 1]
        assert answers == []
        # A read among writes keeps its place.
        last = asyncio.create_task(perform(files, seam.Close(path), seam.Read(path, 0, 1)))
        may_sync.set()
        assert await last == [None, b"c"]
        assert answers == ["sync", "a", "b", "c"]

    run(main())


def test_a_small_write_is_there_at_once_and_is_told_of_later(
    files: ThreadFiles, tmp_path: Path
) -> None:
    path = f"{tmp_path}/file"

    def content() -> bytes:
        return Path(path).read_bytes()

    async def main() -> None:
        await perform(files, seam.Open(path, create=True))
        while not files._writing.is_idle:  # noqa: ASYNC110  it is looked at from outside
            await asyncio.sleep(0.001)
        told: list[Completion] = []
        files.submit((seam.Write(path, 0, [b"abc"]),), told.append)
        assert content() == b"abc"
        assert told == []
        files.submit((seam.Write(f"{path}-2", 0, [b"abc"]),), told.append)
        await asyncio.sleep(0)
        assert [each.error is None for each in told] == [True, False]

    run(main())


def test_a_reader_sees_the_file_that_took_a_name(files: ThreadFiles, tmp_path: Path) -> None:
    path, other = f"{tmp_path}/file", f"{tmp_path}/other"
    do(files, seam.Open(path, create=True), seam.Write(path, 0, [b"old"]))
    assert do(files, seam.Read(path, 0, 9)) == [b"old"]
    do(files, seam.Open(other, create=True), seam.Write(other, 0, [b"new"]))
    do(files, seam.Rename(other, path))
    assert do(files, seam.Read(path, 0, 9)) == [b"new"]
    do(files, seam.Unlink(path))
    assert isinstance(outcome(files, seam.Read(path, 0, 9)).error, FileNotFoundError)


def _descriptors_of(path: str) -> list[str]:
    folder = "/proc/self/fd"
    links = []
    for name in os.listdir(folder):
        try:
            links.append(os.readlink(f"{folder}/{name}"))
        except FileNotFoundError:
            continue
    return [link for link in links if link.startswith(path)]


def test_a_removed_file_gives_its_room_back_without_another_read(
    files: ThreadFiles, tmp_path: Path
) -> None:
    path, other = f"{tmp_path}/file", f"{tmp_path}/other"
    do(files, seam.Open(path, create=True), seam.Write(path, 0, [b"x"]))
    do(files, seam.Read(path, 0, 1))
    do(files, seam.Unlink(path))
    until(lambda: not _descriptors_of(path))
    do(files, seam.Open(path, create=True), seam.Open(other, create=True))
    do(files, seam.Read(path, 0, 1))
    do(files, seam.Rename(other, path), seam.Close(path))
    until(lambda: not _descriptors_of(path))


def test_readers_keep_a_bounded_number_of_descriptors(files: ThreadFiles, tmp_path: Path) -> None:
    for number in range(100):
        path = tmp_path / f"file{number}"
        path.write_bytes(b"%d" % number)
        assert do(files, seam.Read(str(path), 0, 9)) == [b"%d" % number]
    assert len(_descriptors_of(f"{tmp_path}/file")) == real_environment._READ_DESCRIPTORS_MAX


def test_idle_threads_hold_no_buffers(files: ThreadFiles, tmp_path: Path) -> None:
    path = f"{tmp_path}/file"
    buffer = bytearray(1000)
    references = sys.getrefcount(buffer)
    do(files, seam.Open(path, create=True), seam.Write(path, 0, [buffer]))
    until(lambda: sys.getrefcount(buffer) == references)
    (view,) = do(files, seam.Read(path, 0, 1000))
    read, references = view.obj, 3  # the view's, the name's, the call's
    until(lambda: sys.getrefcount(read) <= references)


def test_a_lock_keeps_others_out_until_it_is_closed(files: ThreadFiles, tmp_path: Path) -> None:
    path = f"{tmp_path}/LOCK"
    assert do(files, seam.Open(path, create=True), seam.Lock(path)) == [None, True]
    assert do(files, seam.Lock(path)) == [True]
    script = f"""
import fcntl, os, sys
try:
    fcntl.flock(os.open({path!r}, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit(3)
"""
    command = (sys.executable, "-c", script)
    assert subprocess.run(command, check=False, timeout=30).returncode == 3
    second = ThreadFiles()
    try:
        assert do(second, seam.Open(path), seam.Lock(path)) == [None, False]
        do(files, seam.Close(path))
        assert do(second, seam.Lock(path)) == [True]
    finally:
        second.close()
    assert subprocess.run(command, check=False, timeout=30).returncode == 0


def test_close_finishes_what_was_submitted(tmp_path: Path) -> None:
    path = f"{tmp_path}/file"
    files = ThreadFiles()

    async def main() -> None:
        answers: list[int] = []
        files.submit((seam.Open(path, create=True),), lambda _: answers.append(-1))
        for number in range(50):
            write = seam.Write(path, number, [b"x"])
            files.submit((write,), lambda _, number=number: answers.append(number))  # type: ignore[misc]
        files.close()
        await asyncio.sleep(0)
        assert answers == list(range(-1, 50))
        with pytest.raises(ShuttingDown):
            files.submit((seam.Size(path),), lambda _: None)

    run(main())
    assert (tmp_path / "file").read_bytes() == b"x" * 50
    assert not _descriptors_of(path)
    files.close()


def test_an_answer_to_a_loop_that_is_gone_does_not_end_the_thread(
    files: ThreadFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{tmp_path}/file"
    do(files, seam.Open(path, create=True))
    may_sync = threading.Event()
    monkeypatch.setattr(os, "fdatasync", lambda _: may_sync.wait(10))

    async def leave() -> None:
        files.submit((seam.DataSync(path),), lambda _: None)

    run(leave())
    may_sync.set()
    assert do(files, seam.Write(path, 0, [b"ok"]), seam.Size(path))[1] == 2
