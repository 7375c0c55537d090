"""The SQL database of leases: tables, migrations, and connections with bounds on every wait.

SQLite, PostgreSQL, MariaDB or MySQL. The tables of workers and leases may exist without some of
these columns, as programs in other languages make them: that is version 0. A migration that was
interrupted can run again, because MariaDB and MySQL commit after every change of a table.

A transaction that the database aborted because of another one is tried again, a few times; it had
no effect. One that SQLite would not begin is tried until the call's time is over. All driver errors
become errors of ours. A call that is given up or cancelled may still be done, for a short time.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from sqlalchemy import (
    URL,
    BigInteger,
    Column,
    Connection,
    DateTime,
    Double,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    event,
    inspect,
    make_url,
    select,
    text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnectionFree
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.schema import CreateColumn

from raftwood.base.backoff import Backoff
from raftwood.base.environment import Environment
from raftwood.base.errors import (
    ConnectionLost,
    DeadlineExceeded,
    InvalidConfiguration,
    Overloaded,
    RaftwoodError,
    StoreError,
)
from raftwood.base.versions import unsupported
from raftwood.loghub.consumer.leases import (
    GROUP_CHARACTERS_MAX,
    NAME_CHARACTERS_MAX,
    SIGNATURE_CHARACTERS,
)

VERSION = 3
METADATA = MetaData()


def _name(characters: int) -> String:
    # The default collation takes "a" and "A" for the same.
    own = mysql.VARCHAR(characters, charset="utf8mb4", collation="utf8mb4_bin")
    return String(characters).with_variant(own, "mysql", "mariadb")


def _long_text() -> Text:
    own = mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin")
    return Text().with_variant(own, "mysql", "mariadb")


def _moment() -> DateTime:
    return DateTime().with_variant(mysql.DATETIME(fsp=3), "mysql", "mariadb")


def _group_columns() -> tuple[Column[str], Column[str]]:
    return (
        Column("consume_group", _name(GROUP_CHARACTERS_MAX), primary_key=True),
        Column("logstream_sig", _name(SIGNATURE_CHARACTERS), primary_key=True),
    )


def _added_name(name: str) -> Column[str]:
    return Column(name, _name(NAME_CHARACTERS_MAX), nullable=False, server_default="")


def _added_number(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False, server_default="0")


WORKERS = Table(
    "loghub_client_worker_instance",
    METADATA,
    *_group_columns(),
    Column("worker_instance", _name(NAME_CHARACTERS_MAX), primary_key=True),
    Column("create_time", _moment()),
    _added_name("process"),
    _added_number("heartbeat"),
    Column("update_time", _moment()),
    _added_number("timeout_ms"),
)

LEASES = Table(
    "loghub_client_shard_lease",
    METADATA,
    *_group_columns(),
    Column("shard_id", _name(NAME_CHARACTERS_MAX), primary_key=True),
    _added_number("lease_id"),
    _added_name("lease_owner"),
    _added_name("consumer_owner"),
    Column("check_point", _long_text()),
    Column("update_time", _moment()),
    _added_name("lease_process"),
    _added_name("consumer_process"),
    _added_number("epoch"),
    _added_number("seq"),
    Column("parents", _long_text()),
    Column("bytes_per_s", Double, nullable=False, server_default="0"),
    _added_number("update_seq"),
    _added_number("timeout_ms"),
    # For scans by change, and for the present ids of one process's leases: a process has a unique
    # number, whatever its group.
    Index("loghub_client_shard_lease_change", "consume_group", "logstream_sig", "update_seq"),
    Index("loghub_client_shard_lease_process", "lease_process"),
)

CHANGES = Table(
    "loghub_client_group_change",
    METADATA,
    *_group_columns(),
    _added_number("latest"),
    _added_number("deleted"),
)
"""A row for each group: the latest `update_seq`, and the one at which leases were last deleted.

