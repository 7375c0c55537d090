"""Requests as Redis's clients send them, out of bytes as they arrive.

A request is an array of bulk strings, or a line of words for people at a terminal. Most requests
come whole, many in one piece, and with arguments that hold no line break: those are cut up by
`split`, and each argument's length is compared with what was announced. All else (what is cut off,
large, in lines, or wrong) is read step by step. Both read the same, which a test holds.

hiredis, which reads servers' answers, takes half the time, until its input is made safe for it: it
allocates what an array announces, nests, and knows more kinds of things than a request has.
"""

import re
from typing import Final

import msgspec

ARGUMENTS_MAX: Final = 1 << 20
BULK_BYTES_MAX: Final = 16 << 20
REQUEST_BYTES_MAX: Final = 32 << 20
LINE_BYTES_MAX: Final = 64 << 10
"""Of an inline request, and of what announces a number."""

_NUMBER: Final = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_BREAK: Final = b"\r\n"
_SMALL: Final = 1024
_BULK_HEADS: Final = tuple(b"$%d" % length for length in range(_SMALL))
_head_of: Final = _BULK_HEADS.__getitem__
_ARRAY_HEADS: Final = {b"*%d" % count: count for count in range(1, _SMALL)}

_WORD: Final = re.compile(
    rb"""\s*(?:"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^'\\]|\\.)*)'|(?P<plain>[^\s"']+))"""
    rb"""(?=\s|\Z)""",
    re.DOTALL,
)
_ESCAPE: Final = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}


class RequestLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one client may send at a time."""

    arguments_max: int = ARGUMENTS_MAX
    bulk_bytes_max: int = BULK_BYTES_MAX
    request_bytes_max: int = REQUEST_BYTES_MAX


BEFORE_LOGIN: Final = RequestLimits(
    arguments_max=10, bulk_bytes_max=16 << 10, request_bytes_max=64 << 10
)
"""As in Redis: who has not said who it is makes the server keep next to nothing."""


class Requests:
    """One client's requests. After a failure there are no more: say it, and close."""

    __slots__ = ("_arguments", "_arrived", "_count", "_taken_bytes", "failure", "limits")

    def __init__(self, limits: RequestLimits = BEFORE_LOGIN) -> None:
        self.limits = limits
        self.failure: str | None = None
        """What the client did wrong, as Redis words it."""
        self._arrived = bytearray()
        """What is not read yet."""
        self._arguments: list[bytes] = []
        self._count = 0
        """How many arguments the request under way has; 0 between requests."""
        self._taken_bytes = 0
        """Of the request under way, in its arguments."""

    @property
    def is_between(self) -> bool:
        """Whether nothing of a request has come yet."""
        return not self._arrived and not self._count

    def feed(self, data: bytes) -> list[list[bytes]]:
        """The requests that are complete by now; none of them is empty."""
        begun: list[list[bytes]] = []
        if self._arrived or self._count or self.failure is not None:
            self._arrived += data
            begun = self._step_by_step(is_one=True)
            if not begun or self.failure is not None:
                return begun
            # What was cut off is whole: those behind it are cut up again.
            data = bytes(self._arrived)
            self._arrived.clear()
        requests, read = _cut(data)
        requests[:0] = begun
        if read < len(data):
            self._arrived += memoryview(data)[read:]
            requests += self._step_by_step()
        return requests

    def add(self, data: bytes) -> None:
        """Keep what has come for `take_one`, or for the next `feed`."""
        self._arrived += data

    def take_one(self) -> list[list[bytes]]:
        """The next request alone: what it does may change what the one behind it may be."""
        return self._step_by_step(is_one=True)

    def _step_by_step(self, *, is_one: bool = False) -> list[list[bytes]]:
        requests: list[list[bytes]] = []
        arrived = self._arrived
        at = 0
        while self.failure is None and at < len(arrived):
            before = at
            if self._count:
                at = self._bulk(at)
            elif arrived[at] == 0x2A:
                at = self._array(at)
            else:
                at = self._line(at)
            if self._arguments and len(self._arguments) >= self._count:
                requests.append(self._arguments)
                self._arguments, self._count, self._taken_bytes = [], 0, 0
            if at == before or (is_one and requests):
                break
        unread = 0 if is_one and requests else len(arrived) - at
        if self.failure is None and self._taken_bytes + unread > self._bytes_max():
            self.failure = "Protocol error: too big request"
        if self.failure is not None:
            arrived.clear()
            self._arguments, self._count = [], 0
        else:
            del arrived[:at]
        return requests

    def _bytes_max(self) -> int:
        # The break behind the last argument, and its head, count as well.
        return self.limits.request_bytes_max + 64

    def _number(self, at: int, kind: str) -> tuple[int | None, int]:
        """What a head announces, and where it ends; where it began while it has no end yet."""
        arrived = self._arrived
        end = arrived.find(_BREAK, at, at + LINE_BYTES_MAX)
        if end < 0:
            if len(arrived) - at >= LINE_BYTES_MAX:
                self.failure = f"Protocol error: too big {kind} count string"
            return None, at
        digits = bytes(arrived[at + 1 : end])
        if not _NUMBER.fullmatch(digits):
            self.failure = _INVALID[kind]
            return None, at
        return int(digits), end + 2

    def _array(self, at: int) -> int:
        count, end = self._number(at, "mbulk")
        if count is None:
            return at
        if count > self.limits.arguments_max:
            self.failure = (
                "Protocol error: unauthenticated multibulk length"
                if self.limits is BEFORE_LOGIN
                else _INVALID["mbulk"]
            )
            return at
        # Redis takes no notice of an array without anything in it.
        self._count = max(count, 0)
        return end

    def _bulk(self, at: int) -> int:
        arrived = self._arrived
        if arrived[at] != 0x24:
            self.failure = f"Protocol error: expected '$', got '{_shown(arrived[at])}'"
            return at
        length, begin = self._number(at, "bulk")
        if length is None:
            return at
        if not 0 <= length <= self.limits.bulk_bytes_max:
            is_stranger = self.limits is BEFORE_LOGIN and length > 0
            self.failure = (
                "Protocol error: unauthenticated bulk length" if is_stranger else _INVALID["bulk"]
            )
            return at
        if begin + length + 2 > len(arrived):
            return at
        self._arguments.append(bytes(memoryview(arrived)[begin : begin + length]))
        self._taken_bytes += length + 16
        return begin + length + 2

    def _line(self, at: int) -> int:
        arrived = self._arrived
        end = arrived.find(b"\n", at, at + LINE_BYTES_MAX)
        if end < 0:
            if len(arrived) - at >= LINE_BYTES_MAX:
                self.failure = "Protocol error: too big inline request"
            return at
        words = split_line(bytes(arrived[at:end]).removesuffix(b"\r"))
        if words is None:
            self.failure = "Protocol error: unbalanced quotes in request"
            return at
        self._arguments = words
        return end + 1


