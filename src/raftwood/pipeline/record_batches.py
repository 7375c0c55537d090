"""Decodes stored batches to the record batches of a query, in its columns and types.

The records of one stored batch become columns, whatever form they are stored in; only requested
columns are decoded, apart from the places of a LogGroup's fields. Contents are cast like Spark's
readers of text do it: all values of a batch at once, and one by one if a value is invalid; then the
mode decides.
"""

from collections.abc import Callable, Hashable, Iterator
from functools import reduce
from typing import Any, Final, Protocol

import numpy
import pyarrow
import pyarrow.compute
from pyarrow import types

from raftwood.base.errors import InvalidInput, StoreError, TooLarge
from raftwood.base.files import Buffer
from raftwood.base.position import position_to_bytes
from raftwood.base.seams import StoredBatch
from raftwood.loghub.arrow_batches import SOURCE, TAG_PREFIX, TIME, TOPIC, read_arrow_stream
from raftwood.loghub.arrow_columns import Columns, column_as_bytes, columns_of
from raftwood.loghub.batches import HEAD_BYTES, Format, StoredHead, decode_head, decompress
from raftwood.loghub.log_groups import decode_log_group
from raftwood.pipeline.columns import Column, Field, Projection
from raftwood.pipeline.options import ParseMode

_BYTES_MAX: Final = 1 << 20
_ARRAYS_MAX: Final = 64
_arrays: Final[dict[Hashable, Any]] = {}
_STRING: Final = pyarrow.string()


def _cut(key: Hashable, length: int, make: Callable[[], Any]) -> Any:
    found = _arrays.get(key)
    if found is None or len(found) < length:
        found = make()
        if found.nbytes > _BYTES_MAX:
            return found
        if len(_arrays) >= _ARRAYS_MAX:
            _arrays.clear()
        _arrays[key] = found
    return found.slice(0, length)


def repeated(value: str | int, kind: Any, count: int) -> Any:
    """Returns an array that repeats a value `count` times."""
    key = ("value", value, kind)
    return _cut(key, count, lambda: pyarrow.repeat(pyarrow.scalar(value, kind), count))


def steps(step: int, count: int) -> Any:
    """Returns `count` 32-bit numbers from 0 on."""
    key = ("steps", step)
    return _cut(key, count, lambda: pyarrow.array(_numbers(count) * numpy.int32(step)))


def _numbers(count: int) -> Any:
    return numpy.arange(count, dtype=numpy.int32)


def repeated_names(names: tuple[str, ...], count: int) -> Any:
    """Returns all names in turn, `count` times."""

    def make() -> Any:
        which = numpy.tile(_numbers(len(names)), count)
        return pyarrow.array(names, _STRING).take(pyarrow.array(which))

    return _cut(("names", names), len(names) * count, make)


MICROSECONDS: Final = pyarrow.timestamp("us", "UTC")
STRING: Final = pyarrow.string()
_THOUSAND: Final = 1000


class StoredRows(Protocol):
    """Some records that are stored together."""

    @property
    def count(self) -> int: ...
    def time(self) -> Any: ...
    def topic(self) -> Any: ...
    def source(self) -> Any: ...
    def tags(self) -> list[tuple[str, Any]]: ...
    def content(self, name: str) -> Any | None: ...
    def contents(self) -> list[tuple[str, Any]]: ...


def rows_of(data: Buffer, head: StoredHead, keys: frozenset[str] | None) -> Iterator[StoredRows]:
    """Decodes a whole stored batch; `InvalidInput` if it is invalid."""
    body = memoryview(data)[HEAD_BYTES:]
    raw = decompress(body, head.codec, raw_bytes=head.raw_bytes, raw_bytes_max=head.raw_bytes)
    if head.format is Format.LOG_GROUP:
        yield _group(raw, keys)
    else:
        for batch in read_arrow_stream(raw):
            yield ArrowRows(batch, received_ms=head.received_ms)


def _group(raw: Buffer, keys: frozenset[str] | None) -> "StoredRows":
    wanted = None if keys is None else frozenset(key.encode() for key in keys)
    try:
        return GroupRows(columns_of(raw, keys=wanted))
    except TooLarge:
        # Records whose keys are all different make no table, but can be read.
        return RecordRows(raw)


def as_text(values: Any) -> Any:
    """Returns any column as text; replaces what is not UTF-8."""
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
        if types.is_integer(column.type):  # whole seconds, as in SLS
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