Its lock puts changes into their order.
"""

VERSIONS = Table(
    "loghub_client_schema",
    METADATA,
    Column("name", String(16), primary_key=True),
    Column("version", Integer, nullable=False),
)
_NAME = "leases"


def migrate(connection: Connection) -> None:
    """Creates the tables, or migrates them to this version; the caller excludes other processes."""
    VERSIONS.create(connection, checkfirst=True)
    where = VERSIONS.c.name == _NAME
    found = connection.scalar(select(VERSIONS.c.version).where(where))
    if found is not None and found > VERSION:
        raise unsupported("the schema of leases", found, VERSION)
    for version in range(found or 0, VERSION):
        MIGRATIONS[version](connection)
        if version or found is not None:
            connection.execute(VERSIONS.update().where(where).values(version=version + 1))
        else:
            connection.execute(VERSIONS.insert().values(name=_NAME, version=version + 1))


def _from_nothing_or_two_tables(connection: Connection) -> None:
    METADATA.create_all(connection)
    for table in (WORKERS, LEASES):
        _add_columns(connection, table)
        if connection.dialect.name != "sqlite":  # SQLite stores texts of any length
            _widen(connection, table)
        for index in table.indexes:
            index.create(connection, checkfirst=True)


def _add_columns(connection: Connection, table: Table) -> None:
    found = {each["name"] for each in inspect(connection).get_columns(table.name)}
    for column in table.columns:
        if column.name not in found:
            made = CreateColumn(column).compile(dialect=connection.dialect)
            connection.execute(text(f"ALTER TABLE {table.name} ADD COLUMN {made}"))
        elif column.server_default is not None:
            # Other programs leave NULL where there is no owner; we compare with an empty text or 0.
            empty = "''" if isinstance(column.type, String) else "0"
            connection.execute(
                text(
                    f"UPDATE {table.name} SET {column.name} = {empty} "  # noqa: S608 (ours)
                    f"WHERE {column.name} IS NULL"
                )
            )


def _widen(connection: Connection, table: Table) -> None:
    """Widens names to their present limit, and removes the padding of CHAR."""
    for column in table.columns:
        if not isinstance(column.type, String | BigInteger):
            continue
        made = column.type.compile(dialect=connection.dialect)
        if connection.dialect.name == "postgresql":
            change = f"ALTER COLUMN {column.name} TYPE {made}"
        else:
            change = f"MODIFY {CreateColumn(column).compile(dialect=connection.dialect)}"
        connection.execute(text(f"ALTER TABLE {table.name} {change}"))


def _with_timeouts(connection: Connection) -> None:
    """Adds each worker's timeout beside its heartbeat."""
    _add_columns(connection, WORKERS)


def _with_timeouts_of_leases(connection: Connection) -> None:
    _add_columns(connection, LEASES)


MIGRATIONS: tuple[Callable[[Connection], None], ...] = (
    _from_nothing_or_two_tables,
    _with_timeouts,
    _with_timeouts_of_leases,
)
"""Indexed by the version from which each begins."""


Result = TypeVar("Result")

DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+asyncpg",
    "mariadb": "mariadb+asyncmy",
    "mysql": "mysql+asyncmy",
}
CONNECTIONS_MAX = 3
"""A worker renews, scans and saves at once, and none of these may wait for another."""
TRIES_MAX = 5
_PAUSE = Backoff(first_ms=30, longest_ms=150, jitter=0.67)
MIGRATION_S = 15.0
"""Tables are created once, and every process that opens waits; a slow disk takes its time."""
CLEAN_UP_S = 3.0
"""SQLAlchemy gives a connection two seconds to end well."""
IDLE_S = 1
"""The database aborts a transaction that stalls for so long: a process that is suspended, or a
machine that is cut off, would keep its rows locked, and others from taking them.
"""
TRANSACTION_S = 3
"""PostgreSQL does not count a client as idle that begins a statement and never sends the rest."""
LOCK_NAME = "raftwood_leases"
LOCK_NUMBER = 0x6C65617365

# Deadlock, or a row that changed meanwhile: PostgreSQL's states, MariaDB's and MySQL's numbers.
ENDED_BY_OTHERS = ("40001", "40P01", 1213, 1205, 1020)


