"""The body of a put: unpacked within what it says of itself, checked, and stored as it came."""

from functools import partial
from typing import Final

from raftwood.base.codecs import Codec, compress
from raftwood.base.files import Buffer
from raftwood.loghub.arrow_batches import read_arrow_stream
from raftwood.loghub.batches import Batch, Format
from raftwood.loghub.compression import decompress
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
from raftwood.loghub.log_groups import decode_log_group
from raftwood.loghub.server.http.content import inflate_in_turns
from raftwood.loghub.server.http.request import Request
from raftwood.loghub.server.long_work import LongWork
from raftwood.net.turns import Turns

ARROW: Final = "application/vnd.apache.arrow.stream"
_CODECS: Final = {"": Codec.NONE, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}
_INFLATED: Final = ("deflate", "gzip")
_EITHER_FORMAT: Final = 47
_LOGS: Final = 1
_CONTENTS: Final[Children] = {2: {}}
_SLICE_FIELDS: Final = 4_096


def declared_raw_bytes(request: Request, *, bytes_max: int) -> int:
    """`x-log-bodyrawsize`, refused before anything of that size is allocated."""
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
    request: Request,
    body: bytes,
    turns: Turns,
    long_work: LongWork,
    *,
    raw_bytes: int,
    bounds: DecodeBounds = DEFAULT_BOUNDS,
) -> Batch | None:
    """What is to be stored; None where there is no record in it."""
    compression = request.header(b"x-log-compresstype").lower()
    if compression in _INFLATED:
        raw: Buffer = await _inflated(body, turns, raw_bytes)
        # Stored batches know no deflate.
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


async def _log_records(raw: bytes, turns: Turns, bounds: DecodeBounds) -> int:
    """How many logs there are in a LogGroup, once all of it was decoded, a slice at a time."""
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
            # A run of a message's fields is a message.
            decode_log_group(raw[begin:end])
            begin, since = end, 0
            await turns.pause()
    decode_log_group(raw[begin:])
    return records


def _arrow_records(raw: Buffer) -> int:
    return sum(batch.num_rows for batch in read_arrow_stream(raw, bytes_max=len(raw), is_new=True))


async def _inflated(body: bytes, turns: Turns, raw_bytes: int) -> bytes:
    raw = await inflate_in_turns(body, _EITHER_FORMAT, turns, bytes_max=raw_bytes)
    if len(raw) != raw_bytes:
        raise InvalidParameter(
            f"x-log-bodyrawsize says {raw_bytes} bytes, the body has {len(raw)}: give its size "
            "uncompressed"
        )
    return raw
