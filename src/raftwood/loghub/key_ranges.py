"""MD5 key ranges: where a key belongs, how a range is cut. Keys are 32 hexadecimal digits."""

import hashlib
import re
from typing import Final

from raftwood.loghub.errors import InvalidParameter
from raftwood.loghub.model import KEY_END, KEY_FIRST

_SPACE: Final = 1 << 128
_KEY: Final = re.compile(r"[0-9a-f]{32}")


def hash_key(key: bytes) -> str:
    """Where a producer's key stands among the ranges."""
    return hashlib.md5(key, usedforsecurity=False).hexdigest()


def checked_key(text: str) -> str:
    """A key as SLS clients write it, in any case."""
    key = text.lower()
    if not _KEY.fullmatch(key):
        raise InvalidParameter(f"key {text[:60]!r} is none: give 32 hexadecimal digits")
    return key


def contains(begin: str, end: str, key: str) -> bool:
    """Whether a key belongs to a range; the very last key belongs to the last one."""
    return begin <= key < end or key == end == KEY_END


def even_ranges(count: int) -> list[tuple[str, str]]:
    """The whole space in so many ranges of the same size, more or less."""
    bounds = [f"{_SPACE * number // count:032x}" for number in range(count)]
    return list(zip(bounds, [*bounds[1:], KEY_END], strict=True))


def middle(begin: str, end: str) -> str:
    """The key that cuts a range in two halves."""
    return f"{(int(begin, 16) + int(end, 16) + 1) // 2:032x}"


def check_cut(begin: str, end: str, key: str) -> None:
    """`InvalidParameter` where a cut at the key would leave one side empty."""
    if not begin < key < end:
        raise InvalidParameter(
            f"key {key} does not cut the range {begin} to {end} in two: give one inside it"
        )


def covers_all(ranges: list[tuple[str, str]]) -> bool:
    """Whether ranges follow one another from the first key to the end, without gap or overlap."""
    expected = KEY_FIRST
    for begin, end in sorted(ranges):
        if begin != expected or end <= begin:
            return False
        expected = end
    return expected == KEY_END
