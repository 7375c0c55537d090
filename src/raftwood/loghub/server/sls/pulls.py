"""What a pull answers: a LogGroupList, put together of stored batches without parsing them.

A LogGroupList is its LogGroups one behind the other, each with a tag and its length before it.
"""

from collections.abc import Sequence
from typing import Final

import lz4.block
import msgspec
import zstandard

from raftwood.base.errors import RaftwoodError
from raftwood.base.files import Buffer
from raftwood.base.position import Position
from raftwood.base.seams import StoredBatch
from raftwood.loghub.batches import HEAD_BYTES, Codec, Format, StoredHead, decode_head
from raftwood.loghub.errors import InvalidParameter
from raftwood.loghub.log_groups import LogGroup
from raftwood.loghub.server.http.content import unpack_zstd

RAW_BYTES_MAX: Final = 20 << 20
"""Of one answer, but for a single batch that is larger."""
_TAG: Final = b"\x0a"
_ZSTD_LEVEL: Final = 1


class PulledList(msgspec.Struct, frozen=True, gc=False):
    """A LogGroupList, how many LogGroups it has, and where to pull next."""

    raw: bytes
    count: int
    next: Position


def log_group_list(batches: Sequence[StoredBatch], following: Position) -> PulledList:
    """As many batches as fit."""
    parts: list[Buffer] = []
    size = 0
    for count, batch in enumerate(batches):
        head = decode_head(batch.data)
        size += head.raw_bytes
        if count and size > RAW_BYTES_MAX:
            return PulledList(b"".join(parts), count, batch.position)
        group = _log_group(batch, head)
        parts += (_TAG, _varint(len(group)), group)
    return PulledList(b"".join(parts), len(batches), following)


def _log_group(batch: StoredBatch, head: StoredHead) -> Buffer:
    try:
        raw = unpack_stored(batch.data, head)
        if head.format is Format.LOG_GROUP:
            return raw
        return _converted(raw)
    except (RaftwoodError, ImportError) as error:
        # Whoever put it broke it. All readers would be stuck here for ever, so they are told, in
        # the stream.
        return _substitute(batch.position, head, error)


def unpack_stored(data: Buffer, head: StoredHead) -> Buffer:
    """A stored batch's body, uncompressed."""
    body = memoryview(data)[HEAD_BYTES:]
    match head.codec:
        case Codec.NONE:
            raw: Buffer = body
        case Codec.LZ4:
            raw = _unpack_lz4(body, head.raw_bytes)
        case Codec.ZSTD:
            raw = unpack_zstd(body, bytes_max=head.raw_bytes)
    if len(raw) != head.raw_bytes:
        raise InvalidParameter(f"it has {len(raw)} bytes and not {head.raw_bytes}, as it says")
    return raw


def _unpack_lz4(body: Buffer, raw_bytes: int) -> bytes:
    try:
        raw: bytes = lz4.block.decompress(body, uncompressed_size=raw_bytes)
    except (lz4.block.LZ4BlockError, ValueError, OverflowError) as error:
        raise InvalidParameter("its body is no LZ4 block") from error
    return raw


def _converted(raw: Buffer) -> bytes:
    raise InvalidParameter(f"{len(raw)} bytes of Arrow cannot be converted")


def _substitute(position: int, head: StoredHead, error: Exception) -> bytes:
    group = LogGroup()
    log = group.Logs.add(Time=head.received_ms // 1000)
    text = f"the batch at position {position} cannot be read: {error}"
    log.Contents.add(Key=b"__unreadable_batch__", Value=text.encode())
    data: bytes = group.SerializeToString()
    return data


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def compressed(raw: bytes, accepted: str) -> tuple[bytes, bytes]:
    """The body for an Accept-Encoding, and its name for `x-log-compresstype`."""
    names = [part.partition(";")[0].strip() for part in accepted.lower().split(",")]
    if "lz4" in names:
        return lz4.block.compress(raw, store_size=False) if raw else b"", b"lz4"
    if "zstd" in names:
        packer = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)
        return packer.compress(raw) if raw else b"", b"zstd"
    return raw, b""
