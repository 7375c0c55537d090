"""Converts Arrow's columns to keys and values and back, in batches; needs the extra `arrow`."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow
import pyarrow.compute

from raftwood.base.errors import InvalidInput, ProtocolError
from raftwood.zeppelin.pages import Page
from raftwood.zeppelin.resp import Word, as_bytes, number_word

ROWS_MAX = 16_384
"""Rows of a table that become words at a time."""
TIME = pyarrow.timestamp("ms", "UTC")


class KvRows(NamedTuple):
    """Keys, values and encoded times to live; `ends` is empty if no key expires."""

    keys: list[bytes]
    values: list[bytes]
    ends: list[bytes]


def columns_of(
    data: Any, *, key: str, value: str, ttl_ms: int | str | None = None
) -> Iterator[KvRows]:
    """Yields the rows of a table or a batch, some thousand at a time."""
    table = pyarrow.Table.from_batches([data]) if isinstance(data, pyarrow.RecordBatch) else data
    wanted = [key, value, *([ttl_ms] if isinstance(ttl_ms, str) else [])]
    for name in wanted:
        if name not in table.column_names:
            raise InvalidInput(
                f"there is no column {name!r}: the table has {', '.join(table.column_names)}"
            )
    for batch in table.select(list(dict.fromkeys(wanted))).to_batches(max_chunksize=ROWS_MAX):
        if batch.num_rows:
            yield KvRows(
                binary_words(batch.column(key), key),
                binary_words(batch.column(value), value),
                _ends(batch, ttl_ms),
            )


def _ends(batch: Any, ttl_ms: int | str | None) -> list[bytes]:
    if ttl_ms is None:
        return []
    if isinstance(ttl_ms, int):
        if ttl_ms <= 0:
            raise InvalidInput(f"ttl_ms is {ttl_ms}: give 1 or more milliseconds")
        return [number_word(ttl_ms)] * int(batch.num_rows)
    return encoded_words(batch.column(ttl_ms))


def encoded_words(numbers: Any) -> list[bytes]:
    """Encodes milliseconds for a request; null becomes 0: the key does not expire."""
    whole = pyarrow.compute.fill_null(numbers.cast(pyarrow.int64()), 0)
    if len(whole) and pyarrow.compute.min(whole).as_py() < 0:
        raise InvalidInput("a time to live is below 0: give milliseconds from 0 on")
    return [number_word(each) for each in whole.to_pylist()]


def binary_words(column: Any, name: str) -> list[bytes]:
    """Returns a column as words: texts and binaries unchanged, other types as Arrow writes them."""
    if column.null_count:
        raise InvalidInput(f"column {name!r} has {column.null_count} nulls: leave such rows out")
    kind = column.type
    if pyarrow.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
    if not (pyarrow.types.is_binary(column.type) or pyarrow.types.is_large_binary(column.type)):
        try:
            column = column.cast(pyarrow.large_string()).cast(pyarrow.large_binary())
        except pyarrow.ArrowInvalid as error:
            raise InvalidInput(f"column {name!r} is no text: {error}") from error
        except pyarrow.ArrowNotImplementedError as error:
            raise InvalidInput(f"column {name!r} cannot be made a text: {error}") from error
    return column.to_pylist()  # type: ignore[no-any-return]


def keys_of(keys: "Iterable[Word] | Any") -> list[bytes]:
    if isinstance(keys, pyarrow.Array | pyarrow.ChunkedArray):
        return binary_words(keys, "key")
    return [as_bytes(key) for key in keys]


def table_of(keys: list[bytes], values: list[bytes | None]) -> Any:
    return pyarrow.table(
        {
            "key": pyarrow.array(keys, pyarrow.binary()),
            "value": pyarrow.array(values, pyarrow.binary()),
        }
    )


def batch_of_page(page: Page) -> Any:
    """Returns the columns of a page without copying; `expires` is null if a key does not expire."""
    data = pyarrow.py_buffer(page.data)
    columns = {
        "key": _binaries(data, page.count, page.key_offsets_start, page.keys_start, page.key_bytes),
        "value": _binaries(
            data, page.count, page.value_offsets_start, page.values_start, page.value_bytes
        ),
        "expires": _times(data, page),
    }
    return pyarrow.RecordBatch.from_pydict(columns)


def _binaries(data: Any, count: int, offsets_start: int, start: int, size: int) -> Any:
    offsets = data.slice(offsets_start, 4 * (count + 1))
    words = pyarrow.Array.from_buffers(
        pyarrow.binary(), count, [None, offsets, data.slice(start, size)]
    )
    try:
        words.validate(full=True)
    except pyarrow.ArrowInvalid as error:
        raise ProtocolError(f"a page of a checkpoint has no such columns: {error}") from error
    return words


def _times(data: Any, page: Page) -> Any:
    if not page.has_ends:
        return pyarrow.nulls(page.count, TIME)
    ends = pyarrow.Array.from_buffers(
        pyarrow.int64(), page.count, [None, data.slice(page.ends_start, 8 * page.count)]
    )
    stays = pyarrow.compute.equal(ends, 0)
    return pyarrow.compute.if_else(stays, None, ends).cast(TIME)
