"""The account of what a demo's producers sent to a stream, and whether a reader finds it.

A record says its key, the how-manieth of that key it is, and carries a digest of both. So a reader
can tell what is missing, there twice, out of order, or nobody's.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from xxhash import xxh3_64_hexdigest

_DIGESTS: Final = 5
_SENT, _ACKED, _SEEN = 0, 1, 2


def contents_of(key: str, number: int) -> dict[str, str]:
    """About 100 bytes."""
    digest = xxh3_64_hexdigest(f"{key} {number}".encode())
    return {"key": key, "number": str(number), "digest": digest * _DIGESTS}


class StreamVerdict(msgspec.Struct, frozen=True):
    """What reading it all back found."""

    found: int
    """Records of the producers, also such as were never acked."""
    acked_found: int
    missing: int
    """Acked, and not there."""
    twice: int
    disordered: int
    """Before an earlier one of the same key."""
    wrong: int
    """Nobody sent that."""

    @property
    def held(self) -> bool:
        return not (self.missing or self.twice or self.disordered or self.wrong)


class _Key:
    def __init__(self) -> None:
        self.states = bytearray()
        """By number, bits: acked, seen."""
        self.last_seen = -1


class StreamAccount:
    """Of all producers; a key belongs to one of them."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = {key: _Key() for key in keys}
        self.found = self._twice = self._disordered = self._wrong = 0

    def next_number(self, key: str) -> int:
        """Of the record to be sent next."""
        states = self._keys[key].states
        states.append(_SENT)
        return len(states) - 1

    def ack(self, key: str, number: int) -> None:
        self._keys[key].states[number] |= _ACKED

    def see(self, contents: Mapping[str, str | bytes]) -> None:
        """A reader found this."""
        key, number = _text(contents.get("key")), _text(contents.get("number"))
        known = self._keys.get(key)
        place = int(number) if number.isascii() and number.isdecimal() else -1
        if known is None or not 0 <= place < len(known.states):
            self._wrong += 1
            return
        if _text(contents.get("digest")) != contents_of(key, place)["digest"]:
            self._wrong += 1
            return
        self.found += 1
        if known.states[place] & _SEEN:
            self._twice += 1
            return
        known.states[place] |= _SEEN
        if place < known.last_seen:
            self._disordered += 1
        known.last_seen = place

    def verdict(self) -> StreamVerdict:
        missing = sum(each.states.count(_ACKED) for each in self._keys.values())
        acked_found = sum(each.states.count(_ACKED | _SEEN) for each in self._keys.values())
        return StreamVerdict(
            self.found, acked_found, missing, self._twice, self._disordered, self._wrong
        )


def _text(value: str | bytes | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""
