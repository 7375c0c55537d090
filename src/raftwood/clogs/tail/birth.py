"""When a file was made: what tells it from another one that got its inode, whatever is in them.

Python's `os.stat` does not tell it on Linux, so the kernel is asked by `statx`.
"""

import ctypes
import struct
from collections.abc import Callable
from typing import Final

_NS: Final = 1_000_000_000
_EMPTY_PATH: Final = 0x1000
_BIRTH: Final = 0x800
_ANSWER_BYTES: Final = 256
_MASK: Final = struct.Struct("=I")
_TIME: Final = struct.Struct("=qI")
_TIME_AT: Final = 80


def _found() -> Callable[..., int] | None:
    try:
        call = ctypes.CDLL(None).statx
    except (AttributeError, OSError):
        return None  # another system, or an old one
    call.argtypes = (
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.c_void_p,
    )
    found: Callable[..., int] = call
    return found


_statx: Final = _found()


def birth_ns(descriptor: int) -> int:
    """Nanoseconds since 1970; 0 where the system or the file system does not tell."""
    if _statx is None:
        return 0
    answer = ctypes.create_string_buffer(_ANSWER_BYTES)
    if _statx(descriptor, b"", _EMPTY_PATH, _BIRTH, answer) != 0:
        return 0
    (mask,) = _MASK.unpack_from(answer)
    if not mask & _BIRTH:
        return 0
    seconds, nanoseconds = _TIME.unpack_from(answer, _TIME_AT)
    return int(seconds) * _NS + int(nanoseconds)