_BOOLEANS: Final = {"true": True, "false": False, "1": True, "0": False}


def cast_text(values: Any, field: Field, mode: ParseMode) -> tuple[Any, Any | None]:
    """Casts the values to a field's type; returns also which rows to keep, or None for all."""
    kind = field.type
    if values.type == kind:
        return values, None
    if kind == STRING:
        return as_text(values), None
    if types.is_binary(kind):
        return as_text(values).cast(kind) if not _is_bytes(values.type) else values.cast(kind), None
    try:
        return _cast(values, kind), None
    except pyarrow.ArrowException:
        pass
    texts = as_text(values)
    found = [None if text is None else _one(text, kind) for text in texts.to_pylist()]
    array = pyarrow.array(found, kind)
    is_bad = pyarrow.compute.and_(texts.is_valid(), array.is_null())
    if mode is ParseMode.FAILFAST and pyarrow.compute.any(is_bad).as_py():
        text = texts.filter(is_bad)[0].as_py()
        raise InvalidInput(f"{field.content} is {text[:60]!r}, which is no {kind}")
    return array, pyarrow.compute.invert(is_bad) if mode is ParseMode.DROPMALFORMED else None


def _is_bytes(kind: Any) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _cast(values: Any, kind: Any) -> Any:
    if _is_bytes(values.type) or types.is_string(values.type) or types.is_dictionary(values.type):
        values = as_text(values)
        if types.is_timestamp(kind) and kind.tz is not None:
            # A text without a zone is UTC, like all times of a pipeline.
            return values.cast(pyarrow.timestamp(kind.unit)).cast(kind)
    elif types.is_timestamp(values.type) and types.is_timestamp(kind):
        if values.type.tz is None and kind.tz is not None:
            values = values.cast(pyarrow.timestamp(values.type.unit, "UTC"))
        return values.cast(kind, safe=False)
    return values.cast(kind)


def _one(text: str, kind: Any) -> Any:
    """Casts one value; None if it is invalid."""
    text = text.strip()
    if types.is_boolean(kind):
        return _BOOLEANS.get(text.lower())
    value = pyarrow.array([text], STRING)
    try:
        return _cast(value, kind)[0].as_py()
    except pyarrow.ArrowException:
        pass
    if not types.is_timestamp(kind):
        return None
    try:
        return value.cast(pyarrow.timestamp("us", "UTC")).cast(kind)[0].as_py()
    except pyarrow.ArrowException:
        return None


_UNREADABLE: Final = (InvalidInput, StoreError, pyarrow.ArrowException)
_INT: Final = numpy.int32


