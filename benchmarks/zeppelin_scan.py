"""A whole table read in several ways, and backed up: ratios in one run.

    python -m benchmarks.zeppelin_scan [KEYS]

One node with one partition of 100-byte values on RocksDB. Read by pages of a checkpoint, as
Python's pairs and as Arrow's columns; by SCAN and BULK GET of our own client; by SCAN and GET in
pipelines of redis-py. Then a backup, its check and a restore. The processor time is the node's, for
each key.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import uvloop
from redis.asyncio.cluster import RedisCluster
from tests.kits.zeppelin.processes import KvProcesses, Login, kv_processes

from raftwood.disk.real_environment import real_environment
from raftwood.zeppelin.backup import back_up
from raftwood.zeppelin.backup_format import BackupFolder
from raftwood.zeppelin.client import AsyncKv
from raftwood.zeppelin.model import TableConfig
from raftwood.zeppelin.restore import restore, verify

KEYS = 300_000
VALUE = b"0123456789" * 10
CHUNK = 10_000
PAGE_KEYS = 1_000


def key(number: int) -> bytes:
    return b"user:%012d" % number


async def load(kv: AsyncKv, count: int) -> None:
    for begin in range(0, count, CHUNK):
        await kv.set_many((key(each), VALUE) for each in range(begin, min(begin + CHUNK, count)))


async def by_pages(kv: AsyncKv) -> int:
    count = 0
    async with await kv.checkpoint(0) as checkpoint:
        async for page in checkpoint.pages():
            count += len(dict(zip(page.keys(), page.values(), strict=True)))
    return count


async def by_arrow(kv: AsyncKv) -> int:
    count = 0
    async with await kv.checkpoint(0) as checkpoint:
        async for batch in checkpoint.arrow_pages():
            count += batch.num_rows
    return count


async def by_scan(kv: AsyncKv) -> int:
    count = 0
    async for table in kv.scan_arrow(count=PAGE_KEYS):
        count += table.num_rows
    return count


async def by_redis_py(port: int, login: Login) -> int:
    count = 0
    async with RedisCluster(
        host="127.0.0.1", port=port, username=login.user, password=login.password
    ) as client:
        keys: list[bytes] = []
        async for each in client.scan_iter(count=PAGE_KEYS):
            keys.append(each)
            if len(keys) == PAGE_KEYS:
                count += await _values(client, keys)
                keys = []
        if keys:
            count += await _values(client, keys)
    return count


async def _values(client: RedisCluster, keys: list[bytes]) -> int:
    pipeline = client.pipeline()
    for each in keys:
        pipeline.get(each)
    return len(await pipeline.execute())


class Report:
    """Lines with rates, each beside that of the first."""

    def __init__(self, node: int) -> None:
        self._node = psutil.Process(node)
        self._first = 0.0

    async def line(self, name: str, work: Callable[[], Awaitable[int]]) -> None:
        before = self._cpu_s()
        began = time.perf_counter()
        count = await work()
        elapsed_s = time.perf_counter() - began
        rate = count / elapsed_s
        self._first = self._first or rate
        size = count * (len(VALUE) + len(key(0)))
        print(
            f"{name:<34} {rate:>10,.0f} keys/s {size / elapsed_s / 1e6:>7.1f} MB/s "
            f"{(self._cpu_s() - before) / count * 1e6:>6.2f} µs/key on the node "
            f"{rate / self._first:>6.2f}×"
        )

    def _cpu_s(self) -> float:
        times = self._node.cpu_times()
        return float(times.user + times.system)


async def run(cluster: KvProcesses, logins: list[Login], count: int, folder: Path) -> None:
    login, copy = logins
    node = cluster.nodes[1]
    port = int(node.address.rpartition(":")[2])
    report = Report(node.pid)
    async with await AsyncKv.connect(node.address, user=login.user, password=login.password) as kv:
        await load(kv, count)
        await report.line("pages of a checkpoint, as pairs", lambda: by_pages(kv))
        await report.line("pages of a checkpoint, as Arrow", lambda: by_arrow(kv))
        await report.line("SCAN and BULK GET, our client", lambda: by_scan(kv))
        await report.line("SCAN and GETs, redis-py", lambda: by_redis_py(port, login))
        backup = BackupFolder(str(folder))

        async def backed_up() -> int:
            return (await back_up(kv, backup)).pairs

        async def verified() -> int:
            return (await verify(backup)).pairs

        await report.line("backup", backed_up)
        await report.line("its check", verified)
    packed = sum(each.stat().st_size for each in (folder / "data").iterdir())
    print(f"packed to {packed / count:.1f} bytes a key")
    async with await AsyncKv.connect(node.address, user=copy.user, password=copy.password) as kv:

        async def restored() -> int:
            with real_environment() as environment:
                return (await restore(kv, backup, environment.clock)).restored

        await report.line("restore", restored)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else KEYS
    with tempfile.TemporaryDirectory() as folder, kv_processes(Path(folder), nodes=1) as cluster:
        logins = [
            cluster.create_table(name, TableConfig(partitions=partitions, replicas=1))
            for name, partitions in (("whole", 1), ("copy", 4))
        ]
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(cluster, logins, count, Path(folder) / "backup"))


if __name__ == "__main__":
    main()
