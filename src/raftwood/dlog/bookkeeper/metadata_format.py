"""A ledger's metadata as BookKeeper keeps them: a line with the format's number, then protobuf.

Format 3 is binary behind its length, and what is written here; format 2, of older clients, is
protobuf's text. Format 1 is refused.
"""

from typing import Any, Final

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from raftwood.base.errors import InvalidInput, StoreDamaged, UnsupportedVersion
from raftwood.dlog.bookkeeper.messages import LedgerMetadataFormat
from raftwood.dlog.ledgers.model import (
    BOOKIE_ID,
    BookieId,
    Digest,
    EntryId,
    LedgerConfig,
    LedgerMetadata,
    LedgerState,
    Segment,
)

_HEAD: Final = b"BookieMetadataFormatVersion\t"
_STATES: Final = {LedgerState.OPEN: 1, LedgerState.IN_RECOVERY: 2, LedgerState.CLOSED: 3}
_DIGESTS: Final = {Digest.CRC32: 1, Digest.MAC: 2, Digest.CRC32C: 3, Digest.DUMMY: 4}
_STATE_OF: Final = {number: state for state, number in _STATES.items()}
_DIGEST_OF: Final = {number: digest for digest, number in _DIGESTS.items()}


def encode_metadata(metadata: LedgerMetadata) -> bytes:
    """In format 3."""
    config = metadata.config
    message = LedgerMetadataFormat(
        quorumSize=config.write_quorum,
        ensembleSize=config.ensemble,
        ackQuorumSize=config.ack_quorum,
        length=metadata.length_bytes,
        lastEntryId=metadata.last_entry,
        state=_STATES[metadata.state],
        digestType=_DIGESTS[config.digest],
        password=config.password,
        cToken=metadata.creation_token,
    )
    if metadata.created_ms:
        message.ctime = metadata.created_ms
    for segment in metadata.segments:
        message.segment.add(firstEntryId=segment.first, ensembleMember=segment.bookies)
    for name, value in sorted(metadata.properties.items()):
        message.customMetadata.add(key=name, value=value)
    encoded: bytes = message.SerializeToString()
    return b"".join((_HEAD, b"3\n", _varint(len(encoded)), encoded))


def decode_metadata(data: bytes, ledger: int) -> LedgerMetadata:
    """`StoreDamaged` where it is none, `UnsupportedVersion` for a format that is unknown."""
    head, _, body = data.partition(b"\n")
    if not head.startswith(_HEAD):
        raise StoreDamaged(f"ledger {ledger} has no metadata of BookKeeper's: {data[:40]!r}")
    version = head[len(_HEAD) :]
    if version not in (b"2", b"3"):
        raise UnsupportedVersion(
            f"the metadata of ledger {ledger} have format {version[:20]!r}: 2 and 3 are supported"
        )
    try:
        message = _parse_binary(body) if version == b"3" else _parse_text(body)
        return _metadata(message)
    except (DecodeError, text_format.ParseError, ValueError, InvalidInput) as error:
        raise StoreDamaged(f"the metadata of ledger {ledger} are damaged: {error}") from error


def _parse_binary(body: bytes) -> Any:
    size = shift = at = 0
    for at, byte in enumerate(body[:5], 1):  # noqa: B007  where the length ends
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if len(body) - at < size:
        raise ValueError(f"{len(body) - at} bytes of {size}")
    return LedgerMetadataFormat.FromString(body[at : at + size])


def _parse_text(body: bytes) -> Any:
    return text_format.Parse(body.decode(), LedgerMetadataFormat())


def _metadata(message: Any) -> LedgerMetadata:
    for name in ("quorumSize", "ensembleSize", "state"):
        if not message.HasField(name):
            raise ValueError(f"there is no {name}")
    if not message.segment or message.segment[0].firstEntryId != 0:
        raise ValueError("the first segment does not begin at entry 0")
    has_ack_quorum = message.HasField("ackQuorumSize")
    config = LedgerConfig(
        ensemble=message.ensembleSize,
        write_quorum=message.quorumSize,
        ack_quorum=message.ackQuorumSize if has_ack_quorum else message.quorumSize,
        digest=_DIGEST_OF[message.digestType],
        password=message.password,
    )
    segments = tuple(
        Segment(EntryId(each.firstEntryId), tuple(map(_bookie, each.ensembleMember)))
        for each in sorted(message.segment, key=lambda each: int(each.firstEntryId))
    )
    if any(len(each.bookies) != config.ensemble for each in segments):
        raise ValueError(f"a segment does not have {config.ensemble} bookies")
    is_closed = message.state == _STATES[LedgerState.CLOSED]
    return LedgerMetadata(
        config=config,
        segments=segments,
        state=_STATE_OF[message.state],
        last_entry=EntryId(message.lastEntryId if is_closed else -1),
        length_bytes=message.length if is_closed else 0,
        created_ms=message.ctime,
        properties={_text(each.key): each.value for each in message.customMetadata},
        creation_token=message.cToken,
    )


def _bookie(name: Any) -> BookieId:
    if not BOOKIE_ID.fullmatch(_text(name)):
        raise ValueError(f"{name!r} is no bookie's id")
    return BookieId(name)


def _text(value: Any) -> str:
    """Protobuf hands out bytes where a text is none."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
