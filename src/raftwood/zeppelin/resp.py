"""Redis's protocol, RESP2 and RESP3, for servers and for clients. No I/O.

`Requests` parses what clients send. A request is an array of bulk strings, or a line of words from
a person at a terminal. Most requests arrive whole, many at a time, with arguments without line
breaks: `split` cuts these up, and each argument's length is compared with the announced one. All
others (cut off, large, inline or wrong) are read step by step. A test holds that both ways read the
same.

hiredis, a parser of servers' answers, takes half the time, but not once its input is made safe: it
allocates whatever an array announces, nests, and accepts types that a request cannot have.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from raftwood.base.errors import InvalidInput, ProtocolError

ARGUMENTS_MAX: Final = 1 << 20
REQUEST_BULK_BYTES_MAX: Final = 16 << 20
REQUEST_BYTES_MAX: Final = 32 << 20
LINE_BYTES_MAX: Final = 64 << 10
"""Bytes of an inline request, and of a line that announces a number."""

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
    """Limits of one client's request."""

    arguments_max: int = ARGUMENTS_MAX
    bulk_bytes_max: int = REQUEST_BULK_BYTES_MAX
    request_bytes_max: int = REQUEST_BYTES_MAX


BEFORE_LOGIN: Final = RequestLimits(
    arguments_max=10, bulk_bytes_max=16 << 10, request_bytes_max=64 << 10
)
"""As in Redis: a client that has not logged in makes the server buffer next to nothing."""


class Requests:
    """Parses one client's requests. After a failure it parses no more: send it and close."""

    __slots__ = ("_arguments", "_arrived", "_count", "_taken_bytes", "failure", "limits")

    def __init__(self, limits: RequestLimits = BEFORE_LOGIN) -> None:
        self.limits = limits
        self.failure: str | None = None
        """The client's protocol error, in Redis's words."""
        self._arrived = bytearray()
        """Bytes that arrived and are not parsed yet."""
        self._arguments: list[bytes] = []
        self._count = 0
        """Argument count of the request under way; 0 between requests."""
        self._taken_bytes = 0
        """Bytes in the arguments of the request under way."""

    @property
    def is_between(self) -> bool:
        """Whether no part of a request is pending."""
        return not self._arrived and not self._count

    def feed(self, data: bytes) -> list[list[bytes]]:
        """Takes bytes; returns the requests that they complete, none of them empty."""
        begun: list[list[bytes]] = []
        if self._arrived or self._count or self.failure is not None:
            self._arrived += data
            begun = self._step_by_step(is_one=True)
            if not begun or self.failure is not None:
                return begun
            # The cut-off request is whole now: the requests behind it are cut up again.
            data = bytes(self._arrived)
            self._arrived.clear()
        requests, read = _cut_requests(data)
        requests[:0] = begun
        if read < len(data):
            self._arrived += memoryview(data)[read:]
            requests += self._step_by_step()
        return requests

    def add(self, data: bytes) -> None:
        """Stores bytes for `take_one`, or for the next `feed`."""
        self._arrived += data

    def take_one(self) -> list[list[bytes]]:
        """Returns only the next request: its effect may change the limits of the one behind it."""
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
        # The line break behind the last argument, and its head, count as well.
        return self.limits.request_bytes_max + 64

    def _number(self, at: int, kind: str) -> tuple[int | None, int]:
        """Reads a head: returns its number and end; `at` itself while the head is incomplete."""
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
        # Redis ignores an empty array.
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


def _cut_requests(data: bytes) -> tuple[list[list[bytes]], int]:
    """Returns the plain requests at the beginning, and how many bytes they take."""
    requests: list[list[bytes]] = []
    parts = data.split(_BREAK)
    at, end = 0, len(parts) - 1
    counts, heads = _ARRAY_HEADS, _BULK_HEADS
    try:
        while at < end:
            stop = at + 1 + 2 * counts[parts[at]]
            if stop > end:
                break
            # Requests with up to two arguments, such as GET and SET, are checked without a loop.
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
        # A large number, or another kind of request.
        pass
    if at == end and not parts[end]:
        return requests, len(data)
    return requests, sum(map(len, parts[:at])) + 2 * at


def split_line(line: bytes) -> list[bytes] | None:
    """Splits an inline request into words, with Redis's quoting; None if a quote is not closed."""
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


