"""A load of BookKeeper through our client, as `peers/bookkeeper/AddLoad.java` is through its own.

    python -m benchmarks.ledgers.add_load TARGET IN_FLIGHT:BYTES:WARM_S:SECONDS …

The target is HOST:PORT/ledgers of BookKeeper, or config=FILE for bookies of our own. Prints a line
of JSON for each case; a case `visible:COUNT` is how long it takes from an ack until a reader
elsewhere sees the entry, and `takeover:COUNT` for how long nobody can write to a log while one
writer takes over from another that is busy.
"""

import asyncio
import json
import statistics
import sys
import time

import uvloop

from benchmarks.ledgers.targets import opened_target
from raftwood.disk.real_environment import real_environment
from raftwood.dlog.ledgers.client import LedgerClient
from raftwood.dlog.ledgers.metadata import LedgerConfig
from raftwood.dlog.ledgers.seams import LedgerWriter
from raftwood.dlog.log.dlogs import Dlogs

PAUSE_S = 0.02


class Adds:
    """So many in flight: each starts the next one when it is acked."""

    def __init__(self, writer: LedgerWriter, data: bytes, *, end: float) -> None:
        self._writer, self._data, self._end = writer, data, end
        self._began: dict[asyncio.Future[int], float] = {}
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.latencies: list[float] = []

    async def run(self, in_flight: int) -> None:
        for _ in range(in_flight):
            self._add()
        await self._done

    def _add(self) -> None:
        future = self._writer.append(self._data)
        self._began[future] = time.perf_counter()
        future.add_done_callback(self._acked)

    def _acked(self, future: asyncio.Future[int]) -> None:
        future.result()
        now = time.perf_counter()
        self.latencies.append(now - self._began.pop(future))
        if now < self._end:
            self._add()
        elif not self._began:
            self._done.set_result(None)


async def measure(
    client: LedgerClient, in_flight: int, size: int, *, warm_s: float, seconds: float
) -> dict[str, float]:
    writer = await client.create(LedgerConfig())
    await Adds(writer, bytes(size), end=time.perf_counter() + warm_s).run(in_flight)
    cpu, began = time.process_time(), time.perf_counter()
    adds = Adds(writer, bytes(size), end=began + seconds)
    await adds.run(in_flight)
    elapsed, spent = time.perf_counter() - began, time.process_time() - cpu
    await writer.close()
    taken = sorted(adds.latencies)
    return {
        "count": len(taken),
        "elapsed_s": elapsed,
        "client_cpu_s": spent,
        "p50_ms": taken[len(taken) // 2] * 1000,
        "p99_ms": taken[len(taken) * 99 // 100] * 1000,
    }


async def measure_visible(
    client: LedgerClient, other: LedgerClient, count: int
) -> dict[str, float]:
    writer = await client.create(LedgerConfig())
    await writer.append(b"first")
    reader = await other.open(writer.ledger, recover=False)
    taken = []
    for _ in range(count):
        last = writer.last_confirmed
        waiting = asyncio.create_task(reader.wait(after=last, timeout_ms=5000))
        await asyncio.sleep(PAUSE_S)
        await writer.append(bytes(100))
        acked = time.perf_counter()
        seen, _ = await waiting
        assert seen > last, "an acked entry was not seen in time"
        taken.append((time.perf_counter() - acked) * 1000)
    await writer.close()
    return {
        "visible_p50_ms": statistics.median(taken),
        "visible_p99_ms": sorted(taken)[len(taken) * 99 // 100],
    }


async def measure_take_over(dlogs: Dlogs, other: Dlogs, count: int) -> dict[str, float]:
    """A writer's appends are under way whenever the next one takes over; by turns."""
    name = f"takeover-{time.time_ns()}"
    await dlogs.create(name)
    taken = []
    writer = await dlogs.open_writer(name)
    for number in range(count):
        under_way = [writer.submit(bytes(100)) for _ in range(64)]
        await under_way[0]
        following = await (other, dlogs)[number % 2].open_writer(name)
        taken.append(following.take_over.interruption_ms)
        await asyncio.gather(*under_way, return_exceptions=True)
        await writer.abandon()
        writer = following
    await writer.close()
    await dlogs.remove(name)
    return {"take_over_p50_ms": statistics.median(taken), "take_over_longest_ms": max(taken)}


async def main(target: str, cases: list[str]) -> None:
    with real_environment() as environment:
        async with (
            opened_target(environment, target) as (client, store),
            opened_target(environment, target) as (other, other_store),
        ):
            dlogs = Dlogs(environment, store, client)
            other_dlogs = Dlogs(environment, other_store, other)
            await run_cases(cases, client, other, dlogs, other_dlogs)


async def run_cases(
    cases: list[str], client: LedgerClient, other: LedgerClient, dlogs: Dlogs, other_dlogs: Dlogs
) -> None:
    for case in cases:
        first, *rest = case.split(":")
        if first == "visible":
            found = await measure_visible(client, other, int(rest[0]))
        elif first == "takeover":
            found = await measure_take_over(dlogs, other_dlogs, int(rest[0]))
        else:
            size, warm_s, seconds = rest
            found = await measure(
                client, int(first), int(size), warm_s=float(warm_s), seconds=float(seconds)
            )
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2:]))
