"""Answers decoded, strictly: for tests that look at single bytes of them."""

from typing import Any


class AnswerError(str):
    """What a command was refused with; equal to its text."""

    __slots__ = ()


def decoded(data: bytes) -> Any:
    """One answer, and nothing behind it."""
    answer, end = _decode(data, 0)
    assert end == len(data), f"{data[end:]!r} stands behind an answer"
    return answer


def first_decoded(data: bytes) -> tuple[Any, int] | None:
    """The first answer and where it ends; None while it is cut off."""
    try:
        return _decode(data, 0)
    except (ValueError, IndexError):
        return None


def _decode(data: bytes, at: int) -> tuple[Any, int]:
    end = data.index(b"\r\n", at)
    kind, head, at = data[at : at + 1], data[at + 1 : end], end + 2
    match kind:
        case b"+":
            return head.decode(), at
        case b"-":
            return AnswerError(head.decode()), at
        case b":":
            return int(head), at
        case b"_":
            return None, at
        case b"$" | b"=":
            if head == b"-1":
                return None, at
            length = int(head)
            if len(data) < at + length + 2:
                raise ValueError("a string is cut off")
            assert data[at + length : at + length + 2] == b"\r\n"
            return data[at : at + length], at + length + 2
        case b"*" | b"~" | b"%":
            if head == b"-1":
                return None, at
            items = []
            for _ in range(int(head) * (2 if kind == b"%" else 1)):
                item, at = _decode(data, at)
                items.append(item)
            return (dict(zip(items[::2], items[1::2], strict=True)) if kind == b"%" else items), at
    raise AssertionError(f"{kind!r} begins no answer")
