"""How long a node's loop is held by writes to keys that the disk alone knows.

    python -m benchmarks.zeppelin_cold [KEYS]

One partition's engine on RocksDB with values of 1000 bytes and a cache of 1 MB for its blocks; the
pages of its files are dropped before each round. A round gives it 512 blind writes of random keys:
with what they replace read on the loop, as it was until 0.2.0, then looked up beside it.
"""

import asyncio
import os
import random
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from raftwood.disk.rocksdb import RocksEngine
from raftwood.zeppelin.node.engine import PartitionEngine
from raftwood.zeppelin.records import BinlogRecord, KeyWrite

KEYS = 1_000_000
VALUE_BYTES = 1_000
CACHE_BYTES = 1 << 20
WRITES = 512
FILL = 1_000
FLUSH_BYTES = 64 << 20
ROUNDS = 5
NOW_MS = 1


def drop_pages(folder: Path) -> None:
    """The next reads of its files are from the disk."""
    for file in folder.glob("*.sst"):
        try:
            descriptor = os.open(file, os.O_RDONLY)
        except FileNotFoundError:
            continue  # a compaction was faster
        try:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.sst"))


def record(engine: PartitionEngine, numbers: list[int]) -> BinlogRecord:
    writes = [KeyWrite(b"user:%012d" % each, os.urandom(VALUE_BYTES)) for each in numbers]
    return BinlogRecord(1, engine.state.sequence + 1, tuple(writes))


async def fill(folder: Path, count: int, rng: random.Random) -> None:
    engine = PartitionEngine(await RocksEngine.open(str(folder)))
    numbers = rng.sample(range(count), count)
    for begin in range(0, count, FILL):
        engine.apply([record(engine, numbers[begin : begin + FILL])], now_ms=NOW_MS)
        if engine.unflushed_bytes > FLUSH_BYTES:
            await engine.flush()
    await engine.close()


async def held(
    engine: PartitionEngine, written: BinlogRecord, *, is_looked_up: bool
) -> tuple[float, float]:
    """The longest time between two turns of the loop, and how long all of it takes, in ms."""
    longest_s = 0.0

    async def watch() -> None:
        nonlocal longest_s
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0)
            longest_s = max(longest_s, time.perf_counter() - began)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    began = time.perf_counter()
    if is_looked_up:
        await engine.fetch(engine.look_up(write.key for write in written.writes))
    engine.apply([written], now_ms=NOW_MS)
    took_s = time.perf_counter() - began
    await asyncio.sleep(0)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    return longest_s * 1_000, took_s * 1_000


async def run(folder: Path, count: int) -> None:
    rng = random.Random(1)
    await fill(folder, count, rng)
    engine = PartitionEngine(await RocksEngine.open(str(folder), cache_bytes=CACHE_BYTES))
    print(f"{count:,} keys, {size_of(folder) / 1e6:,.0f} MB; {WRITES} writes to random ones:")
    for name, is_looked_up in (("read on the loop", False), ("looked up beside it", True)):
        found = []
        for _ in range(ROUNDS):
            written = record(engine, [rng.randrange(count) for _ in range(WRITES)])
            drop_pages(folder)
            found.append(await held(engine, written, is_looked_up=is_looked_up))
        holds, times = zip(*found, strict=True)
        print(
            f"{name:<20} the loop is held for {min(holds):.1f} to {max(holds):.1f} ms, all of it "
            f"takes {min(times):.1f} to {max(times):.1f}"
        )
    await engine.close()


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else KEYS
    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(run(Path(folder), count))


if __name__ == "__main__":
    main()
