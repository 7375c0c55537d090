"""Pulls batches from a shard; returns each raw, as records or as Arrow.

`rows_of` decodes a LogGroup by columns if pyarrow is installed, else by protobuf. Columns take half
the time: they need one pass through Python per record, at the end.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import msgspec

from raftwood.base.errors import InvalidConfiguration, InvalidInput, TooLarge
from raftwood.base.files import Buffer
from raftwood.base.position import Position, position_to_bytes
from raftwood.loghub.arrow_batches import (
    arrow_to_log_groups,
    import_arrow,
    log_group_to_arrow,
    read_arrow_stream,
)
from raftwood.loghub.batches import HEAD_BYTES, Format, StoredHead, decode_head, decompress
from raftwood.loghub.client.gateways import Gateways
from raftwood.loghub.log_groups import decode_log_group
from raftwood.loghub.wire import (
    PULL,
    Pulled,
    PullRequest,
    StreamRequest,
    decode_pulled,
    encode_pull,
)

if TYPE_CHECKING:
    import pyarrow

Contents = dict[str, str | bytes]
_FEW_BYTES: Final = 1 << 10
"""Below this size columns do not pay."""


class LogRows(msgspec.Struct, frozen=True):
    """All records of a group, and their shared fields; text, or bytes if they are not UTF-8."""

    times_ns: list[int]
    contents: list[Contents]
    topic: str | bytes
    source: str | bytes
    tags: Mapping[str, str | bytes]


def rows_of(data: Buffer) -> LogRows:
    """Decodes a LogGroup; `InvalidInput` if the bytes are not one."""
    if len(data) > _FEW_BYTES and _has_arrow():
        try:
            return _by_columns(data)
        except TooLarge:
            pass  # too many different keys for a table
    return _by_protobuf(data)


@cache
def _has_arrow() -> bool:
    try:
        import_arrow()
    except InvalidConfiguration:
        return False
    return True


def _by_columns(data: Buffer) -> LogRows:
    columns = import_module("raftwood.loghub.arrow_columns").columns_of(data)
    names = [_name(key) for key in columns.values]
    values = [_values(each) for each in columns.values.values()]
    if len(names) == 1 and not any(each.null_count for each in columns.values.values()):
        (name,) = names
        contents: list[Contents] = [{name: value} for value in values[0]]
    elif any(each.null_count for each in columns.values.values()):
        contents = [
            {name: value for name, value in zip(names, row, strict=True) if value is not None}
            for row in zip(*values, strict=True)
        ]
    else:
        contents = [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
    return LogRows(
        columns.time_ns.tolist(),
        contents if names else [{} for _ in range(columns.count)],
        _text(columns.topic),
        _text(columns.source),
        {_name(key): _text(value) for key, value in columns.tags},
    )


def _values(column: Any) -> list[Any]:
    arrow = import_arrow()
    try:
        values: list[Any] = column.cast(arrow.string()).to_pylist()
    except arrow.ArrowInvalid:
        values = [None if value is None else _text(value) for value in column.to_pylist()]
    return values


def _by_protobuf(data: Buffer) -> LogRows:
    group = decode_log_group(data)
    return LogRows(
        [log.Time * 1_000_000_000 + log.Time_ns for log in group.Logs],
        [
            {_name(content.Key): _text(content.Value) for content in log.Contents}
            for log in group.Logs
        ],
        _text(group.Topic),
        _text(group.Source),
        {_name(tag.Key): _text(tag.Value) for tag in group.LogTags},
    )


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _name(value: bytes) -> str:
    return value.decode("utf-8", "replace")


class LogRecord(msgspec.Struct, frozen=True, gc=False):
    """One record."""

    time_ns: int
    contents: dict[str, str | bytes]
    """Text, or bytes if they are not UTF-8."""
    topic: str | bytes
    source: str | bytes
    tags: Mapping[str, str | bytes]
    """Shared with the other records of the batch."""
    shard: int
    position: Position
    """The position of its batch."""


class PulledBatch(msgspec.Struct, frozen=True):
    """One batch of a shard, still in its stored form."""

    shard: int
    position: Position
    next: Position
    """The position to read next."""
    data: Buffer

    @property
    def head(self) -> StoredHead:
        return decode_head(self.data)

    def raw(self) -> Buffer:
        """Returns the decompressed body: a LogGroup, or a stream of Arrow batches."""
        head = self.head
        body = memoryview(self.data)[HEAD_BYTES:]
        # The gateway that received it has checked its size.
        return decompress(body, head.codec, raw_bytes=head.raw_bytes, raw_bytes_max=head.raw_bytes)

    def records(self) -> list[LogRecord]:
        head = self.head
        if head.format is Format.LOG_GROUP:
            return self._of_group(self.raw())
        groups = arrow_to_log_groups(self.raw(), received_s=head.received_ms // 1000)
        return [record for group in groups for record in self._of_group(group)]

    def _of_group(self, data: Buffer) -> list[LogRecord]:
        rows = rows_of(data)
        topic, source, tags = rows.topic, rows.source, rows.tags
        shard, position = self.shard, self.position
        return [
            LogRecord(time_ns, contents, topic, source, tags, shard, position)
            for time_ns, contents in zip(rows.times_ns, rows.contents, strict=True)
        ]

    def to_arrow(self) -> "pyarrow.Table":
        """Returns one table; what was stored as Arrow is not copied unless it was compressed."""
        arrow = import_arrow()
        if self.head.format is Format.LOG_GROUP:
            return arrow.Table.from_batches([log_group_to_arrow(self.raw())])
        batches = read_arrow_stream(self.raw())
        if not batches:
            return arrow.table({})
        return arrow.Table.from_batches(batches)


def joined_tables(tables: "list[Any]") -> "pyarrow.Table":
    """Joins tables into one with all of their columns; a column of several types is widened."""
    arrow = import_arrow()
    if not tables:
        return arrow.table({})
    try:
        return arrow.concat_tables(tables, promote_options="permissive")
    except (arrow.ArrowInvalid, arrow.ArrowTypeError):
        return arrow.concat_tables(_alike(arrow, tables), promote_options="permissive")


def _alike(arrow: Any, tables: list[Any]) -> list[Any]:
    """Turns a column of several types into text, or into binary if one of them is binary."""
    kinds: dict[str, set[Any]] = {}
    for table in tables:
        for field in table.schema:
            kinds.setdefault(field.name, set()).add(field.type)
    mixed = {
        name: arrow.binary() if arrow.binary() in found else arrow.string()
        for name, found in kinds.items()
        if len(found) > 1
    }
    try:
        return [
            table.cast(
                arrow.schema(
                    [each.with_type(mixed.get(each.name, each.type)) for each in table.schema]
                )
            )
            for table in tables
        ]
    except arrow.ArrowException as error:
        raise InvalidInput(
            f"columns of one name have types that do not go together: {error}: read by batches"
        ) from error


_RETRY_MS: Final = 5_000


async def pull(
    gateways: Gateways,
    stream: StreamRequest,
    *,
    shard: int,
    position: Position,
    batches_max: int,
    bytes_max: int,
    wait_ms: int,
    timeout_ms: int,
) -> Pulled:
    """Pulls batches from a position on; at the end of a shard it waits up to `wait_ms` for some."""
    request = PullRequest(
        stream.project,
        stream.logstore,
        shard,
        position_to_bytes(position),
        batches_max,
        bytes_max,
        wait_ms,
    )
    payload = await gateways.call(
        PULL,
        encode_pull(request),
        timeout_ms=timeout_ms,
        attempt_ms=wait_ms + _RETRY_MS,
        turn=shard,
    )
    return decode_pulled(payload)


def batches_of(shard: int, pulled: Pulled) -> list[PulledBatch]:
    """Pairs each batch with the position behind it."""
    found = pulled.batches
    following = [*(each.position for each in found), pulled.next][1:]
    return [
        PulledBatch(shard, stored.position, behind, stored.data)
        for stored, behind in zip(found, following, strict=True)
    ]
