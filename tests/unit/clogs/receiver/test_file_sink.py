"""Plain files: each batch once and in order, whatever happens to the process or to the files."""

import asyncio
import errno
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from raftwood.base import files as seam
from raftwood.base.errors import (
    DiskFull,
    InvalidInput,
    Overloaded,
    SequenceForgotten,
    ShuttingDown,
    StoreLocked,
    Unavailable,
)
from raftwood.clogs import file_sink
from raftwood.clogs.file_sink import PLACE, STATE_FOLDER, VERSION, FileSink, FileState
from raftwood.clogs.frames import ClogsMessage, MessageType
from raftwood.clogs.seams import Sink
from raftwood.disk.real_environment import real_environment
from raftwood.disk.segment_log import LogSettings
from raftwood.testing import ImageRunner, RecordingFiles, crash_images
from tests.kits.disk.images import environment_over
from tests.kits.running import run

PRODUCER = bytes(range(16))
SMALL = LogSettings(segment_bytes=64 << 10, cache_bytes_max=0)


def lines_of(message: ClogsMessage) -> bytes:
    if message.body == b"bad":
        raise InvalidInput("the body is no LogGroup")
    return bytes(message.body)


def batch(name: str, sequence: int, text: str = "", *, producer: bytes = PRODUCER) -> ClogsMessage:
    return ClogsMessage(
        type=MessageType.DATA,
        name=name,
        producer=producer,
        sequence=sequence,
        count=1,
        body=(text or f"line {sequence}\n").encode(),
    )


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[FileSink]:
    with real_environment() as environment:
        sink = await FileSink.open(environment, str(folder), lines_of, settings=SMALL)
        try:
            yield sink
        finally:
            await sink.close()


def check(body: Callable[[FileSink], Awaitable[None]], folder: Path) -> None:
    async def main() -> None:
        async with opened(folder) as sink:
            await body(sink)

    run(main())


def text_of(folder: Path, name: str = "a.log") -> str:
    return (folder / name).read_text()


def test_each_batch_is_in_its_file_once_and_in_order(tmp_path: Path) -> None:
    async def body(sink: FileSink) -> None:
        as_sink: Sink = sink
        assert await as_sink.locate("key", "a.log") == PLACE
        for sequence in (1, 2, 2, 1, 3):
            assert await as_sink.store("key", batch("a.log", sequence)) == PLACE
        await sink.store("key", batch("/var/log/b.log", 1))
        assert text_of(tmp_path) == "line 1\nline 2\nline 3\n"
        assert text_of(tmp_path, "%2Fvar/log/b.log") == "line 1\n"

    check(body, tmp_path)


def test_after_a_restart_a_batch_that_comes_again_is_known(tmp_path: Path) -> None:
    async def first(sink: FileSink) -> None:
        await sink.store("key", batch("a.log", 1))

    async def second(sink: FileSink) -> None:
        await sink.store("key", batch("a.log", 1))
        await sink.store("key", batch("b.log", 1))
        await sink.store("key", batch("a.log", 2))

    check(first, tmp_path)
    check(second, tmp_path)
    check(second, tmp_path)
    assert text_of(tmp_path) == "line 1\nline 2\n"
    assert text_of(tmp_path, "b.log") == "line 1\n"


def test_what_is_behind_the_noted_length_is_cut_at_the_start(tmp_path: Path) -> None:
    async def first(sink: FileSink) -> None:
        await sink.store("key", batch("a.log", 1))

    async def second(sink: FileSink) -> None:
        assert text_of(tmp_path) == "line 1\n"
        await sink.store("key", batch("a.log", 2))

    check(first, tmp_path)
    with (tmp_path / "a.log").open("a") as file:
        file.write("line 2\nli")
    check(second, tmp_path)
    assert text_of(tmp_path) == "line 1\nline 2\n"


def test_batches_at_once_share_a_sync_and_copies_wait_for_one_another(tmp_path: Path) -> None:
    async def body(sink: FileSink) -> None:
        flushes = sink._store.log.statistics().flushes
        messages = [batch("a.log", number % 50 + 1) for number in range(100)]
        await asyncio.gather(*(sink.store("key", each) for each in messages))
        assert text_of(tmp_path) == "".join(f"line {number}\n" for number in range(1, 51))
        assert sink._store.log.statistics().flushes - flushes < 10
        assert sink._bytes == 0

    check(body, tmp_path)


def test_a_file_that_was_there_before_is_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("before\n")

    async def body(sink: FileSink) -> None:
        await sink.store("key", batch("a.log", 1))
        assert text_of(tmp_path) == "before\nline 1\n"

    check(body, tmp_path)


