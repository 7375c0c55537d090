"""A page of a checkpoint: many pairs as columns, unchanged from the node to the reader.

    RWZP, version u16, flags u16, count u32, key bytes u32, value bytes u32, 0 u32, checksum u64
    when each ends i64 × count      milliseconds since 1970, 0: it stays; only with flag 1
    where keys end u32 × (count + 1), from 0 on
    where values end u32 × (count + 1), from 0 on
    keys, values

Little endian; the checksum is XXH3-64 of all bytes behind the head. The columns are those of
Arrow's binary arrays, so neither a backup nor Arrow looks at single pairs.
"""

from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise
from struct import Struct
from typing import Final

import msgspec
import xxhash

from raftwood.base.errors import ProtocolError, UnsupportedVersion

MAGIC: Final = b"RWZP"
VERSION: Final = 1
_HEAD: Final = Struct("<4sHHIIIIQ")
_HAS_ENDS: Final = 1
_END_BYTES: Final = 8
_OFFSET_BYTES: Final = 4


def encode_page(keys: Sequence[bytes], values: Sequence[bytes], ends: Sequence[int]) -> bytes:
    """Encodes pairs; `ends` is empty if no pair expires."""
    key_offsets = array("I", accumulate(map(len, keys), initial=0))
    value_offsets = array("I", accumulate(map(len, values), initial=0))
    body = b"".join(
        (array("q", ends).tobytes(), key_offsets.tobytes(), value_offsets.tobytes(), *keys, *values)
    )
    head = _HEAD.pack(
        MAGIC,
        VERSION,
        _HAS_ENDS if ends else 0,
        len(keys),
        key_offsets[-1],
        value_offsets[-1],
        0,
        xxhash.xxh3_64_intdigest(body),
    )
    return head + body


class Page(msgspec.Struct, frozen=True):
    """A checked page; builds its columns on demand."""

    data: bytes
    count: int
    key_bytes: int
    value_bytes: int
    has_ends: bool
    next_cursor: bytes = b""
    """Cursor of the next page; empty after the last one."""

    @classmethod
    def decoded(cls, data: bytes, next_cursor: bytes = b"") -> "Page":
        if len(data) < _HEAD.size or data[:4] != MAGIC:
            raise ProtocolError("a page of a checkpoint does not begin as one")
        _, version, flags, count, key_bytes, value_bytes, _, checksum = _HEAD.unpack_from(data)
        if version != VERSION or flags & ~_HAS_ENDS:
            raise UnsupportedVersion(
                f"a page of a checkpoint has format {version}.{flags}, this program reads "
                f"{VERSION}: use the newer version that wrote it"
            )
        page = cls(data, count, key_bytes, value_bytes, bool(flags & _HAS_ENDS), next_cursor)
        if page.values_start + value_bytes != len(data):
            raise ProtocolError(f"a page of {count} pairs has {len(data)} bytes: it is cut off")
        if xxhash.xxh3_64_intdigest(memoryview(data)[_HEAD.size :]) != checksum:
            raise ProtocolError("a page of a checkpoint is damaged: its checksum differs")
        return page

    # Offsets of the columns.

    @property
    def ends_start(self) -> int:
        return _HEAD.size

    @property
    def key_offsets_start(self) -> int:
        return self.ends_start + (_END_BYTES * self.count if self.has_ends else 0)

    @property
    def value_offsets_start(self) -> int:
        return self.key_offsets_start + _OFFSET_BYTES * (self.count + 1)

    @property
    def keys_start(self) -> int:
        return self.value_offsets_start + _OFFSET_BYTES * (self.count + 1)

    @property
    def values_start(self) -> int:
        return self.keys_start + self.key_bytes

    # The columns.

    def keys(self) -> list[bytes]:
        return self._words(self.key_offsets_start, self.keys_start)

    def values(self) -> list[bytes]:
        return self._words(self.value_offsets_start, self.values_start)

    def ends(self) -> Sequence[int]:
        """Expiry of each pair, in milliseconds since 1970, 0: never; empty if no pair expires."""
        if not self.has_ends:
            return ()
        return memoryview(self.data)[self.ends_start : self.key_offsets_start].cast("q")

    def _words(self, offsets_start: int, start: int) -> list[bytes]:
        offsets_end = offsets_start + _OFFSET_BYTES * (self.count + 1)
        offsets = memoryview(self.data)[offsets_start:offsets_end].cast("I")
        words = self.data[start:]
        return [words[begin:end] for begin, end in pairwise(offsets)]
