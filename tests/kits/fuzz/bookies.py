"""What a bookie reads from the network and its folder, and what its clients read of it."""

from raftwood.base.errors import InvalidInput, ProtocolError, StoreError
from raftwood.dlog.bookie.ledger_descriptor import (
    LedgerNote,
    checked_head,
    decode_note,
    encode_note,
)
from raftwood.dlog.bookie.membership import decode_registered
from raftwood.dlog.bookie.metadata_store import decode_metadata, encode_metadata
from raftwood.dlog.bookie.wire import (
    FenceRequest,
    decode_adds,
    decode_fence,
    decode_last_confirmed,
    decode_ledger,
    decode_read,
    decode_refusals,
    encode_fence,
    encode_number,
    encode_read,
    encode_refusals,
    prepare,
)
from raftwood.dlog.errors import Fenced
from raftwood.dlog.ledgers.metadata import BookieId, EntryId, LedgerConfig, LedgerMetadata, Segment

_PACKED = bytes(31) + b"\x05" + b"sums and data"


def request_target(data: bytes) -> object:
    """Every request, whichever it was meant to be."""
    found: list[object] = []
    for decode in (decode_adds, decode_fence, decode_read, decode_ledger):
        try:
            found.append(decode(data))
        except InvalidInput as error:
            found.append(error.message)
    return found


def request_seeds() -> list[bytes]:
    adds = [
        prepare([_PACKED], key, ledger=0, entry=0, is_recovery=bool(key)) for key in (b"", b"key")
    ]
    return [
        b"".join(each.head + each.packed for each in adds),
        encode_fence(FenceRequest(1, 2, b"key")),
        encode_read(1, -1),
        encode_number(7),
    ]


def answer_target(data: bytes) -> object:
    found: list[object] = []
    for decode in (lambda payload: decode_refusals(payload, 3), decode_last_confirmed):
        try:
            found.append(decode(data))
        except ProtocolError as error:
            found.append(error.message)
    return found


def answer_seeds() -> list[bytes]:
    return [encode_refusals([(0, Fenced("fenced")), (2, Fenced("too"))]), encode_number(3) + b"x"]


def kept_target(data: bytes) -> object:
    """What is kept of ledgers and bookies, and the heads of entries."""
    found: list[object] = []
    for decode in (
        lambda kept: decode_note(kept, ledger=1),
        lambda kept: decode_metadata(kept, ledger=1),
        lambda kept: decode_registered(kept, bookie="b"),
        checked_head,
    ):
        try:
            found.append(decode(data))
        except (StoreError, InvalidInput) as error:
            found.append(error.message)
    return found


def kept_seeds() -> list[bytes]:
    metadata = LedgerMetadata(
        config=LedgerConfig(ensemble=1, write_quorum=1, ack_quorum=1),
        segments=(Segment(EntryId(0), (BookieId("a:1"),)),),
    )
    return [
        encode_note(LedgerNote(master_key=b"key", is_fenced=True, published=4)),
        encode_metadata(metadata),
        b'{"instance":"a","rack":"r","is_read_only":false}',
        _PACKED,
    ]
