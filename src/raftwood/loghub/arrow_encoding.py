"""Arrow's record batches as LogGroups, column by column: Arrow itself puts the bytes together."""

import itertools
from functools import cache
from typing import Any, Final

import msgspec
import numpy
import pyarrow
import pyarrow.compute
from pyarrow import types

from raftwood.base.errors import InvalidInput
from raftwood.base.protobuf_bytes import field_bytes, varint
from raftwood.loghub.arrow_batches import SOURCE, TAG_PREFIX, TIME, TOPIC

_NS: Final = 1_000_000_000
_SIZES_MAX: Final = 1 << 14


def log_groups_of(batch: Any, *, received_s: int) -> list[bytes]:
    """One LogGroup for each run of records that share topic, source and tags."""
    if not batch.num_rows:
        return []
    batch = _with_unique_names(batch)
    shared = [
        name
        for name in batch.schema.names
        if name in (TOPIC, SOURCE) or name.startswith(TAG_PREFIX)
    ]
    contents = [name for name in batch.schema.names if name != TIME and name not in shared]
    records = _records(batch, contents, received_s)
    texts = {name: column_as_bytes(batch.column(name)) for name in shared}
    groups = []
    for first, last in _runs(list(texts.values()), batch.num_rows):
        values = {name: texts[name][first].as_py() for name in shared}
        groups.append(_joined(records.slice(first, last - first)) + _shared_bytes(values))
    return groups


def _with_unique_names(batch: Any) -> Any:
    names = batch.schema.names
    if len(set(names)) == len(names):
        return batch
    raise InvalidInput("two columns of the Arrow batch have the same name: rename one")


def _runs(columns: list[Any], count: int) -> list[tuple[int, int]]:
    """Where none of the columns changes."""
    is_new = numpy.zeros(count, dtype=bool)
    for column in columns:
        if count > 1:
            filled = pyarrow.compute.fill_null(column, b"")
            changes = pyarrow.compute.not_equal(filled.slice(1), filled.slice(0, count - 1))
            is_new[1:] |= changes.to_numpy(zero_copy_only=False)
    starts = [0, *map(int, numpy.flatnonzero(is_new)), count]
    return list(itertools.pairwise(starts))


def _shared_bytes(values: dict[str, bytes | None]) -> bytes:
    parts = []
    for name, value in values.items():
        if name == TOPIC and value:
            parts.append(field_bytes(3, value))
        elif name == SOURCE and value:
            parts.append(field_bytes(4, value))
        elif name.startswith(TAG_PREFIX) and value is not None:
            key = name[len(TAG_PREFIX) :].encode("utf-8", "replace")
            parts.append(field_bytes(6, field_bytes(1, key) + field_bytes(2, value)))
    return b"".join(parts)


def _records(batch: Any, contents: list[str], received_s: int) -> Any:
    """Each record as a field of its group."""
    time, time_ns = _times(batch, received_s)
    parts = [time, *(_contents(name, batch.column(name)) for name in contents)]
    if time_ns is not None:
        parts.append(time_ns)
    body = _concatenated(*parts, nulls="skip")
    return _concatenated(b"\x0a", _sizes(body), body)


def _contents(name: str, column: Any) -> Any:
    """A column's values as fields of their records; null where there is none."""
    values = column_as_bytes(column)
    head = field_bytes(1, name.encode("utf-8", "replace")) + b"\x12"
    pair = _concatenated(head, _sizes(values), values)
    return _concatenated(b"\x12", _sizes(pair), pair)


