"""Validates an Arrow stream from an untrusted sender before anything of it is used."""

import struct
from typing import Any, Final

import pyarrow
import pyarrow.compute
from pyarrow import types

from raftwood.base.errors import InvalidInput
from raftwood.base.files import Buffer
from raftwood.loghub.errors import BatchTooLarge

_DEPTH_MAX: Final = 8
_STORED_FIELDS_MAX: Final = 1 << 24
_SCHEMA_BYTES_MAX: Final = 2 << 20
"""A field takes about fifty bytes, and metadata that libraries add to it a few hundred."""
_MESSAGES_MAX: Final = 4_096
"""Each message costs some work, even without records."""
_CELL_BYTES: Final = 16
"""What a value takes as text beside its bytes, and what a number takes in all."""
_HEADER, _COMPRESSION = 2, 3
"""Field numbers in the flatbuffers: the header of a message, the compression of a record batch."""
_BATCH_KINDS: Final = ("record batch", "dictionary")


def checked_batches(
    data: Buffer, *, fields_max: int, records_max: int, text_bytes_max: int, is_new: bool
) -> list[Any]:
    """Returns all batches, each fully validated; raises pyarrow's own errors, or InvalidInput."""
    source = pyarrow.py_buffer(data)
    _check_messages(source, is_new=is_new)
    reader = pyarrow.ipc.open_stream(source)
    if len(reader.schema) > fields_max:
        raise InvalidInput(f"the Arrow stream has more than {fields_max} columns: put fewer")
    fields_left = fields_max if is_new else _STORED_FIELDS_MAX
    for field in reader.schema:
        fields_left = _check_type(field.name, field.type, depth=0, fields_left=fields_left)
    batches = []
    names = sum(len(name) + _CELL_BYTES for name in reader.schema.names)
    records = text_bytes = 0
    for batch in reader:
        records += batch.num_rows
        if records > records_max:
            raise BatchTooLarge(f"the Arrow stream has above {records_max} records: put fewer")
        text_bytes += batch.num_rows * names
        _check_text(text_bytes, text_bytes_max)
        batch.validate(full=True)
        text_bytes += sum(map(_text_bytes, batch.columns))
        _check_text(text_bytes, text_bytes_max)
        batches.append(batch)
    return batches


def _check_text(text_bytes: int, text_bytes_max: int) -> None:
    if text_bytes > text_bytes_max:
        raise BatchTooLarge(
            f"the Arrow stream stands for above {text_bytes_max} bytes of text, with the names of "
            "its columns in each record: put fewer records, or shorter names"
        )


def _check_messages(source: Any, *, is_new: bool) -> None:
    for number, message in enumerate(pyarrow.ipc.MessageReader.open_stream(source)):
        if number > _MESSAGES_MAX and is_new:
            raise BatchTooLarge(
                f"the Arrow stream has more than {_MESSAGES_MAX} batches: put fewer, larger ones"
            )
        if not number and message.metadata.size > _SCHEMA_BYTES_MAX and is_new:
            raise BatchTooLarge(
                f"the Arrow stream's schema has more than {_SCHEMA_BYTES_MAX} bytes: put fewer "
                "columns"
            )
        if message.type in _BATCH_KINDS and _is_compressed(
            message.metadata.to_pybytes(), is_dictionary=message.type == "dictionary"
        ):
            raise InvalidInput(
                "the Arrow stream's buffers are compressed: leave them plain, and compress the "
                "body as a whole"
            )


def _is_compressed(metadata: bytes, *, is_dictionary: bool) -> bool:
    """Reads from the flatbuffer whether a message's record batch is compressed."""
    try:
        table = struct.unpack_from("<I", metadata)[0]
        table = _field_of(metadata, table, _HEADER)
        if table and is_dictionary:
            table = _field_of(metadata, table, 1)
        return table is None or _field_of(metadata, table, _COMPRESSION) is not None
    except struct.error as error:
        raise InvalidInput("the Arrow stream's messages cannot be read") from error


def _field_of(metadata: bytes, table: int, number: int) -> int | None:
    """Returns the offset of a field that is itself a table; None if the field is absent."""
    vtable = table - struct.unpack_from("<i", metadata, table)[0]
    if vtable < 0:
        raise InvalidInput("the Arrow stream's messages cannot be read")
    slot = 4 + 2 * number
    if slot >= struct.unpack_from("<H", metadata, vtable)[0]:
        return None
    offset = struct.unpack_from("<H", metadata, vtable + slot)[0]
    if not offset:
        return None
    place: int = table + offset
    return place + int(struct.unpack_from("<I", metadata, place)[0])


def _check_type(name: str, kind: Any, *, depth: int, fields_left: int) -> int:
    """Checks a type and the types within it; returns how many more fields are allowed."""
    if fields_left <= 0:
        raise BatchTooLarge("the Arrow stream has too many fields within its columns: put fewer")
    fields_left -= 1
    if depth > _DEPTH_MAX:
        raise InvalidInput(f"column {name!r} is nested too deep: flatten it")
    if types.is_dictionary(kind):
        kind = kind.value_type
        if types.is_nested(kind):
            raise InvalidInput(f"column {name!r} is a dictionary of {kind}: send it plain")
    if (
        types.is_union(kind)
        or types.is_run_end_encoded(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
        or types.is_string_view(kind)
        or types.is_binary_view(kind)
        or isinstance(kind, pyarrow.BaseExtensionType)
    ):
        raise InvalidInput(f"column {name!r} has the type {kind}, which is not taken: cast it")
    if types.is_nested(kind):
        for index in range(kind.num_fields):
            inner = kind.field(index).type
            fields_left = _check_type(name, inner, depth=depth + 1, fields_left=fields_left)
    return fields_left


def _text_bytes(array: Any) -> int:
    """Estimates the size of a column's values as text, which may be far above their size here."""
    kind = array.type
    if types.is_dictionary(kind):
        if not len(array.dictionary):
            return 0
        if not _is_long(kind.value_type):
            return len(array) * _CELL_BYTES
        # Many records may point to the same long value.
        sizes = pyarrow.compute.binary_length(array.dictionary).take(array.indices)
        return int(pyarrow.compute.sum(sizes.cast(pyarrow.int64())).as_py() or 0)
    if types.is_struct(kind):
        return len(array) * _CELL_BYTES + sum(
            _text_bytes(array.field(place)) + len(array) * len(kind.field(place).name)
            for place in range(kind.num_fields)
        )
    if types.is_map(kind):
        return sum(map(_text_bytes, (array.keys, array.items))) + len(array) * _CELL_BYTES
    if types.is_nested(kind):
        return _text_bytes(array.values) + len(array) * _CELL_BYTES
    return int(array.nbytes) + (0 if _is_long(kind) else len(array) * _CELL_BYTES)


def _is_long(kind: Any) -> bool:
    return bool(
        types.is_string(kind)
        or types.is_binary(kind)
        or types.is_large_string(kind)
        or types.is_large_binary(kind)
    )
