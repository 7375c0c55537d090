"""`Message`: what a log is made of, as bytes.

    magic (1 byte, the version), attributes (1 byte, bits), number of headers (2 bytes),
    length of the key (4), length of the payload (4), key, payload,
    then for each header: length of its key (2), length of its value (4), its key, its value

Big-endian. The order of headers is kept, and a key may come more than once. No key and an empty
key are the same. A message with another magic is of a newer version and refused, whatever follows.
"""

import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from raftwood.base.errors import InvalidInput, StoreDamaged, UnsupportedVersion
from raftwood.base.files import Buffer

MAGIC: Final = 1
_HEAD: Final = struct.Struct(">BBHII")
_HEADER: Final = struct.Struct(">HI")
HEAD_BYTES: Final = _HEAD.size
HEADERS_MAX: Final = (1 << 16) - 1


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message; what was read are views of the entry that it came in."""

    payload: Buffer
    key: Buffer = b""
    headers: Sequence[tuple[bytes, Buffer]] = ()
    attributes: int = 0
    """Eight bits for what stands above the log."""

    @property
    def size_bytes(self) -> int:
        headers = sum(len(key) + len(value) + _HEADER.size for key, value in self.headers)
        return HEAD_BYTES + len(self.key) + len(self.payload) + headers


def message_parts(message: Message) -> list[Buffer]:
    """Its bytes, as buffers to be joined."""
    headers = message.headers
    if len(headers) > HEADERS_MAX or not 0 <= message.attributes < 256:
        raise InvalidInput(
            f"a message with {len(headers)} headers and attributes {message.attributes}: give at "
            f"most {HEADERS_MAX} headers and eight bits of attributes"
        )
    parts: list[Buffer] = [
        _HEAD.pack(MAGIC, message.attributes, len(headers), len(message.key), len(message.payload)),
        message.key,
        message.payload,
    ]
    for key, value in headers:
        if len(key) >= 1 << 16:
            raise InvalidInput(f"a header's key of {len(key)} bytes: give 65,535 at the most")
        parts += (_HEADER.pack(len(key), len(value)), key, value)
    return parts


def payload_head(payload: Buffer) -> bytes:
    """What stands before a payload that comes without key and headers."""
    return _HEAD.pack(MAGIC, 0, 0, 0, len(payload))


def encode_message(message: Message) -> bytes:
    return b"".join(message_parts(message))


def decode_message(data: memoryview) -> Message:
    """`UnsupportedVersion` for another magic, `StoreDamaged` where the lengths don't fit."""
    if not data:
        raise StoreDamaged("a message without bytes: the entry is damaged")
    if data[0] != MAGIC:
        raise UnsupportedVersion(
            f"a message of version {data[0]}: this program reads version {MAGIC}, use a newer one"
        )
    if len(data) < HEAD_BYTES:
        raise StoreDamaged(f"a message of {len(data)} bytes is too short: the entry is damaged")
    _, attributes, header_count, key_bytes, payload_bytes = _HEAD.unpack_from(data)
    key_end = HEAD_BYTES + key_bytes
    end = key_end + payload_bytes
    if not header_count and end == len(data):
        return Message(data[key_end:], data[HEAD_BYTES:key_end], (), attributes)
    headers, end_of_all = _headers(data, end, header_count)
    if end_of_all != len(data):
        raise StoreDamaged(
            f"a message of {len(data)} bytes says to have {end_of_all}: the entry is damaged"
        )
    return Message(data[key_end:end], data[HEAD_BYTES:key_end], headers, attributes)


def _headers(
    data: memoryview, offset: int, count: int
) -> tuple[tuple[tuple[bytes, Buffer], ...], int]:
    headers = []
    for _ in range(count):
        if offset + _HEADER.size > len(data):
            raise StoreDamaged("a message's headers are cut off: the entry is damaged")
        key_bytes, value_bytes = _HEADER.unpack_from(data, offset)
        value_at = offset + _HEADER.size + key_bytes
        headers.append(
            (bytes(data[offset + _HEADER.size : value_at]), data[value_at : value_at + value_bytes])
        )
        offset = value_at + value_bytes
    return tuple(headers), offset
