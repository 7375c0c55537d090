"""Ledgers' metadata in BookKeeper's formats, with golden bytes of its Java client."""

import pytest

from raftwood.base.errors import StoreDamaged, UnsupportedVersion
from raftwood.dlog.bookkeeper.metadata_store import decode_metadata, encode_metadata
from raftwood.dlog.ledgers.metadata import (
    BookieId,
    Digest,
    EntryId,
    LedgerConfig,
    LedgerMetadata,
    LedgerState,
    Segment,
)

OF_JAVA = b"BookieMetadataFormatVersion\t3\n" + bytes.fromhex(
    "6408031003180020ffffffffffffffffff012801322e0a0f3132372e302e302e313a34383634350a08626f6f6b6965"
    "2d330a0f3132372e302e302e313a353035323910003803420048025a0f0a076d61646520627912044a617661608ba6"
    "be9e9cdeeb9a49"
)
"""Written by BookKeeper 4.18.0."""

ENSEMBLE = tuple(map(BookieId, ("127.0.0.1:48645", "bookie-3", "127.0.0.1:50529")))
OPEN = LedgerMetadata(
    config=LedgerConfig(),
    segments=(Segment(EntryId(0), ENSEMBLE),),
    properties={"made by": b"Java"},
    creation_token=0x4935AEF1C3CF930B,
)
TEXT = b"""BookieMetadataFormatVersion\t2
quorumSize: 2
ensembleSize: 3
length: 700
lastEntryId: 9
state: CLOSED
segment {
  ensembleMember: "one:1"
  ensembleMember: "two:2"
  ensembleMember: "three:3"
  firstEntryId: 0
}
segment {
  ensembleMember: "one:1"
  ensembleMember: "four:4"
  ensembleMember: "three:3"
  firstEntryId: 5
}
digestType: HMAC
password: "secret"
ctime: 1500000000000
"""


def test_what_java_wrote_is_read_and_written_the_same() -> None:
    read = decode_metadata(OF_JAVA, 1)
    assert read == OPEN
    assert encode_metadata(read) == OF_JAVA


def test_text_of_older_clients_is_read() -> None:
    read = decode_metadata(TEXT, 1)
    assert read.config == LedgerConfig(
        ensemble=3, write_quorum=2, ack_quorum=2, digest=Digest.MAC, password=b"secret"
    )
    assert read.state is LedgerState.CLOSED
    assert (read.last_entry, read.length_bytes, read.created_ms) == (9, 700, 1_500_000_000_000)
    assert [(each.first, each.bookies[1]) for each in read.segments] == [
        (0, "two:2"),
        (5, "four:4"),
    ]


@pytest.mark.parametrize("digest", list(Digest))
@pytest.mark.parametrize("state", list(LedgerState))
def test_all_is_kept(digest: Digest, state: LedgerState) -> None:
    is_closed = state is LedgerState.CLOSED
    metadata = LedgerMetadata(
        config=LedgerConfig(
            ensemble=4, write_quorum=3, ack_quorum=2, digest=digest, password=b"\xff\x00"
        ),
        segments=(
            Segment(EntryId(0), tuple(map(BookieId, "abcd"))),
            Segment(EntryId(7), tuple(map(BookieId, "abce"))),
        ),
        state=state,
        last_entry=EntryId(1 << 40 if is_closed else -1),
        length_bytes=1 << 50 if is_closed else 0,
        created_ms=1,
        properties={"a": b"\xfe", "b": b""},
        creation_token=-5,
    )
    assert decode_metadata(encode_metadata(metadata), 1) == metadata


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"whatever",
        OF_JAVA[:-1],
        OF_JAVA[:31],
        b"BookieMetadataFormatVersion\t3\n",
        b"BookieMetadataFormatVersion\t3\n\x00",
        b"BookieMetadataFormatVersion\t3\n\xff\xff\xff\xff\xff",
        b"BookieMetadataFormatVersion\t2\nquorumSize: 2",
        b"BookieMetadataFormatVersion\t2\nnonsense: 2",
        b"BookieMetadataFormatVersion\t2\n\xff",
        TEXT.replace(b"firstEntryId: 0", b"firstEntryId: 1"),
        TEXT.replace(b"ensembleSize: 3", b"ensembleSize: 4"),
        TEXT.replace(b"quorumSize: 2", b"quorumSize: 9"),
        TEXT.replace(b"CLOSED", b"LOST"),
    ],
)
def test_what_is_damaged_is_refused(data: bytes) -> None:
    with pytest.raises(StoreDamaged, match="ledger 7"):
        decode_metadata(data, 7)


@pytest.mark.parametrize("version", [b"1", b"4", b"", b"\xff"])
def test_another_format_is_refused_by_its_name(version: bytes) -> None:
    with pytest.raises(UnsupportedVersion, match="ledger 7"):
        decode_metadata(b"BookieMetadataFormatVersion\t" + version + b"\n3\n3\n0", 7)
