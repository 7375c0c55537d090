"""Bounds on decoding: checks the encoded bytes before any object is made of them.

A few bytes of JSON or protobuf can stand for objects of many times their size: `"a":1,` is a text,
a number and a place in a table. So each record is checked first: the check counts the characters
that give a document its structure, in windows, and stops at the bound. A body of many records is
split into them, so that the event loop runs between two slices.
"""

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Final, TypeAlias

import msgspec

from raftwood.base.errors import InvalidInput
from raftwood.base.protobuf_bytes import read_varint
from raftwood.loghub.errors import BatchTooLarge

RECORDS_MAX: Final = 100_000
"""Limit of one request."""
SLICE_BYTES: Final = 256 << 10
"""Decoded in one step: a millisecond or two for usual records, and a few at worst."""
_PAUSE_FIELDS: Final = 4_096
_WINDOW_BYTES: Final = 64 << 10
_MARKS: Final = b'"[]{},:'
_NO_MARKS: Final = bytes(set(range(256)) - set(_MARKS))
_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


class DecodeBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one record, and of a document of many records."""

    keys_max: int = 4_096
    values_max: int = 16_384
    """Numbers, texts, lists and maps of one record, at any depth."""
    nesting_max: int = 64
    request_values_max: int = 500_000
    """Values of a document that must be scanned as a whole before its records are known."""

    def too_many(self, name: str, what: str) -> BatchTooLarge:
        limit, setting = {
            "keys": (self.keys_max, "record_keys_max"),
            "values": (self.values_max, "record_values_max"),
            "levels of nesting": (self.nesting_max, "record_nesting_max"),
        }[what]
        return BatchTooLarge(
            f"{name} has more than {limit} {what}: make it smaller, or raise ways_in.{setting}"
        )


DEFAULT_BOUNDS: Final = DecodeBounds()


# JSON


def check_json(data: bytes, bounds: DecodeBounds, name: str, number: int = 0) -> None:
    """`BatchTooLarge` if a record exceeds a bound. Whether it is JSON at all is left to the
    decoder.

    `name` may have a placeholder for the record's number, filled in only for an error.
    """
    # Brackets within texts count too, so this is never too low; most records end here.
    brackets = data.count(b"[") + data.count(b"{")
    if brackets <= bounds.nesting_max:
        # A value takes two bytes at least, a key more.
        most = len(data) >> 1
        if most > bounds.keys_max or most > bounds.values_max:
            most = brackets + data.count(b",") + 1
        if most <= bounds.keys_max and most <= bounds.values_max:
            return
    name = name.format(number)
    keys = values = depth = 0
    for marks in structure(data):
        keys += marks.count(b":")
        values += marks.count(b",") + marks.count(b"[") + marks.count(b"{")
        if keys > bounds.keys_max:
            raise bounds.too_many(name, "keys")
        if values > bounds.values_max:
            raise bounds.too_many(name, "values")
        steps = map(_STEPS.__getitem__, marks.translate(None, b",:"))
        depths = list(accumulate(steps, initial=depth))
        if max(depths) > bounds.nesting_max:
            raise bounds.too_many(name, "levels of nesting")
        depth = depths[-1]


def check_json_document(data: bytes, bounds: DecodeBounds, name: str) -> Iterator[None]:
    """Like `check_json`, for a document of many records; yields so that the loop can run."""
    most = bounds.request_values_max
    if data.count(b",") + data.count(b"[") + data.count(b"{") <= most:
        return
    values = 0
    for marks in structure(data):
        values += marks.count(b",") + marks.count(b"[") + marks.count(b"{")
        if values > most:
            raise BatchTooLarge(
                f"{name} has more than {most} values: send it in several requests, or raise "
                "ways_in.request_values_max"
            )
        yield


def structure(data: bytes) -> Iterator[bytes]:
    """Yields the structural characters of JSON, `[]{},:` outside of texts, window by window."""
    at = 0
    is_in_text = False
    while at < len(data):
        window = data[at : at + _WINDOW_BYTES]
        if (len(window) - len(window.rstrip(b"\\"))) % 2:
            # A window also includes the character that its last backslash escapes.
            window = data[at : at + _WINDOW_BYTES + 1]
        at += len(window)
        marks = window.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NO_MARKS)
        pieces = marks.split(b'"')
        yield b"".join(pieces[is_in_text::2])
        is_in_text ^= len(pieces) % 2 == 0


# Protobuf

Children: TypeAlias = Mapping[int, "Children"]
"""The fields of a message that are messages themselves, and their children."""


Span: TypeAlias = tuple[int, int, int]
"""Where a field begins, where its value begins, and where it ends."""


def span_bytes(span: Span) -> int:
    return span[2] - span[0]


class ProtobufFields:
    """Walks the fields of an encoded message without decoding it, within a limit on their number.

    A message is the concatenation of its fields, so a run of them is a message too.
    """

    def __init__(self, data: bytes, name: str, *, fields_max: int = RECORDS_MAX + 4_096) -> None:
        self.data = data
        self.name = name
        self._fields_max = self._left = fields_max

    def walk(self, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Yields for each field its number, its begin, its value's begin and its end."""
        data = self.data
        try:
            while at < end:
                start = at
                tag = data[at]
                at += 1
                if tag >= 0x80:
                    tag, at = read_varint(data, start)
                kind = tag & 7
                begin = at
                if kind == 2:
                    length = data[at]
                    at += 1
                    if length >= 0x80:
                        length, at = read_varint(data, begin)
                    begin = at
                    at += length
                elif kind == 0:
                    _, at = read_varint(data, at)
                elif kind == 1:
                    at += 8
                elif kind == 5:
                    at += 4
                else:
                    raise InvalidInput(f"{self.name} cannot be read: it has a group in it")
                if at > end:
                    raise InvalidInput(f"{self.name} cannot be read: it ends within a field")
                self._left -= 1
                if self._left < 0:
                    raise BatchTooLarge(
                        f"{self.name} has more than {self._fields_max} records or fields: send it "
                        "in several requests"
                    )
                yield tag >> 3, start, begin, at
        except IndexError:
            raise InvalidInput(f"{self.name} cannot be read: it ends within a field") from None
        except ValueError:
            raise InvalidInput(f"{self.name} cannot be read: a number in it has no end") from None

    def split(self, at: int, end: int) -> Iterator[tuple[list[Span], list[Span]] | None]:
        """Splits a message into its first field and a repeated second field that belongs to it;
        returns the spans of both. Yields None before, wherever the event loop may run.
        """
        first: list[Span] = []
        second: list[Span] = []
        for count, (number, start, begin, stop) in enumerate(self.walk(at, end), 1):
            if number == 2:
                second.append((start, begin, stop))
            elif number == 1:
                first.append((start, begin, stop))
            if not count % _PAUSE_FIELDS:
                yield None
        yield first, second

    def run_of(self, spans: list[Span]) -> bytes:
        """Returns a message made of these consecutive fields, with any fields between them."""
        return self.data[spans[0][0] : spans[-1][2]]


def check_protobuf(
    data: bytes, at: int, end: int, children: Children, bounds: DecodeBounds, name: str
) -> None:
    """`BatchTooLarge` if a message, with all messages in it, exceeds a bound."""
    # A field has two bytes at least, and protobuf itself ends at a hundred levels.
    if end - at <= 2 * min(bounds.keys_max, bounds.values_max):
        return
    fields = ProtobufFields(data, name, fields_max=4 * bounds.values_max)
    waiting = [(at, end, children, 0)]
    keys = values = 0
    while waiting:
        at, end, children, depth = waiting.pop()
        # A level of nesting takes two messages: the value, and the list that it is.
        if depth > 2 * bounds.nesting_max:
            raise bounds.too_many(name, "levels of nesting")
        for number, _, begin, stop in fields.walk(at, end):
            inner = children.get(number)
            if inner is None:
                continue
            keys += depth == 0
            values += 1
            if keys > bounds.keys_max:
                raise bounds.too_many(name, "keys")
            if values > bounds.values_max:
                raise bounds.too_many(name, "values")
            waiting.append((begin, stop, inner, depth + 1))
