"""What it costs that readers see what was acked, either way (docs/decisions/0031):

    python -m benchmarks.ledgers.ack_costs [ROUNDS]

`ack first`: the ack does not wait; whoever reads then asks all bookies of each entry above the last
confirmed one. `publish first`: the ack waits until readers hear of it; they ask as they always do.
In turns, on three bookies of our own and on three of Apache BookKeeper: milliseconds of an append
and of a read right after it, their CPU in this client, and how many appends a second are acked with
64 in flight.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

from tests.kits.dlog.bookie_processes import bookie_processes
from tests.kits.dlog.sites import BookKeeperSite, ProcessSite, Seat, Site
from tests.kits.servers.bookkeeper import BookKeeperCluster

from raftwood.base.errors import RaftwoodError
from raftwood.dlog.ledgers.metadata import BookieId, LedgerConfig
from raftwood.dlog.ledgers.rules import PublishedWriteRules, WriteRules

ROUNDS = 6
APPENDS = 150
IN_FLIGHT = 64
BURSTS = 20
WAYS = ("ack first", "publish first")
Measured = dict[str, list[float]]


@contextmanager
def _way(name: str) -> Iterator[None]:
    if name == "publish first":
        yield
    else:
        with mock.patch.object(PublishedWriteRules, "next_acked", WriteRules.next_acked):
            yield


async def _read_by_copies(seat: Seat, ledger: int, entry: int) -> None:
    """As a reader would that believes in copies: up to the first entry that too few have."""
    reader = await seat.ledgers.open(ledger, recover=False)
    metadata = reader.metadata

    async def has(bookie: BookieId, number: int) -> bool:
        try:
            return bool(await seat.bookies.read(bookie, ledger=ledger, entry=number))
        except RaftwoodError:
            return False

    last = reader.last_confirmed
    while True:
        bookies = metadata.segment_of(last + 1).bookies
        copies = sum(await asyncio.gather(*(has(each, last + 1) for each in bookies)))
        if copies < metadata.config.ack_quorum:
            break
        last += 1
    assert last >= entry


async def _read_as_ever(seat: Seat, ledger: int, entry: int) -> None:
    reader = await seat.ledgers.open(ledger, recover=False)
    assert reader.last_confirmed >= entry
    await reader.read(first=entry, last=entry)


async def _timed(into: Measured, name: str, call: Callable[[], Awaitable[object]]) -> None:
    began, cpu = time.perf_counter(), time.process_time()
    await call()
    into.setdefault(f"{name} ms", []).append((time.perf_counter() - began) * 1000)
    into.setdefault(f"{name} CPU ms", []).append((time.process_time() - cpu) * 1000)


async def _measure(site: Site, rounds: int) -> dict[str, Measured]:
    found: dict[str, Measured] = {way: {} for way in WAYS}
    async with site.running(), AsyncExitStack() as stack:
        one, other = [await stack.enter_async_context(site.seat()) for _ in range(2)]
        for number in range(2 * (rounds + 1)):
            way = WAYS[number % 2]
            # The first round of each warms up.
            into: Measured = found[way] if number > 1 else {}
            read = _read_by_copies if way == "ack first" else _read_as_ever
            with _way(way):
                writer = await one.ledgers.create(LedgerConfig())
                for entry in range(APPENDS):
                    await _timed(into, "append", partial(writer.append, bytes(100)))
                    await _timed(into, "read", partial(read, other, writer.ledger, entry))
                began = time.perf_counter()
                for _ in range(BURSTS):
                    await asyncio.gather(*(writer.append(bytes(100)) for _ in range(IN_FLIGHT)))
                rate = BURSTS * IN_FLIGHT / (time.perf_counter() - began)
                into.setdefault("acks/s", []).append(rate)
                await writer.close()
    return found


def main(rounds: int) -> None:
    results: dict[str, dict[str, Measured]] = {}
    with tempfile.TemporaryDirectory() as folder:
        with bookie_processes(Path(folder), 3) as processes:
            asyncio.run(processes.start())
            results["own bookies"] = asyncio.run(_measure(ProcessSite(processes), rounds))
        with BookKeeperCluster(bookies=3, folder=Path(folder)) as cluster:
            results["Apache BookKeeper"] = asyncio.run(_measure(BookKeeperSite(cluster), rounds))
    for name, found in results.items():
        print(name)
        for figure in found[WAYS[0]]:
            first, second = (statistics.median(found[way][figure]) for way in WAYS)
            print(f"  {figure:14} {first:9.2f} {second:9.2f}   ratio {second / first:.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
