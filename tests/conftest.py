"""What every test gets: tasks, loops, sockets, threads and processes left behind fail it.

Also counts the tests whose component this machine does not have, by name: `needs` marks them, the
summary prints them, and nothing is skipped in silence.
"""

import asyncio
import atexit
import gc
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

import pytest
import structlog
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler.loadscope import LoadScopeScheduling

from raftwood.disk import real_environment
from tests.kits.components import why_missing
from tests.kits.resources import CountingPolicy, resources
from tests.kits.servers.bookkeeper import BookKeeperCluster
from tests.kits.servers.databases import DatabaseServer, MariaServer, PostgresServer
from tests.kits.servers.shared import Keeper, locked, shared
from tests.kits.servers.zookeeper import ZooKeeperServer

_not_available: Counter[str] = Counter()
_terminal: pytest.TerminalReporter | None = None
"""Of pytest's first process alone."""
GRACE_SECONDS = 30.0
_DISK_BYTES_MIN = 2 << 30
"""What a run keeps on disk at a time, beside `.venv` and `.cache`."""

TIMEOUTS_S = {
    "pipeline": 1500,
    "cluster": 600,
    "assurance": 600,
    "interop": 900,
    "simulation": 300,
    "unit": 300,
}
"""How long a test may take, by its folder, on a machine that is busy with something else.

The order is that of the run: long ones begin, so that the short ones fill the gaps at the end.
Servers and clients of others are fetched and built meanwhile, where this is the first run.
"""

# How long an example takes says how busy the machine is, and nothing else. The same examples come
# each time: a change does not fail by what an earlier one left behind.
settings.register_profile("raftwood", deadline=None, derandomize=True)
settings.load_profile("raftwood")
# Tests neither read nor write the contexts of whoever runs them: commands find none here, in this
# process and in those that it starts. Only tests of contexts have a folder of their own.
_configuration = tempfile.TemporaryDirectory(prefix="raftwood-tests-")
atexit.register(_configuration.cleanup)
os.environ |= {"XDG_CONFIG_HOME": _configuration.name, "RAFTWOOD_CONTEXT": ""}
asyncio.set_event_loop_policy(CountingPolicy())
# Nobody gets a loop by asking for one where none runs: Python would make one that nobody closes.
asyncio.set_event_loop(None)


def pytest_sessionstart(session: pytest.Session) -> None:
    """A disk that fills up in the middle of a run fails a hundred tests, each in its own way."""
    global _terminal  # noqa: PLW0603  pytest hands it to no hook of a report
    if not hasattr(session.config, "workerinput"):
        # Not in pytest_configure: pytest makes its reporter after our hook there.
        _terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if free < _DISK_BYTES_MIN and not hasattr(session.config, "workerinput"):
        pytest.exit(
            f"the tests need {_DISK_BYTES_MIN >> 20} MiB in {folder}, which has {free >> 20} MiB:"
            " make room there, or name another folder with TMPDIR",
            returncode=pytest.ExitCode.USAGE_ERROR,
        )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = list(TIMEOUTS_S)
    items.sort(key=lambda item: order.index(_folder(item.nodeid)))
    for item in items:
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TIMEOUTS_S[_folder(item.nodeid)]))


def _folder(nodeid: str) -> str:
    return nodeid.split("/")[1]


class _ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """A worker takes a file at a time, so that what a file shares is started once.

    Spark and bookies are started once in all: their tests are one piece each. A seed shares nothing
    with another.
    """

    def _split_scope(self, nodeid: str) -> str:
        for piece in ("tests/pipeline/test_", "tests/interop/dlog/"):
            if nodeid.startswith(piece):
                return piece
        return nodeid if _folder(nodeid) == "assurance" else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _ByFile:
    config.option.loadscopereorder = False
    return _ByFile(config, log)


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


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A run that is cut off has said what failed: the summary comes at the end alone."""
    if report.failed and _terminal is not None:
        crash = getattr(report.longrepr, "reprcrash", None)
        why = f"{crash.path}:{crash.lineno}: {crash.message}" if crash else str(report.longrepr)
        line = why.strip().partition("\n")[0]
        _terminal.write_line(f"\n{report.nodeid} failed in its {report.when}: {line[:300]}")


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


@pytest.fixture(scope="module")
def module_folder(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Path]:
    """Of what the tests of a file share; it goes with them, for servers reserve much room."""
    folder = tmp_path_factory.mktemp("module")
    yield folder
    if not request.session.testsfailed:
        shutil.rmtree(folder)


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


class ProcessEnds(BaseException):
    """A server in a test's own process ends that process: a failed sync does so."""


@pytest.fixture(autouse=True)
def _no_server_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The test fails with the reason. A worker that ends takes the reason with it."""
    reasons: list[str] = []

    def end_process(reason: str) -> NoReturn:
        reasons.append(reason)
        raise ProcessEnds(reason)

    monkeypatch.setattr(real_environment, "end_process", end_process)
    yield
    if reasons:
        pytest.fail(f"a server ended this process: {'; '.join(reasons)}")


@pytest.fixture(autouse=True)
def _logs_stay_as_they_are() -> Iterator[None]:
    """A command that a test runs here decides how log lines look, and which are told."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture(autouse=True)
def _nothing_leaks() -> Iterator[None]:
    before = resources()
    yield
    deadline = time.monotonic() + GRACE_SECONDS
    while left := resources() - before:
        if time.monotonic() > deadline:
            pytest.fail(f"left behind: {', '.join(sorted(left))}")
        gc.collect()
        time.sleep(0.01)
