"""A metastore's state as bytes: made a slice at a time, so that nobody waits long for the whole."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from raftwood.base.errors import StoreDamaged, UnsupportedVersion

FORMAT_VERSION: Final = 1
_ARRAY_OF_7: Final = b"\x97"
_ARRAY_32: Final = 0xDD

_encoder = msgspec.msgpack.Encoder()


class Step(msgspec.Struct, frozen=True, array_like=True):
    """A key's latest step; without a value, its removal."""

    value: bytes | None
    version: int
    lease: int = 0


class _Beginning(msgspec.Struct, array_like=True):
    format_version: int


class Snapshot(msgspec.Struct, array_like=True):
    """All of a state; steps are in the order of their versions."""

    format_version: int
    now_ms: int
    version: int
    floor: int
    next_lease: int
    steps: list[tuple[str, Step]]
    leases: list[tuple[int, int, int]]
    """Number, time to live and deadline."""


def encode_slices(
    empty: Snapshot, keys: Sequence[str], steps: Sequence[Step], *, slice_bytes: int
) -> Iterator[bytes]:
    """A snapshot with these steps, in slices of about that size; longer by a step at the most.

    Keys and steps come apart because a copy of each is quick to take, and pairs are not.
    """
    numbers = (empty.format_version, empty.now_ms, empty.version, empty.floor, empty.next_lease)
    parts = [_ARRAY_OF_7, *map(_encoder.encode, numbers), _array_header(len(steps))]
    size = 0
    for pair in zip(keys, steps, strict=True):
        part = _encoder.encode(pair)
        parts.append(part)
        size += len(part)
        if size >= slice_bytes:
            yield b"".join(parts)
            parts, size = [], 0
    yield b"".join([*parts, _encoder.encode(empty.leases)])


def of_size(slices: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The same bytes in pieces of one size, but for the last."""
    rest = bytearray()
    for each in slices:
        rest += each
        while len(rest) >= size:
            yield bytes(rest[:size])
            del rest[:size]
    if rest:
        yield bytes(rest)


def _array_header(length: int) -> bytes:
    return bytes([_ARRAY_32]) + length.to_bytes(4, "big")


def decode(data: bytes) -> Snapshot:
    """`UnsupportedVersion` where it was made by a newer program, `StoreDamaged` where by none."""
    try:
        # The other fields may differ in a newer format.
        version = msgspec.msgpack.decode(data, type=_Beginning).format_version
        if version > FORMAT_VERSION:
            raise UnsupportedVersion(
                f"the metastore's snapshot has format {version}, this program knows up to "
                f"{FORMAT_VERSION}: upgrade it"
            )
        snapshot = msgspec.msgpack.decode(data, type=Snapshot)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreDamaged(f"the metastore's snapshot cannot be read: {error}") from None
    leases = {0, *(number for number, _, _ in snapshot.leases)}
    if not all(step.lease in leases for _, step in snapshot.steps):
        raise StoreDamaged("the metastore's snapshot names a lease that it lacks")
    return snapshot
