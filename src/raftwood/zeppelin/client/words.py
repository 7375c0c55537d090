"""Requests as bytes, and what may be given as a key, a value or another word."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from raftwood.base.errors import InvalidInput

Word: TypeAlias = bytes | bytearray | memoryview | str | int | float


def as_bytes(word: Word) -> bytes:
    """Texts in UTF-8, numbers as Redis writes them."""
    if type(word) is bytes:
        return word
    if isinstance(word, str):
        return word.encode()
    if isinstance(word, bool) or not isinstance(word, bytes | bytearray | memoryview | int | float):
        raise InvalidInput(f"{type(word).__name__} is no word: give bytes, a text or a number")
    return b"%d" % word if isinstance(word, int) else _plain(word)


def _plain(word: bytes | bytearray | memoryview | float) -> bytes:
    return repr(word).encode() if isinstance(word, float) else bytes(word)


def number_word(number: int) -> bytes:
    """A number as it stands in a request."""
    digits = b"%d" % number
    return b"$%d\r\n%b\r\n" % (len(digits), digits)


def request(words: Sequence[bytes]) -> bytes:
    """A command as nodes take it."""
    return b"*%d\r\n%b" % (len(words), b"".join([b"$%d\r\n%b\r\n" % (len(w), w) for w in words]))


def requests(commands: Iterable[Sequence[bytes]]) -> bytes:
    return b"".join(map(request, commands))
