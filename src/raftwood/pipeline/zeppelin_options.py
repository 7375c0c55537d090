"""Options of a table that a user sets with `.option(...)`, and a process's connection to it."""

from collections.abc import Mapping
from typing import Final, Literal, cast

import msgspec

from raftwood.base.errors import InvalidConfiguration
from raftwood.net.tls import ClientTls, TlsFiles
from raftwood.pipeline.connection_cache import ConnectionCache
from raftwood.pipeline.options import OptionReader, transaction_of
from raftwood.zeppelin.client import Kv
from raftwood.zeppelin.client.checkpoints import PAGE_BYTES
from raftwood.zeppelin.client.nodes import addresses_of

ADDRESSES_VARIABLE: Final = "RAFTWOOD_ZEPPELIN_CLIENT__ADDRESSES"
USER_VARIABLE: Final = "RAFTWOOD_ZEPPELIN_CLIENT__USER"
PASSWORD_VARIABLE: Final = "RAFTWOOD_ZEPPELIN_CLIENT__PASSWORD"  # noqa: S105 (its name)
Operation = Literal["set", "increment"]
PAGE_BYTES_MAX: Final = 8 << 20
_OF_ACCESS: Final = {"addresses", "user", "password", "authorities", "timeoutms", "path"}
_KNOWN: Final = _OF_ACCESS | {
    "key",
    "keycolumn",
    "valuecolumn",
    "ttlseconds",
    "ttlcolumn",
    "operation",
    "rowsperrequest",
    "txnappid",
    "txnversion",
    "checkpointlocation",
    "queryname",
}


_OF_SOURCE: Final = _OF_ACCESS | {
    "tag",
    "prefix",
    "pagebytes",
    "checkpointttlseconds",
    "release",
    "pushfilters",
}


class TableAccess(msgspec.Struct, frozen=True, kw_only=True):
    """A table, which the user name determines, and the access to it."""

    addresses: tuple[str, ...]
    user: str
    password: str
    authorities: str = ""
    timeout_ms: int = 30_000

    def __repr__(self) -> str:
        return f"TableAccess({self.user} at {','.join(self.addresses)})"


class KvSinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a row becomes a key and a value."""

    access: TableAccess
    key: str | None = None
    """A template with columns in braces."""
    key_column: str | None = None
    value_column: str | None = None
    """None: the value is the row as JSON."""
    ttl_ms: int | None = None
    ttl_column: str | None = None
    """A column with seconds."""
    operation: Operation = "set"
    rows_per_request: int = 1_000
    transaction: tuple[str, int] | None = None


class KvSourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which keys are read, and how."""

    access: TableAccess
    tag: str | None = None
    prefix: str = ""
    page_bytes: int = PAGE_BYTES
    ttl_ms: int = 600_000
    """How long checkpoints stay without a task that reads."""
    ends_when_read: bool = False
    """Whether a checkpoint ends with the task that has read it; else by its time to live."""
    pushes_filters: bool = False


def kv_source_options(options: Mapping[str, str]) -> KvSourceOptions:
    given = OptionReader(options, known=_OF_SOURCE, name="zeppelin")
    release = given.text("release", "ttl").lower()
    if release not in ("ttl", "read"):
        raise InvalidConfiguration(f"release is {release!r}: give ttl or read")
    return KvSourceOptions(
        access=_access(given, "read with load()"),
        tag=given.optional("tag"),
        prefix=given.text("prefix", ""),
        page_bytes=min(given.number("pageBytes", PAGE_BYTES), PAGE_BYTES_MAX),
        ttl_ms=given.number("checkpointTtlSeconds", 600) * 1000,
        ends_when_read=release == "read",
        pushes_filters=given.flag("pushFilters", default=False),
    )


def _access(given: OptionReader, instead: str) -> TableAccess:
    if given.optional("path") is not None:
        raise InvalidConfiguration(f"zeppelin has no path: the user chooses the table, {instead}")
    return TableAccess(
        addresses=addresses_of(given.text("addresses", variable=ADDRESSES_VARIABLE)),
        user=given.text("user", "default", variable=USER_VARIABLE),
        password=given.text("password", variable=PASSWORD_VARIABLE),
        authorities=given.text("authorities", ""),
        timeout_ms=given.number("timeoutMs", 30_000),
    )


def kv_sink_options(options: Mapping[str, str]) -> KvSinkOptions:
    given = OptionReader(options, known=_KNOWN, name="zeppelin")
    access = _access(given, "write with start() or save()")
    operation = given.text("operation", "set").lower()
    if operation not in ("set", "increment"):
        raise InvalidConfiguration(f"operation is {operation!r}: give set or increment")
    key, key_column = given.optional("key"), given.optional("keyColumn")
    if (key is None) == (key_column is None):
        raise InvalidConfiguration(
            "zeppelin needs either .option('keyColumn', …) or .option('key', …), such as user:{id}"
        )
    ttl_s, ttl_column = given.number("ttlSeconds", None), given.optional("ttlColumn")
    if ttl_s is not None and ttl_column is not None:
        raise InvalidConfiguration("ttlSeconds and ttlColumn say the same: give one")
    if operation == "increment" and given.optional("valueColumn") is None:
        raise InvalidConfiguration("increments need .option('valueColumn', …): what is added")
    return KvSinkOptions(
        access=access,
        key=key,
        key_column=key_column,
        value_column=given.optional("valueColumn"),
        ttl_ms=None if ttl_s is None else ttl_s * 1000,
        ttl_column=ttl_column,
        operation=cast("Operation", operation),
        rows_per_request=min(given.number("rowsPerRequest", 1_000), 10_000),
        transaction=transaction_of(given),
    )


def _connect(access: TableAccess) -> Kv:
    files = TlsFiles(authorities=access.authorities)
    return Kv.connect(
        access.addresses,
        user=access.user,
        password=access.password,
        tls=ClientTls(files) if access.authorities else None,
        timeout_ms=access.timeout_ms,
    )


_kept = ConnectionCache(_connect)
connected_table = _kept.get
"""Returns this process's client of a table, a new one if there is none."""
disconnect_tables = _kept.close
"""Closes this process's clients."""
