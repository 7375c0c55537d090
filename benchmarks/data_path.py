"""What one batch costs on its way from `ClogsHandler` to the sync of a log.

    python -m benchmarks.data_path [--log dlog] [--batches 100] [--format json]

All stages run in this process, with real sockets between them and a real data folder: the
application, which makes the log records, its shipper, a gateway (receiver, sink, streams, client of
the log) and a log store; with `--log dlog` three bookies run beside the gateway. Each stage is a
thread with an event loop of asyncio, and a disk thread. One batch is sent at a time, and the next
one once it is acknowledged.

Three passes, each on stages of its own, because counting costs time:

- CPU: the clock of each thread, over all batches; the median of the rounds. What no thread of ours
  used (RocksDB's threads) is "other threads".
- Functions: `sys.setprofile` in all threads. A coroutine that goes on counts again. What an idle
  process calls in the same time is measured too, and subtracted. Hand-overs are callbacks that wait
  in an event loop's queue, appends to a `deque` elsewhere, and items passed to another thread.
- Copies of the body: `sys.settrace` looks at tracemalloc after each line of Python. Where Python's
  allocators gave out a block of the body's size meanwhile, that line made a copy. So a line that
  makes two copies one after the other counts once, and what C libraries allocate by themselves, the
  kernel's copies and copies into a buffer that is used again do not count.
"""

import argparse
import asyncio
import gc
import logging
import os
import pathlib
import statistics
import sys
import tempfile
import threading
import time
import tracemalloc
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, contextmanager
from queue import SimpleQueue
from types import CodeType, FrameType
from typing import Any, Final

import msgspec
import rich.console
import rich.table
from tests.kits.ports import consecutive_ports

import raftwood
from benchmarks.harness.report import table
from benchmarks.peers.programs import CACHE
from raftwood.base.environment import Environment
from raftwood.base.metrics import Metrics
from raftwood.clogs.client import ClogsHandler
from raftwood.disk.loop_thread import LoopThread
from raftwood.loghub.model import AccessKey, AccessRole, LogKind
from raftwood.server.bookies import embedded_bookies
from raftwood.server.cluster_client import connected_cluster
from raftwood.server.dlogs import opened_dlogs
from raftwood.server.gateway import GatewayServer
from raftwood.server.settings import Settings
from raftwood.server.standalone import BOOKIES, PORTS, begun, standalone_settings
from raftwood.server.store import StoreServer
from raftwood.server.tenants import log_tenant

APPLICATION, SHIPPER, GATEWAY, STORE = "application", "shipper", "gateway", "log store"
STAGES: Final = (APPLICATION, SHIPPER, GATEWAY, STORE)
OTHERS: Final = "other threads"
FILE: Final = "shop/orders.log"
WARM_BATCHES: Final = 30
COUNTED_BATCHES: Final = 40
TRACED_BATCHES: Final = 8
ROUNDS: Final = 5
IDLE_S: Final = 2.0
_COPY_SHARE: Final = 0.9
"""Of the body's size: a block from here on holds the body."""
_LOOP_QUEUES: Final = {"call_soon": "callbacks", "call_soon_threadsafe": "to_threads"}
_WIDTH: Final = 110
_PACKAGE_ROOT: Final = os.path.dirname(raftwood.__file__) + os.sep


class Calls(msgspec.Struct):
    """Of one stage and package, per batch."""

    functions: float = 0.0
    c_functions: float = 0.0


class StageCost(msgspec.Struct):
    """Of one stage, per batch."""

    cpu_us: float = 0.0
    functions: float = 0.0
    c_functions: float = 0.0
    callbacks: float = 0.0
    """Put into the queue of an event loop."""
    deques: float = 0.0
    to_threads: float = 0.0
    copies: float = 0.0


class Results(msgspec.Struct):
    """What one batch costs."""

    log: str
    lines: int
    body_bytes: int
    batches: int
    stages: dict[str, StageCost]
    packages: dict[str, dict[str, Calls]]
    """By stage, then by package."""
    copied_at: dict[str, float]
    """Where copies of the body are made, and how many."""


# The stages.


