"""What a call of clogs' handler costs the application, beside handlers of Python's own.

    python -m benchmarks.run --parts clogs-handler

Each is called with records that are made before, in bursts with pauses between, from one thread and
from four, while what is behind it is at work: clogs ships to a receiver in another process,
`QueueHandler` hands over to a `QueueListener` that writes a file, `FileHandler` writes it itself.
They take turns; a call's time is that of the wall, and so has in it whatever made it wait.
"""

import asyncio
import logging
import logging.handlers
import pathlib
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec
import rich.table
from tests.kits.clogs.ring import KEY, SECRET, Ring

from benchmarks.harness.report import Verdict, goals_table, table
from raftwood.clogs.client import ClogsHandler
from raftwood.clogs.frames import ClogsMessage
from raftwood.disk.real_environment import real_environment

OURS: Final = "ClogsHandler"
SIMPLE_QUEUE: Final = "QueueHandler, SimpleQueue"
QUEUE: Final = "QueueHandler, Queue"
FILE: Final = "FileHandler"
GOAL: Final = 1.5
THREADS: Final = (1, 4)
BURST: Final = 200
PAUSE_S: Final = 0.01
_SETTLE_S: Final = 0.3


class Cost(msgspec.Struct, frozen=True):
    """Of one call, in nanoseconds."""

    median_ns: float
    p99_ns: float
    highest_ns: float


class Results(msgspec.Struct, kw_only=True):
    """By the number of threads, then by handler: the medians of the rounds."""

    calls: int
    rounds: int
    costs: dict[int, dict[str, Cost]] = {}
    acked: int = 0
    dropped: int = 0
    """Lines of ours."""


def compare(
    *, quick: bool = False, progress: Callable[[str], None] = lambda _step: None
) -> Results:
    calls, rounds = (4_000, 1) if quick else (10_000, 3)
    results = Results(calls=calls, rounds=rounds)
    with (
        _receiver() as port,
        tempfile.TemporaryDirectory() as folder,
        _handlers(port, pathlib.Path(folder)) as handlers,
    ):
        for threads in THREADS:
            found: dict[str, list[Cost]] = {name: [] for name in handlers}
            for number in range(rounds):
                progress(f"{threads} threads, round {number + 1} of {rounds}")
                for name, handler in handlers.items():
                    found[name].append(_cost(handler, calls, threads))
                    time.sleep(_SETTLE_S)  # what is behind it comes to its end
            results.costs[threads] = {name: _middle(costs) for name, costs in found.items()}
        ours = handlers[OURS]
        assert isinstance(ours, ClogsHandler)
        ours.shipper.flush()
        status = ours.shipper.status()
        assert status is not None
        results.acked, results.dropped = status.counters.acked, status.counters.dropped
    return results


def _cost(handler: logging.Handler, calls: int, threads: int) -> Cost:
    taken: list[list[int]] = [[] for _ in range(threads)]
    barrier = threading.Barrier(threads)
    workers = [
        threading.Thread(target=_work, args=(handler, calls // threads, barrier, each))
        for each in taken
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    all_taken = sorted(each for of_thread in taken for each in of_thread)
    return Cost(statistics.median(all_taken), all_taken[int(len(all_taken) * 0.99)], all_taken[-1])


def _work(
    handler: logging.Handler, calls: int, barrier: threading.Barrier, taken: list[int]
) -> None:
    handle, clock = handler.handle, time.perf_counter_ns
    records = [
        logging.LogRecord(
            "shop.orders",
            logging.INFO,
            __file__,
            1,
            "order %d of customer %s was paid in %d ms",
            (number, "c-1047", number % 97),
            None,
        )
        for number in range(calls)
    ]
    barrier.wait()
    for number, record in enumerate(records):
        began = clock()
        handle(record)
        taken.append(clock() - began)
        if number % BURST == BURST - 1:
            time.sleep(PAUSE_S)


def _middle(costs: list[Cost]) -> Cost:
    return Cost(
        statistics.median(each.median_ns for each in costs),
        statistics.median(each.p99_ns for each in costs),
        max(each.highest_ns for each in costs),
    )


@contextmanager
def _handlers(port: int, folder: pathlib.Path) -> Iterator[dict[str, logging.Handler]]:
    ours = ClogsHandler(
        "shop/orders.log",
        servers=[f"127.0.0.1:{port}"],
        access_key=KEY,
        access_secret=SECRET.decode(),
    )
    simple: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    plain: queue.Queue[logging.LogRecord] = queue.Queue()
    files = [logging.FileHandler(folder / f"{number}.log") for number in range(3)]
    listeners = [
        logging.handlers.QueueListener(simple, files[0]),
        logging.handlers.QueueListener(plain, files[1]),
    ]
    for listener in listeners:
        listener.start()
    try:
        yield {
            OURS: ours,
            SIMPLE_QUEUE: logging.handlers.QueueHandler(simple),
            QUEUE: logging.handlers.QueueHandler(plain),
            FILE: files[2],
        }
    finally:
        for listener in listeners:
            listener.stop()
        for handler in (ours, *files):
            handler.close()


@contextmanager
def _receiver() -> Iterator[int]:
    command = [sys.executable, "-m", "benchmarks.clogs.handler"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.stdin.close()


class _Nowhere:
    """Takes all, and keeps nothing: what storing costs is measured elsewhere."""

    async def locate(self, _key: str, _name: str) -> str:
        return "nowhere"

    async def store(self, _key: str, message: ClogsMessage) -> str:
        return message.place


async def _serve() -> None:
    with real_environment() as environment:
        ring = Ring(environment)
        await ring.start("receiver", _Nowhere())
        print(ring.ports["receiver"], flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        await ring.close()


def verdicts(results: Results) -> list[Verdict]:
    return [
        Verdict(
            what=f"{figure} of a call against {peer}, threads: {threads}",
            measured=_of(costs[OURS], figure) / _of(costs[peer], figure),
            goal=GOAL,
            unit="×",
            is_least=False,
        )
        for threads, costs in results.costs.items()
        for peer in (SIMPLE_QUEUE, QUEUE)
        for figure in ("median", "p99")
    ]


def _of(cost: Cost, figure: str) -> float:
    return cost.median_ns if figure == "median" else cost.p99_ns


def tables(results: Results) -> list[rich.table.Table]:
    costs = table(
        f"A handler's call, {results.calls:,} in bursts of {BURST}",
        ["threads", "handler", "median µs", "p99 µs", "highest µs", "ours / it", "p99: ours / it"],
        left=2,
    )
    for threads, by_handler in results.costs.items():
        ours = by_handler[OURS]
        named = str(threads)
        for name, cost in by_handler.items():
            ratios = ("", "")
            if name != OURS:
                ratios = (
                    f"{ours.median_ns / cost.median_ns:.2f}×",
                    f"{ours.p99_ns / cost.p99_ns:.2f}×",
                )
            figures = (cost.median_ns, cost.p99_ns, cost.highest_ns)
            costs.add_row(named, name, *(f"{each / 1000:,.2f}" for each in figures), *ratios)
            named = ""
    return [costs, goals_table("clogs' handler", verdicts(results))]


def notes(results: Results) -> list[str]:
    note = (
        f"- Of ours {results.acked:,} lines were stored and {results.dropped:,} dropped; nobody "
        "waits by default, so the highest figures are probably those of the interpreter's lock."
    )
    return [note]


if __name__ == "__main__":
    asyncio.run(_serve())
