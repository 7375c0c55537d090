"""A closed ledger as one object: entries with checksums, then an index of where each stands.

    head     magic "DLOF" (4), version (1), ledger (8)
    entries  each: length (4), XXH3-64 (8), data
    index    the offset of each entry (8 each)
    foot     offset of the index (8), entries (8), bytes of their data (8), XXH3-64 of the index and
             of the foot so far (8), magic (4), version (1)

Big-endian. An object is written once and never changed; a newer version is refused.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest

from raftwood.base.errors import StoreDamaged, UnsupportedVersion
from raftwood.base.files import Buffer

MAGIC: Final = b"DLOF"
VERSION: Final = 1
_HEAD: Final = struct.Struct(">4sBQ")
_ENTRY: Final = struct.Struct(">IQ")
_FOOT: Final = struct.Struct(">QQQ")
_SEAL: Final = struct.Struct(">Q4sB")
HEAD_BYTES: Final = _HEAD.size
FOOT_BYTES: Final = _FOOT.size + _SEAL.size


class Index(msgspec.Struct, frozen=True):
    """Where the entries of an object stand."""

    offsets: tuple[int, ...]
    end: int
    """Of the last entry."""
    data_bytes: int

    @property
    def last_entry(self) -> int:
        return len(self.offsets) - 1

    def range_of(self, *, first: int, last: int) -> tuple[int, int]:
        """(offset, length) of some entries."""
        end = self.offsets[last + 1] if last + 1 < len(self.offsets) else self.end
        return self.offsets[first], end - self.offsets[first]


class OffloadEncoder:
    """Makes an object, a part at a time."""

    def __init__(self, ledger: int) -> None:
        self._ledger = ledger
        self._offsets: list[int] = []
        self._position = HEAD_BYTES
        self._data_bytes = 0

    def head(self) -> bytes:
        return _HEAD.pack(MAGIC, VERSION, self._ledger)

    def entries(self, entries: Sequence[Buffer]) -> bytes:
        """The next ones, in order."""
        parts: list[Buffer] = []
        for data in entries:
            parts += (_ENTRY.pack(len(data), xxh3_64_intdigest(data)), data)
            self._offsets.append(self._position)
            self._position += _ENTRY.size + len(data)
            self._data_bytes += len(data)
        return b"".join(parts)

    def foot(self) -> bytes:
        index = struct.pack(f">{len(self._offsets)}Q", *self._offsets)
        foot = _FOOT.pack(self._position, len(self._offsets), self._data_bytes)
        return index + foot + _SEAL.pack(xxh3_64_intdigest(index + foot), MAGIC, VERSION)


def check_head(data: Buffer, *, ledger: int) -> None:
    """Whether an object is the one of a ledger."""
    if len(data) < HEAD_BYTES or bytes(data[:4]) != MAGIC:
        raise StoreDamaged(f"ledger {ledger}: what was offloaded is no ledger")
    _, version, found = _HEAD.unpack_from(data)
    _check_version(version, ledger)
    if found != ledger:
        raise StoreDamaged(f"ledger {ledger}: ledger {found} stands in its place")


def _check_version(version: int, ledger: int) -> None:
    if version != VERSION:
        raise UnsupportedVersion(
            f"ledger {ledger} was offloaded in format {version}, this program reads {VERSION}: "
            "use a newer one"
        )


def foot_of(data: Buffer, *, ledger: int, size: int) -> tuple[int, int]:
    """(offset, length) of the index and the foot, from an object's last bytes and its size."""
    if len(data) < FOOT_BYTES or bytes(data[-5:-1]) != MAGIC:
        raise StoreDamaged(f"ledger {ledger}: what was offloaded is cut off")
    _check_version(data[-1], ledger)
    offset, count, _ = _FOOT.unpack_from(data, len(data) - FOOT_BYTES)
    if offset < HEAD_BYTES or offset + 8 * count + FOOT_BYTES != size:
        raise StoreDamaged(f"ledger {ledger}: the foot of what was offloaded is damaged")
    return offset, size - offset


def decode_index(data: Buffer, *, ledger: int) -> Index:
    """From the index and the foot."""
    checked = data[: len(data) - _SEAL.size]
    if xxh3_64_intdigest(checked) != _SEAL.unpack_from(data, len(checked))[0]:
        raise StoreDamaged(f"ledger {ledger}: the index of what was offloaded is damaged")
    end, count, data_bytes = _FOOT.unpack_from(checked, len(checked) - _FOOT.size)
    return Index(struct.unpack_from(f">{count}Q", checked), end, data_bytes)


def decode_entries(data: Buffer, *, ledger: int) -> Iterator[memoryview]:
    """Each checked, from bytes that begin and end with an entry."""
    view, offset = memoryview(data), 0
    while offset < len(view):
        if offset + _ENTRY.size > len(view):
            raise StoreDamaged(f"ledger {ledger}: an offloaded entry is cut off")
        length, digest = _ENTRY.unpack_from(view, offset)
        offset += _ENTRY.size
        entry = view[offset : offset + length]
        if len(entry) != length or xxh3_64_intdigest(entry) != digest:
            raise StoreDamaged(f"ledger {ledger}: an offloaded entry is damaged")
        offset += length
        yield entry
