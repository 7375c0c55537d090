"""Protobuf's wire format by hand, where a message is put together from parts."""

from typing import Final


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)


VARINTS: Final = tuple(_varint(value) for value in range(1 << 11))


def varint(value: int) -> bytes:
    """An unsigned number."""
    return VARINTS[value] if value < len(VARINTS) else _varint(value)


def field_bytes(number: int, value: bytes) -> bytes:
    """A field that holds bytes, text or a message."""
    return b"".join((varint(number << 3 | 2), varint(len(value)), value))
