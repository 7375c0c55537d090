"""Arrays that are the same in most record batches, made once and cut to length.

Batches of one task differ in how many records they have, and hardly in what all records share.
"""

from collections.abc import Callable, Hashable
from typing import Any, Final

import numpy
import pyarrow

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
    """A value so many times."""
    key = ("value", value, kind)
    return _cut(key, count, lambda: pyarrow.repeat(pyarrow.scalar(value, kind), count))


def steps(step: int, count: int) -> Any:
    """So many numbers of 32 bits from 0 on."""
    key = ("steps", step)
    return _cut(key, count, lambda: pyarrow.array(_numbers(count) * numpy.int32(step)))


def _numbers(count: int) -> Any:
    return numpy.arange(count, dtype=numpy.int32)


def repeated_names(names: tuple[str, ...], count: int) -> Any:
    """All names in turn, so many times."""

    def make() -> Any:
        which = numpy.tile(_numbers(len(names)), count)
        return pyarrow.array(names, _STRING).take(pyarrow.array(which))

    return _cut(("names", names), len(names) * count, make)
