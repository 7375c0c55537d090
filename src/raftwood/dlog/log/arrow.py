"""Entries of a log as an Arrow table, a row for each message; needs the extra `arrow`."""

from collections.abc import Sequence
from typing import Any

import pyarrow

from raftwood.base.position import Position, position_to_bytes
from raftwood.dlog.log.log_reader import StoredEntry


def to_arrow(entries: Sequence[StoredEntry]) -> pyarrow.Table:
    """Columns `position`, `time`, `attributes`, `key`, `payload`, `headers` (a list of pairs)."""
    header = pyarrow.struct([("key", pyarrow.binary()), ("value", pyarrow.binary())])
    schema = pyarrow.schema(
        [
            ("position", pyarrow.binary(16)),
            ("time", pyarrow.timestamp("ms", tz="UTC")),
            ("attributes", pyarrow.uint8()),
            ("key", pyarrow.binary()),
            ("payload", pyarrow.large_binary()),
            ("headers", pyarrow.list_(header)),
        ]
    )
    columns: list[list[Any]] = [[] for _ in schema]
    positions, times, attributes, keys, payloads, headers = columns
    for each in entries:
        for index in range(each.skipped, len(each.entry)):
            message = each.entry.message(index)
            positions.append(position_to_bytes(Position(each.position + index)))
            times.append(each.entry.head.time_ms)
            attributes.append(message.attributes)
            keys.append(bytes(message.key))
            payloads.append(bytes(message.payload))
            headers.append([{"key": key, "value": bytes(data)} for key, data in message.headers])
    arrays = [
        pyarrow.array(column, type=field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pyarrow.Table.from_arrays(arrays, schema=schema)
