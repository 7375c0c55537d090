"""Contents as the types that a user's schema says, as Spark's readers of text do it.

All values of a batch at once; where one of them is no such value, one by one, and the mode decides.
"""

from typing import Any, Final

import pyarrow
import pyarrow.compute
from pyarrow import types

from raftwood.base.errors import InvalidInput
from raftwood.pipeline.columns import Field
from raftwood.pipeline.options import Mode
from raftwood.pipeline.source.stored_rows import STRING, as_text

_BOOLEANS: Final = {"true": True, "false": False, "1": True, "0": False}


def cast_text(values: Any, field: Field, mode: Mode) -> tuple[Any, Any | None]:
    """The values in a field's type, and which rows stay where some are to be dropped."""
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
    if mode is Mode.FAILFAST and pyarrow.compute.any(is_bad).as_py():
        text = texts.filter(is_bad)[0].as_py()
        raise InvalidInput(f"{field.content} is {text[:60]!r}, which is no {kind}")
    return array, pyarrow.compute.invert(is_bad) if mode is Mode.DROPMALFORMED else None


def _is_bytes(kind: Any) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _cast(values: Any, kind: Any) -> Any:
    if _is_bytes(values.type) or types.is_string(values.type) or types.is_dictionary(values.type):
        values = as_text(values)
        if types.is_timestamp(kind) and kind.tz is not None:
            # Text without a zone is UTC, as all times of a pipeline are.
            return values.cast(pyarrow.timestamp(kind.unit)).cast(kind)
    elif types.is_timestamp(values.type) and types.is_timestamp(kind):
        if values.type.tz is None and kind.tz is not None:
            values = values.cast(pyarrow.timestamp(values.type.unit, "UTC"))
        return values.cast(kind, safe=False)
    return values.cast(kind)


def _one(text: str, kind: Any) -> Any:
    """One value by itself; None where it is no such value."""
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
