"""A disk without room: what goes on, what is refused, and that nothing waits for ever."""

import asyncio
import errno

import pytest

from raftwood.base import files as seam
from raftwood.base.errors import DiskFull
from raftwood.base.files import Operation
from raftwood.disk.segment_log import Run, SegmentLog, SetState, TruncateHead
from raftwood.testing import ImmediateFiles
from tests.kits.base.log_model import contents
from tests.kits.disk.log_in_memory import FOLDER, SMALL, WatchedFiles, open_log, run


async def filled(files: ImmediateFiles) -> tuple[SegmentLog, int]:
    """A log on a disk that has just become full, and how many runs of group 1 it took."""
    log = await open_log(files)
    for index in range(1, 30):
        await log.commit(Run(1, 1, index, 1, bytes(1000)))
    files.file_system.capacity_bytes = files.file_system.used_bytes()
    index = 30
    while True:
        try:
            await log.commit(Run(1, 1, index, 1, bytes(1000)))
            index += 1
        except DiskFull:
            assert log.statistics().is_full
            return log, index - 1


def largest_segment(files: ImmediateFiles) -> int:
    sizes = [inode.cached.length for inode in files.file_system.files.values()]
    return max(sizes)


def test_many_syncs_do_not_write_beyond_a_full_segment() -> None:
    async def main() -> None:
        files = ImmediateFiles()
        log, _ = await filled(files)
        for _ in range(200):
            await log.sync()
            await asyncio.sleep(0.03)
        assert largest_segment(files) == SMALL.segment_bytes
        await log.commit(SetState(1, b"the reserve is still there"))
        await log.close()

    run(main())


def test_syncs_of_an_idle_log_write_nothing() -> None:
    async def main() -> None:
        files = ImmediateFiles()
        log = await open_log(files)
        log.append(1, term=1, first_index=1, count=1, payload=b"x")
        await asyncio.gather(*(log.sync() for _ in range(10)))
        assert log.statistics().pending_bytes == 0
        for _ in range(1000):
            await log.sync()
        assert log.statistics().flushes == 1
        await log.close()

    run(main())


def test_removing_many_small_segments_does_not_write_beyond_a_full_one() -> None:
    """Each takes an empty flush, and none of them gives enough room for a new segment."""

    async def main() -> None:
        files = ImmediateFiles()
        for index in range(1, 60):
            log = await open_log(files)
            await log.commit(Run(2, 1, index, 1, b"small"))
            await log.close()
        log, last = await filled(files)
        files.file_system.capacity_bytes = 0
        await log.commit(TruncateHead(2, 59))
        await asyncio.sleep(1.0)
        assert largest_segment(files) == SMALL.segment_bytes
        files.file_system.capacity_bytes = None
        await asyncio.sleep(1.0)
        await log.commit(Run(1, 1, last + 1, 1, b"goes on"))
        await log.close()

    run(main())


def test_compaction_leaves_the_reserve_to_states_and_truncations() -> None:
    async def main() -> None:
        files = ImmediateFiles()
        log = await open_log(files)
        # Below the share at which a segment is copied, but more than the reserve takes.
        for index in range(1, 15):
            await log.commit(Run(3, 1, index, 1, bytes(100)))
            await log.commit(Run(4, 1, index, 1, bytes(900)))
        await log.close()
        log, _ = await filled(files)
        files.file_system.capacity_bytes = 0
        await log.commit(TruncateHead(4, 14))
        await asyncio.sleep(1.0)
        for number in range(4):
            await log.commit(SetState(1, b"vote %d" % number))
        await log.close()

    run(main())


def test_a_log_with_writes_that_wait_for_room_can_be_closed() -> None:
    async def main() -> None:
        files = ImmediateFiles()
        log = await open_log(files)
        await log.commit(Run(1, 1, 1, 1, b"acked"))
        before = await contents(log)
        files.file_system.capacity_bytes = 0
        acked = []
        for index in range(2, 40):  # goes on in the next segment before it is known to be full
            log.append(1, term=1, first_index=index, count=1, payload=bytes(1000))
        log.append(1, term=1, first_index=40, count=1, payload=b"", done=lambda: acked.append(40))
        with pytest.raises(DiskFull):
            await log.close()
        submitted = files.file_system.used_bytes()
        files.file_system.capacity_bytes = None
        await asyncio.sleep(5.0)
        assert files.file_system.used_bytes() == submitted, "a closed log went on writing"
        assert not acked
        log = await open_log(files)
        assert (await contents(log))[1].runs[0] == before[1].runs[0]
        await log.close()

    run(main())


def test_a_full_log_is_closed_and_opened_again() -> None:
    async def main() -> None:
        files = ImmediateFiles()
        log, _ = await filled(files)
        before = await contents(log)
        await log.close()
        with pytest.raises(DiskFull):
            await open_log(files)
        files.file_system.capacity_bytes = None
        log = await open_log(files)
        assert await contents(log) == before
        await log.close()
        assert not files.session.opened

    run(main())


def test_a_name_that_finds_no_room_is_a_full_disk_too() -> None:
    def watch(operation: Operation) -> None:
        if no_inodes and isinstance(operation, seam.Open) and operation.path.endswith("temporary"):
            raise OSError(errno.ENOSPC, "no inodes", operation.path)

    no_inodes = True
    files = WatchedFiles(watch)

    async def main() -> None:
        nonlocal no_inodes
        with pytest.raises(DiskFull, match=f"no room in {FOLDER}"):
            await open_log(files)
        no_inodes = False
        log = await open_log(files)
        no_inodes = True
        with pytest.raises(DiskFull):
            for index in range(1, 40):
                await log.commit(Run(1, 1, index, 1, bytes(1000)))
        no_inodes = False
        await asyncio.sleep(1.0)
        await log.commit(Run(1, 1, log.bounds(1).next_index, 1, b"goes on"))
        await log.close()

    run(main())
