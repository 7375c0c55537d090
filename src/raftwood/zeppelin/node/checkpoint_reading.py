"""Pages of an engine that does not change any more: its pairs in its own order.

A page is read some hundred pairs at a time, and others have their turn in between. Which pairs it
has depends on nothing but where it begins and how large it may be, so that whoever asks again gets
the same.
"""

import asyncio
from typing import Final, NamedTuple

import msgspec

from raftwood.base.seams import KvEngine
from raftwood.zeppelin.node.values import (
    DATA_END,
    DATA_START,
    decode_value,
    key_of,
    range_of_tag,
)
from raftwood.zeppelin.pages import encode_page
from raftwood.zeppelin.slots import slot_of, tag_of

SLICE_PAIRS: Final = 500
SLICE_BYTES: Final = 256 << 10
"""Looked at in one turn of the loop, which takes about a millisecond."""
SKIPPED_FACTOR: Final = 8
"""A page that is not full ends after so many times its bytes were looked at."""
_PLAIN: Final = DATA_START[0]
_TAGGED_START: Final = b"\x11"


class Wanted(msgspec.Struct, frozen=True):
    """Which pairs are told."""

    tag: bytes | None = None
    prefix: bytes = b""
    """Of keys."""
    slots: range | None = None
    """Of keys, where the engine may have those of other partitions too."""

    def ranges(self) -> list[tuple[bytes, bytes]]:
        """Where such pairs can be, in order."""
        prefix = self.prefix
        tag = self.tag if self.tag is not None else tag_of(prefix)
        if tag is not None:
            return [range_of_tag(tag)]
        if not prefix:
            return [(DATA_START, DATA_END)]
        plain = DATA_START + prefix
        # A tag may stand behind the prefix, and decides where the key is.
        return [(plain, _behind(plain)), (_TAGGED_START, DATA_END)]


class PageRead(NamedTuple):
    """A page, and where the next one begins; empty where there is none."""

    page: bytes
    cursor: bytes


async def read_page(
    engine: KvEngine, wanted: Wanted, *, cursor: bytes, now_ms: int, bytes_max: int
) -> PageRead:
    """From a cursor on, which is empty at first; what has expired by `now_ms` is left out."""
    page = _Page(wanted, now_ms, bytes_max)
    for start, end in wanted.ranges():
        if cursor < end:
            page.begin(engine, max(start, cursor), end)
            while page.gather():  # noqa: ASYNC110  others have their turn
                await asyncio.sleep(0)
            if page.is_full:
                return PageRead(page.encoded(), page.last + b"\x00")
    return PageRead(page.encoded(), b"")


class _Page:
    """What is gathered for a page."""

    def __init__(self, wanted: Wanted, now_ms: int, bytes_max: int) -> None:
        self._prefix = wanted.prefix
        self._slots = wanted.slots
        self._now_ms = now_ms
        self._bytes_left = bytes_max
        self._looks_left = SKIPPED_FACTOR * bytes_max
        self._keys: list[bytes] = []
        self._values: list[bytes] = []
        self._ends: list[int] = []
        """Shorter than the others by those at the end that stay."""
        self.last = b""
        """The engine's key that was looked at last."""

    def begin(self, engine: KvEngine, start: bytes, end: bytes) -> None:
        self._scan = engine.scan(start, end)

    @property
    def is_full(self) -> bool:
        return self._bytes_left <= 0 or self._looks_left <= 0

    def gather(self) -> bool:
        """Some pairs; whether there may be more for this page."""
        keys, values, prefix, slots = self._keys, self._values, self._prefix, self._slots
        looked = taken = 0
        pairs_left = SLICE_PAIRS
        bytes_left = min(self._bytes_left, SLICE_BYTES)
        place = self.last
        for place, stored in self._scan:
            size = len(place) + len(stored)
            looked += size
            pairs_left -= 1
            key = place[1:] if place[0] == _PLAIN else key_of(place)
            if (not prefix or key.startswith(prefix)) and (slots is None or slot_of(key) in slots):
                if stored[:1] == b"\x00":
                    keys.append(key)
                    values.append(stored[1:])
                    taken += size
                elif self._take_ending(key, stored):
                    taken += size
            if pairs_left == 0 or taken >= bytes_left or looked >= self._looks_left:
                break
        else:
            pairs_left = -1
        self.last = place
        self._bytes_left -= taken
        self._looks_left -= looked
        return pairs_left >= 0 and not self.is_full

    def _take_ending(self, key: bytes, stored: bytes) -> bool:
        value = decode_value(stored)
        if value.expires_ms <= self._now_ms:
            return False
        self._ends += [0] * (len(self._keys) - len(self._ends))
        self._keys.append(key)
        self._values.append(value.data)
        self._ends.append(value.expires_ms)
        return True

    def encoded(self) -> bytes:
        ends = self._ends
        if ends:
            ends += [0] * (len(self._keys) - len(ends))
        return encode_page(self._keys, self._values, ends)


def _behind(prefix: bytes) -> bytes:
    """The first place behind all that begin with this."""
    kept = prefix.rstrip(b"\xff")  # never nothing: keys of clients begin with a small byte
    return kept[:-1] + bytes([kept[-1] + 1])
