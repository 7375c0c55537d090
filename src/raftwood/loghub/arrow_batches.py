"""Converts LogGroups to Arrow and Arrow to LogGroups, a batch at a time. Needs the extra `arrow`.

A LogGroup as a table: `__time__`, `__topic__`, `__source__`, a column `__tag__:name` for each tag,
then one for each key of the contents: text, or binary where not all of it is UTF-8; null where a
record lacks the key. The way back takes columns of any type, as text.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from raftwood.base.errors import InvalidConfiguration, InvalidInput, TooLarge
from raftwood.base.files import Buffer
from raftwood.loghub.errors import BatchTooLarge

if TYPE_CHECKING:
    import pyarrow

TIME: Final = "__time__"
TOPIC: Final = "__topic__"
SOURCE: Final = "__source__"
TAG_PREFIX: Final = "__tag__:"
STREAM_BYTES_MAX: Final = 16 << 20
RECORDS_MAX: Final = 1 << 20
"""Limit of one stream: some columns take no room, however many records there are."""
TEXT_BYTES_MAX: Final = 128 << 20
"""Limit of a stream's size as LogGroups, where each record repeats the names of its keys."""
_FIELDS_MAX: Final = 4096
_TAGS_MAX: Final = 1024


def import_arrow() -> Any:
    """Returns pyarrow, or raises an error that says how to install it."""
    try:
        import_module("numpy")
        return import_module("pyarrow")
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(
            "Arrow needs pyarrow and numpy: pip install 'raftwood[arrow]'"
        ) from error


def log_group_to_arrow(data: Buffer) -> "pyarrow.RecordBatch":
    """Turns a LogGroup's bytes into one record batch; `InvalidInput` if they are not a LogGroup."""
    arrow = import_arrow()
    columns = import_module("raftwood.loghub.arrow_columns").columns_of(data)
    count = columns.count
    _check_shared(columns)
    arrays = {TIME: arrow.array(columns.time_ns).cast(arrow.timestamp("ns"))}

    def share(name: str, value: bytes) -> None:
        arrays[name] = arrow.repeat(arrow.scalar(*_text_or_bytes(arrow, value)), count)

    share(TOPIC, columns.topic)
    share(SOURCE, columns.source)
    for key, value in columns.tags:
        share(_free_name(TAG_PREFIX + key.decode("utf-8", "replace"), arrays), value)
    for key, values in columns.values.items():
        name = _free_name(key.decode("utf-8", "replace"), arrays)
        arrays[name] = _as_text(arrow, values)
    return arrow.RecordBatch.from_pydict(arrays)


def _check_shared(columns: Any) -> None:
    """Checks the size of what the table repeats in each record and the group holds once."""
    count = columns.count
    size = len(columns.topic) + len(columns.source) + sum([len(each[1]) for each in columns.tags])
    if len(columns.tags) > _TAGS_MAX or (size + len(columns.tags)) * count > TEXT_BYTES_MAX:
        raise TooLarge(
            f"{count} records with {len(columns.tags)} tags, {size} bytes of topic, source and "
            "tags in each, make too large a table: read them as records"
        )


def _free_name(name: str, taken: dict[str, Any]) -> str:
    """Returns a column name that is free: a content may have the name of another column."""
    while name in taken:
        name += "_"
    return name


def _text_or_bytes(arrow: Any, value: bytes) -> tuple[Any, Any]:
    try:
        return value.decode(), arrow.string()
    except UnicodeDecodeError:
        return value, arrow.binary()


def _as_text(arrow: Any, values: Any) -> Any:
    """Turns binary values into text; Arrow checks the encoding."""
    try:
        return values.cast(arrow.string())
    except arrow.ArrowInvalid:
        return values


def read_arrow_stream(
    data: Buffer,
    *,
    bytes_max: int = STREAM_BYTES_MAX,
    records_max: int = RECORDS_MAX,
    is_new: bool = False,
) -> "list[pyarrow.RecordBatch]":
    """Returns the record batches of an untrusted stream, without copies, checked to the last
    offset.

    Refuses compressed buffers, because their real size is unknown, and types whose values can be
    far larger than the bytes sent; a producer may compress the whole stream instead. LogGroups made
    of the result stay within bounds. A stream that is not new may have more batches and fields,
    because release 0.1.0 accepted them.
    """
    arrow = import_arrow()
    if len(data) > bytes_max:
        raise BatchTooLarge(
            f"the Arrow stream has {len(data)} bytes, the limit is {bytes_max}: put less at once"
        )
    try:
        check = import_module("raftwood.loghub.arrow_checks")
        batches: list[Any] = check.checked_batches(
            data,
            fields_max=_FIELDS_MAX,
            records_max=records_max,
            text_bytes_max=TEXT_BYTES_MAX,
            is_new=is_new,
        )
    except (arrow.ArrowException, OSError, ValueError, UnicodeError) as error:
        raise InvalidInput(f"the body is no Arrow stream: {str(error)[:200]}") from error
    return batches


def arrow_to_log_groups(data: Buffer, *, received_s: int) -> list[bytes]:
    """Turns a stored stream into LogGroups, in order; a new one starts wherever topic, source or
    tags change.

    Records without a time get that of the batch's receipt.
    """
    batches = read_arrow_stream(data)
    encode = import_module("raftwood.loghub.arrow_columns").log_groups_of
    return [group for batch in batches for group in encode(batch, received_s=received_s)]


def write_arrow_stream(table: Any) -> bytes:
    """Encodes a record batch or a table as a stream that every gateway accepts."""
    arrow = import_arrow()
    if isinstance(table, arrow.RecordBatch):
        table = arrow.Table.from_batches([table])
    table = _without_views(arrow, table)
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def _without_views(arrow: Any, table: Any) -> Any:
    """Replaces view types, as polars makes them, by plain text."""
    plain = {arrow.string_view(): arrow.string(), arrow.binary_view(): arrow.binary()}
    if not any(field.type in plain for field in table.schema):
        return table
    return table.cast(
        arrow.schema([field.with_type(plain.get(field.type, field.type)) for field in table.schema])
    )