# Answers as bytes: the parts that both protocol versions share, and a dialect for the others.

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
    """Encodes an error of one line; its first word is its kind."""
    one_line = words[:_TEXT_MAX].replace("\r", " ").replace("\n", " ")
    return b"-%b\r\n" % one_line.encode("utf-8", "replace")


def array(items: Sequence[bytes]) -> bytes:
    """Encodes an array of encoded answers."""
    return b"*%d\r\n%b" % (len(items), b"".join(items))


def bulks(items: Sequence[bytes]) -> bytes:
    return array([b"$%d\r\n%b\r\n" % (len(item), item) for item in items])


class Dialect:
    """The answers that differ between RESP2 and RESP3."""

    __slots__ = ("null", "null_array", "version")

    def __init__(self, version: int) -> None:
        self.version = version
        is_third = version == 3
        self.null = b"_\r\n" if is_third else b"$-1\r\n"
        self.null_array = b"_\r\n" if is_third else b"*-1\r\n"

    def maybe(self, data: bytes | None) -> bytes:
        return self.null if data is None else b"$%d\r\n%b\r\n" % (len(data), data)

    def map(self, pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Encodes a map of encoded keys and values; RESP2 uses an array of both in turn."""
        items = list(pairs)
        body = b"".join(key + value for key, value in items)
        if self.version == 3:
            return b"%%%d\r\n%b" % (len(items), body)
        return b"*%d\r\n%b" % (2 * len(items), body)

    def set(self, items: Sequence[bytes]) -> bytes:
        mark = b"~" if self.version == 3 else b"*"
        return b"%b%d\r\n%b" % (mark, len(items), b"".join(items))

    def lines(self, words: str) -> bytes:
        """Encodes text for people; as a verbatim string in RESP3."""
        body = words.encode()
        if self.version == 3:
            return b"=%d\r\ntxt:%b\r\n" % (len(body) + 4, body)
        return bulk(body)


RESP2: Final = Dialect(2)
RESP3: Final = Dialect(3)


# Requests as bytes, and the types of keys, values and other words.

Word: TypeAlias = bytes | bytearray | memoryview | str | int | float


def as_bytes(word: Word) -> bytes:
    """Encodes a word: text in UTF-8, numbers as Redis writes them."""
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
    """Encodes a number as a word of a request."""
    digits = b"%d" % number
    return b"$%d\r\n%b\r\n" % (len(digits), digits)


def request(words: Sequence[bytes]) -> bytes:
    """Encodes a command."""
    return b"*%d\r\n%b" % (len(words), b"".join([b"$%d\r\n%b\r\n" % (len(w), w) for w in words]))


def requests(commands: Iterable[Sequence[bytes]]) -> bytes:
    return b"".join(map(request, commands))


# Parses a server's answers from bytes as they arrive, in both versions of the protocol.
#
# Most answers arrive whole and hold no line break: `split` cuts these up. All others are read step
# by step, and the parsed part of a long answer is not parsed again when more of it arrives. A test
# holds that both ways read the same.

ANSWER_BULK_BYTES_MAX: Final = 64 << 20
ITEMS_MAX: Final = 1 << 20
DEPTH_MAX: Final = 8

_OK: Final = b"+OK"
_NULLS: Final = (b"_", b"$-1", b"*-1")


class ErrorAnswer:
    """The error that a command was refused with; the first word is its kind."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    @property
    def kind(self) -> str:
        return self.text.partition(" ")[0]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ErrorAnswer) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"ErrorAnswer({self.text!r})"


class _Group:
    """A nested answer, some of whose items have arrived."""

    __slots__ = ("count", "is_map", "items")

    def __init__(self, count: int, *, is_map: bool) -> None:
        self.count = count
        self.is_map = is_map
        self.items: list[Any] = []

    def made(self) -> Any:
        if not self.is_map:
            return self.items
        try:
            return dict(zip(self.items[::2], self.items[1::2], strict=True))
        except TypeError:
            raise ProtocolError("a server answered a map with a key that is no value") from None


