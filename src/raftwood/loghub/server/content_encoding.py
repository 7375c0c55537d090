"""HTTP bodies by their Content-Encoding: unpacked within a bound, whatever their headers claim."""

import zlib
from collections.abc import Iterator
from functools import partial
from typing import Final

import zstandard

from raftwood.base.errors import InvalidInput
from raftwood.base.files import Buffer
from raftwood.loghub.errors import BatchTooLarge, InvalidParameter
from raftwood.loghub.server.long_work import LongWork
from raftwood.net.listeners import FairScheduler

GZIP: Final = 16 + zlib.MAX_WBITS
_PART_BYTES: Final = 1 << 20
"""Unpacked in one step. Each piece of input counts in it too, because it costs work by itself."""
_PIECE_BYTES: Final = 16 << 10
"""Read in one step: after each gzip member zlib copies the input that it has not read."""
_ZSTD_WINDOW_MAX: Final = 8 << 20
"""Without this limit a frame could demand a window of gigabytes."""


def unpacked(body: Buffer, encoding: str, *, bytes_max: int) -> Buffer:
    """Unpacks a body by its Content-Encoding: gzip, deflate, zstd or none.

    `BatchTooLarge` if it would exceed the bound.
    """
    match encoding.strip().lower():
        case "" | "identity":
            if len(body) > bytes_max:
                raise too_large(bytes_max)
            return body
        case "gzip" | "x-gzip":
            return inflate(body, GZIP, bytes_max=bytes_max)
        case "deflate":
            return inflate(body, zlib.MAX_WBITS, bytes_max=bytes_max)
        case "zstd":
            return unpack_zstd(body, bytes_max=bytes_max)
        case other:
            raise InvalidParameter(
                f"content encoding {other[:40]!r} is not known: use gzip, deflate, zstd or none"
            )


async def unpacked_in_turns(
    body: Buffer, encoding: str, turns: FairScheduler, long_work: LongWork, *, bytes_max: int
) -> Buffer:
    """Like `unpacked`; long work waits for its turns, or runs beside the loop."""
    window_bits = {"gzip": GZIP, "x-gzip": GZIP, "deflate": zlib.MAX_WBITS}.get(
        encoding.strip().lower()
    )
    if window_bits is None:
        work = partial(unpacked, body, encoding, bytes_max=bytes_max)
        return await long_work.do(work, size=_zstd_bytes(body, bytes_max))
    return await inflate_in_turns(body, window_bits, turns, bytes_max=bytes_max)


def inflate(body: Buffer, window_bits: int = zlib.MAX_WBITS, *, bytes_max: int) -> bytes:
    """Unpacks zlib's formats; a body of several gzip members is unpacked whole."""
    return b"".join(inflated(body, window_bits, bytes_max=bytes_max))


async def inflate_in_turns(
    body: Buffer, window_bits: int, turns: FairScheduler, *, bytes_max: int
) -> bytes:
    parts = []
    for part in inflated(body, window_bits, bytes_max=bytes_max):
        parts.append(part)
        await turns.pause()
    return b"".join(parts)


def inflated(body: Buffer, window_bits: int = GZIP, *, bytes_max: int) -> Iterator[bytes]:
    """Like `inflate`, in parts, each of which takes a millisecond or two."""
    view, at, left = memoryview(body), 0, bytes_max
    parts: list[bytes] = []
    work = 0
    unpacker = zlib.decompressobj(window_bits)
    while not (unpacker.eof and at == len(view)):
        if unpacker.eof:
            unpacker = zlib.decompressobj(window_bits)
        piece = view[at : at + _PIECE_BYTES]
        try:
            # One byte more than is left reveals a body that is too large.
            part = unpacker.decompress(piece, min(left + 1, _PART_BYTES))
        except zlib.error as error:
            raise InvalidInput("the body is not compressed as its headers say") from error
        if len(part) > left:
            raise too_large(bytes_max)
        if not part and not piece and not unpacker.eof:
            raise InvalidInput("the compressed body ends too early: send all of it")
        at += len(piece) - len(unpacker.unconsumed_tail) - len(unpacker.unused_data)
        left -= len(part)
        parts.append(part)
        work += len(part) + _PIECE_BYTES
        if work >= _PART_BYTES:
            yield b"".join(parts)
            parts, work = [], 0
    yield b"".join(parts)


def _zstd_bytes(body: Buffer, bytes_max: int) -> int:
    """Returns the most bytes that unpacking may read or write."""
    try:
        declared = zstandard.frame_content_size(body)
    except zstandard.ZstdError:
        return len(body)
    return bytes_max if declared < 0 else max(len(body), min(declared, bytes_max))


def unpack_zstd(body: Buffer, *, bytes_max: int) -> bytes:
    """Unpacks one zstd frame, with or without its size."""
    unpacker = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX)
    try:
        declared = zstandard.frame_content_size(body)
        if declared > bytes_max:
            raise too_large(bytes_max)
        if declared >= 0:
            return unpacker.decompress(body, allow_extra_data=False)
        return _streamed(unpacker, body, bytes_max)
    except zstandard.ZstdError as error:
        raise InvalidInput("the body is not compressed as its headers say") from error


def _streamed(unpacker: zstandard.ZstdDecompressor, body: Buffer, bytes_max: int) -> bytes:
    with unpacker.stream_reader(body, read_across_frames=False) as reader:
        size = len(reader.read(bytes_max + 1))
    if size > bytes_max:
        raise too_large(bytes_max)
    # Only this call checks that the frame is complete, and it must know the size.
    return unpacker.decompress(body, max_output_size=max(1, size), allow_extra_data=False)


def too_large(bytes_max: int) -> BatchTooLarge:
    return BatchTooLarge(
        f"unpacked, the body has more than the {bytes_max} bytes allowed: send smaller batches"
    )
