"""Closing while things are under way, and being cancelled at it."""

import asyncio
import errno
from contextlib import suppress

import pytest

from raftwood.base import files as seam
from raftwood.base.errors import ShuttingDown, StoreError
from raftwood.base.files import Operation
from raftwood.disk.segment_log import Run
from raftwood.disk.store import Store
from raftwood.testing import ImmediateFiles
from tests.kits.base.log_model import contents
from tests.kits.disk.log_in_memory import SMALL, WatchedFiles, environment_over, open_log, run

FOLDER = "/data/store"


async def _open_store(files: ImmediateFiles) -> Store:
    environment = environment_over(files)
    return await Store.open(environment, FOLDER, cluster="c", store=1, settings=SMALL)


def test_a_close_that_is_cancelled_is_finished_all_the_same() -> None:
    async def main() -> None:
        for turns in range(12):
            files = WatchedFiles(lambda _: None)
            store = await _open_store(files)
            for index in range(1, 12):
                store.log.append(1, term=1, first_index=index, count=1, payload=bytes(1000))
            expected = await contents(store.log)
            closing = asyncio.create_task(store.close())
            for _ in range(turns):
                await asyncio.sleep(0)
            closing.cancel()
            with suppress(asyncio.CancelledError):
                await closing
            await store.close()
            submitted = files.submitted
            await asyncio.sleep(5.0)
            assert files.submitted == submitted, "something was submitted after the close"
            assert not files.session.opened
            store = await _open_store(files)
            assert await contents(store.log) == expected
            await store.close()

    run(main())


def test_two_closes_at_once_are_one() -> None:
    async def main() -> None:
        files = ImmediateFiles()
        log = await open_log(files)
        log.append(1, term=1, first_index=1, count=1, payload=b"x")
        await asyncio.gather(log.close(), log.close(), log.close())
        assert log.statistics().flushes == 3
        with pytest.raises(ShuttingDown):
            log.write((Run(1, 1, 2, 1, b""),))

    run(main())


@pytest.mark.parametrize("failing", [seam.Write, seam.Rename, seam.SyncDirectory])
def test_a_store_that_cannot_be_marked_leaves_nothing_running(failing: type) -> None:
    """The log is open by then, and has a task of its own."""
    renames = 0

    def watch(operation: Operation) -> None:
        nonlocal renames
        path = getattr(operation, "path", getattr(operation, "source", ""))
        renames += isinstance(operation, seam.Rename)
        is_second = renames >= 2 and (path == FOLDER or "IDENTITY" in path)
        if is_second and isinstance(operation, failing):
            raise OSError(errno.EIO, "injected", path)

    files = WatchedFiles(watch)

    async def main() -> None:
        with pytest.raises(StoreError, match="injected"):
            await _open_store(files)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert not any("LOCK" in path or "log" in path for path in files.session.opened)
        files.watch = lambda _: None
        store = await _open_store(files)
        await store.close()

    run(main())


def test_an_open_that_is_cancelled_gives_the_lock_back() -> None:
    async def main() -> None:
        for turns in range(1, 40):
            files = ImmediateFiles()
            opening = asyncio.create_task(_open_store(files))
            for _ in range(turns):
                await asyncio.sleep(0)
            if opening.done():
                assert turns > 5
                await opening.result().close()
                return
            opening.cancel()
            with suppress(asyncio.CancelledError):
                await opening
            await asyncio.sleep(0.1)
            assert asyncio.all_tasks() == {asyncio.current_task()}
            assert f"{FOLDER}/LOCK" not in files.session.opened, turns
            other = ImmediateFiles(files.file_system)
            await (await _open_store(other)).close()

    run(main())