class Answers:
    """Parses one connection's answers; raises `ProtocolError` if the server breaks the protocol.

    Simple strings are `str`, bulk strings `bytes`; an error is an `ErrorAnswer`.
    """

    __slots__ = ("_arrived", "_groups")

    def __init__(self) -> None:
        self._arrived = bytearray()
        self._groups: list[_Group] = []

    def feed(self, data: bytes) -> list[Any]:
        """Takes bytes; returns the answers that they complete."""
        if self._arrived or self._groups:
            self._arrived += data
            return self._step_by_step()
        answers, read = _cut_answers(data)
        if read < len(data):
            self._arrived += memoryview(data)[read:]
            answers += self._step_by_step()
        return answers

    def _step_by_step(self) -> list[Any]:
        answers: list[Any] = []
        arrived = self._arrived
        at = 0
        while True:
            end = arrived.find(_BREAK, at, at + LINE_BYTES_MAX)
            if end < 0:
                if len(arrived) - at >= LINE_BYTES_MAX:
                    raise ProtocolError("a server answered a line without an end")
                break
            mark, head = bytes(arrived[at : at + 1]), bytes(arrived[at + 1 : end])
            if mark in (b"$", b"="):
                length = _number(head)
                if length > ANSWER_BULK_BYTES_MAX:
                    raise ProtocolError(f"a server answered a string of {length} bytes")
                if length >= 0:
                    begin, end = end + 2, end + 2 + length
                    if len(arrived) < end + 2:
                        break
                    item: Any = bytes(memoryview(arrived)[begin:end])
                    item = item[4:] if mark == b"=" else item
                else:
                    item = None
            elif mark in (b"*", b"~", b"%", b">"):
                count = _number(head) * (2 if mark == b"%" else 1)
                if count > ITEMS_MAX or len(self._groups) >= DEPTH_MAX:
                    raise ProtocolError(f"a server answered {count} items, or too deep")
                if count > 0:
                    self._groups.append(_Group(count, is_map=mark == b"%"))
                    at = end + 2
                    continue
                item = None if count < 0 else {} if mark == b"%" else []
            else:
                item = _line(mark, head)
            at = end + 2
            self._add(item, answers)
        del arrived[:at]
        return answers

    def _add(self, item: Any, answers: list[Any]) -> None:
        groups = self._groups
        while groups:
            group = groups[-1]
            group.items.append(item)
            if len(group.items) < group.count:
                return
            item = group.made()
            groups.pop()
        answers.append(item)


def _number(digits: bytes) -> int:
    if not _NUMBER.fullmatch(digits):
        raise ProtocolError(f"a server answered {digits[:40]!r} where a number belongs")
    return int(digits)


def _line(mark: bytes, head: bytes) -> Any:
    match mark:
        case b"+":
            return head.decode("utf-8", "replace")
        case b"-":
            return ErrorAnswer(head.decode("utf-8", "replace"))
        case b":":
            return _number(head)
        case b"_":
            return None
        case b"#":
            return head == b"t"
        case b",":
            try:
                return float(head)
            except ValueError:
                pass
    raise ProtocolError(f"a server answered {(mark + head)[:40]!r}")


def _cut_answers(data: bytes) -> tuple[list[Any], int]:
    """Returns the plain answers at the beginning, and how many bytes they take."""
    answers: list[Any] = []
    parts = data.split(_BREAK)
    at, end = 0, len(parts) - 1
    while at < end:
        head = parts[at]
        mark = head[:1]
        if head == _OK:
            answers.append("OK")
            at += 1
        elif mark == b"$" and at + 1 < end and head == b"$%d" % len(parts[at + 1]):
            answers.append(parts[at + 1])
            at += 2
        elif head in _NULLS:
            answers.append(None)
            at += 1
        elif mark in (b":", b"-"):
            answers.append(_line(mark, head[1:]))
            at += 1
        elif mark == b"*" and (found := _strings(parts, at, end)) is not None:
            answers.append(found)
            at += 1 + 2 * len(found) - found.count(None)
        else:
            break
    if at == end and not parts[end]:
        return answers, len(data)
    return answers, sum(map(len, parts[:at])) + 2 * at


def _strings(parts: list[bytes], at: int, end: int) -> list[bytes | None] | None:
    """Returns an array of strings and nulls; None if it is something else, or incomplete."""
    head = parts[at][1:]
    if not _NUMBER.fullmatch(head) or not 0 < int(head) < (end - at):
        return None
    items: list[bytes | None] = []
    at += 1
    for _ in range(int(head)):
        if at >= end:
            return None
        if parts[at] == b"_":
            items.append(None)
            at += 1
        elif at + 1 < end and parts[at] == b"$%d" % len(parts[at + 1]):
            items.append(parts[at + 1])
            at += 2
        else:
            return None
    return items
