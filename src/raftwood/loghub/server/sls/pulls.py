"""What a pull answers: a LogGroupList, put together of stored batches without parsing them.

A LogGroupList is its LogGroups one behind the other, each with a tag and its length before it.
Batches that were put as Arrow are converted; to who asks for Arrow, all others are.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from raftwood.base.codecs import Codec, compress
from raftwood.base.errors import InvalidConfiguration, RaftwoodError
from raftwood.base.files import Buffer
from raftwood.base.position import Position
from raftwood.base.seams import StoredBatch
from raftwood.loghub.arrow_batches import (
    arrow_to_log_groups,
    log_group_to_arrow,
    write_arrow_stream,
)
from raftwood.loghub.batches import HEAD_BYTES, Format, StoredHead, decode_head
from raftwood.loghub.compression import decompress
from raftwood.loghub.log_groups import LogGroup

RAW_BYTES_MAX: Final = 10 << 20
"""Of one answer, but for a single batch that is larger."""
_BATCH_BYTES_MAX: Final = 64 << 20
_LOG_GROUP_TAG: Final = 0x0A

Converter = Callable[[Buffer, StoredHead], list[Buffer]]


class PulledParts(msgspec.Struct, frozen=True, gc=False):
    """The batches of an answer, each as one part or several, and where to pull next."""

    parts: list[Buffer]
    next: Position


def log_groups(batches: Sequence[StoredBatch], following: Position) -> PulledParts:
    """As many batches as fit, as LogGroups."""
    return _parts(batches, following, _to_log_groups, _unreadable)


def arrow_streams(batches: Sequence[StoredBatch], following: Position) -> PulledParts:
    """As many batches as fit, each as an Arrow stream of its own: their columns may differ."""
    return _parts(
        batches,
        following,
        _to_arrow,
        lambda *told: write_arrow_stream(log_group_to_arrow(_unreadable(*told))),
    )


def log_group_list(groups: Sequence[Buffer]) -> bytes:
    found: list[Buffer] = []
    for group in groups:
        found += (_prefix(len(group)), group)
    return b"".join(found)


def framed(streams: Sequence[Buffer]) -> bytes:
    """Each behind its length, as 4 bytes, little-endian."""
    found: list[Buffer] = []
    for stream in streams:
        found += (len(stream).to_bytes(4, "little"), stream)
    return b"".join(found)


def _parts(
    batches: Sequence[StoredBatch],
    following: Position,
    convert: Converter,
    unreadable: Callable[[StoredBatch, StoredHead, Exception], bytes],
) -> PulledParts:
    parts: list[Buffer] = []
    size = 0
    for batch in batches:
        head = decode_head(batch.data)
        if parts and size + head.raw_bytes > RAW_BYTES_MAX:
            return PulledParts(parts, batch.position)
        try:
            converted = convert(_unpacked(batch.data, head), head)
        except InvalidConfiguration:
            # The batch may be right, and another gateway can read it.
            raise
        except RaftwoodError as error:
            # Whoever put it broke it. All readers would be stuck here for ever, so they are told,
            # in the stream.
            converted = [unreadable(batch, head, error)]
        # What it is converted to may be far larger than what was put.
        size += sum([len(part) for part in converted])
        if parts and size > RAW_BYTES_MAX:
            return PulledParts(parts, batch.position)
        parts += converted
    return PulledParts(parts, following)


def _unpacked(data: Buffer, head: StoredHead) -> Buffer:
    body = memoryview(data)[HEAD_BYTES:]
    return decompress(body, head.codec, raw_bytes=head.raw_bytes, raw_bytes_max=_BATCH_BYTES_MAX)


def _to_log_groups(raw: Buffer, head: StoredHead) -> list[Buffer]:
    if head.format is Format.LOG_GROUP:
        return [raw]
    return list(arrow_to_log_groups(raw, received_s=head.received_ms // 1000))


def _to_arrow(raw: Buffer, head: StoredHead) -> list[Buffer]:
    if head.format is Format.ARROW:
        return [raw]
    return [write_arrow_stream(log_group_to_arrow(raw))]


def _unreadable(batch: StoredBatch, head: StoredHead, error: Exception) -> bytes:
    group = LogGroup()
    log = group.Logs.add(Time=head.received_ms // 1000)
    text = f"the batch at position {batch.position} cannot be read: {error}"
    log.Contents.add(Key=b"__unreadable_batch__", Value=text.encode())
    data: bytes = group.SerializeToString()
    return data


def _prefix(length: int) -> bytes:
    """The field's tag, then the length as a varint."""
    found = bytearray((_LOG_GROUP_TAG,))
    while length > 0x7F:
        found.append(length & 0x7F | 0x80)
        length >>= 7
    found.append(length)
    return bytes(found)


def compressed(raw: bytes, accepted: str) -> tuple[Buffer, bytes]:
    """The body for an Accept-Encoding, and its name for `x-log-compresstype`."""
    names = [part.partition(";")[0].strip() for part in accepted.lower().split(",")]
    codec = Codec.LZ4 if "lz4" in names else Codec.ZSTD if "zstd" in names else Codec.NONE
    name = b"" if codec is Codec.NONE else codec.name.lower().encode()
    return compress(raw, codec) if raw else b"", name
