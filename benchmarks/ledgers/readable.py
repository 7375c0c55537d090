"""Reads right after acks, by another client:

    python -m benchmarks.ledgers.readable [TIMES]

on three bookies of our own and on three of Apache BookKeeper, with writers that live and writers
that die after the ack; prints how many reads missed what was acked. Fails if one did.
"""

import asyncio
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from tests.kits.dlog.bookie_processes import bookie_processes
from tests.kits.dlog.readable import Readable, read_after_acks
from tests.kits.dlog.sites import BookKeeperSite, ProcessSite, Site
from tests.kits.servers.bookkeeper import BookKeeperCluster

TIMES = 10_000
BOOKIES = 3


async def _read(site: Site, times: int) -> Readable:
    async with site.running(), AsyncExitStack() as stack:
        one, other = [await stack.enter_async_context(site.seat()) for _ in range(2)]
        return await read_after_acks(one.dlogs, other.dlogs, "readable", times=times)


def main(times: int) -> int:
    results: dict[str, Readable] = {}
    with tempfile.TemporaryDirectory() as folder:
        with bookie_processes(Path(folder), BOOKIES) as processes:
            asyncio.run(processes.start())
            results["own bookies"] = asyncio.run(_read(ProcessSite(processes), times))
        with BookKeeperCluster(bookies=BOOKIES, folder=Path(folder)) as cluster:
            results["Apache BookKeeper"] = asyncio.run(_read(BookKeeperSite(cluster), times))
    for name, found in results.items():
        seen = found.reads - found.missed
        print(
            f"{name}: {seen} of {found.reads} reads right after the ack saw the message, "
            f"{found.of_dead_writers} of them after the writer's death, in {found.ledgers} ledgers"
        )
    return int(any(found.missed for found in results.values()))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else TIMES))
