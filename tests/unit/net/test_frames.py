"""The wire format, without a socket."""

import random
import tracemalloc

import pytest

from raftwood.base.errors import ProtocolError
from raftwood.base.files import Buffer
from raftwood.net.frames import (
    HEADER_BYTES,
    JOINED_BYTES_MAX,
    RECEIVE_BYTES,
    TAIL_BYTES,
    Frame,
    FrameDecoder,
    FrameKind,
    append_frame,
    encode_frame,
    gathered,
)

SIZES = [0, 1, 100, JOINED_BYTES_MAX, JOINED_BYTES_MAX + 1, RECEIVE_BYTES - HEADER_BYTES]
LARGE_SIZES = [RECEIVE_BYTES - HEADER_BYTES + 1, RECEIVE_BYTES + 1, 65_536, 1 << 20]


def frame_of(size: int, request_id: int = 7) -> bytes:
    payload = random.Random(size).randbytes(size)
    return encode_frame(
        FrameKind.REQUEST, method=3, request_id=request_id, argument=250, payload=payload
    )


def check(frame: Frame, size: int, request_id: int = 7) -> None:
    kind, method, identifier, argument, payload = frame
    assert (kind, method, identifier, argument) == (FrameKind.REQUEST, 3, request_id, 250)
    assert payload == random.Random(size).randbytes(size)


@pytest.mark.parametrize("size", SIZES + LARGE_SIZES)
def test_a_frame_comes_back_as_it_went(size: int) -> None:
    frames = FrameDecoder().feed(frame_of(size))
    assert len(frames) == 1
    check(frames[0], size)


def test_many_frames_in_one_piece_come_out_in_order() -> None:
    sizes = [*SIZES, *LARGE_SIZES, 5, 40_000, 0, 33_000, 12]
    data = b"".join(frame_of(size, number) for number, size in enumerate(sizes))
    frames = FrameDecoder().feed(data)
    for number, (frame, size) in enumerate(zip(frames, sizes, strict=True)):
        check(frame, size, number)


def test_frames_survive_a_cut_at_every_byte() -> None:
    data = frame_of(60) + frame_of(0, 8) + frame_of(9, 9)
    for cut in range(len(data) + 1):
        decoder = FrameDecoder()
        frames = decoder.feed(data[:cut]) + decoder.feed(data[cut:])
        assert [frame[2] for frame in frames] == [7, 8, 9]
        check(frames[0], 60)
        assert decoder.is_between_frames


def test_frames_survive_arriving_byte_by_byte() -> None:
    decoder = FrameDecoder()
    data = frame_of(300) + frame_of(40_000, 8) + frame_of(3, 9)
    frames = []
    for position in range(len(data)):
        frames += decoder.feed(data[position : position + 1])
    check(frames[0], 300)
    check(frames[1], 40_000, 8)
    check(frames[2], 3, 9)


def test_frames_survive_random_pieces() -> None:
    source = random.Random(5)
    for _ in range(50):
        sizes = [source.choice([0, 10, 5_000, 31_000, 33_000, 70_000]) for _ in range(6)]
        data = b"".join(frame_of(size, number) for number, size in enumerate(sizes))
        decoder = FrameDecoder()
        frames = []
        while data:
            cut = source.randrange(1, 40_000)
            frames += decoder.feed(data[:cut])
            data = data[cut:]
        for number, (frame, size) in enumerate(zip(frames, sizes, strict=True)):
            check(frame, size, number)


def test_a_large_frame_is_received_into_its_own_buffer_and_not_copied() -> None:
    decoder = FrameDecoder()
    data = frame_of(100_000)
    assert decoder.feed(data[:HEADER_BYTES]) == []
    buffer = decoder.get_buffer()
    assert len(buffer) == 100_000 + TAIL_BYTES
    buffer[:100_000] = data[HEADER_BYTES:]
    (frame,) = decoder.received(100_000)
    payload = frame[4]
    assert isinstance(payload, memoryview)
    assert payload.obj is buffer.obj


def test_small_payloads_do_not_alias_the_receive_buffer() -> None:
    decoder = FrameDecoder()
    (first,) = decoder.feed(frame_of(50))
    decoder.feed(frame_of(51))
    check(first, 50)