@pytest.mark.parametrize("way", ["moved", "emptied"])
def test_a_file_that_is_rotated_is_begun_anew(tmp_path: Path, way: str) -> None:
    async def body(sink: FileSink) -> None:
        await sink.store("key", batch("a.log", 1))
        if way == "moved":
            (tmp_path / "a.log").rename(tmp_path / "a.log.1")
        else:
            (tmp_path / "a.log").write_text("")
        await sink.store("key", batch("a.log", 2))
        await sink.store("key", batch("a.log", 1))  # it is in the file that was moved
        assert text_of(tmp_path) == "line 2\n"

    check(body, tmp_path)
    check(body_of_three, tmp_path)
    assert text_of(tmp_path) == "line 2\nline 3\n"


async def body_of_three(sink: FileSink) -> None:
    await sink.store("key", batch("a.log", 3))


def test_a_name_that_is_a_folder_already_fails_alone(tmp_path: Path) -> None:
    async def body(sink: FileSink) -> None:
        await sink.store("key", batch("a/b.log", 1))
        # No error of the storage, for which all would leave the receiver.
        with pytest.raises(InvalidInput, match="give it another name"):
            await sink.store("key", batch("a", 1))
        with pytest.raises(InvalidInput):
            await sink.store("key", batch("a/b.log/c", 1))
        await sink.store("key", batch("a/b.log", 2))
        assert text_of(tmp_path, "a/b.log") == "line 1\nline 2\n"

    check(body, tmp_path)


def test_a_batch_that_cannot_be_read_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    async def body(sink: FileSink) -> None:
        with pytest.raises(InvalidInput):
            await sink.store("key", batch("a.log", 1, "bad"))
        await sink.store("key", batch("a.log", 1))
        with pytest.raises(SequenceForgotten):
            await sink.store("key", batch("a.log", 5000))
            await sink.store("key", batch("a.log", 2))
        assert text_of(tmp_path) == "line 1\nline 5000\n"

    check(body, tmp_path)


def test_names_that_would_leave_the_folder_stay_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "folder"

    async def body(sink: FileSink) -> None:
        for name in ("../../out.log", "/../../out.log", "...", f"{STATE_FOLDER}/identity"):
            await sink.store("key", batch(name, 1))

    check(body, folder)
    assert [each.name for each in tmp_path.iterdir()] == ["deep"]
    assert [each.name for each in (tmp_path / "deep").iterdir()] == ["folder"]
    check(body, folder)


def test_two_receivers_do_not_share_a_folder(tmp_path: Path) -> None:
    async def body(_: FileSink) -> None:
        with pytest.raises(StoreLocked):
            async with opened(tmp_path):
                pass

    check(body, tmp_path)


def test_only_so_much_waits_and_nothing_is_taken_once_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_sink, "WAITING_BYTES_MAX", 20)

    async def body(sink: FileSink) -> None:
        waiting = [
            asyncio.create_task(sink.store("key", batch("a.log", number))) for number in (1, 2)
        ]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await sink.store("key", batch("a.log", 3))
        waiting[1].cancel()  # its batch is written all the same
        closing = asyncio.create_task(sink.close())
        await asyncio.sleep(0)
        with pytest.raises(ShuttingDown):
            await sink.store("key", batch("a.log", 4))
        await asyncio.gather(*waiting, return_exceptions=True)
        await closing
        assert text_of(tmp_path) == "line 1\nline 2\n"

    check(body, tmp_path)


def test_few_files_are_open_and_few_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_sink, "OPEN_MAX", 3)
    monkeypatch.setattr(file_sink, "FILES_MAX", 5)

    async def body(sink: FileSink) -> None:
        for turn in (1, 2):
            for number in range(9):
                await sink.store("key", batch(f"{number}.log", turn))
        assert len(sink._open) == 3
        assert len(sink._files) == len(sink._store.log.groups()) == 5

    check(body, tmp_path)
    for number in range(9):
        assert text_of(tmp_path, f"{number}.log") == "line 1\nline 2\n"


class _Failing(RecordingFiles):
    """Fails one kind of operation for as long as it is told to."""

    failing: type[seam.Operation] | None = None
    error = errno.ENOSPC

    def _apply(self, operation: seam.Operation) -> Any:
        if self.failing is not None and isinstance(operation, self.failing):
            path = getattr(operation, "path", "")
            if path.endswith(".log"):
                if isinstance(operation, seam.Write):  # some of it got there
                    part = seam.Write(path, operation.offset, [b"torn"])
                    super()._apply(part)
                raise OSError(self.error, "told to")
        return super()._apply(operation)


