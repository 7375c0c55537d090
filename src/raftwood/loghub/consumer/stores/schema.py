"""The tables of leases in an SQL database, and how older ones become these.

The two tables of workers and leases may be there already without all of these columns, as programs
in other languages made them: that is version 0. Each migration can be begun anew wherever it was
broken off, for MariaDB and MySQL commit after every change of a table.
"""

from collections.abc import Callable

from sqlalchemy import (
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
    inspect,
    select,
    text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.schema import CreateColumn

from raftwood.base.errors import UnsupportedVersion
from raftwood.loghub.consumer.leases import (
    GROUP_CHARACTERS_MAX,
    NAME_CHARACTERS_MAX,
    SIGNATURE_CHARACTERS,
)

VERSION = 3
METADATA = MetaData()


def _name(characters: int) -> String:
    # Their usual way to compare takes "a" and "A" for the same.
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
    # For scans by change, and for the present ids of one process's leases: a process is known by a
    # number of its own, whatever its group.
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
    """Make the tables, or bring them to this version; the caller sees that only one does so."""
    VERSIONS.create(connection, checkfirst=True)
    where = VERSIONS.c.name == _NAME
    found = connection.scalar(select(VERSIONS.c.version).where(where))
    if found is not None and found > VERSION:
        raise UnsupportedVersion(
            f"the tables of leases have version {found}, and this program knows up to {VERSION}: "
            "use a newer program"
        )
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
        if connection.dialect.name != "sqlite":  # which keeps texts of any length
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
            # Nobody was told by no value at all.
            empty = "''" if isinstance(column.type, String) else "0"
            connection.execute(
                text(
                    f"UPDATE {table.name} SET {column.name} = {empty} "  # noqa: S608 (ours)
                    f"WHERE {column.name} IS NULL"
                )
            )


def _widen(connection: Connection, table: Table) -> None:
    """Names as long as they may be now, and without the blanks that CHAR adds."""
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
    """Each worker's own, beside its heartbeat."""
    _add_columns(connection, WORKERS)


def _with_timeouts_of_leases(connection: Connection) -> None:
    _add_columns(connection, LEASES)


MIGRATIONS: tuple[Callable[[Connection], None], ...] = (
    _from_nothing_or_two_tables,
    _with_timeouts,
    _with_timeouts_of_leases,
)
"""By the version that each begins from."""
