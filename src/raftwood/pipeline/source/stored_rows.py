"""The records of one stored batch as columns, whichever form they are stored in.

Nothing is decoded before it is asked for, but for the places of a LogGroup's fields.
"""

from collections.abc import Iterator
from typing import Any, Final, Protocol

import numpy
import pyarrow
import pyarrow.compute
from pyarrow import types

from raftwood.base.errors import TooLarge
from raftwood.base.files import Buffer
from raftwood.loghub.arrow_batches import SOURCE, TAG_PREFIX, TIME, TOPIC, read_arrow_stream
from raftwood.loghub.arrow_encoding import column_as_bytes
from raftwood.loghub.batches import HEAD_BYTES, Format, StoredHead
from raftwood.loghub.compression import decompress
from raftwood.loghub.log_group_columns import Columns, columns_of
from raftwood.loghub.log_groups import decode_log_group
from raftwood.pipeline.source.same_arrays import repeated

MICROSECONDS: Final = pyarrow.timestamp("us", "UTC")
STRING: Final = pyarrow.string()
_THOUSAND: Final = 1000


class Rows(Protocol):
    """Some records that are stored together."""

    @property
    def count(self) -> int: ...
    def time(self) -> Any: ...
    def topic(self) -> Any: ...
    def source(self) -> Any: ...
    def tags(self) -> list[tuple[str, Any]]: ...
    def content(self, name: str) -> Any | None: ...
    def contents(self) -> list[tuple[str, Any]]: ...


def rows_of(data: Buffer, head: StoredHead, keys: frozenset[str] | None) -> Iterator[Rows]:
    """Of a whole stored batch; `InvalidInput` for what cannot be read."""
    body = memoryview(data)[HEAD_BYTES:]
    raw = decompress(body, head.codec, raw_bytes=head.raw_bytes, raw_bytes_max=head.raw_bytes)
    if head.format is Format.LOG_GROUP:
        yield _group(raw, keys)
    else:
        for batch in read_arrow_stream(raw):
            yield ArrowRows(batch, received_ms=head.received_ms)


def _group(raw: Buffer, keys: frozenset[str] | None) -> "Rows":
    wanted = None if keys is None else frozenset(key.encode() for key in keys)
    try:
        return GroupRows(columns_of(raw, keys=wanted))
    except TooLarge:
        # Records whose keys are all different make no table, but they can be read.
        return RecordRows(raw)


def as_text(values: Any) -> Any:
    """Any column as text; what is not UTF-8 is replaced."""
    kind = values.type
    if kind == STRING:
        return values
    if types.is_dictionary(kind):
        return as_text(values.dictionary_decode())
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        try:
            return values.cast(pyarrow.binary()).cast(STRING)
        except pyarrow.ArrowInvalid:
            replaced = [
                None if each is None else each.decode("utf-8", "replace")
                for each in values.to_pylist()
            ]
            return pyarrow.array(replaced, STRING)
    if types.is_nested(kind):
        return as_text(column_as_bytes(values))
    return values.cast(STRING)


class GroupRows:
    """The records of a LogGroup."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self.count = columns.count

    def time(self) -> Any:
        return pyarrow.array(self._columns.time_ns // _THOUSAND).cast(MICROSECONDS)

    def topic(self) -> Any:
        return self._shared(self._columns.topic)

    def source(self) -> Any:
        return self._shared(self._columns.source)

    def _shared(self, value: bytes) -> Any:
        return repeated(_decoded(value), STRING, self.count)

    def tags(self) -> list[tuple[str, Any]]:
        return [(_decoded(key), self._shared(value)) for key, value in self._columns.tags]

    def content(self, name: str) -> Any | None:
        return self._columns.values.get(name.encode())

    def contents(self) -> list[tuple[str, Any]]:
        return [(_decoded(key), as_text(each)) for key, each in self._columns.values.items()]


def _decoded(value: bytes) -> str:
    return value.decode("utf-8", "replace")


class ArrowRows:
    """The records of one Arrow batch."""

    def __init__(self, batch: Any, *, received_ms: int) -> None:
        self._batch = batch
        self._places = {name: place for place, name in enumerate(batch.schema.names)}
        self._received_ms = received_ms
        self.count = batch.num_rows

    def time(self) -> Any:
        place = self._places.get(TIME)
        received = pyarrow.scalar(self._received_ms * _THOUSAND, MICROSECONDS)
        if place is None:
            return pyarrow.repeat(received, self.count)
        column = self._batch.column(place)
        if types.is_integer(column.type):  # whole seconds, as SLS has them
            column = pyarrow.compute.multiply(column.cast(pyarrow.int64()), 1_000_000)
        elif types.is_timestamp(column.type) and column.type.tz is None:
            column = column.cast(pyarrow.timestamp(column.type.unit, "UTC"))
        column = column.cast(MICROSECONDS, safe=False)
        return column.fill_null(received) if column.null_count else column

    def topic(self) -> Any:
        return self._shared(TOPIC)

    def source(self) -> Any:
        return self._shared(SOURCE)

    def _shared(self, name: str) -> Any:
        place = self._places.get(name)
        if place is None:
            return repeated("", STRING, self.count)
        return as_text(self._batch.column(place)).fill_null("")

    def tags(self) -> list[tuple[str, Any]]:
        return [
            (name.removeprefix(TAG_PREFIX), as_text(self._batch.column(place)))
            for name, place in self._places.items()
            if name.startswith(TAG_PREFIX)
        ]

    def content(self, name: str) -> Any | None:
        place = self._places.get(name)
        if place is None or not _is_content(name):
            return None
        return self._batch.column(place)

    def contents(self) -> list[tuple[str, Any]]:
        return [
            (name, as_text(self._batch.column(place)))
            for name, place in self._places.items()
            if _is_content(name)
        ]


def _is_content(name: str) -> bool:
    return name not in (TIME, TOPIC, SOURCE) and not name.startswith(TAG_PREFIX)


class RecordRows:
    """The records of a LogGroup with too many keys for a table, one by one."""

    def __init__(self, raw: Buffer) -> None:
        self._group = decode_log_group(raw)
        self._logs = self._group.Logs
        self.count = len(self._logs)
        self.records = [
            {_decoded(each.Key): _decoded(each.Value) for each in log.Contents}
            for log in self._logs
        ]

    def time(self) -> Any:
        times = [log.Time * 1_000_000 + log.Time_ns // _THOUSAND for log in self._logs]
        return pyarrow.array(numpy.array(times, dtype=numpy.int64)).cast(MICROSECONDS)

    def topic(self) -> Any:
        return self._shared(self._group.Topic)

    def source(self) -> Any:
        return self._shared(self._group.Source)

    def _shared(self, value: bytes) -> Any:
        return repeated(_decoded(value), STRING, self.count)

    def tags(self) -> list[tuple[str, Any]]:
        return [(_decoded(each.Key), self._shared(each.Value)) for each in self._group.LogTags]

    def content(self, name: str) -> Any | None:
        return pyarrow.array([each.get(name) for each in self.records], STRING)

    def contents(self) -> list[tuple[str, Any]]:
        names = dict.fromkeys(name for each in self.records for name in each)
        return [(name, self.content(name)) for name in names]
