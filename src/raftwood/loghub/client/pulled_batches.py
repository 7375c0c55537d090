"""A batch as a reader gets it: raw, as records, or as Arrow."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from raftwood.base.errors import InvalidInput
from raftwood.base.files import Buffer
from raftwood.base.position import Position
from raftwood.loghub.arrow_batches import (
    arrow_to_log_groups,
    import_arrow,
    log_group_to_arrow,
    read_arrow_stream,
)
from raftwood.loghub.batches import HEAD_BYTES, Format, StoredHead, decode_head
from raftwood.loghub.client.group_rows import rows_of
from raftwood.loghub.compression import decompress

if TYPE_CHECKING:
    import pyarrow


class LogRecord(msgspec.Struct, frozen=True, gc=False):
    """One record."""

    time_ns: int
    contents: dict[str, str | bytes]
    """Text, or bytes where they are not UTF-8."""
    topic: str | bytes
    source: str | bytes
    tags: Mapping[str, str | bytes]
    """Shared with the other records of the batch."""
    shard: int
    position: Position
    """Of its batch."""


class PulledBatch(msgspec.Struct, frozen=True):
    """One batch of a shard, still as it was stored."""

    shard: int
    position: Position
    next: Position
    """Where to read on behind it."""
    data: Buffer

    @property
    def head(self) -> StoredHead:
        return decode_head(self.data)

    def raw(self) -> Buffer:
        """The body, decompressed: a LogGroup, or a stream of Arrow batches."""
        head = self.head
        body = memoryview(self.data)[HEAD_BYTES:]
        # The gateway that took it has checked its size.
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
        """As one table; what was stored as Arrow is not copied unless it was compressed."""
        arrow = import_arrow()
        if self.head.format is Format.LOG_GROUP:
            return arrow.Table.from_batches([log_group_to_arrow(self.raw())])
        batches = read_arrow_stream(self.raw())
        if not batches:
            return arrow.table({})
        return arrow.Table.from_batches(batches)


def joined_tables(tables: "list[Any]") -> "pyarrow.Table":
    """One table with all columns of all; a column's types are widened to one that holds them."""
    arrow = import_arrow()
    if not tables:
        return arrow.table({})
    try:
        return arrow.concat_tables(tables, promote_options="permissive")
    except (arrow.ArrowInvalid, arrow.ArrowTypeError):
        return arrow.concat_tables(_alike(arrow, tables), promote_options="permissive")


def _alike(arrow: Any, tables: list[Any]) -> list[Any]:
    """Columns that have several types become text, or binary where one of them is."""
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
