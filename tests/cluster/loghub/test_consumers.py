"""Consumers as real processes on real databases: they come, go, die and stall, and so does the
database, while shards are split and merged. No record is lost, and none comes twice but where a
fault was in between and no checkpoint was stored."""

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Protocol

import pytest

from tests.kits.loghub.group_under_faults import GroupUnderFaults, group_under_faults
from tests.kits.servers.databases import SERVERS, DatabaseServer

SHARDS = 4
TIMEOUT_S = 4.0
"""Of leases, which a worker on a busy machine is to keep."""


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


def workers_come_and_go(group: GroupUnderFaults) -> None:
    group.start("anne", "ben")
    group.balanced("anne", "ben")
    group.start("cleo")
    group.balanced("anne", "ben", "cleo")
    group.processes.stop("anne")
    group.balanced("ben", "cleo")


def workers_die_and_stall(group: GroupUnderFaults, store: Database) -> None:
    group.kill("ben")
    group.balanced("cleo")
    group.start("dora")
    group.balanced("cleo", "dora")
    with group.paused("dora", store.is_free):
        group.balanced("cleo")
    group.balanced("cleo", "dora")


def the_store_goes_away(group: GroupUnderFaults, store: Database, *names: str) -> None:
    with group.without_its_store(store.restarting()):
        pass
    group.caught_up()
    with group.without_its_store(store.cut_off()):
        group.stands_still(for_s=TIMEOUT_S)
    group.balanced(*names)
    group.caught_up()


def shards_change(group: GroupUnderFaults) -> None:
    group.split(0)
    group.merge(2)
    group.balanced("cleo", "dora")


@contextmanager
def consumers(store: Database, folder: Path) -> Iterator[GroupUnderFaults]:
    """At the end no record was lost, and none came twice without a reason."""
    with group_under_faults(str(folder), store.url(), shards=SHARDS, timeout_s=TIMEOUT_S) as group:
        yield group
        verdict = group.end()
    assert verdict.held, verdict


def test_each_record_comes_once_or_as_often_as_faults_allow(tmp_path: Path) -> None:
    store = OneFile(tmp_path / "leases.sqlite")
    with consumers(store, tmp_path) as group:
        workers_come_and_go(group)
        workers_die_and_stall(group, store)
        the_store_goes_away(group, store, "cleo", "dora")
        shards_change(group)


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.needs(each)) for each in SERVERS]
)
def test_consumers_outlive_a_database_that_restarts_and_one_that_hangs(
    name: str, tmp_path: Path
) -> None:
    with SERVERS[name]() as server:
        store = Served(server)
        with consumers(store, tmp_path) as group:
            group.start("anne", "ben")
            group.balanced("anne", "ben")
            the_store_goes_away(group, store, "anne", "ben")
