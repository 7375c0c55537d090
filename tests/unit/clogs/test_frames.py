"""Frames and datagrams: their golden bytes, and what is refused."""

import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash

from raftwood.base.compression import Codec
from raftwood.base.errors import ProtocolError, TooLarge, Unauthenticated, UnsupportedVersion
from raftwood.clogs.frames import (
    FRAME_OVERHEAD_BYTES,
    ClogsMessage,
    MessageType,
    decode_message,
    encode_message,
    joined,
)
from raftwood.clogs.wire import DATAGRAM_BYTES_MAX, MAC_BYTES, decode_datagram, encode_datagram

PRODUCER = bytes(range(16))
SECRET = b"0123456789abcdef"
PING = ClogsMessage(type=MessageType.PING, system=1, sequence=41)
DATA = ClogsMessage(
    type=MessageType.DATA,
    system=7,
    name="a.log",
    producer=PRODUCER,
    sequence=3,
    count=2,
    raw_bytes=9,
    codec=Codec.LZ4,
    place="p/s",
    body=b"body",
)
GOLDEN = {
    "data": (
        DATA,
        (
            "434c010101010000 07000000 02000000 09000000 0300000000000000"
            "000102030405060708090a0b0c0d0e0f 0500 0300 04000000"
            "612e6c6f67 702f73 626f6479 6e49ca3e9ac1afe9"
        ),
    ),
    "resumed data": (
        ClogsMessage(
            type=MessageType.DATA,
            system=7,
            name="a.log",
            producer=PRODUCER,
            sequence=3,
            count=2,
            raw_bytes=4,
            is_resumed=True,
            body=b"body",
        ),
        (
            "434c010100010100 07000000 02000000 04000000 0300000000000000"
            "000102030405060708090a0b0c0d0e0f 0500 0000 04000000"
            "612e6c6f67 626f6479 23ee6c27a973f659"
        ),
    ),
    "ping": (
        PING,
        (
            "434c010200010000 01000000 00000000 00000000 2900000000000000"
            "00000000000000000000000000000000 0000 0000 00000000 624afcaca7dcd061"
        ),
    ),
    "pong": (
        ClogsMessage(type=MessageType.PONG, system=1, sequence=42),
        (
            "434c010300010000 01000000 00000000 00000000 2a00000000000000"
            "00000000000000000000000000000000 0000 0000 00000000 ff275f733c24d5a6"
        ),
    ),
    "ack": (
        ClogsMessage(type=MessageType.ACK, producer=PRODUCER, sequence=3, place="p/s"),
        (
            "434c010400010000 00000000 00000000 00000000 0300000000000000"
            "000102030405060708090a0b0c0d0e0f 0000 0300 00000000 702f73 0ac52f0bc6100705"
        ),
    ),
    "error": (
        ClogsMessage(type=MessageType.ERROR, sequence=3, body=b"why"),
        (
            "434c010500010000 00000000 00000000 00000000 0300000000000000"
            "00000000000000000000000000000000 0000 0000 03000000 776879 e76e7c553f42c6d7"
        ),
    ),
    "locate": (
        ClogsMessage(type=MessageType.LOCATE, system=7, name="é/b"),
        (
            "434c010600010000 07000000 00000000 00000000 0000000000000000"
            "00000000000000000000000000000000 0400 0000 00000000 c3a92f62 6b6fbfd5e348aa19"
        ),
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_a_frame_has_its_golden_bytes(name: str) -> None:
    message, text = GOLDEN[name]
    data = bytes.fromhex(text)
    assert joined(encode_message(message)) == data
    assert decode_message(data) == message


def test_every_type_of_message_has_golden_bytes() -> None:
    assert {message.type for message, _ in GOLDEN.values()} == set(MessageType)


def test_a_large_body_is_not_copied() -> None:
    body = bytes(1 << 20)
    pieces = encode_message(ClogsMessage(type=MessageType.DATA, name="a", body=body))
    assert pieces[1] is body
    data = joined(pieces)
    assert decode_message(data).body.obj is data  # type: ignore[union-attr]


def test_a_frame_with_any_byte_changed_is_refused() -> None:
    whole = joined(encode_message(DATA))
    for at in range(len(whole)):
        data = bytearray(whole)
        data[at] ^= 0x10
        with pytest.raises((ProtocolError, UnsupportedVersion)):
            decode_message(data)


@pytest.mark.parametrize("size", [0, 1, FRAME_OVERHEAD_BYTES - 1, FRAME_OVERHEAD_BYTES])
def test_a_frame_that_was_cut_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError):
        decode_message(joined(encode_message(DATA))[:size])


def sealed(change: Callable[[bytearray], None]) -> bytes:
    """A frame that was changed before its checksum was made."""
    data = bytearray(joined(encode_message(DATA))[:-8])
    change(data)
    return bytes(data) + struct.pack("<Q", xxhash.xxh3_64_intdigest(data))


def put(at: int, value: bytes) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        data[at : at + len(value)] = value

    return change


@pytest.mark.parametrize(
    ("at", "value", "text"),
    [
        (2, b"\x02", "has version 2, this program speaks 1"),
        (3, b"\x09", "cannot be read"),
        (4, b"\x09", "cannot be read"),
        (6, b"\x04", "out of its range"),
        (7, b"\x01", "damaged"),
        (44, b"\x01\x04", "out of its range"),
        (46, b"\x01\x02", "out of its range"),
        (48, b"\x05", "another length"),
        (52, b"\xff", "cannot be read"),
    ],
)
def test_a_field_that_cannot_be_is_refused_though_the_checksum_is_right(
    at: int, value: bytes, text: str
) -> None:
    with pytest.raises((ProtocolError, UnsupportedVersion), match=text):
        decode_message(sealed(put(at, value)))


def test_release_0_1_0_reads_an_ack_that_tells_how_many_may_be_under_way() -> None:
    (wheel,) = (Path(__file__).parents[2] / "fixtures" / "0.1.0").glob("*.whl")
    ack = ClogsMessage(
        type=MessageType.ACK, producer=bytes(range(16)), sequence=7, count=16, place="p"
    )
    program = (
        "import sys; from raftwood.clogs.frames import decode_message;"
        "ack = decode_message(bytes.fromhex(sys.argv[1]));"
        "print(ack.type.name, ack.sequence, ack.place)"
    )
    said = subprocess.run(
        (sys.executable, "-c", program, joined(encode_message(ack)).hex()),
        env={**os.environ, "PYTHONPATH": str(wheel)},
        cwd=wheel.parent,
        check=True,
        capture_output=True,
        text=True,
    )
    assert said.stdout == "ACK 7 p\n"


# Datagrams


def test_a_datagram_is_a_frame_and_its_code() -> None:
    data = encode_datagram(PING, SECRET)
    assert data == bytes.fromhex(GOLDEN["ping"][1] + "61a21be2ceb3d3b285c28067732bb6b0")
    assert decode_datagram(data, SECRET) == PING


def test_a_datagram_of_somebody_without_the_secret_is_refused() -> None:
    data = encode_datagram(DATA, SECRET)
    forged = [
        encode_datagram(DATA, b"another secret ."),
        data[:-1] + bytes([data[-1] ^ 1]),
        bytes([data[0] ^ 1]) + data[1:],
        data[:-MAC_BYTES],
        data[:MAC_BYTES],
        b"",
    ]
    for each in forged:
        with pytest.raises(Unauthenticated):
            decode_datagram(each, SECRET)


def test_what_is_no_frame_is_refused_though_its_code_is_right() -> None:
    import hashlib
    import hmac

    with pytest.raises(ProtocolError):
        decode_datagram(b"x" + hmac.digest(SECRET, b"x", hashlib.sha256)[:16], SECRET)


def test_a_batch_that_no_datagram_can_carry_is_refused() -> None:
    fits = DATAGRAM_BYTES_MAX - FRAME_OVERHEAD_BYTES - MAC_BYTES
    whole = ClogsMessage(type=MessageType.DATA, body=bytes(fits))
    assert len(encode_datagram(whole, SECRET)) == DATAGRAM_BYTES_MAX
    with pytest.raises(TooLarge):
        encode_datagram(ClogsMessage(type=MessageType.DATA, body=bytes(fits + 1)), SECRET)
