"""What a user says of a table with `.option(...)`."""

from collections.abc import Mapping
from typing import Final, Literal, cast

import msgspec

from raftwood.base.errors import InvalidConfiguration
from raftwood.pipeline.options import OptionReader, transaction_of
from raftwood.zeppelin.client.nodes import addresses_of

ADDRESSES_VARIABLE: Final = "RAFTWOOD_ZEPPELIN_CLIENT__ADDRESSES"
USER_VARIABLE: Final = "RAFTWOOD_ZEPPELIN_CLIENT__USER"
PASSWORD_VARIABLE: Final = "RAFTWOOD_ZEPPELIN_CLIENT__PASSWORD"  # noqa: S105 (its name)
Operation = Literal["set", "increment"]
_KNOWN: Final = {
    "addresses",
    "user",
    "password",
    "authorities",
    "key",
    "keycolumn",
    "valuecolumn",
    "ttlseconds",
    "ttlcolumn",
    "operation",
    "rowsperrequest",
    "txnappid",
    "txnversion",
    "timeoutms",
    "path",
    "checkpointlocation",
    "queryname",
}


class TableAccess(msgspec.Struct, frozen=True, kw_only=True):
    """A table, which its user chooses, and how to reach it."""

    addresses: tuple[str, ...]
    user: str
    password: str
    authorities: str = ""
    timeout_ms: int = 30_000

    def __repr__(self) -> str:
        return f"TableAccess({self.user} at {','.join(self.addresses)})"


class KvSinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a row."""

    access: TableAccess
    key: str | None = None
    """A template with columns in braces."""
    key_column: str | None = None
    value_column: str | None = None
    """None: the value is the row as JSON."""
    ttl_ms: int | None = None
    ttl_column: str | None = None
    """Seconds."""
    operation: Operation = "set"
    rows_per_request: int = 1_000
    transaction: tuple[str, int] | None = None


def kv_sink_options(options: Mapping[str, str]) -> KvSinkOptions:
    given = OptionReader(options, known=_KNOWN, name="zeppelin")
    if given.optional("path") is not None:
        raise InvalidConfiguration(
            "zeppelin has no path: the user chooses the table, write with start() or save()"
        )
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
        access=TableAccess(
            addresses=addresses_of(given.text("addresses", variable=ADDRESSES_VARIABLE)),
            user=given.text("user", "default", variable=USER_VARIABLE),
            password=given.text("password", variable=PASSWORD_VARIABLE),
            authorities=given.text("authorities", ""),
            timeout_ms=given.number("timeoutMs", 30_000),
        ),
        key=key,
        key_column=key_column,
        value_column=given.optional("valueColumn"),
        ttl_ms=None if ttl_s is None else ttl_s * 1000,
        ttl_column=ttl_column,
        operation=cast("Operation", operation),
        rows_per_request=min(given.number("rowsPerRequest", 1_000), 10_000),
        transaction=transaction_of(given),
    )
