"""A database that is away, slow or locked: calls end in time, and go on by themselves later."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from raftwood.base.errors import (
    ConnectionLost,
    DeadlineExceeded,
    RaftwoodError,
    Unavailable,
)
from raftwood.disk.real_environment import real_environment
from raftwood.loghub.consumer.leases import LeaseOwner, NewLease, Renewal, Take
from raftwood.loghub.consumer.sql_database import LEASES, SqlEngine
from raftwood.loghub.consumer.sql_store import SqlLeaseStore
from tests.kits.loghub.lease_store_suite import ANNE, rows
from tests.kits.loghub.sql import SIGNATURE
from tests.kits.servers.databases import SERVERS

Result = TypeVar("Result")
TIMEOUT_S = 2.0
STALLED_S = 120.0
"""Far longer than the database waits for whoever stalls."""
SERVER_NAMES = tuple(pytest.param(name, marks=pytest.mark.needs(name)) for name in SERVERS)


def _run(url: str, scenario: Callable[[SqlLeaseStore], Awaitable[None]]) -> None:
    """With a store that leases one shard to Anne."""

    async def run() -> None:
        with real_environment() as environment:
            store = SqlLeaseStore(
                environment, url, group="g", signature=SIGNATURE, timeout_s=TIMEOUT_S
            )
            async with AsyncExitStack() as ends:
                ends.push_async_callback(store.close)
                await store.open()
                # On a busy machine a test, too, may be one that stalls within a transaction.
                await _by_and_by(lambda: store.create([NewLease("0")]))
                await _by_and_by(lambda: store.take(ANNE, [Take("0", 0, True)]))
                await scenario(store)

    asyncio.run(run())


async def _by_and_by(call: Callable[[], Awaitable[Result]]) -> Result:
    """Once the store is back; at most one call for each old connection fails."""
    for _ in range(5):
        try:
            return await call()
        except (Unavailable, DeadlineExceeded):
            await asyncio.sleep(0.1)
    raise AssertionError("the store does not come back")


async def _renewed_by_and_by(store: SqlLeaseStore) -> int:
    """By how much the lease's id has grown then."""

    async def renew() -> int:
        known = (await rows(store))["0"].lease_id
        return (await store.renew(ANNE, [Renewal("0", known)])).leases[0].lease_id - known

    return await _by_and_by(renew)


@pytest.mark.parametrize("name", SERVER_NAMES)
def test_a_store_goes_on_after_its_database_was_away(name: str) -> None:
    with SERVERS[name]() as server:

        async def scenario(store: SqlLeaseStore) -> None:
            await asyncio.to_thread(server.kill)
            for _ in range(3):
                with pytest.raises(ConnectionLost):
                    await store.renew(ANNE, [Renewal("0", 1)])
            await asyncio.to_thread(server.restart)
            assert await _renewed_by_and_by(store) == 1

        _run(server.url(), scenario)


@pytest.mark.parametrize("name", SERVER_NAMES)
def test_a_database_that_stands_still_is_given_up_in_time(name: str) -> None:
    with SERVERS[name]() as server:

        async def scenario(store: SqlLeaseStore) -> None:
            server.pause()
            async with asyncio.timeout(60):
                with pytest.raises(DeadlineExceeded):
                    await store.renew(ANNE, [Renewal("0", 1)])
            server.resume()
            assert await _renewed_by_and_by(store) == 1

        _run(server.url(), scenario)


async def _stall_idle(_connection: AsyncConnection) -> None:
    """The database has answered all, and waits for more."""


async def _stall_in_a_statement(connection: AsyncConnection) -> None:
    """PostgreSQL has parsed a statement, and waits for what it is to be run with."""
    raw = await connection.get_raw_connection()
    assert raw.driver_connection is not None
    await raw.driver_connection.prepare("SELECT 42 + 1")


@pytest.mark.parametrize(
    ("name", "stalling"),
    [
        pytest.param(name, stalling, marks=pytest.mark.needs(name))
        for name, stalling in (
            ("postgresql", _stall_idle),
            ("postgresql", _stall_in_a_statement),
            ("mariadb", _stall_idle),
        )
    ],
)
def test_who_stalls_within_a_transaction_keeps_nobody_from_its_leases(
    name: str, stalling: Callable[[AsyncConnection], Awaitable[None]]
) -> None:
    """As a process that is suspended, or a machine that is cut off: the database hears no end."""

    async def scenario(store: SqlLeaseStore, url: str) -> None:
        is_locked, goes_on = asyncio.Event(), asyncio.Event()

        async def stall(connection: AsyncConnection) -> None:
            await connection.execute(select(LEASES).with_for_update())
            await stalling(connection)
            is_locked.set()
            await goes_on.wait()
            await connection.execute(select(LEASES).with_for_update())

        with real_environment() as environment:
            engine = SqlEngine(environment, url, timeout_s=STALLED_S)
            async with AsyncExitStack() as ends:
                ends.push_async_callback(engine.close)
                stalled = asyncio.create_task(engine.write(stall))
                await is_locked.wait()
                async with asyncio.timeout(60):
                    assert await _renewed_by_and_by(store) == 1
                goes_on.set()
                with pytest.raises(RaftwoodError):
                    await stalled

    with SERVERS[name]() as server:
        _run(server.url(), lambda store: scenario(store, server.url()))


def test_a_file_that_another_program_keeps_locked_is_given_up_in_time(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"

    async def scenario(store: SqlLeaseStore) -> None:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        # Readers do not wait for a writer.
        assert list(await rows(store)) == ["0"]
        with pytest.raises(DeadlineExceeded):
            await store.renew(ANNE, [Renewal("0", 1)])
        other.execute("ROLLBACK")
        other.close()
        assert await _renewed_by_and_by(store) == 1

    _run(f"sqlite:///{path}", scenario)


def test_a_new_file_that_others_open_at_the_same_time_is_waited_for(tmp_path: Path) -> None:
    """SQLite answers at once, whatever it was told to wait, while a file's mode is changed."""
    path = tmp_path / "leases.db"

    async def scenario() -> None:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("CREATE TABLE t (x)")
        other.execute("BEGIN IMMEDIATE")
        with real_environment() as environment:
            store = SqlLeaseStore(
                environment, f"sqlite:///{path}", group="g", signature=SIGNATURE, timeout_s=10
            )
            opening = asyncio.create_task(store.open())
            await asyncio.wait([opening], timeout=0.5)
            assert not opening.done()
            other.execute("COMMIT")
            await opening
            await store.close()
        other.close()

    asyncio.run(scenario())


def test_a_call_that_is_cancelled_leaves_the_store_usable(database_url: str) -> None:
    async def scenario(store: SqlLeaseStore) -> None:
        for number in range(20):
            call = asyncio.create_task(store.heartbeat(LeaseOwner("ben", "process-b")))
            await asyncio.sleep(0.0003 * number)
            call.cancel()
            await asyncio.wait([call])
        assert await _renewed_by_and_by(store) == 1

    _run(database_url, scenario)