class SqlEngine:
    """One database; each call but `migrate` is given up after `timeout_s`."""

    def __init__(self, environment: Environment, url: str, *, timeout_s: float) -> None:
        self._random = environment.random
        self._timeout_s = timeout_s
        parsed = _with_driver(url)
        self.place = parsed.render_as_string(hide_password=True)
        self._engine = _engine(parsed, timeout_s)
        # A mere read needs no transaction; with MariaDB, setting this would cost more than it
        # saves.
        is_postgresql = self._engine.dialect.name == "postgresql"
        self._reads = (
            self._engine.execution_options(isolation_level="AUTOCOMMIT")
            if is_postgresql
            else self._engine
        )
        self._running: set[asyncio.Task[Any]] = set()
        self._writes = self._engine.execution_options(raftwood_writes=True)

    async def migrate(self) -> None:
        """Creates the tables or migrates them, one process at a time."""
        await self._call(self._writes.begin, self._migrate, max(MIGRATION_S, self._timeout_s))

    async def _migrate(self, connection: AsyncConnection) -> None:
        match connection.dialect.name:
            case "postgresql":
                await connection.execute(
                    text("SELECT set_config('transaction_timeout', '0', true)")
                )
                # The lock holds until the transaction ends.
                await connection.execute(text(f"SELECT pg_advisory_xact_lock({LOCK_NUMBER})"))
                await connection.run_sync(migrate)
            case "sqlite":
                await connection.run_sync(migrate)
            case _:
                wait = text(f"SELECT GET_LOCK('{LOCK_NAME}', {MIGRATION_S:.0f})")
                got = await connection.scalar(wait)
                if not got:
                    raise Overloaded(f"somebody else migrates {self.place} for long: try again")
                try:
                    await connection.run_sync(migrate)
                finally:
                    await connection.execute(text(f"SELECT RELEASE_LOCK('{LOCK_NAME}')"))

    async def read(self, act: Callable[[AsyncConnection], Awaitable[Result]]) -> Result:
        """Runs reads; each statement sees all that was committed before it."""
        return await self._call(self._reads.connect, act, self._timeout_s)

    async def write(self, act: Callable[[AsyncConnection], Awaitable[Result]]) -> Result:
        """Runs one transaction; `act` may run several times."""
        return await self._call(self._writes.begin, act, self._timeout_s)

    async def _call(
        self,
        connect: Callable[[], Any],
        act: Callable[[AsyncConnection], Awaitable[Result]],
        seconds: float,
    ) -> Result:
        """Awaits the work, in a task of its own.

        A cancelled driver needs time to close its connection, and must not be cancelled again in
        that. So the work ends by itself, whether or not the caller still waits.
        """
        work = self._tried(connect, act, seconds)
        task = asyncio.create_task(work, name=f"a call to {self.place}")
        self._running.add(task)
        task.add_done_callback(self._ended)
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(task)
        except TimeoutError:
            raise self._late(seconds) from None

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # a caller that still waits gets it too

    def _late(self, seconds: float) -> DeadlineExceeded:
        return DeadlineExceeded(f"{self.place} gave no answer within {seconds:g} s: try again")

    async def _tried(
        self,
        connect: Callable[[], Any],
        act: Callable[[AsyncConnection], Awaitable[Result]],
        seconds: float,
    ) -> Result:
        async with self._mapped(seconds), asyncio.timeout(seconds):
            attempt = 1
            while True:
                try:
                    async with connect() as connection:
                        return await act(connection)
                except DBAPIError as error:
                    if not _is_locked(error):
                        if attempt == TRIES_MAX or not _was_ended_by_others(error):
                            raise
                        attempt += 1
                await asyncio.sleep(_PAUSE.delay_s(attempt - 1, self._random))

    @asynccontextmanager
    async def _mapped(self, seconds: float) -> AsyncIterator[None]:
        try:
            yield
        except TimeoutError:
            raise self._late(seconds) from None
        except NoConnectionFree:
            raise Overloaded(f"all connections to {self.place} are at work: try again") from None
        except DBAPIError as error:
            raise _mapped(error, self.place) from error
        except SQLAlchemyError as error:
            raise StoreError(f"{self.place} cannot keep leases: {error}") from error
        except OSError as error:
            raise ConnectionLost(f"{self.place} cannot be reached: {error}: try again") from error

    async def close(self) -> None:
        """Ends calls that are under way, and all connections."""
        if self._running:
            await asyncio.wait(self._running, timeout=self._timeout_s + CLEAN_UP_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLEAN_UP_S):
                await self._engine.dispose()