def _times(batch: Any, received_s: int) -> tuple[Any, Any]:
    """The fields for seconds and, where any record has them, for nanoseconds."""
    count = batch.num_rows
    if TIME in batch.schema.names:
        ns = _nanoseconds(batch.column(TIME), received_s)
    else:
        ns = numpy.full(count, received_s * _NS, dtype=numpy.int64)
    seconds, rest = numpy.divmod(ns, _NS)
    seconds = numpy.clip(seconds, 0, (1 << 32) - 1).astype(numpy.uint32)
    fields = numpy.empty((count, 6), dtype=numpy.uint8)
    fields[:, 0] = 0x08
    for index in range(5):
        more = 0x80 if index < 4 else 0
        fields[:, 1 + index] = (seconds >> numpy.uint32(7 * index)) & 0x7F | more
    if not rest.any():
        return _fixed(fields), None
    ends = numpy.empty((count, 5), dtype=numpy.uint8)
    ends[:, 0] = 0x25
    ends[:, 1:] = rest.astype("<u4").view(numpy.uint8).reshape(count, 4)
    return _fixed(fields), _fixed(ends)


def _nanoseconds(column: Any, received_s: int) -> Any:
    if types.is_timestamp(column.type) or types.is_date(column.type):
        try:
            column = column.cast(pyarrow.timestamp("ns"))
        except pyarrow.ArrowInvalid as error:
            raise InvalidInput(f"a {TIME} is out of range: {error}") from error
        column = column.cast(pyarrow.int64())
    elif types.is_integer(column.type) and column.type != pyarrow.uint64():
        # Whole seconds, as SLS has them.
        column = pyarrow.compute.multiply(column.cast(pyarrow.int64()), _NS)
    else:
        raise InvalidInput(f"{TIME} is {column.type}: make it a timestamp")
    return pyarrow.compute.fill_null(column, received_s * _NS).to_numpy(zero_copy_only=False)


def _fixed(fields: Any) -> Any:
    count, width = fields.shape
    kind = pyarrow.binary(width)
    buffers = [None, pyarrow.py_buffer(fields)]
    return pyarrow.Array.from_buffers(kind, count, buffers).cast(pyarrow.binary())


def _sizes(values: Any) -> Any:
    """The encoded length of each value."""
    lengths = pyarrow.compute.binary_length(values)
    longest = pyarrow.compute.max(lengths).as_py() or 0
    if longest < _SIZES_MAX:
        return _most_sizes().take(lengths)
    unique = lengths.dictionary_encode()
    encoded = [None if size is None else varint(size) for size in unique.dictionary.to_pylist()]
    return pyarrow.array(encoded, pyarrow.binary()).take(unique.indices)


@cache
def _most_sizes() -> Any:
    """Made on first use: Arrow loads all of pandas when it makes an array, if pandas is there."""
    return pyarrow.array([varint(size) for size in range(_SIZES_MAX)], pyarrow.binary())


def _concatenated(*parts: Any, nulls: str = "emit_null") -> Any:
    given = [
        pyarrow.scalar(part, pyarrow.binary()) if isinstance(part, bytes) else part
        for part in parts
    ]
    separator = pyarrow.scalar(b"", pyarrow.binary())
    return pyarrow.compute.binary_join_element_wise(*given, separator, null_handling=nulls)


def _joined(values: Any) -> bytes:
    """All values one behind the other, which is how they stand in memory."""
    _, offsets, data = values.buffers()
    ends = numpy.frombuffer(offsets, dtype=numpy.int32)
    first, last = ends[values.offset], ends[values.offset + len(values)]
    joined: bytes = data[int(first) : int(last)].to_pybytes()
    return joined


def column_as_bytes(column: Any) -> Any:
    """Any column as text, in bytes."""
    kind = column.type
    if types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if types.is_nested(kind):
        texts = [None if value is None else _json(value) for value in column.to_pylist()]
        return pyarrow.array(texts, pyarrow.binary())
    if types.is_null(kind):
        return pyarrow.nulls(len(column), pyarrow.binary())
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return column.cast(pyarrow.binary())
    try:
        return column.cast(pyarrow.string()).cast(pyarrow.binary())
    except pyarrow.ArrowNotImplementedError:  # an interval, say
        texts = [None if value is None else str(value).encode() for value in column.to_pylist()]
        return pyarrow.array(texts, pyarrow.binary())


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=str)
