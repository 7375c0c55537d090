"""What bookies and ZooKeeper say, as any bytes: a message, or an error that says what is wrong."""

import contextlib

from raftwood.base.errors import ProtocolError, StoreError
from raftwood.dlog.bookkeeper import protobuf_protocol
from raftwood.dlog.bookkeeper.messages import Response
from raftwood.dlog.bookkeeper.metadata_store import decode_metadata, encode_metadata
from raftwood.dlog.ledgers.metadata import (
    BookieId,
    EntryId,
    LedgerConfig,
    LedgerMetadata,
    LedgerState,
    Segment,
)


def response_target(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        response = protobuf_protocol.parse_response(data)
        for inner in (response.addResponse, response.readResponse, response.readLacResponse):
            protobuf_protocol.status_of(response, inner)


def response_seeds() -> list[bytes]:
    header = {"version": 3, "operation": 2, "txnId": 300}
    add = {"status": 0, "ledgerId": 5, "entryId": 7}
    return [
        Response(header=header, status=0, addResponse=add).SerializeToString(),
        Response(header=header, status=0, readResponse={**add, "body": bytes(50)})
        .SerializeToString(),
        Response(header=header, status=402, readLacResponse={"status": 402, "ledgerId": 5})
        .SerializeToString(),
    ]  # fmt: skip


def metadata_target(data: bytes) -> None:
    with contextlib.suppress(StoreError):
        metadata = decode_metadata(data, 1)
        assert decode_metadata(encode_metadata(metadata), 1) == metadata


def metadata_seeds() -> list[bytes]:
    bookies = tuple(map(BookieId, ("one:1", "two:2", "three")))
    opened = LedgerMetadata(config=LedgerConfig(), segments=(Segment(EntryId(0), bookies),))
    closed = LedgerMetadata(
        config=LedgerConfig(password=b"secret"),
        segments=(Segment(EntryId(0), bookies), Segment(EntryId(9), bookies)),
        state=LedgerState.CLOSED,
        last_entry=EntryId(20),
        length_bytes=1000,
        created_ms=1,
        properties={"a": b"b"},
        creation_token=5,
    )
    return [encode_metadata(opened), encode_metadata(closed)]
