"""When room is made, when it is not, and what a failure while making it does."""

import asyncio
import errno

import msgspec
import pytest

from raftwood.base import files as seam
from raftwood.base.errors import StoreDamaged
from raftwood.base.files import Operation
from raftwood.disk.segment_log import (
    DropGroup,
    Run,
    SegmentLog,
    SetState,
    TruncateHead,
    TruncateTail,
)
from raftwood.testing import ImmediateFiles
from tests.kits.base.log_model import contents
from tests.kits.disk.log_in_memory import FOLDER, SMALL, Ended, WatchedFiles, open_log, run


def test_states_alone_do_not_fill_the_disk() -> None:
    async def main() -> None:
        log = await open_log(ImmediateFiles())
        for number in range(600):
            await log.commit(SetState(1, b"%0500d" % number))
        await asyncio.sleep(0.1)
        assert log.statistics().segments <= 4
        await log.close()

    run(main())


def test_replaced_tails_do_not_fill_the_disk() -> None:
    async def main() -> None:
        log = await open_log(ImmediateFiles())
        for number in range(300):
            await log.commit(Run(1, number, 1, 1, bytes(1000)))
            await log.commit(TruncateTail(1, 1))
        await asyncio.sleep(0.1)
        assert log.statistics().segments <= 4
        await log.close()

    run(main())


def test_room_is_made_for_the_first_truncation_after_a_start() -> None:
    async def main() -> None:
        files = ImmediateFiles()
        log = await open_log(files)
        await log.commit(Run(1, 1, 1, 1, bytes(5000)), Run(2, 1, 1, 1, b""))
        await log.close()
        log = await open_log(files)
        await log.commit(DropGroup(1))
        await asyncio.sleep(0.1)
        assert log.statistics().segments == 1
        await log.close()

    run(main())


@pytest.mark.parametrize("percent", [0, 20, 50, 99, 100])
@pytest.mark.parametrize("payload_bytes", [0, 1000])
def test_what_is_all_alive_is_not_copied_for_ever(percent: int, payload_bytes: int) -> None:
    async def main() -> None:
        settings = msgspec.structs.replace(SMALL, live_percent_min=percent)
        files = WatchedFiles(lambda _: None)
        log = await open_log(files, settings)
        for index in range(1, 200_000 // (payload_bytes + 100)):
            await log.commit(Run(1, 1, index, 1, bytes(payload_bytes)))
        await log.commit(Run(2, 1, 1, 1, b""), SetState(2, b"x"))
        await log.commit(DropGroup(2))
        await asyncio.sleep(5.0)
        submitted = files.submitted
        await asyncio.sleep(5.0)
        assert files.submitted == submitted
        before = await contents(log)
        await log.close()
        log = await open_log(files, settings)
        await asyncio.sleep(5.0)
        submitted = files.submitted
        await asyncio.sleep(5.0)
        assert files.submitted == submitted
        assert await contents(log) == before
        await log.close()

    run(main())


def test_a_record_above_the_bound_of_waiting_bytes_is_taken_and_moved() -> None:
    """The settings are free to change between two starts."""

    async def main() -> None:
        files = ImmediateFiles()
        large = msgspec.structs.replace(SMALL, segment_bytes=1 << 20, pending_bytes_max=64 << 10)
        log = await open_log(files, large)
        await log.commit(Run(1, 1, 1, 1, bytes(200_000)))
        await log.commit(Run(2, 1, 1, 1, bytes(400_000)))
        await log.close()
        log = await open_log(files, msgspec.structs.replace(large, live_percent_min=90))
        await log.commit(DropGroup(2))
        await asyncio.sleep(1.0)
        assert log.statistics().disk_bytes < (1 << 20) + 300_000
        assert len((await log.read(1, 1))[0].payload) == 200_000
        await log.close()

    run(main())


def _failing(kind: type, suffix: str) -> WatchedFiles:
    def watch(operation: Operation) -> None:
        path = getattr(operation, "path", "")
        if isinstance(operation, kind) and path.endswith(suffix) and watched.armed:
            raise OSError(errno.EIO, "injected", path)

    class Armed(WatchedFiles):
        armed = False

    watched = Armed(watch)
    return watched


async def _compact_with_a_failure(files: WatchedFiles) -> SegmentLog:
    log = await open_log(files)
    await log.commit(Run(1, 1, 1, 1, b"cold"))
    for index in range(1, 40):
        await log.commit(Run(2, 1, index, 1, bytes(1000)))
    files.armed = True  # type: ignore[attr-defined]
    await log.commit(TruncateHead(2, 39))
    await asyncio.sleep(1.0)
    return log


def test_a_segment_that_cannot_be_read_stops_the_log() -> None:
    async def main() -> None:
        files = _failing(seam.Read, "1.segment")
        log = await _compact_with_a_failure(files)
        with pytest.raises(StoreDamaged, match=r"0000000001\.segment.*injected"):
            log.append(2, term=1, first_index=40, count=1, payload=b"")
        with pytest.raises(StoreDamaged, match=r"0000000001\.segment.*injected"):
            await log.read(1, 1)
        await log.close()

    run(main())


@pytest.mark.parametrize(
    ("kind", "suffix"), [(seam.Unlink, "1.segment"), (seam.SyncDirectory, "/log")]
)
def test_a_failure_to_remove_a_segment_ends_the_process(kind: type, suffix: str) -> None:
    async def main() -> None:
        log = await _compact_with_a_failure(_failing(kind, suffix))
        assert log._compaction is not None
        with pytest.raises(Ended, match=r"segment 1 cannot be removed.*injected"):
            await log._compaction

    run(main())


def _flip(files: ImmediateFiles, text: bytes) -> None:
    path = f"{FOLDER}/0000000001.segment"
    offset = files.file_system.contents(path).index(text)
    files.file_system.flip_bit(path, offset=offset)


def test_damage_in_what_was_dropped_does_not_keep_the_rest_of_a_flush_from_being_moved() -> None:
    async def main() -> None:
        files = ImmediateFiles()
        log = await open_log(files)
        await log.commit(
            Run(1, 1, 1, 1, b"kept"), SetState(1, b"state"), Run(2, 1, 1, 1, b"bad" + bytes(3000))
        )
        await log.commit(TruncateHead(3, 4), Run(3, 1, 5, 1, b"later"))
        before = await contents(log)
        del before[2]
        _flip(files, b"bad")
        for index in range(2, 60):
            await log.commit(Run(2, 1, index, 1, bytes(900)))
        await log.commit(DropGroup(2))
        await asyncio.sleep(1.0)
        assert log.statistics().segments <= 2
        await log.close()
        log = await open_log(files)
        assert await contents(log) == before
        await log.close()

    run(main())


def test_damage_in_what_is_needed_stops_the_log() -> None:
    async def main() -> None:
        files = ImmediateFiles()
        log = await open_log(files)
        await log.commit(Run(1, 1, 1, 1, b"needed"), Run(2, 1, 1, 1, bytes(3000)))
        _flip(files, b"needed")
        for index in range(2, 60):
            await log.commit(Run(2, 1, index, 1, bytes(900)))
        await log.commit(DropGroup(2))
        await asyncio.sleep(1.0)
        with pytest.raises(StoreDamaged, match="still needed"):
            await log.commit(SetState(1, b"more"))
        await log.close()

    run(main())