def _with_driver(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        parsed = None
    if parsed is None or parsed.drivername not in (*DRIVERS, *DRIVERS.values()):
        raise InvalidConfiguration(
            f"{url.partition('@')[2] or url!r} is no place for leases: give a URL that begins with "
            f"{', '.join(each + '://' for each in DRIVERS)}"
        )
    return parsed.set(drivername=DRIVERS.get(parsed.drivername, parsed.drivername))


def _engine(url: URL, timeout_s: float) -> AsyncEngine:
    options: dict[str, Any] = {
        "pool_size": CONNECTIONS_MAX,
        "max_overflow": 0,
        "pool_timeout": timeout_s,
    }
    if url.get_backend_name() == "sqlite":
        if url.database in (None, "", ":memory:"):
            raise InvalidConfiguration("leases in SQLite need a file: give sqlite:///path/to/file")
        made = create_async_engine(url, connect_args={"timeout": timeout_s}, **options)
        event.listen(made.sync_engine, "connect", _prepare_sqlite)
        event.listen(made.sync_engine, "begin", _begin_sqlite)
        return made
    # Row locks are enough; what others committed meanwhile must be seen.
    arguments: dict[str, Any]
    if "asyncpg" in url.drivername:
        limits = {"idle_in_transaction_session_timeout": f"{IDLE_S * 1000}"}
        arguments = {"timeout": timeout_s, "server_settings": limits}
    else:
        # MySQL, which has no such limit, reads this as a comment.
        limit = f"SET SESSION /*M! idle_transaction_timeout={IDLE_S}, */ autocommit=0"
        arguments = {"connect_timeout": timeout_s, "init_command": limit}
    made = create_async_engine(
        url, isolation_level="READ COMMITTED", connect_args=arguments, **options
    )
    if url.get_backend_name() == "postgresql":
        event.listen(made.sync_engine, "connect", _prepare_postgresql)
    return made


def _prepare_postgresql(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute(_transaction_timeout(TRANSACTION_S, is_local=False))
    cursor.close()
    connection.commit()


def _transaction_timeout(seconds: int, *, is_local: bool) -> str:
    """Sets the limit for this transaction or for all; 0 for none. Older servers do not know it."""
    return (
        f"SELECT set_config('transaction_timeout', '{seconds}s', {is_local}) "
        "WHERE current_setting('server_version_num')::int >= 170000"
    )


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # turns off the driver's own begin
    cursor = connection.cursor()
    # Readers go on during a write; a checkpoint that was answered outlives a power failure.
    for setting in ("journal_mode=WAL", "synchronous=FULL"):
        cursor.execute(f"PRAGMA {setting}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # A reader that becomes a writer may fail at once, so writers declare it at the beginning.
    if connection.get_execution_options().get("raftwood_writes"):
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _code(error: DBAPIError) -> object:
    original: Any = error.orig
    state = getattr(original, "sqlstate", None)
    return state if state is not None or not original.args else original.args[0]


def _is_locked(error: DBAPIError) -> bool:
    """SQLite waits for locks by itself, but not while another process opens a new file as well."""
    return "database is locked" in str(error.orig)


def _was_ended_by_others(error: DBAPIError) -> bool:
    # Two processes insert one row: the second finds it at its next try.
    return isinstance(error, IntegrityError) or _code(error) in ENDED_BY_OTHERS


def _mapped(error: DBAPIError, place: str) -> RaftwoodError:
    said = str(error.orig).splitlines()[0] if str(error.orig) else type(error.orig).__name__
    if _was_ended_by_others(error):
        return Overloaded(f"too many change leases in {place} at once: try again")
    if error.connection_invalidated or _code(error) in (2003, 2006, 2013, "57P01", "57P03"):
        return ConnectionLost(f"the connection to {place} broke: {said}: try again")
    return StoreError(f"{place} cannot keep leases: {said}")