@pytest.mark.parametrize("position", range(HEADER_BYTES))
def test_each_flipped_bit_of_the_header_is_noticed(position: int) -> None:
    for bit in range(8):
        data = bytearray(frame_of(20))
        data[position] ^= 1 << bit
        decoder = FrameDecoder(payload_bytes_max=1 << 20)
        try:
            frames = decoder.feed(data)
        except ProtocolError:
            continue
        # A longer length only makes the decoder wait; what follows can then not match.
        assert frames == []
        with pytest.raises(ProtocolError):
            decoder.feed(bytes(1 << 20))


@pytest.mark.parametrize("size", [20, 40_000])
def test_a_flipped_bit_of_the_payload_is_noticed(size: int) -> None:
    data = bytearray(frame_of(size))
    data[HEADER_BYTES + size // 2] ^= 4
    with pytest.raises(ProtocolError, match="checksum"):
        FrameDecoder().feed(data)


def test_a_frame_above_the_limit_is_refused_before_allocation() -> None:
    header = frame_of(1 << 20)[:HEADER_BYTES]
    decoder = FrameDecoder(payload_bytes_max=(1 << 20) - 1)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="limit"):
            decoder.feed(header)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_frame_of_another_version_is_refused_with_its_version() -> None:
    data = bytearray(frame_of(1))
    data[3] = 9
    with pytest.raises(ProtocolError, match="version 9"):
        FrameDecoder().feed(data)


def test_a_widened_decoder_keeps_what_it_had() -> None:
    decoder = FrameDecoder(payload_bytes_max=1024, receive_bytes=TAIL_BYTES)
    data = frame_of(500)
    decoder.feed(data[:100])
    decoder.widen(payload_bytes_max=1 << 20)
    (frame,) = decoder.feed(data[100:])
    check(frame, 500)
    (frame,) = decoder.feed(frame_of(30_000))
    check(frame, 30_000)


def test_a_payload_is_counted_in_bytes_whatever_its_items_are() -> None:
    numbers = memoryview(bytearray(800)).cast("q")
    parts: list[bytes | bytearray | memoryview] = []
    assert append_frame(parts, FrameKind.RESPONSE, 0, 1, 0, numbers) == HEADER_BYTES + 800
    (frame,) = FrameDecoder().feed(b"".join(parts))
    assert frame[4] == bytes(800)


def test_large_payloads_are_not_copied_for_sending() -> None:
    payload = bytes(JOINED_BYTES_MAX + 1)
    parts: list[bytes | bytearray | memoryview] = []
    append_frame(parts, FrameKind.RESPONSE, 0, 1, 0, payload)
    assert parts[-1] is payload


@pytest.mark.parametrize(
    "sizes",
    [[], [0], [5], [3, 4], [9_000], [9_000, 9_000], [10, 9_000, 20, 30, 50_000], [5] * 9_000],
)
def test_a_payload_in_pieces_makes_the_frame_of_the_whole(sizes: list[int]) -> None:
    pieces: list[Buffer] = [random.Random(size).randbytes(size) for size in sizes]
    whole = b"".join(pieces)
    views: list[Buffer] = [memoryview(bytearray(piece)) for piece in pieces]
    for shape in (pieces, tuple(views)):
        payload, size = gathered(shape)
        parts: list[Buffer] = []
        assert append_frame(parts, FrameKind.ONE_WAY, 9, 0, 0, payload) == HEADER_BYTES + len(whole)
        assert size == len(whole)
        assert b"".join(parts) == encode_frame(FrameKind.ONE_WAY, method=9, payload=whole)


def test_pieces_with_items_larger_than_a_byte_are_counted_in_bytes() -> None:
    numbers = memoryview(bytes(80_000)).cast("Q")
    payload, size = gathered([b"x", numbers])
    parts: list[Buffer] = []
    assert append_frame(parts, FrameKind.ONE_WAY, 9, 0, 0, payload) == HEADER_BYTES + 80_001
    assert size == 80_001
    assert b"".join(parts) == encode_frame(
        FrameKind.ONE_WAY, method=9, payload=b"x" + bytes(80_000)
    )
    assert gathered(numbers)[1] == 80_000
