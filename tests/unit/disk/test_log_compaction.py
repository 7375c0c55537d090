"""When room is made, when it is not, and what a failure while making it does."""

import asyncio

from raftwood.disk.segment_log import Run, State, TruncateTail
from raftwood.simulation import ImmediateFiles
from tests.unit.disk.log_in_memory import open_log, run


def test_states_alone_do_not_fill_the_disk() -> None:
    async def main() -> None:
        log = await open_log(ImmediateFiles())
        for number in range(600):
            await log.commit(State(1, b"%0500d" % number))
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
