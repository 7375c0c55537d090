"""A server's answers, out of bytes as they arrive; in both versions of the protocol.

Most answers come whole and hold no line break: those are cut up by `split`. All else is read step
by step, and what was read of a long answer is not read again when more of it arrives. Both read the
same, which a test holds.
"""

import re
from typing import Any, Final

from raftwood.base.errors import ProtocolError

BULK_BYTES_MAX: Final = 64 << 20
ITEMS_MAX: Final = 1 << 20
LINE_BYTES_MAX: Final = 64 << 10
DEPTH_MAX: Final = 8

_BREAK: Final = b"\r\n"
_NUMBER: Final = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_OK: Final = b"+OK"
_NULLS: Final = (b"_", b"$-1", b"*-1")


class ErrorAnswer:
    """What a command was refused with; the first word is its kind."""

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
    """Answers in an answer, some of which have come."""

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
    """One connection's answers; `ProtocolError` where a server breaks the protocol.

    Strings of one line are `str`, all others `bytes`; a refusal is an `ErrorAnswer`.
    """

    __slots__ = ("_arrived", "_groups")

    def __init__(self) -> None:
        self._arrived = bytearray()
        self._groups: list[_Group] = []

    def feed(self, data: bytes) -> list[Any]:
        """The answers that are complete by now."""
        if self._arrived or self._groups:
            self._arrived += data
            return self._step_by_step()
        answers, read = _cut(data)
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
                if length > BULK_BYTES_MAX:
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


def _cut(data: bytes) -> tuple[list[Any], int]:
    """The answers at the beginning that are plain, and how many bytes they are."""
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
    """An array of strings and nulls; None where it is none, or not all here."""
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
