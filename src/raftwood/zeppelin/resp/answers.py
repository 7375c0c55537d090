"""Answers as bytes: what both versions of the protocol share, and a dialect for what they don't."""

from collections.abc import Iterable, Sequence
from typing import Final

OK: Final = b"+OK\r\n"
EMPTY_ARRAY: Final = b"*0\r\n"
_INTEGERS: Final = tuple(b":%d\r\n" % number for number in range(1024))
_TEXT_MAX: Final = 512


def integer(number: int) -> bytes:
    return _INTEGERS[number] if 0 <= number < 1024 else b":%d\r\n" % number


def bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


def text(words: str) -> bytes:
    return bulk(words.encode())


def simple(words: str) -> bytes:
    return b"+%b\r\n" % words.encode()


def error(words: str) -> bytes:
    """An error; its first word is its kind. It is one line, whatever it was made of."""
    one_line = words[:_TEXT_MAX].replace("\r", " ").replace("\n", " ")
    return b"-%b\r\n" % one_line.encode("utf-8", "replace")


def array(items: Sequence[bytes]) -> bytes:
    """Of answers that are encoded."""
    return b"*%d\r\n%b" % (len(items), b"".join(items))


def bulks(items: Sequence[bytes]) -> bytes:
    return array([b"$%d\r\n%b\r\n" % (len(item), item) for item in items])


class Dialect:
    """What the two versions say in their own ways."""

    __slots__ = ("null", "null_array", "version")

    def __init__(self, version: int) -> None:
        self.version = version
        is_third = version == 3
        self.null = b"_\r\n" if is_third else b"$-1\r\n"
        self.null_array = b"_\r\n" if is_third else b"*-1\r\n"

    def maybe(self, data: bytes | None) -> bytes:
        return self.null if data is None else b"$%d\r\n%b\r\n" % (len(data), data)

    def map(self, pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Of keys and values that are encoded; the second version has arrays of both in turn."""
        items = list(pairs)
        body = b"".join(key + value for key, value in items)
        if self.version == 3:
            return b"%%%d\r\n%b" % (len(items), body)
        return b"*%d\r\n%b" % (2 * len(items), body)

    def set(self, items: Sequence[bytes]) -> bytes:
        mark = b"~" if self.version == 3 else b"*"
        return b"%b%d\r\n%b" % (mark, len(items), b"".join(items))

    def lines(self, words: str) -> bytes:
        """Text for people: verbatim, where there is such a thing."""
        body = words.encode()
        if self.version == 3:
            return b"=%d\r\ntxt:%b\r\n" % (len(body) + 4, body)
        return bulk(body)


RESP2: Final = Dialect(2)
RESP3: Final = Dialect(3)