_INVALID: Final = {
    "mbulk": "Protocol error: invalid multibulk length",
    "bulk": "Protocol error: invalid bulk length",
}


def _cut(data: bytes) -> tuple[list[list[bytes]], int]:
    """The requests at the beginning that are plain, and how many bytes they are."""
    requests: list[list[bytes]] = []
    parts = data.split(_BREAK)
    at, end = 0, len(parts) - 1
    counts, heads = _ARRAY_HEADS, _BULK_HEADS
    try:
        while at < end:
            stop = at + 1 + 2 * counts[parts[at]]
            if stop > end:
                break
            # Those of GET and SET are not worth a loop.
            if stop - at == 5:
                first, second = parts[at + 2], parts[at + 4]
                if parts[at + 1] != heads[len(first)] or parts[at + 3] != heads[len(second)]:
                    break
                requests.append([first, second])
            elif stop - at == 7:
                first, second, third = parts[at + 2], parts[at + 4], parts[at + 6]
                if (
                    parts[at + 1] != heads[len(first)]
                    or parts[at + 3] != heads[len(second)]
                    or parts[at + 5] != heads[len(third)]
                ):
                    break
                requests.append([first, second, third])
            else:
                arguments = parts[at + 2 : stop : 2]
                if parts[at + 1 : stop : 2] != list(map(_head_of, map(len, arguments))):
                    break
                requests.append(arguments)
            at = stop
    except (KeyError, IndexError):
        # A large number, or no request of this kind.
        pass
    if at == end and not parts[end]:
        return requests, len(data)
    return requests, sum(map(len, parts[:at])) + 2 * at


def split_line(line: bytes) -> list[bytes] | None:
    """The words of an inline request, quoted as Redis takes them; None where a quote has no end."""
    words: list[bytes] = []
    at, line = 0, line.rstrip()
    while at < len(line):
        found = _WORD.match(line, at)
        if found is None:
            return None
        at = found.end()
        if (quoted := found["double"]) is not None:
            words.append(_ESCAPE.sub(_unescaped, quoted))
        elif (quoted := found["single"]) is not None:
            words.append(quoted.replace(b"\\'", b"'"))
        else:
            words.append(found["plain"])
    return words


def _unescaped(found: re.Match[bytes]) -> bytes:
    if found[1] is not None:
        return bytes.fromhex(found[1].decode())
    return _ESCAPED.get(found[2], found[2])


def _shown(byte: int) -> str:
    return chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}"
