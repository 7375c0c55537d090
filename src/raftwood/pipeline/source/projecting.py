"""Stored batches as the record batches that Spark gets: what the query named, in its types."""

from collections.abc import Iterator
from functools import reduce
from typing import Any, Final

import numpy
import pyarrow
import pyarrow.compute

from raftwood.base.errors import InvalidInput, StoreError
from raftwood.base.position import position_to_bytes
from raftwood.base.seams import StoredBatch
from raftwood.loghub.batches import StoredHead, decode_head
from raftwood.pipeline.columns import Column, Field, Projection
from raftwood.pipeline.options import Mode
from raftwood.pipeline.source.casting import cast_text
from raftwood.pipeline.source.same_arrays import repeated, repeated_names, steps
from raftwood.pipeline.source.stored_rows import MICROSECONDS, STRING, Rows, rows_of

_UNREADABLE: Final = (InvalidInput, StoreError, pyarrow.ArrowException)
_INT: Final = numpy.int32


class Projector:
    """One for a task."""

    def __init__(self, projection: Projection, mode: Mode, shard: int) -> None:
        self._projection = projection
        self._keys = projection.keys
        self._mode = mode
        self._shard = shard
        self.dropped_batches = 0

    def batches(self, stored: StoredBatch) -> Iterator[Any]:
        """The record batches of a stored one; an unreadable one as the mode says."""
        head: StoredHead | None = None
        try:
            head = decode_head(stored.data)
            # All of it before any of it is handed out: half a batch is none.
            return iter(list(self._readable(stored, head)))
        except _UNREADABLE as error:
            if self._mode is Mode.FAILFAST:
                raise InvalidInput(
                    f"the batch of shard {self._shard} at {stored.position} cannot be read: "
                    f"{error}; read in mode DROPMALFORMED or PERMISSIVE to go on"
                ) from error
            if self._mode is Mode.DROPMALFORMED:
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
        rows: Rows,
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
        """What all records of a stored batch share."""
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
        """One row that stands for a batch."""
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
    """Columns as one of maps: of each record the names that it has, with their values."""
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
    """Record by record, of each record column by column."""
    return numpy.arange(width * count, dtype=_INT).reshape(width, count).T


def _in_turn(columns: list[tuple[str, Any]], count: int) -> Any:
    values = pyarrow.concat_arrays([array for _, array in columns])
    return values.take(pyarrow.array(_order(len(columns), count).ravel()))
