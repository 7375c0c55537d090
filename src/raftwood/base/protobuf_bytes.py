"""Protobuf's wire format by hand, for messages that are joined from parts."""

from typing import Final

from raftwood.base.files import Buffer


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)


VARINTS: Final = tuple(_varint(value) for value in range(1 << 11))


def varint(value: int) -> bytes:
    """Encodes an unsigned number."""
    return VARINTS[value] if value < len(VARINTS) else _varint(value)


def read_varint(data: Buffer, at: int, *, bits_max: int = 70) -> tuple[int, int]:
    """Returns the number at an offset, and the offset behind it.

    Raises `IndexError` if the data end within the number, `ValueError` above `bits_max` bits.
    """
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift >= bits_max:
            raise ValueError(f"a number has more than {bits_max} bits")


def field_bytes(number: int, value: bytes) -> bytes:
    """Encodes a field of bytes, text or a message."""
    return b"".join((varint(number << 3 | 2), varint(len(value)), value))
