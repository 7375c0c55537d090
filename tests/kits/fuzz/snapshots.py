"""Any bytes as a snapshot's container: a whole one, or an error of the store; nothing invented."""

import struct

from xxhash import xxh3_64_intdigest

from raftwood.base.errors import StoreError
from raftwood.base.files import Buffer
from raftwood.raft.core import ConfState
from raftwood.raft.snapshot_format import (
    FRAME_BYTES,
    HEADER_BYTES,
    SnapshotDecoder,
    SnapshotEncoder,
    SnapshotFrame,
    SnapshotFrameKind,
    SnapshotMeta,
)

_U64 = struct.Struct("<Q")


def target(data: bytes) -> None:
    """Whatever is taken is said in the same bytes again, whichever way it was cut.

    A quarter of the inputs get valid checksums, to reach further.
    """
    if data and data[-1] & 3 == 0:
        data = with_checksums(data)
    whole = _decoded([data])
    if whole is None:
        return
    middle = len(data) // 2
    assert _decoded([data[:middle], data[middle : middle + 1], data[middle + 1 :]]) == whole
    # Others may write the same meta in other bytes.
    if data.startswith(SnapshotEncoder(whole[0]).header):
        assert _rebuilt(*whole) == data


def _decoded(pieces: list[bytes]) -> tuple[SnapshotMeta, list[SnapshotFrame]] | None:
    decoder = SnapshotDecoder()
    try:
        parts = [part for piece in pieces for part in decoder.feed(piece)]
        decoder.finish()
    except StoreError:
        return None
    assert decoder.meta is not None
    return decoder.meta, parts


def _rebuilt(meta: SnapshotMeta, parts: list[SnapshotFrame]) -> bytes:
    encoder = SnapshotEncoder(meta)
    frames = [buffer for part in parts for buffer in _encoded(encoder, part)]
    return b"".join([encoder.header, *frames])


def _encoded(encoder: SnapshotEncoder, part: SnapshotFrame) -> tuple[Buffer, ...]:
    if part.kind is SnapshotFrameKind.CHUNK:
        return encoder.chunk(part.payload)
    if part.kind is SnapshotFrameKind.FILE:
        return encoder.file(part.payload.decode())
    return (
        encoder.file_piece(part.payload)
        if part.kind is SnapshotFrameKind.FILE_PIECE
        else encoder.end()
    )


def with_checksums(data: bytes) -> bytes:
    """The same bytes, with every checksum made right as far as the lengths make sense."""
    if len(data) < HEADER_BYTES:
        return data
    fixed = bytearray(data)
    (meta_bytes,) = struct.unpack_from("<I", fixed, 12)
    offset = HEADER_BYTES + meta_bytes
    chain = xxh3_64_intdigest(data[HEADER_BYTES:offset], xxh3_64_intdigest(data[:16]))
    fixed[16:24] = _U64.pack(chain)
    while offset + FRAME_BYTES <= len(data):
        (payload_bytes,) = struct.unpack_from("<I", fixed, offset + 12)
        end = offset + FRAME_BYTES + payload_bytes
        seed = xxh3_64_intdigest(data[offset + 8 : offset + FRAME_BYTES], chain)
        chain = xxh3_64_intdigest(data[offset + FRAME_BYTES : end], seed)
        fixed[offset : offset + 8] = _U64.pack(chain)
        offset = end
    return bytes(fixed)


def container(meta: SnapshotMeta, chunks: list[bytes], files: dict[str, list[bytes]]) -> bytes:
    """A whole container, in one piece."""
    encoder = SnapshotEncoder(meta)
    buffers: list[Buffer] = [encoder.header]
    for chunk in chunks:
        buffers += encoder.chunk(chunk)
    for name, pieces in files.items():
        buffers += encoder.file(name)
        for piece in pieces:
            buffers += encoder.file_piece(piece)
    buffers += encoder.end()
    return b"".join(buffers)


def seeds() -> list[bytes]:
    small = SnapshotMeta(1, 2, 3, ConfState(), {})
    joint = ConfState((1, 2, 3), (4,), (1, 2, 5), (5,), auto_leave=True)
    large = SnapshotMeta((1 << 64) - 1, 1 << 40, 9, joint, {1: "a:1", 2: "b:2"}, b"sessions")
    return [
        container(small, [], {}),
        container(small, [b"", b"state", bytes(100)], {}),
        container(large, [b"x" * 30], {"one.sst": [b"abc", b"def"], "empty": []}),
    ]