class Path:
    """All stages, and the way to send one batch through them."""

    def __init__(self, folder: str, log: LogKind, lines: int, line_bytes: int) -> None:
        self._lines = [os.urandom(line_bytes // 2).hex() for _ in range(lines)]
        self.threads: dict[int, str] = {threading.get_ident(): APPLICATION}
        """The stage of each thread, by its ident."""
        settings = standalone_settings(folder, port_base=consecutive_ports(PORTS))
        self._loops: list[LoopThread] = []
        self._running: list[Future[None]] = []
        self._run(STORE, lambda environment, ready: _store(environment, settings, ready))
        server, key = self._run(
            GATEWAY, lambda environment, ready: _gateway(environment, settings, folder, log, ready)
        )
        self.gateway: GatewayServer = server
        with self._stage(SHIPPER):
            self._handler = ClogsHandler(
                FILE,
                servers=[server.clogs_address],
                access_key=key.id,
                access_secret=key.secret,
                compression="none",
                batch_bytes_max=2 << 20,
                linger_ms=60_000,
                retry_first_ms=10,
            )
            self.send()

    def _run(self, name: str, work: Callable[[Environment, "Future[Any]"], Any]) -> Any:
        ready: Future[Any] = Future()
        with self._stage(name):
            loop = LoopThread(name)
            self._loops.append(loop)
            running = loop.begin(work(loop.environment, ready))
            running.add_done_callback(lambda done: _failed(done, ready))
            self._running.append(running)
            return ready.result()

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        """The threads that are started meanwhile are of this stage."""
        yield
        for thread in threading.enumerate():
            if thread.ident is not None:
                self.threads.setdefault(thread.ident, name)

    def send(self) -> None:
        """One batch, until it is acknowledged."""
        for number, line in enumerate(self._lines):
            self._handler.handle(
                logging.LogRecord("shop", logging.INFO, __file__, number, line, None, None)
            )
        self._handler.shipper.flush()

    def send_all(self, batches: int) -> None:
        """One after the other."""
        for _ in range(batches):
            self.send()

    def cpu_s(self) -> dict[str, float]:
        found = dict.fromkeys((*STAGES, OTHERS), 0.0)
        found[OTHERS] = time.process_time()
        for thread in threading.enumerate():
            assert thread.ident is not None
            spent_s = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
            found[self.threads.get(thread.ident, OTHERS)] += spent_s
            found[OTHERS] -= spent_s
        return found

    def close(self) -> None:
        self._handler.close()
        for loop in reversed(self._loops):
            loop.stop()


def _failed(done: "Future[Any]", ready: "Future[Any]") -> None:
    if not ready.done() and not done.cancelled() and (error := done.exception()) is not None:
        ready.set_exception(error)


async def _store(environment: Environment, settings: Settings, ready: "Future[None]") -> None:
    server = await StoreServer.start(
        environment, settings, log_tenant, joins=False, metrics=Metrics()
    )
    try:
        ready.set_result(None)
        await asyncio.Event().wait()
    finally:
        await server.close()


async def _gateway(
    environment: Environment,
    settings: Settings,
    folder: str,
    log: LogKind,
    ready: "Future[tuple[GatewayServer, AccessKey]]",
) -> None:
    clogs = msgspec.structs.replace(settings.clogs, project="p", logstore="s")
    settings = msgspec.structs.replace(settings, clogs=clogs)
    async with AsyncExitStack() as stack:
        store, logs = await stack.enter_async_context(
            connected_cluster(environment, settings, None)
        )
        await begun(store.status)
        dlogs = None
        if log is LogKind.DLOG:
            bookies = await stack.enter_async_context(
                embedded_bookies(environment, settings, store, folder, count=BOOKIES)
            )
            dlogs = await stack.enter_async_context(
                opened_dlogs(environment, settings, store, bookies)
            )
        server = await GatewayServer.start(
            environment, settings, store, logs, dlogs=dlogs, metrics=Metrics()
        )
        stack.push_async_callback(server.close)
        await server.gateway.catalog.create_project("p")
        await server.gateway.catalog.create_logstore("p", "s", shard_count=1, log=log)
        key = await server.gateway.access.create({"p": AccessRole.WRITER})
        ready.set_result((server, key))
        await asyncio.Event().wait()


# Counting.


class CallCounter:
    """A profile function for all threads."""

    def __init__(self) -> None:
        self.is_on = False
        self.counts: Counter[tuple[int, str, str]] = Counter()
        """By thread, package and field of `StageCost`."""
        self._packages: dict[CodeType, str] = {}

    def __call__(self, frame: FrameType, event: str, called: Any) -> None:
        if not self.is_on:
            return
        thread, code = threading.get_ident(), frame.f_code
        package = self._packages.get(code)
        if package is None:
            package = self._packages[code] = _package(code.co_filename)
        field = ""
        if event == "call":
            self.counts[thread, package, "functions"] += 1
            if package == "asyncio":
                field = _LOOP_QUEUES.get(code.co_name, "")
        elif event == "c_call":
            self.counts[thread, package, "c_functions"] += 1
            owner = getattr(called, "__self__", None)
            if isinstance(owner, deque) and package != "asyncio":
                field = "deques" if called.__name__ in ("append", "appendleft", "extend") else ""
            elif isinstance(owner, SimpleQueue) and called.__name__ == "put":
                field = "to_threads"
        if field:
            self.counts[thread, package, field] += 1


def _package(file: str) -> str:
    if file.startswith(_PACKAGE_ROOT):
        return f"raftwood.{_short(file).split(os.sep)[0].removesuffix('.py')}"
    if f"{os.sep}asyncio{os.sep}" in file:
        return "asyncio"
    return "other libraries"


class CopyCounter:
    """A trace function for all threads."""

    def __init__(self) -> None:
        self.is_on = False
        self.size_min = 1 << 62
        self.copies: Counter[tuple[int, str]] = Counter()
        """By thread and line."""
        self._at: dict[int, tuple[str, int]] = {}
        self._bytes = 0

    def start(self, body_bytes: int) -> None:
        self.size_min = int(body_bytes * _COPY_SHARE)
        self._bytes = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        self.is_on = True

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if not self.is_on:
            return None
        thread = threading.get_ident()
        now, peak = tracemalloc.get_traced_memory()
        grown = peak - self._bytes
        if grown >= self.size_min and thread in self._at:
            file, line = self._at[thread]
            self.copies[thread, f"{_short(file)}:{line}"] += 1
        self._bytes = now
        tracemalloc.reset_peak()
        # What comes after a return belongs to the line that called.
        at = frame.f_back if event == "return" and frame.f_back is not None else frame
        self._at[thread] = at.f_code.co_filename, at.f_lineno
        return self


def _short(file: str) -> str:
    if file.startswith(_PACKAGE_ROOT):
        return file.removeprefix(_PACKAGE_ROOT)
    return os.sep.join(file.split(os.sep)[-2:])


# The three passes.


@contextmanager
def _warm(make: Callable[[str], Path], folder: pathlib.Path) -> Iterator[Path]:
    """Stages on an empty folder, which are warm."""
    with tempfile.TemporaryDirectory(dir=folder) as data:
        path = make(data)
        try:
            path.send_all(WARM_BATCHES)
            gc.collect()
            yield path
        finally:
            path.close()


def _cpu(path: Path, batches: int, stages: dict[str, StageCost]) -> None:
    rounds: dict[str, list[float]] = {stage: [] for stage in (*STAGES, OTHERS)}
    for _ in range(ROUNDS):
        before = path.cpu_s()
        path.send_all(batches)
        after = path.cpu_s()
        for stage, taken in rounds.items():
            taken.append((after[stage] - before[stage]) / batches * 1e6)
    for stage, taken in rounds.items():
        stages[stage].cpu_us = max(0.0, statistics.median(taken))


def _calls(path: Path, counter: CallCounter, results: Results) -> None:
    idle, idle_s = _counted(counter, lambda: time.sleep(IDLE_S))
    busy, busy_s = _counted(counter, lambda: path.send_all(COUNTED_BATCHES))
    for (thread, package, field), count in busy.items():
        rest = idle[thread, package, field] * busy_s / idle_s
        per_batch = max(0.0, (count - rest) / COUNTED_BATCHES)
        stage = path.threads.get(thread, OTHERS)
        _add(results.stages[stage], field, per_batch)
        if field in Calls.__struct_fields__:
            packages = results.packages.setdefault(stage, {})
            _add(packages.setdefault(package, Calls()), field, per_batch)


def _counted(
    counter: CallCounter, work: Callable[[], object]
) -> tuple[Counter[tuple[int, str, str]], float]:
    """What was counted meanwhile, and how many seconds that took."""
    counter.counts = Counter()
    began = time.monotonic()
    counter.is_on = True
    work()
    counter.is_on = False
    return counter.counts, time.monotonic() - began


def _add(cost: StageCost | Calls, field: str, count: float) -> None:
    setattr(cost, field, getattr(cost, field) + count)


def _copies(path: Path, counter: CopyCounter, results: Results) -> None:
    counter.start(results.body_bytes)
    path.send_all(TRACED_BATCHES)
    counter.is_on = False
    for (thread, where), count in counter.copies.items():
        stage = path.threads.get(thread, OTHERS)
        results.stages[stage].copies += count / TRACED_BATCHES
        place = f"{stage}: {where}"
        results.copied_at[place] = results.copied_at.get(place, 0.0) + count / TRACED_BATCHES


def measure(
    log: LogKind, lines: int, line_bytes: int, batches: int, folder: pathlib.Path
) -> Results:
    def make(data: str) -> Path:
        return Path(data, log, lines, line_bytes)

    stages = {stage: StageCost() for stage in (*STAGES, OTHERS)}
    results = Results(log.value, lines, lines * line_bytes, batches, stages, {}, {})
    folder.mkdir(parents=True, exist_ok=True)
    with _warm(make, folder) as path:
        _cpu(path, batches, stages)
    counter = CallCounter()
    threading.setprofile(counter)
    sys.setprofile(counter)
    with _warm(make, folder) as path:
        _calls(path, counter, results)
    threading.setprofile(None)
    sys.setprofile(None)
    copies = CopyCounter()
    tracemalloc.start()
    threading.settrace(copies)
    sys.settrace(copies)
    with _warm(make, folder) as path:
        _copies(path, copies, results)
    threading.settrace(None)
    sys.settrace(None)
    tracemalloc.stop()
    return results


def tables(results: Results) -> list[rich.table.Table]:
    costs = table(
        f"One batch of {results.lines} lines, {results.body_bytes:,} bytes, from ClogsHandler to "
        f"the sync of a log ({results.log})",
        [
            "stage",
            "CPU µs",
            "functions",
            "of C",
            "callbacks",
            "deques",
            "to threads",
            "copies",
        ],
    )
    total = StageCost()
    for stage, cost in results.stages.items():
        costs.add_row(stage, *_shown(cost))
        for field in cost.__struct_fields__:
            _add(total, field, getattr(cost, field))
    costs.add_section()
    costs.add_row("all", *_shown(total))
    packages = table("Functions by package", ["stage", "package", "functions", "of C"], left=2)
    for stage, calls in results.packages.items():
        named = stage
        for package, each in sorted(calls.items(), key=lambda item: -item[1].functions):
            if each.functions >= 1:
                packages.add_row(
                    named, package, f"{each.functions:,.0f}", f"{each.c_functions:,.0f}"
                )
                named = ""
    copies = table("Copies of the body", ["line that makes it", "copies"])
    for place, count in sorted(results.copied_at.items()):
        copies.add_row(place, f"{count:.1f}")
    return [costs, packages, copies]


def _shown(cost: StageCost) -> list[str]:
    counts = (cost.functions, cost.c_functions, cost.callbacks, cost.deques, cost.to_threads)
    return [f"{cost.cpu_us:,.0f}", *(f"{each:,.0f}" for each in counts), f"{cost.copies:.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description="What one batch costs from ClogsHandler to disk")
    parser.add_argument("--log", choices=[each.value for each in LogKind], default="logservice")
    parser.add_argument("--lines", type=int, default=64, help="of one batch")
    parser.add_argument("--line-bytes", type=int, default=1_000)
    parser.add_argument("--batches", type=int, default=100, help="of each of the rounds")
    parser.add_argument("--folder", type=pathlib.Path, default=CACHE / "data", help="on a disk")
    parser.add_argument("--format", choices=["table", "json"], default="table")
    options = parser.parse_args()
    results = measure(
        LogKind(options.log), options.lines, options.line_bytes, options.batches, options.folder
    )
    if options.format == "json":
        print(msgspec.json.format(msgspec.json.encode(results)).decode())
        return
    console = rich.console.Console(width=_WIDTH)
    for each in tables(results):
        console.print(each)


if __name__ == "__main__":
    main()
