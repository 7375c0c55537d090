"""What every test gets: tasks, sockets, threads and processes left behind fail it.

Also counts the tests whose component this machine does not have, by name: `needs` marks them, the
summary prints them, and nothing is skipped in silence.
"""

import asyncio
import gc
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import settings

from tests.kits.components import why_missing
from tests.kits.resources import resources
from tests.kits.servers.bookkeeper import BookKeeperCluster
from tests.kits.servers.databases import DatabaseServer, MariaServer, PostgresServer
from tests.kits.servers.shared import Keeper, locked, shared
from tests.kits.servers.zookeeper import ZooKeeperServer

_not_available: Counter[str] = Counter()
_GRACE_SECONDS = 2.0
_INSTALLING_SECONDS_MAX = 900
"""Of a test whose component may have to be fetched or built first."""
_WITH_PROCESSES = frozenset({"cluster", "interop", "pipeline"})
"""Folders of tests that are long, marked as slow or not."""

# How long an example takes says how busy the machine is, and nothing else.
settings.register_profile("raftwood", deadline=None)
settings.load_profile("raftwood")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("needs") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_INSTALLING_SECONDS_MAX))
    if getattr(config, "workerinput", {}).get("workercount") == 2:
        items[:] = _long_first(items)


def _long_first(items: list[pytest.Item]) -> list[pytest.Item]:
    """Two workers get one half each, and take from the other's end when they have done theirs.

    So each half begins with long tests and ends with short ones, and both workers end together:
    those with processes in one, where servers that last are started once, simulations in the other.
    """
    processes: list[pytest.Item] = []
    simulations: list[pytest.Item] = []
    short: list[pytest.Item] = []
    for item in items:
        folder = item.nodeid.split("/")[1]
        is_slow = item.get_closest_marker("slow") is not None
        if folder in _WITH_PROCESSES or (is_slow and folder != "simulation"):
            processes.append(item)
        else:
            (simulations if is_slow else short).append(item)
    cut = max(0, len(items) // 2 - len(processes))
    return [*processes, *short[:cut], *simulations, *short[cut:]]


def pytest_collection_finish() -> None:
    """Half a million objects are there for good: who collects garbage need not look at them."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        for name in mark.args:
            if reason := why_missing(name):
                pytest.skip(f"not available: {name} ({reason})")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.getreports("skipped"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        if "not available: " in reason:
            _not_available[reason.partition("not available: ")[2]] += 1
    if not _not_available:
        terminalreporter.write_line("not available on this machine: nothing, all tests ran")
    for name, count in sorted(_not_available.items()):
        terminalreporter.write_line(f"not available on this machine: {name}: {count} tests")


def pytest_configure(config: pytest.Config) -> None:
    """Servers are kept by pytest's first process for all of its workers."""
    if not hasattr(config, "workerinput"):
        ends = ExitStack()
        ends.enter_context(Keeper())
        config.add_cleanup(ends.close)


@pytest.fixture(scope="session")
def zookeeper() -> ZooKeeperServer:
    """One server for all tests of a run that need one; each takes a chroot of its own."""
    return shared(ZooKeeperServer)


@pytest.fixture(scope="session")
def postgresql() -> DatabaseServer:
    """One server for all tests of a run that need one; each process has a database of its own."""
    return PostgresServer.elsewhere(shared(PostgresServer).port, f"tests_{os.getpid()}")


@pytest.fixture(scope="session")
def mariadb() -> DatabaseServer:
    """As `postgresql`."""
    return MariaServer.elsewhere(shared(MariaServer).port, f"tests_{os.getpid()}")


@pytest.fixture
def bookkeeper() -> Iterator[BookKeeperCluster]:
    """Four bookies for all tests of a run that need some: they work for the time of the test."""
    with locked(BookKeeperCluster):
        yield shared(BookKeeperCluster)


@pytest.fixture
def breakable_bookkeeper() -> Iterator[BookKeeperCluster]:
    """The same bookies, for one who stops some: nobody else uses them for the time of the test."""
    with locked(BookKeeperCluster, is_exclusive=True):
        yield shared(BookKeeperCluster)


@pytest.fixture(autouse=True)
def _no_task_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A loop that ends cancels its tasks in silence; here they are counted first."""
    cancel_all = asyncio.runners._cancel_all_tasks  # type: ignore[attr-defined]
    left: list[str] = []

    def count_and_cancel(loop: asyncio.AbstractEventLoop) -> None:
        left.extend(map(repr, asyncio.all_tasks(loop)))
        cancel_all(loop)

    monkeypatch.setattr(asyncio.runners, "_cancel_all_tasks", count_and_cancel)
    yield
    if left:
        pytest.fail(f"tasks left behind: {', '.join(left)}")


@pytest.fixture(autouse=True)
def _nothing_leaks() -> Iterator[None]:
    before = resources()
    yield
    deadline = time.monotonic() + _GRACE_SECONDS
    while left := resources() - before:
        if time.monotonic() > deadline:
            pytest.fail(f"left behind: {', '.join(sorted(left))}")
        gc.collect()
        time.sleep(0.01)
