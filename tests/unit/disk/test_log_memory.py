"""What the log keeps in memory, and what a read takes, is bounded by the settings."""

import msgspec

from raftwood.disk.segment_log import Run, TruncateHead
from raftwood.simulation import ImmediateFiles
from tests.unit.disk.log_in_memory import SMALL, open_log, run


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
