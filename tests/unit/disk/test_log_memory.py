"""What the log keeps in memory, and what a read takes, is bounded by the settings."""

import time

import msgspec

from raftwood.base import files as seam
from raftwood.base.files import Operation
from raftwood.disk.segment_log import Run, TruncateHead
from raftwood.testing import ImmediateFiles
from tests.kits.disk.log_in_memory import SMALL, WatchedFiles, open_log, run


def test_many_small_flushes_do_not_outgrow_the_cache() -> None:
    """A flush takes some hundred bytes of its own, and even an empty one counts."""

    async def main() -> None:
        settings = msgspec.structs.replace(SMALL, cache_bytes_max=64 << 10)
        log = await open_log(ImmediateFiles(), settings)
        for index in range(1, 3000):
            await log.commit(Run(1, 1, index, 1, b""), TruncateHead(1, index - 1))
        cached = log._committer.cache._flushes
        assert 10 < len(cached) <= (64 << 10) // 256
        await log.close()

    run(main())


def test_an_empty_flush_leaves_a_cache_of_no_bytes() -> None:
    async def main() -> None:
        log = await open_log(ImmediateFiles())
        await log.commit(Run(1, 1, 1, 1, b""))
        await log.close()
        assert not log._committer.cache._flushes

    run(main())


def test_a_read_of_scattered_runs_does_not_take_what_lies_between() -> None:
    taken = 0

    def watch(operation: Operation) -> None:
        nonlocal taken
        if isinstance(operation, seam.Read) and operation.path.endswith(".segment"):
            taken += operation.length

    async def main() -> None:
        nonlocal taken
        settings = msgspec.structs.replace(SMALL, segment_bytes=4 << 20)
        log = await open_log(WatchedFiles(watch), settings)
        for index in range(1, 300):
            await log.commit(Run(1, 1, index, 1, b"%d" % index), Run(2, 1, index, 1, bytes(40_000)))
        taken = 0
        runs = await log.read(1, 1)
        assert [bytes(run.payload) for run in runs] == [b"%d" % index for index in range(1, 300)]
        assert taken < 100 * 300
        await log.close()

    run(main())


def test_a_read_of_many_scattered_runs_takes_time_in_proportion() -> None:
    async def main() -> None:
        settings = msgspec.structs.replace(SMALL, segment_bytes=64 << 20)
        log = await open_log(ImmediateFiles(), settings)
        for index in range(1, 4000):
            await log.commit(Run(1, 1, index, 1, b""), Run(2, 1, index, 1, bytes(5000)))
        began = time.process_time()
        assert len(await log.read(1, 1)) == 3999
        assert time.process_time() - began < 1.0
        await log.close()

    run(main())
