"""Consumers as real processes on real databases: they come, go, die and stall, and so does the
database, while shards are split and merged. No record is lost, and none comes twice but where a
fault was in between and no checkpoint was stored."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import Protocol

import pytest

from tests.kits.loghub.group_under_faults import GroupUnderFaults, group_under_faults
from tests.kits.servers.databases import SERVERS, DatabaseServer

SHARDS = 6
TIMEOUT_S = 1.5
SLACK_S = 2.0
"""For a machine that does other things as well."""


class Database(Protocol):
    """Where the leases are."""

    def url(self) -> str: ...

    def restarting(self) -> AbstractContextManager[None]:
        """It ends at once, and starts again behind the block."""
        ...

    def cut_off(self) -> AbstractContextManager[None]:
        """During the block nobody gets an answer."""
        ...

    def is_free(self) -> bool:
        """Whether others can use it while a process is stopped, whatever that was at."""
        ...


class Served:
    """By a process of its own."""

    def __init__(self, server: DatabaseServer) -> None:
        self._server = server
        self.url = server.url

    @contextmanager
    def restarting(self) -> Iterator[None]:
        self._server.kill()
        yield
        self._server.restart()

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        self._server.pause()
        try:
            yield
        finally:
            self._server.resume()

    def is_free(self) -> bool:
        return True  # it throws out whoever stalls within a transaction


class OneFile:
    """SQLite's: somebody else keeps it locked for a short or a long time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def url(self) -> str:
        return f"sqlite:///{self._path}"

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        connection = sqlite3.connect(self._path, isolation_level=None, timeout=10)
        try:
            connection.execute("BEGIN EXCLUSIVE")
            yield
        finally:
            connection.close()

    restarting = cut_off

    def is_free(self) -> bool:
        """A process that is stopped as it writes keeps the file locked, and nobody can help it."""
        with closing(sqlite3.connect(self._path, isolation_level=None, timeout=0.5)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return False
        return True


@contextmanager
def database(name: str, folder: Path) -> Iterator[Database]:
    if name == "sqlite":
        yield OneFile(folder / "leases.sqlite")
        return
    with SERVERS[name]() as server:
        yield Served(server)


def workers_come_and_go(group: GroupUnderFaults) -> None:
    group.start("anne", "ben")
    group.balanced("anne", "ben")
    group.start("cleo")
    group.balanced("anne", "ben", "cleo")
    group.processes.stop("anne")
    group.balanced("ben", "cleo")


def workers_die_and_stall(group: GroupUnderFaults, store: Database) -> None:
    group.kill("ben")
    assert group.balanced("cleo") < 2 * TIMEOUT_S + SLACK_S
    group.start("dora")
    group.balanced("cleo", "dora")
    with group.paused("dora", store.is_free):
        assert group.balanced("cleo") < 2 * TIMEOUT_S + SLACK_S
    group.balanced("cleo", "dora")


def the_store_goes_away(group: GroupUnderFaults, store: Database) -> None:
    with group.without_its_store(store.restarting()):
        pass
    group.caught_up()
    with group.without_its_store(store.cut_off()):
        time.sleep(TIMEOUT_S + SLACK_S / 4)
        group.stands_still(2 * TIMEOUT_S - SLACK_S / 4)
    group.balanced("cleo", "dora")
    group.caught_up()


def shards_change(group: GroupUnderFaults) -> None:
    group.split(0)
    group.merge(2)
    group.balanced("cleo", "dora")


@pytest.mark.parametrize(
    "name", ["sqlite", *(pytest.param(each, marks=pytest.mark.needs(each)) for each in SERVERS)]
)
def test_each_record_comes_once_or_as_often_as_faults_allow(name: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        store = stack.enter_context(database(name, tmp_path))
        group = stack.enter_context(
            group_under_faults(str(tmp_path), store.url(), shards=SHARDS, timeout_s=TIMEOUT_S)
        )
        workers_come_and_go(group)
        workers_die_and_stall(group, store)
        the_store_goes_away(group, store)
        shards_change(group)
        verdict = group.end()
    assert verdict.held, verdict