class Projector:
    """Decodes the batches of one task."""

    def __init__(self, projection: Projection, mode: ParseMode, shard: int) -> None:
        self._projection = projection
        self._keys = projection.keys
        self._mode = mode
        self._shard = shard
        self.dropped_batches = 0

    def batches(self, stored: StoredBatch) -> Iterator[Any]:
        """Returns the record batches of a stored one; the mode decides about an unreadable one."""
        head: StoredHead | None = None
        try:
            head = decode_head(stored.data)
            # Decode all of it before any is yielded: half a batch must not be read.
            return iter(list(self._readable(stored, head)))
        except _UNREADABLE as error:
            if self._mode is ParseMode.FAILFAST:
                raise InvalidInput(
                    f"the batch of shard {self._shard} at {stored.position} cannot be read: "
                    f"{error}; read in mode DROPMALFORMED or PERMISSIVE to go on"
                ) from error
            if self._mode is ParseMode.DROPMALFORMED:
                self.dropped_batches += 1
                return iter(())
            return iter((self._unreadable(stored, head),))

    def _readable(self, stored: StoredBatch, head: StoredHead) -> Iterator[Any]:
        first = 0
        for rows in rows_of(stored.data, head, self._keys):
            is_good: list[Any] = []
            arrays = [
                self._array(field, rows, stored, head, first, is_good)
                for field in self._projection.fields
            ]
            batch = pyarrow.RecordBatch.from_arrays(arrays, schema=self._projection.schema)
            first += rows.count
            if is_good:
                batch = batch.filter(reduce(pyarrow.compute.and_, is_good))
            if batch.num_rows:
                yield batch

    def _array(
        self,
        field: Field,
        rows: StoredRows,
        stored: StoredBatch,
        head: StoredHead,
        first: int,
        is_good: list[Any],
    ) -> Any:
        count = rows.count
        match field.column:
            case None:
                values = rows.content(field.content)
                if values is None:
                    return pyarrow.nulls(count, field.type)
                found, mask = cast_text(values, field, self._mode)
                if mask is not None:
                    is_good.append(mask)
                return found
            case Column.TIME:
                return rows.time()
            case Column.TOPIC:
                return rows.topic()
            case Column.SOURCE:
                return rows.source()
            case Column.TAGS:
                return map_array(rows.tags(), count, field.type)
            case Column.CONTENTS:
                return map_array(rows.contents(), count, field.type)
            case Column.RAW:
                return pyarrow.nulls(count, field.type)
            case Column.INDEX:
                return steps(1, first + count).slice(first)
            case _:
                return self._of_batch(field, stored, head, count)

    def _of_batch(
        self, field: Field, stored: StoredBatch, head: StoredHead | None, count: int
    ) -> Any:
        """Returns a column whose value all records of a stored batch share."""
        if field.column is Column.SHARD:
            return repeated(self._shard, field.type, count)
        if field.column is Column.POSITION:
            position = pyarrow.scalar(position_to_bytes(stored.position), field.type)
            return pyarrow.repeat(position, count)
        assert field.column is Column.HEADERS
        return map_array(
            [(name, repeated(value, STRING, count)) for name, value in _headers(head)],
            count,
            field.type,
        )

    def _unreadable(self, stored: StoredBatch, head: StoredHead | None) -> Any:
        """Returns one row that stands for an unreadable batch."""
        arrays = []
        for field in self._projection.fields:
            if field.column is Column.RAW:
                values = pyarrow.array([bytes(stored.data)], field.type)
            elif field.column is Column.TIME and head is not None:
                values = pyarrow.array([head.received_ms * 1000], pyarrow.int64())
                values = values.cast(MICROSECONDS)
            elif field.column in (Column.SHARD, Column.POSITION, Column.HEADERS):
                values = self._of_batch(field, stored, head, 1)
            else:
                values = pyarrow.nulls(1, field.type)
            arrays.append(values)
        return pyarrow.RecordBatch.from_arrays(arrays, schema=self._projection.schema)


def _headers(head: StoredHead | None) -> list[tuple[str, str]]:
    if head is None:
        return []
    return [
        ("received_ms", str(head.received_ms)),
        ("format", head.format.name.lower()),
        ("codec", head.codec.name.lower()),
        ("records", str(head.records)),
    ]


def map_array(columns: list[tuple[str, Any]], count: int, kind: Any) -> Any:
    """Joins columns into one of maps: for each record the names that it has, with their values."""
    if not columns:
        empty = pyarrow.array([], STRING)
        return pyarrow.MapArray.from_arrays(steps(0, count + 1), empty, empty, type=kind)
    width = len(columns)
    names = tuple(name for name, _ in columns)
    if not any(array.null_count for _, array in columns):
        items = columns[0][1] if width == 1 else _in_turn(columns, count)
        offsets, keys = steps(width, count + 1), repeated_names(names, count)
        return pyarrow.MapArray.from_arrays(offsets, keys, items, type=kind)
    values = pyarrow.concat_arrays([array for _, array in columns])
    is_there = values.is_valid().to_numpy(zero_copy_only=False).reshape(width, count).T
    ends = numpy.cumsum(is_there.sum(axis=1), dtype=_INT)
    which = numpy.broadcast_to(numpy.arange(width, dtype=_INT), (count, width))[is_there]
    offsets = pyarrow.array(numpy.concatenate([numpy.zeros(1, dtype=_INT), ends]))
    keys = pyarrow.array(names, STRING).take(pyarrow.array(which))
    items = values.take(pyarrow.array(_order(width, count)[is_there]))
    return pyarrow.MapArray.from_arrays(offsets, keys, items, type=kind)


def _order(width: int, count: int) -> Any:
    """Returns the order record by record, and within each record column by column."""
    return numpy.arange(width * count, dtype=_INT).reshape(width, count).T


def _in_turn(columns: list[tuple[str, Any]], count: int) -> Any:
    values = pyarrow.concat_arrays([array for _, array in columns])
    return values.take(pyarrow.array(_order(len(columns), count).ravel()))
