"""Tables are made once, taken over from older programs, and refused from newer ones."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from raftwood.base.errors import (
    ConnectionLost,
    InvalidConfiguration,
    InvalidInput,
    UnsupportedVersion,
)
from raftwood.disk.real_environment import real_environment
from raftwood.loghub.consumer.leases import LeaseOwner, NewLease, ShardLease, Take
from raftwood.loghub.consumer.sql_database import (
    DRIVERS,
    LOCK_NAME,
    LOCK_NUMBER,
    TRANSACTION_S,
    VERSION,
)
from raftwood.loghub.consumer.sql_store import TIMEOUT_S, SqlLeaseStore
from tests.kits.loghub.lease_store_suite import rows
from tests.kits.loghub.sql import SIGNATURE, SqlKit

TABLES = (
    "loghub_client_worker_instance",
    "loghub_client_shard_lease",
    "loghub_client_group_change",
    "loghub_client_schema",
)

# As the text that the consumers follow has them, with its two widths of consume_group.
OLD_TABLES = (
    """CREATE TABLE loghub_client_worker_instance (
        consume_group CHAR(128), logstream_sig CHAR(64), worker_instance CHAR(64),
        create_time TIMESTAMP, PRIMARY KEY (consume_group, logstream_sig, worker_instance))""",
    """CREATE TABLE loghub_client_shard_lease (
        consume_group CHAR(64), logstream_sig CHAR(64), shard_id CHAR(64), lease_id INT,
        lease_owner CHAR(64), consumer_owner CHAR(64), check_point TEXT, update_time TIMESTAMP,
        PRIMARY KEY (consume_group, logstream_sig, shard_id))""",
)


def _run(url: str, scenario: Callable[[SqlKit, AsyncConnection], Awaitable[None]]) -> None:
    """With a connection that commits each statement, on a database without tables."""

    async def run() -> None:
        scheme, _, rest = url.partition("://")
        engine = create_async_engine(f"{DRIVERS[scheme]}://{rest}", isolation_level="AUTOCOMMIT")
        with real_environment() as environment:
            async with AsyncExitStack() as ends:
                ends.push_async_callback(engine.dispose)
                connection = await ends.enter_async_context(engine.connect())
                for name in TABLES:
                    await connection.execute(text(f"DROP TABLE IF EXISTS {name}"))
                try:
                    await scenario(SqlKit(environment, url, ends), connection)
                finally:
                    # Another test's tables must not be found half migrated.
                    for name in TABLES:
                        await connection.execute(text(f"DROP TABLE IF EXISTS {name}"))

    asyncio.run(run())


def test_tables_of_the_first_programs_are_taken_over(database_url: str) -> None:
    async def scenario(kit: SqlKit, connection: AsyncConnection) -> None:
        for statement in OLD_TABLES:
            await connection.execute(text(statement))
        values = {"group": kit.group, "sig": SIGNATURE}
        for shard, owner, position in (("0", "anne", "p7"), ("1", None, None)):
            await connection.execute(
                text(
                    "INSERT INTO loghub_client_shard_lease (consume_group, logstream_sig, "
                    "shard_id, lease_id, lease_owner, consumer_owner, check_point) "
                    "VALUES (:group, :sig, :shard, 4, :owner, :owner, :position)"
                ),
                {**values, "shard": shard, "owner": owner, "position": position},
            )
        await connection.execute(
            text(
                "INSERT INTO loghub_client_worker_instance (consume_group, logstream_sig, "
                "worker_instance) VALUES (:group, :sig, 'anne')"
            ),
            values,
        )
        store = await kit.open()
        assert await rows(store) == {
            "0": ShardLease("0", 4, "anne", "", "anne", "", checkpoint="p7"),
            "1": ShardLease("1", 4),
        }
        assert [each.instance for each in (await store.scan(0)).workers] == ["anne"]
        await store.create([NewLease("s" * 64, ("0", "1"))])
        [lease] = await store.take(LeaseOwner("ben", "process-b"), [Take("0", 4, True)])
        assert (lease.checkpoint, lease.epoch, lease.lease_id) == ("p7", 1, 5)
        wide = SqlLeaseStore(kit.environment, database_url, group="g" * 128, signature=SIGNATURE)
        await wide.open()
        await wide.create([NewLease("0")])
        assert list(await rows(wide)) == ["0"]
        await wide.close()
        assert await rows(await kit.open()) == await rows(store)

    _run(database_url, scenario)


@pytest.mark.parametrize("version", [1, 2])
def test_tables_of_earlier_versions_get_the_timeouts_of_workers_and_leases(
    database_url: str, version: int
) -> None:
    async def scenario(kit: SqlKit, connection: AsyncConnection) -> None:
        store = await kit.open()
        await store.register(LeaseOwner("anne", "process-a"))
        await store.create([NewLease("0")])
        for table in ("shard_lease", "worker_instance")[: 3 - version]:
            await connection.execute(
                text(f"ALTER TABLE loghub_client_{table} DROP COLUMN timeout_ms")
            )
        await connection.execute(text(f"UPDATE loghub_client_schema SET version = {version}"))
        store = await kit.open()
        await store.register(LeaseOwner("ben", "process-b", 7_000))
        workers = (await store.scan(0)).workers
        assert {each.instance: each.timeout_ms for each in workers} == {"anne": 0, "ben": 7_000}
        [lease] = await store.take(LeaseOwner("ben", "process-b", 7_000), [Take("0", 0, True)])
        assert lease.timeout_ms == 7_000
        found = await connection.scalar(text("SELECT version FROM loghub_client_schema"))
        assert found == VERSION

    _run(database_url, scenario)


def test_a_migration_that_broke_off_is_gone_on_with(database_url: str) -> None:
    async def scenario(kit: SqlKit, connection: AsyncConnection) -> None:
        for statement in OLD_TABLES:
            await connection.execute(text(statement))
        await connection.execute(
            text("ALTER TABLE loghub_client_shard_lease ADD COLUMN epoch BIGINT DEFAULT 0 NOT NULL")
        )
        store = await kit.open()
        await store.create([NewLease("0")])
        assert list(await rows(store)) == ["0"]

    _run(database_url, scenario)


def test_many_who_open_at_once_make_the_tables_once(database_url: str) -> None:
    async def scenario(kit: SqlKit, _connection: AsyncConnection) -> None:
        stores = await asyncio.gather(*(kit.open() for _ in range(4)))
        await stores[0].create([NewLease("0")])
        assert list(await rows(stores[3])) == ["0"]

    _run(database_url, scenario)


def test_whoever_makes_the_tables_is_waited_for_longer_than_for_a_call(database_url: str) -> None:
    async def scenario(kit: SqlKit, connection: AsyncConnection) -> None:
        begin, end = {
            "sqlite": ("BEGIN IMMEDIATE", "COMMIT"),
            "postgresql": (
                f"SELECT pg_advisory_lock({LOCK_NUMBER})",
                f"SELECT pg_advisory_unlock({LOCK_NUMBER})",
            ),
        }.get(
            connection.dialect.name,
            (f"SELECT GET_LOCK('{LOCK_NAME}', 9)", f"SELECT RELEASE_LOCK('{LOCK_NAME}')"),
        )
        await connection.execute(text(begin))
        store = SqlLeaseStore(kit.environment, database_url, group="g", signature=SIGNATURE)
        opening = asyncio.create_task(store.open())
        await asyncio.wait([opening], timeout=max(TIMEOUT_S, TRANSACTION_S) + 0.3)
        assert not opening.done()
        await connection.execute(text(end))
        await opening
        await store.close()

    _run(database_url, scenario)


def test_tables_of_a_newer_program_are_refused(database_url: str) -> None:
    async def scenario(kit: SqlKit, connection: AsyncConnection) -> None:
        await kit.open()
        await connection.execute(text("UPDATE loghub_client_schema SET version = 99"))
        with pytest.raises(UnsupportedVersion, match="format 99"):
            await kit.open()

    _run(database_url, scenario)


@pytest.mark.parametrize("url", ["oracle://x/y", "leases.db", "sqlite://", "sqlite:///:memory:"])
def test_a_place_that_cannot_keep_leases_is_refused(url: str) -> None:
    with real_environment() as environment, pytest.raises(InvalidConfiguration):
        SqlLeaseStore(environment, url, group="g", signature=SIGNATURE)


@pytest.mark.parametrize("name", ["", "g" * 129, "g ", "a\0b"])
def test_a_name_that_does_not_fit_is_refused(name: str) -> None:
    with real_environment() as environment, pytest.raises(InvalidInput):
        SqlLeaseStore(environment, "sqlite:///x", group=name, signature=SIGNATURE)


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_a_server_that_is_not_there_is_a_lost_connection(scheme: str) -> None:
    async def scenario() -> None:
        with real_environment() as environment:
            url = f"{scheme}://root:secret@127.0.0.1:9/test"
            store = SqlLeaseStore(environment, url, group="g", signature=SIGNATURE)
            with pytest.raises(ConnectionLost) as caught:
                await store.open()
            assert "secret" not in str(caught.value)
            await store.close()

    asyncio.run(scenario())
