"""The bodies of puts and pulls.

A put's body is unpacked within its declared size, checked, and stored as sent. A pull's body is a
LogGroupList, joined from stored batches without parsing them: each LogGroup with a tag and its
length before it. Batches that were put as Arrow are converted; for a reader that asks for Arrow,
all other batches are converted instead.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from raftwood.base.compression import Codec, compress
from raftwood.base.errors import InvalidConfiguration, RaftwoodError
from raftwood.base.files import Buffer
from raftwood.base.position import Position
from raftwood.base.protobuf_bytes import varint
from raftwood.base.seams import StoredBatch
from raftwood.loghub.arrow_batches import (
    arrow_to_log_groups,
    log_group_to_arrow,
    read_arrow_stream,
    write_arrow_stream,
)
from raftwood.loghub.batches import HEAD_BYTES, Batch, Format, StoredHead, decode_head, decompress
from raftwood.loghub.decode_bounds import (
    DEFAULT_BOUNDS,
    RECORDS_MAX,
    SLICE_BYTES,
    Children,
    DecodeBounds,
    ProtobufFields,
    check_protobuf,
)
from raftwood.loghub.errors import BatchTooLarge, InvalidParameter
from raftwood.loghub.log_groups import LogGroup, decode_log_group
from raftwood.loghub.server.content_encoding import inflate_in_turns
from raftwood.loghub.server.http import HttpRequest
from raftwood.loghub.server.long_work import LongWork
from raftwood.net.listeners import FairScheduler

ARROW: Final = "application/vnd.apache.arrow.stream"
_CODECS: Final = {"": Codec.NONE, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}
_INFLATED: Final = ("deflate", "gzip")
_EITHER_FORMAT: Final = 47
_LOGS: Final = 1
_CONTENTS: Final[Children] = {2: {}}
_SLICE_FIELDS: Final = 4_096


def declared_raw_bytes(request: HttpRequest, *, bytes_max: int) -> int:
    """Reads `x-log-bodyrawsize`; refuses it before anything of that size is allocated."""
    text = request.header(b"x-log-bodyrawsize")
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise InvalidParameter(
            f"x-log-bodyrawsize {text[:40]!r} is no size: give that of the body, uncompressed"
        )
    size = int(text)
    if size > bytes_max:
        raise BatchTooLarge(
            f"a batch of {size} bytes is above the limit of {bytes_max}: put smaller ones"
        )
    return size


async def batch_of(
    request: HttpRequest,
    body: bytes,
    turns: FairScheduler,
    long_work: LongWork,
    *,
    raw_bytes: int,
    bounds: DecodeBounds = DEFAULT_BOUNDS,
) -> Batch | None:
    """Makes the batch to store; None if the body has no records."""
    compression = request.header(b"x-log-compresstype").lower()
    if compression in _INFLATED:
        raw: Buffer = await _inflated(body, turns, raw_bytes)
        # Stored batches cannot use deflate.
        codec = Codec.LZ4
        stored = await long_work.do(partial(compress, raw, codec), size=raw_bytes)
    elif compression in _CODECS:
        stored, codec = body, _CODECS[compression]
        unpack = partial(decompress, body, codec, raw_bytes=raw_bytes, raw_bytes_max=raw_bytes)
        raw = await long_work.do(unpack, size=max(len(body), raw_bytes))
    else:
        raise InvalidParameter(
            f"x-log-compresstype {compression[:40]!r} is not known: use lz4, zstd, deflate or none"
        )
    is_arrow = request.header(b"content-type").partition(";")[0].strip().lower() == ARROW
    if is_arrow:
        records = await long_work.do(partial(_arrow_records, raw), size=raw_bytes)
    else:
        records = await _log_records(bytes(raw), turns, bounds)
    if not records:
        return None
    return Batch(
        body=stored,
        format=Format.ARROW if is_arrow else Format.LOG_GROUP,
        codec=codec,
        raw_bytes=raw_bytes,
        records=records,
    )


async def _log_records(raw: bytes, turns: FairScheduler, bounds: DecodeBounds) -> int:
    """Decodes a whole LogGroup, a slice at a time; returns the number of its logs."""
    name = "the LogGroup"
    group = ProtobufFields(raw, name)
    records = others = begin = since = 0
    for number, _, at, end in group.walk(0, len(raw)):
        if number == _LOGS:
            records += 1
            if records > RECORDS_MAX:
                raise BatchTooLarge(
                    f"the LogGroup has more than {RECORDS_MAX} logs: put several smaller ones"
                )
            if end - at > bounds.keys_max:
                check_protobuf(raw, at, end, _CONTENTS, bounds, f"log {records} of {name}")
        else:
            others += 1
            if others > bounds.keys_max:
                raise bounds.too_many(name, "keys")
        since += 1
        if end - begin >= SLICE_BYTES or since >= _SLICE_FIELDS:
            # A run of a message's fields is itself a message.
            decode_log_group(raw[begin:end])
            begin, since = end, 0
            await turns.pause()
    decode_log_group(raw[begin:])
    return records


def _arrow_records(raw: Buffer) -> int:
    return sum(batch.num_rows for batch in read_arrow_stream(raw, bytes_max=len(raw), is_new=True))


async def _inflated(body: bytes, turns: FairScheduler, raw_bytes: int) -> bytes:
    raw = await inflate_in_turns(body, _EITHER_FORMAT, turns, bytes_max=raw_bytes)
    if len(raw) != raw_bytes:
        raise InvalidParameter(
            f"x-log-bodyrawsize says {raw_bytes} bytes, the body has {len(raw)}: give its size "
            "uncompressed"
        )
    return raw


RAW_BYTES_MAX: Final = 10 << 20
"""Limit of one answer, except for a single batch that is larger."""
_BATCH_BYTES_MAX: Final = 64 << 20
_LOG_GROUP_TAG: Final = b"\x0a"

Converter = Callable[[Buffer, StoredHead], list[Buffer]]


class PulledParts(msgspec.Struct, frozen=True, gc=False):
    """The batches of an answer, each in one or more parts, and the position of the next pull."""

    parts: list[Buffer]
    next: Position


def log_groups(batches: Sequence[StoredBatch], following: Position) -> PulledParts:
    """Converts as many batches as fit to LogGroups."""
    return _parts(batches, following, _to_log_groups, _unreadable)


def arrow_streams(batches: Sequence[StoredBatch], following: Position) -> PulledParts:
    """Converts as many batches as fit, each to an Arrow stream of its own, as columns differ."""
    return _parts(
        batches,
        following,
        _to_arrow,
        lambda *told: write_arrow_stream(log_group_to_arrow(_unreadable(*told))),
    )


def log_group_list(groups: Sequence[Buffer]) -> bytes:
    found: list[Buffer] = []
    for group in groups:
        found += (_LOG_GROUP_TAG, varint(len(group)), group)
    return b"".join(found)


def framed(streams: Sequence[Buffer]) -> bytes:
    """Joins streams, each behind its length as 4 bytes, little-endian."""
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
            # The producer stored a broken batch. All readers would be stuck here for ever, so they
            # get a record about it instead.
            converted = [unreadable(batch, head, error)]
        # The converted batch may be far larger than the stored one.
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


def compressed(raw: bytes, accepted: str) -> tuple[Buffer, bytes]:
    """Compresses a body for an Accept-Encoding; returns also the name for `x-log-compresstype`."""
    names = [part.partition(";")[0].strip() for part in accepted.lower().split(",")]
    codec = Codec.LZ4 if "lz4" in names else Codec.ZSTD if "zstd" in names else Codec.NONE
    name = b"" if codec is Codec.NONE else codec.name.lower().encode()
    return compress(raw, codec) if raw else b"", name
