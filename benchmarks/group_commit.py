"""The segment log's group commit against a bare write + fdatasync loop of the same bytes.

    python -m benchmarks.group_commit [--seconds 1.5] [--rounds 5] [--format json]

Every append is a record of its own with a checksum, an index entry and a callback when durable; so
many are in flight at any moment. The bare loop writes the same record and syncs it, one after the
other. The two take turns in short rounds and the medians count; only ratios within one run mean
anything.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from typing import Any

import rich.console
import rich.table
import uvloop

from raftwood.disk.real_environment import real_environment
from raftwood.disk.segment_log import SegmentLog, TruncateHead

CASES = [
    ("100 B, 1 in flight", 100, 1),
    ("100 B, 64 in flight", 100, 64),
    ("100 B, 512 in flight", 100, 512),
    ("1 MB, 1 in flight", 1 << 20, 1),
]
GOALS = {"100 B, 64 in flight": 20.0, "1 MB, 1 in flight": 0.9}

Result = dict[str, Any]


def bare_loop(folder: str, size: int, seconds: float) -> Result:
    path = os.path.join(folder, "bare")
    payload = os.urandom(size)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    count = 0
    cpu, began = time.process_time(), time.perf_counter()
    end = began + seconds
    while time.perf_counter() < end:
        os.write(descriptor, payload)
        os.fdatasync(descriptor)
        count += 1
    elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu
    os.close(descriptor)
    os.unlink(path)
    return {"records_per_second": count / elapsed, "cpu_us": cpu / count * 1e6}


async def segment_log(folder: str, size: int, in_flight: int, seconds: float) -> Result:
    with real_environment() as environment:
        log = await SegmentLog.open(environment, os.path.join(folder, "log"))
        writer = Writer(log, os.urandom(size), in_flight)
        await writer.run(0.2)  # the first segment is made, caches are warm
        flushes = log.statistics().flushes
        cpu, began = time.process_time(), time.perf_counter()
        count, latencies = await writer.run(seconds)
        elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu
        flushes = log.statistics().flushes - flushes
        log.write([TruncateHead(group, 1 << 40) for group in log.groups()])
        await log.close()
    latencies.sort()
    return {
        "records_per_second": count / elapsed,
        "cpu_us": cpu / count * 1e6,
        "records_per_sync": count / flushes,
        "p50_us": latencies[len(latencies) // 2] * 1e6,
        "p99_us": latencies[int(len(latencies) * 0.99)] * 1e6,
    }


class Writer:
    """Keeps a number of appends in flight, each on a group of its own."""

    def __init__(self, log: SegmentLog, payload: bytes, in_flight: int) -> None:
        self.log, self.payload, self.in_flight = log, payload, in_flight

    async def run(self, seconds: float) -> tuple[int, list[float]]:
        now = time.perf_counter
        end = now() + seconds
        finished = asyncio.get_running_loop().create_future()
        latencies: list[float] = []
        append, payload, active = self.log.append, self.payload, self.in_flight

        def start(group: int) -> None:
            index = self.log.bounds(group).next_index if group in self.log.groups() else 1
            sent = 0.0

            def durable() -> None:
                nonlocal index, sent, active
                moment = now()
                latencies.append(moment - sent)
                if moment < end:
                    send(moment)
                else:
                    active -= 1
                    if not active:
                        finished.set_result(None)

            def send(moment: float) -> None:
                nonlocal index, sent
                sent = moment
                append(group, term=1, first_index=index, count=1, payload=payload, done=durable)
                index += 1

            send(now())

        for group in range(self.in_flight):
            start(group)
        await finished
        return len(latencies), latencies


def compare(seconds: float = 1.5, rounds: int = 5) -> list[Result]:
    results = []
    with tempfile.TemporaryDirectory(prefix="raftwood-bench-", dir=os.curdir) as folder:
        for name, size, in_flight in CASES:
            ours, bare = [], []
            for number in range(rounds):
                place = os.path.join(folder, f"{in_flight}-{size}-{number}")
                os.mkdir(place)
                bare.append(bare_loop(place, size, seconds))
                ours.append(uvloop.run(segment_log(place, size, in_flight, seconds)))
            ratios = [
                mine["records_per_second"] / other["records_per_second"]
                for mine, other in zip(ours, bare, strict=True)
            ]
            results.append(
                {
                    "case": name,
                    **{key: statistics.median(r[key] for r in ours) for key in ours[0]},
                    "megabytes_per_second": statistics.median(
                        r["records_per_second"] * size / 1e6 for r in ours
                    ),
                    "bare_records_per_second": statistics.median(
                        r["records_per_second"] for r in bare
                    ),
                    "bare_cpu_us": statistics.median(r["cpu_us"] for r in bare),
                    "ratio": statistics.median(ratios),
                    "goal": GOALS.get(name),
                }
            )
    return results


def table(results: list[Result]) -> rich.table.Table:
    shown = rich.table.Table(title="Segment log against bare write + fdatasync")
    for heading in ("case", "records/s", "MB/s", "p50 µs", "p99 µs", "CPU µs", "per sync",
                    "bare/s", "bare CPU µs", "ratio", "goal"):  # fmt: skip
        shown.add_column(heading, justify="left" if heading == "case" else "right")
    for r in results:
        shown.add_row(
            r["case"],
            f"{r['records_per_second']:,.0f}",
            f"{r['megabytes_per_second']:.0f}",
            f"{r['p50_us']:.0f}",
            f"{r['p99_us']:.0f}",
            f"{r['cpu_us']:.1f}",
            f"{r['records_per_sync']:.0f}",
            f"{r['bare_records_per_second']:,.0f}",
            f"{r['bare_cpu_us']:.1f}",
            f"{r['ratio']:.2f}×",
            f"{r['goal']:.1f}×" if r["goal"] else "",
        )
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description="Group commit against a bare loop.")
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args()
    results = compare(options.seconds, options.rounds)
    if options.format == "json":
        print(json.dumps(results, indent=2))
    else:
        rich.console.Console().print(table(results))


if __name__ == "__main__":
    main()
