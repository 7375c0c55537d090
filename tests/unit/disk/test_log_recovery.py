"""Recovery that is itself interrupted, or follows an interrupted one."""

import asyncio
import errno
import random
from collections.abc import Callable

import pytest

from raftwood.base import files as seam
from raftwood.base.files import Operation
from raftwood.disk.segment_log import Run, SetState, TruncateHead
from raftwood.disk.segment_log.format import FLUSH_HEADER_BYTES
from raftwood.testing import FileSystem, ImmediateFiles
from raftwood.testing.errors import Leaked
from raftwood.testing.file_system import DescriptorTable, KeepAll, LoseAll, LoseData
from tests.kits.disk.log_in_memory import WatchedFiles, open_log, run

_OLDEST = slice(48, 52)
"""Where a flush's header names the oldest segment that is still needed."""


def test_a_segment_that_only_a_torn_flush_calls_unneeded_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else, after the torn flush was cut off, the log would miss it at the next start."""
    torn: list[FileSystem] = []

    def watch(operation: Operation) -> None:
        if torn or not isinstance(operation, seam.Write):
            return
        data = b"".join(operation.buffers)
        if data[_OLDEST] == (2).to_bytes(4, "little") and data[:7] == b"RWFLUSH":
            assert len(data) > FLUSH_HEADER_BYTES, "a flush without records cannot be torn"
            image = files.file_system.after_power_loss(KeepAll(random.Random(0)))
            session = DescriptorTable()
            image.apply(session, seam.Open(operation.path))
            image.apply(session, seam.Write(operation.path, operation.offset, (data[:-1],)))
            torn.append(image)

    files = WatchedFiles(watch)

    async def main() -> None:
        log = await open_log(files)
        for index in range(1, 30):
            await log.commit(Run(1, 1, index, 1, bytes(1000)))
        barrier = log._committer.barrier

        def barrier_with_a_record(done: Callable[[], None]) -> None:
            log.write((SetState(1, b"a state"),))
            barrier(done)

        monkeypatch.setattr(log._committer, "barrier", barrier_with_a_record)
        log.write((TruncateHead(1, 29),))
        await asyncio.sleep(1.0)
        for _ in range(3):  # opened and killed before anything was written
            idle = await open_log(ImmediateFiles(torn[0]))
            assert idle.bounds(1).head == 30
            idle._compaction.cancel()  # type: ignore[union-attr]
        log = await open_log(ImmediateFiles(torn[0]))
        assert log.bounds(1).head == 30
        await log.close()

    run(main())


def test_what_a_failed_sync_left_in_the_page_cache_alone_is_written_again() -> None:
    """A process that starts anew reads it, and may build on it: it must be on disk by then."""
    failing = False

    def watch(operation: Operation) -> None:
        if failing and isinstance(operation, seam.DataSync):
            inode = files.session.inode(operation.path)
            files.file_system.lose_pages(inode, LoseAll(random.Random(0)))
            raise OSError(errno.EIO, "injected", operation.path)

    files = WatchedFiles(watch)

    async def main() -> None:
        nonlocal failing
        log = await open_log(files)
        await log.commit(Run(1, 1, 1, 1, b"acked"))
        failing = True
        log.append(1, term=1, first_index=2, count=1, payload=b"in the page cache")
        await asyncio.sleep(0.1)  # the process ends itself here
        again = ImmediateFiles(files.file_system)
        log = await open_log(again)
        assert log.bounds(1).next_index == 3
        await log.commit(Run(1, 1, 3, 1, b"on top of it"))
        image = again.file_system.after_power_loss(LoseAll(random.Random(0)))
        await log.close()
        log = await open_log(ImmediateFiles(image))
        assert log.bounds(1).next_index == 4
        await log.close()

    with pytest.raises(Leaked, match="Ended"):
        run(main())


def test_no_segment_is_removed_before_the_flush_that_calls_it_unneeded_is_durable() -> None:
    """That flush may have been read from the page cache of a process that was killed."""
    images: list[FileSystem] = []
    recovering = False

    def watch(operation: Operation) -> None:
        if recovering:
            images.append(again.file_system.after_power_loss(LoseData(random.Random(0))))
        elif isinstance(operation, seam.DataSync) and operation.path in declared:
            raise OSError(errno.EIO, "killed", operation.path)
        elif isinstance(operation, seam.Write):
            data = b"".join(operation.buffers)
            if data[_OLDEST] == (2).to_bytes(4, "little") and data[:7] == b"RWFLUSH":
                declared.append(operation.path)

    declared: list[str] = []
    files = WatchedFiles(watch)
    again = WatchedFiles(watch)
    again.file_system = files.file_system

    async def main() -> None:
        nonlocal recovering
        log = await open_log(files)
        for index in range(1, 30):
            await log.commit(Run(1, 1, index, 1, bytes(1000)))
        log.write((TruncateHead(1, 29),))
        await asyncio.sleep(1.0)
        assert declared
        recovering = True
        log = await open_log(again)
        assert log.bounds(1).head == 30
        recovering = False
        assert len(images) > 10
        for image in images:
            log = await open_log(ImmediateFiles(image))
            assert log.bounds(1).head == 30
            await log.close()

    with pytest.raises(Leaked, match="Ended"):
        run(main())
