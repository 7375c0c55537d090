"""Patterns of keys as Redis has them: `*`, `?`, `[a-z]`, `[^a]`, and a backslash before any."""

import re
from typing import Final

from raftwood.zeppelin.commands.refusals import Refused

PATTERN_BYTES_MAX: Final = 4_096

_PIECE: Final = re.compile(
    rb"(?P<star>\*+)|(?P<any>\?)|\[(?P<negated>\^?)(?P<set>(?:\\.|[^\]\\])*)\]?|\\(?P<escaped>.)"
    rb"|(?P<plain>.)",
    re.DOTALL,
)
_OF_SET: Final = re.compile(rb"(\\.|[^\\])-(\\.|[^\\])|(\\.|.)", re.DOTALL)


class Pattern:
    """What stands between two stars is found as early as possible: no pattern takes long."""

    __slots__ = ("_is_all", "_last_bytes", "_pieces")

    def __init__(self, pattern: bytes) -> None:
        if len(pattern) > PATTERN_BYTES_MAX:
            raise Refused(f"ERR pattern is above {PATTERN_BYTES_MAX} bytes")
        pieces: list[list[bytes]] = [[]]
        for found in _PIECE.finditer(pattern):
            if found["star"]:
                pieces.append([])
            else:
                pieces[-1].append(_expression(found))
        self._is_all = pieces == [[], []]
        self._last_bytes = len(pieces[-1])
        self._pieces = [re.compile(b"".join(piece), re.DOTALL) for piece in pieces]

    def matches(self, key: bytes) -> bool:
        if self._is_all:
            return True
        first, *others = self._pieces
        if not others:
            return first.fullmatch(key) is not None
        found = first.match(key)
        for piece in others[:-1]:
            if found is None:
                return False
            found = piece.search(key, found.end())
        # Each piece matches so many bytes and no other number.
        at = len(key) - self._last_bytes
        return found is not None and at >= found.end() and others[-1].fullmatch(key, at) is not None


def _expression(found: re.Match[bytes]) -> bytes:
    """One character of a key, as a regular expression."""
    if found["any"]:
        return b"."
    if found["set"] is None:
        return re.escape(found["escaped"] or found["plain"])
    characters = bytearray()
    for begin, end, single in _OF_SET.findall(found["set"]):
        if single:
            characters += single[-1:]
        else:
            low, high = sorted((begin[-1], end[-1]))
            characters += bytes(range(low, high + 1))
    if not characters:
        return b"." if found["negated"] else b"(?!)"
    members = b"".join(re.escape(bytes((each,))) for each in characters)
    return b"[%b%b]" % (b"^" if found["negated"] else b"", members)
