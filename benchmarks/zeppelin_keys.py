"""What a node costs that nobody uses, and what commands on all keys cost it.

    python -m benchmarks.zeppelin_keys [KEYS]

One node with one table of 128 partitions on RocksDB. Its processor time: while idle without keys
and with them, for the keys as they are written for the first time and again, for DBSIZE, RANDOMKEY
and CLUSTER COUNTKEYSINSLOT; then how long PING waits beside the latter.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import uvloop
from redis.asyncio import Redis
from tests.kits.zeppelin.processes import KvProcess, Login, kv_processes

from raftwood.zeppelin.client import AsyncKv
from raftwood.zeppelin.model import TableConfig

KEYS = 1_000_000
VALUE = b"0123456789" * 10
CHUNK = 10_000
IDLE_S = 30.0
SETTLE_S = 40.0
"""Engines that were written to are flushed within 30 s."""
CALLS = 500
DEFAULTS = {
    "zeppelin_meta.heartbeat_ms": 500,
    "zeppelin_meta.lease_ms": 2_000,
    "zeppelin_meta.down_ms": 3_000,
    "zeppelin_meta.plan_ms": 200,
}


class Report:
    """Lines with the processor time of the node."""

    def __init__(self, node: int) -> None:
        self._node = psutil.Process(node)

    async def line(self, name: str, work: Callable[[], Awaitable[object]], *, count: int) -> object:
        before, began = self._cpu_s(), time.perf_counter()
        result = await work()
        cpu_s, elapsed_s = self._cpu_s() - before, time.perf_counter() - began
        print(
            f"{name:<44} {cpu_s / elapsed_s:>7.2%} of a core, {cpu_s / count * 1e6:>10,.1f} µs each"
            f" of {count:,}"
        )
        return result

    def _cpu_s(self) -> float:
        times = self._node.cpu_times()
        return float(times.user + times.system)


async def idle() -> None:
    await asyncio.sleep(IDLE_S)


async def run(node: KvProcess, login: Login, count: int) -> None:
    report = Report(node.pid)
    host, _, port = node.address.rpartition(":")

    def redis() -> Redis:
        return Redis(
            host=host, port=int(port), username=login.user, password=login.password, protocol=2
        )

    async with (
        await AsyncKv.connect(node.address, user=login.user, password=login.password) as kv,
        redis() as client,
        redis() as other,
    ):

        async def write() -> None:
            for begin in range(0, count, CHUNK):
                numbers = range(begin, min(begin + CHUNK, count))
                await kv.set_many((b"user:%012d" % each, VALUE) for each in numbers)
            await client.dbsize()

        await asyncio.sleep(SETTLE_S)
        await report.line("idle, without keys", idle, count=1)
        await report.line("keys written for the first time", write, count=count)
        await report.line("keys written again", write, count=count)
        await asyncio.sleep(SETTLE_S)
        await report.line(f"idle, with {count:,} keys", idle, count=1)

        async def counted() -> int:
            counts = [await client.dbsize() for _ in range(10)]
            return int(counts[-1])

        print("keys:", await report.line("DBSIZE", counted, count=10))

        async def chosen() -> int:
            return len({await client.randomkey() for _ in range(CALLS)})

        print("different:", await report.line("RANDOMKEY", chosen, count=CALLS))

        async def pinged() -> tuple[float, float]:
            waits: list[float] = []
            counting = asyncio.create_task(other.execute_command("CLUSTER COUNTKEYSINSLOT", 5_000))
            while not counting.done() or len(waits) < 10:
                began = time.perf_counter()
                await client.ping()
                waits.append(time.perf_counter() - began)
            return sorted(waits)[len(waits) // 2], max(waits)

        middle, longest = await pinged()
        print(f"PING beside COUNTKEYSINSLOT: {middle * 1e3:.2f} ms, {longest * 1e3:.2f} at most")


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else KEYS
    with (
        tempfile.TemporaryDirectory() as folder,
        kv_processes(Path(folder), nodes=1, settings=DEFAULTS) as cluster,
    ):
        login = cluster.create_table("many", TableConfig(partitions=128, replicas=1))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(cluster.nodes[1], login, count))


if __name__ == "__main__":
    main()
