"""What was acked is read at once by another client, on bookies of every kind; ten thousand times by
`python -m benchmarks.ledgers.readable`.
"""

import asyncio
from contextlib import AsyncExitStack

from raftwood.dlog.errors import BookieUnavailable, CannotRecover
from raftwood.dlog.log.dlogs import DlogInfo
from tests.kits.dlog.logs import BEGIN, read_all
from tests.kits.dlog.readable import CONFIG, Readable, read_after_acks
from tests.kits.dlog.sites import Site
from tests.kits.running import run

TIMES = 200
_WAIT_S_MAX = 60


def test_whoever_reads_right_after_an_ack_sees_the_message(site: Site) -> None:
    async def main() -> Readable:
        async with site.running(), AsyncExitStack() as stack:
            one, other = [await stack.enter_async_context(site.seat()) for _ in range(2)]
            return await read_after_acks(one.dlogs, other.dlogs, "readable", times=TIMES)

    found = run(main())
    assert (found.reads, found.missed) == (TIMES, 0)
    assert found.of_dead_writers >= 8
    assert found.ledgers >= 20


def _is_closed(info: DlogInfo) -> bool:
    return info.meta.ledgers[0].is_closed


def test_a_log_is_read_though_its_last_ledger_is_open_and_empty_or_out_of_reach(
    site: Site,
) -> None:
    async def main() -> None:
        async with site.running(), AsyncExitStack() as stack:
            one, other = [await stack.enter_async_context(site.seat()) for _ in range(2)]
            await one.dlogs.create("empty", CONFIG)
            writer = await one.dlogs.open_writer("empty")
            first = await writer.append(b"1")
            await writer.rotate()
            async with asyncio.timeout(_WAIT_S_MAX):
                # Appends go to the new ledger before the old one is closed.
                while not _is_closed(await other.dlogs.info("empty")):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await writer.abandon()
            info = await other.dlogs.info("empty")
            assert info.next >> 64 == info.meta.last_ledger > first >> 64
            reader = await other.dlogs.open_reader("empty")
            assert [bytes(each.message.payload) for each in await read_all(reader)] == [b"1"]
            ledger = await other.ledgers.info(info.meta.last_ledger)
            for bookie in ledger.segments[-1].bookies[:2]:
                await site.kill(bookie)
            try:
                (message,), following = await reader.read(BEGIN, bytes_max=1)
                assert bytes(message.message.payload) == b"1"
                try:
                    await reader.read(following, bytes_max=1)
                    raise AssertionError("nobody can know that nothing was written")
                except BookieUnavailable:
                    pass
                assert await other.dlogs.shrink("empty", following) == following
            finally:
                for bookie in ledger.segments[-1].bookies[:2]:
                    await site.mend(bookie)
            await reader.close()
            async with asyncio.timeout(_WAIT_S_MAX):
                while True:
                    try:
                        await one.dlogs.remove("empty")
                        break
                    except CannotRecover:  # its connections are on their way back
                        await asyncio.sleep(0.05)

    run(main())
