"""Writes that must be all or nothing, and must come back as they were applied."""

import pytest

from raftwood.base.errors import InvalidInput
from raftwood.disk.segment_log import DropGroup, Run, SetState, TruncateHead, TruncateTail
from raftwood.testing import ImmediateFiles
from tests.kits.base.log_model import contents
from tests.kits.disk.log_in_memory import open_log, run


def test_a_second_cut_above_the_first_is_refused_as_a_whole() -> None:
    async def main() -> None:
        log = await open_log(ImmediateFiles())
        await log.commit(*(Run(1, 1, index, 1, b"x") for index in range(1, 8)))
        before = await contents(log)
        with pytest.raises(InvalidInput, match="cannot be cut from index 5"):
            log.write((TruncateTail(1, 3), TruncateTail(1, 5)))
        assert await contents(log) == before
        await log.close()

    run(main())


@pytest.mark.parametrize(
    ("group", "term", "count"),
    [(-1, 1, 1), (1 << 63, 1, 1), (1 << 64, 1, 1), (1, -1, 1), (1, 1 << 63, 1), (1, 1, 1 << 32)],
)
@pytest.mark.parametrize("is_new", [True, False])
def test_append_refuses_numbers_that_write_refuses(
    group: int, term: int, count: int, *, is_new: bool
) -> None:
    async def main() -> None:
        log = await open_log(ImmediateFiles())
        if not is_new:
            await log.commit(Run(1, 1, 1, 1, b"x"))
        first_index = 2 if not is_new and group == 1 else 1
        before = await contents(log)
        with pytest.raises(InvalidInput):
            log.append(group, term=term, first_index=first_index, count=count, payload=b"y")
        assert await contents(log) == before
        await log.close()

    run(main())


def test_a_late_truncation_below_the_head_changes_nothing_after_a_restart() -> None:
    async def main() -> None:
        files = ImmediateFiles()
        log = await open_log(files)
        await log.commit(*(Run(1, 1, index, 1, b"x") for index in range(1, 8)))
        await log.commit(TruncateHead(1, 5))
        await log.commit(TruncateHead(1, 2))
        before = await contents(log)
        assert before[1].head == 6
        await log.close()
        log = await open_log(files)
        assert await contents(log) == before
        await log.close()

    run(main())


def test_a_late_truncation_below_the_head_outlives_compaction() -> None:
    async def main() -> None:
        files = ImmediateFiles()
        log = await open_log(files)
        for index in range(1, 60):
            await log.commit(Run(1, 1, index, 1, bytes(1000)))
        await log.commit(TruncateHead(1, 50))
        await log.commit(TruncateHead(1, 3))
        for index in range(1, 100):
            await log.commit(Run(2, 1, index, 1, bytes(1000)), TruncateHead(2, index - 1))
        before = await contents(log)
        await log.close()
        log = await open_log(files)
        assert await contents(log) == before
        await log.close()

    run(main())


def test_a_group_that_is_left_with_nothing_is_gone_before_and_after_a_restart() -> None:
    async def main() -> None:
        files = ImmediateFiles()
        log = await open_log(files)
        await log.commit(Run(1, 1, 1, 1, b"x"))
        await log.commit(TruncateTail(1, 1), TruncateTail(3, 1))
        assert log.groups() == []
        await log.commit(Run(4, 1, 1, 1, b"x"))
        await log.commit(TruncateTail(4, 1), DropGroup(4))
        for index in range(1, 100):
            await log.commit(Run(2, 1, index, 1, bytes(1000)), TruncateHead(2, index - 1))
        before = await contents(log)
        assert log.statistics().segments < 5
        await log.close()
        log = await open_log(files)
        assert await contents(log) == before
        await log.commit(SetState(1, b"s"), DropGroup(1))
        await log.close()

    run(main())
