"""Writes that wait for the operating system alone, and are synced when something else is."""

import asyncio

import pytest

from raftwood.base import files as seam
from raftwood.base.files import Operation
from raftwood.disk.segment_log import Run, SegmentLog
from raftwood.testing import ImmediateFiles
from tests.kits.base.log_model import contents
from tests.kits.disk.log_in_memory import WatchedFiles, open_log, run


def _syncs(operations: list[Operation]) -> list[str]:
    """Of segments; the horizon is synced apart from them."""
    paths = [each.path for each in operations if isinstance(each, seam.DataSync)]
    return [path for path in paths if path.endswith(".segment")]


def _run(index: int, size: int = 10) -> Run:
    return Run(1, 1, index, 1, bytes(size))


def test_what_is_written_is_synced_when_somebody_asks() -> None:
    async def scenario() -> None:
        done: list[Operation] = []
        log = await open_log(WatchedFiles(done.append))
        done.clear()
        heard: list[str] = []
        log.write([_run(1)], written=lambda: heard.append("written 1"))
        await asyncio.sleep(1)
        log.write([_run(2)], written=lambda: heard.append("written 2"))
        await asyncio.sleep(1)
        assert heard == ["written 1", "written 2"]
        assert _syncs(done) == []
        assert log.statistics().pending_bytes > 0
        log.when_durable(lambda: heard.append("durable"))
        await asyncio.sleep(1)
        assert heard[2:] == ["durable"]
        assert len(_syncs(done)) == 1
        assert log.statistics().pending_bytes == 0
        log.write(
            [_run(3)], lambda: heard.append("durable 3"), written=lambda: heard.append("written 3")
        )
        await asyncio.sleep(1)
        assert heard[3:] == ["written 3", "durable 3"]
        await log.close()

    run(scenario())


def test_a_sync_takes_along_what_was_written_to_segments_before() -> None:
    async def scenario() -> None:
        done: list[Operation] = []
        files = WatchedFiles(done.append)
        log = await open_log(files)
        for index in range(1, 13):
            log.write([_run(index, 5_000)], written=lambda: None)
            await asyncio.sleep(1)
        done.clear()
        await log.sync()
        synced = [path for path in _syncs(done) if path.endswith(".segment")]
        assert len(synced) > 3
        assert synced == sorted(set(synced))
        assert log.statistics().pending_bytes == 0
        await log.close()
        again = await open_log(ImmediateFiles(files.file_system))
        assert (await contents(again))[1].next_index == 13
        await again.close()

    run(scenario())


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_whoever_asks_while_it_is_on_its_way_is_told(turns: int) -> None:
    async def scenario() -> None:
        log = await open_log(ImmediateFiles())
        log.write([_run(1)], written=lambda: None)
        for _ in range(turns):
            await asyncio.sleep(0)
        await log.sync()
        await _close(log)

    run(scenario())


async def _close(log: SegmentLog) -> None:
    assert log.statistics().pending_bytes == 0
    await log.close()


def test_runs_are_found_by_their_indexes_and_sizes() -> None:
    async def scenario() -> None:
        log = await open_log(ImmediateFiles())
        for first in (1, 4, 7):
            log.append(1, term=1, first_index=first, count=3, payload=bytes(100))
        assert [log.run_start(1, index) for index in (1, 3, 4, 9)] == [1, 1, 4, 7]
        assert [log.index_within(1, size) for size in (0, 99, 100, 250, 300)] == [10, 10, 7, 4, 1]
        await log.close()

    run(scenario())
