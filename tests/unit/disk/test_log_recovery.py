"""Recovery that is itself interrupted, or follows an interrupted one."""

import asyncio
import random
from collections.abc import Callable

import pytest

from raftwood.base import files as seam
from raftwood.base.files import Operation
from raftwood.disk.segment_log import Run, State, TruncateHead
from raftwood.disk.segment_log.format import FLUSH_HEADER_BYTES
from raftwood.simulation import FileSystem, ImmediateFiles
from raftwood.simulation.file_system import Session
from raftwood.simulation.survival import KeepAll
from tests.unit.disk.log_in_memory import WatchedFiles, open_log, run

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
        if data[_OLDEST] == (2).to_bytes(4, "little"):
            assert len(data) > FLUSH_HEADER_BYTES, "a flush without records cannot be torn"
            image = files.file_system.after_power_loss(KeepAll(random.Random(0)))
            session = Session()
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
            log.write((State(1, b"a state"),))
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