def test_on_a_full_disk_nothing_is_acknowledged_and_it_goes_on_once_there_is_room() -> None:
    async def main() -> None:
        files = _Failing()
        sink = await FileSink.open(
            environment_over(files, 1), "/data/files", lines_of, settings=SMALL
        )
        await sink.store("key", batch("a.log", 1))
        files.failing = seam.Write
        for _ in range(2):
            with pytest.raises(DiskFull, match="free space"):
                await sink.store("key", batch("a.log", 2))
        files.error = errno.EIO
        with pytest.raises(Unavailable, match="cannot write"):
            await sink.store("key", batch("a.log", 2))
        files.failing = None
        await sink.store("key", batch("a.log", 2, "2\n"))
        (data,) = await seam.perform(files, seam.Read("/data/files/a.log", 0, 1000))
        assert bytes(data) == b"line 1\n2\n"
        await sink.close()

    with ImageRunner() as runner:
        runner.run(main())


def test_a_sync_that_fails_ends_the_process() -> None:
    async def main() -> None:
        files = _Failing()
        sink = await FileSink.open(
            environment_over(files, 1), "/data/files", lines_of, settings=SMALL
        )
        await sink.store("key", batch("a.log", 1))
        files.failing = seam.DataSync
        with pytest.raises(Unavailable, match="any more"):
            await sink.store("key", batch("a.log", 2))

    with ImageRunner() as runner:
        runner.run(main())


# Crashes


class AcksBeforeItIsNoted(FileSink):
    """A mutant: lines are durable; that they are there is noted with the next ones."""

    late: tuple[Any, ...] | list[Any] = ()

    async def _note(self, states: list[Any]) -> None:
        await super()._note(list(self.late))
        self.late = states
        for file, state in states:
            file.state = state


class WritesBeforeTheBeginningIsNoted(FileSink):
    """A mutant: after a crash, lines of a new file pass for what was there before."""

    async def _begun(self, file: Any) -> Any:
        if file.state is None:
            file.state = FileState(VERSION, file.name, 0)
        return await super()._begun(file)


class SyncsNothing(FileSink):
    """A mutant: what is noted may not be in the file."""

    async def _perform(self, *operations: seam.Operation) -> None:
        await super()._perform(
            *(each for each in operations if not isinstance(each, seam.DataSync))
        )


NAMES = ("a.log", "d/b.log")
BATCHES = 12


def text(name: str, sequence: int) -> str:
    return f"{name} {sequence} {'x' * (sequence * 7 % 40)}\n"


def check_images(kind: type[FileSink], *, wanted: int) -> None:
    """A life with restarts is recorded; from images of all its moments a sink comes back, has all
    that was acknowledged, and takes what comes again once."""
    recording = RecordingFiles()

    async def made(files: Any, kind: type[FileSink]) -> FileSink:
        return await kind.open(environment_over(files, 1), "/data/files", lines_of, settings=SMALL)

    async def send(sink: FileSink, name: str, sequence: int) -> None:
        await sink.store("key", batch(name, sequence, text(name, sequence)))
        recording.mark((name, sequence))

    async def record() -> None:
        rng = random.Random(2)
        following = dict.fromkeys(NAMES, 1)
        for life in range(3):
            sink = await made(recording, kind)
            while min(following.values()) <= BATCHES * (life + 1) // 3:
                name = rng.choice(NAMES)
                sequence, count = following[name], rng.choice((1, 1, 3))
                following[name] += count
                await asyncio.gather(
                    *(send(sink, name, each) for each in range(sequence, sequence + count))
                )
            await sink.close()

    async def check(image: Any) -> None:
        files = image.files
        sink = await made(files, FileSink)
        for name in NAMES:
            acked = max((each[1] for each in image.marks if each[0] == name), default=0)
            expected = "".join(text(name, each) for each in range(1, acked + 1))
            found = await content(files, name)
            assert found.startswith(expected), "what was acknowledged is lost"
            rest = acked + 3
            for sequence in range(1, rest + 1):
                await sink.store("key", batch(name, sequence, text(name, sequence)))
            whole = "".join(text(name, each) for each in range(1, rest + 1))
            assert await content(files, name) == whole, "a batch is there twice, or not in order"
        await sink.close()

    async def content(files: Any, name: str) -> str:
        (size,) = await seam.perform(files, seam.Size(f"/data/files/{name}"))
        if size is None:
            return ""
        (data,) = await seam.perform(files, seam.Read(f"/data/files/{name}", 0, size))
        return bytes(data).decode()

    with ImageRunner() as runner:
        runner.run(record())
        images = list(crash_images(recording.journal, seed=1, per_point=2, inside_writes=2))
        assert len(images) >= wanted
        for image in images[:: len(images) // wanted][:wanted]:
            runner.run(check(image))


def test_it_comes_back_from_300_crash_images() -> None:
    check_images(FileSink, wanted=300)


@pytest.mark.parametrize(
    "mutant", [AcksBeforeItIsNoted, WritesBeforeTheBeginningIsNoted, SyncsNothing]
)
def test_crash_images_show_a_planted_mistake(mutant: type[FileSink]) -> None:
    with pytest.raises(AssertionError, match=r"lost|twice"):
        check_images(mutant, wanted=300)
