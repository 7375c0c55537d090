"""The body of a put: unpacked within what it says of itself, checked, and stored as it came."""

import lz4.block

from raftwood.base.errors import InvalidInput
from raftwood.base.files import Buffer
from raftwood.loghub.batches import Batch, Codec, Format
from raftwood.loghub.errors import BatchTooLarge, InvalidParameter
from raftwood.loghub.log_groups import decode_log_group
from raftwood.loghub.server.http.content import inflate, unpack_zstd
from raftwood.loghub.server.http.request import Request


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


def log_group_batch(body: bytes, *, compression: str, raw_bytes: int) -> Batch | None:
    """A LogGroup to store; None where it has no log."""
    raw, codec = unpack(body, compression=compression, raw_bytes=raw_bytes)
    records = len(decode_log_group(raw).Logs)
    if not records:
        return None
    if codec is None:
        # Stored batches know no deflate.
        body, codec = lz4.block.compress(raw, store_size=False), Codec.LZ4
    return Batch(
        body=body, format=Format.LOG_GROUP, codec=codec, raw_bytes=raw_bytes, records=records
    )


def unpack(body: bytes, *, compression: str, raw_bytes: int) -> tuple[Buffer, Codec | None]:
    """The body uncompressed, exactly as long as it said; and how it can be stored as it is."""
    match compression.lower():
        case "":
            raw, codec = body, Codec.NONE
        case "lz4":
            raw, codec = _unpack_lz4(body, raw_bytes), Codec.LZ4
        case "zstd":
            raw, codec = unpack_zstd(body, bytes_max=raw_bytes), Codec.ZSTD
        case "deflate" | "gzip":
            # The window's bits plus 32: either of both formats.
            raw, codec = inflate(body, 47, bytes_max=raw_bytes), None
        case other:
            raise InvalidParameter(
                f"x-log-compresstype {other[:40]!r} is not known: use lz4, zstd, deflate or none"
            )
    if len(raw) != raw_bytes:
        raise InvalidParameter(
            f"x-log-bodyrawsize says {raw_bytes} bytes, the body has {len(raw)}: give its size "
            "uncompressed"
        )
    return raw, codec


def _unpack_lz4(body: bytes, raw_bytes: int) -> bytes:
    try:
        raw: bytes = lz4.block.decompress(body, uncompressed_size=raw_bytes)
    except (lz4.block.LZ4BlockError, ValueError, OverflowError) as error:
        raise InvalidInput(
            "the body is no LZ4 block of the size in x-log-bodyrawsize: compress it as a raw block"
        ) from error
    return raw
