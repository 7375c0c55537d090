"""The bytes of messages and entries, fixed here for ever, and what is refused."""

import pytest

from raftwood.base.compression import Codec
from raftwood.base.errors import InvalidInput, StoreDamaged, StoreError, UnsupportedVersion
from raftwood.dlog.log.entries import (
    DlogMessage,
    EntryHead,
    ProducerRun,
    decode_entry,
    decode_head,
    decode_message,
    encode_entry,
    encode_message,
)

MESSAGE = DlogMessage(b"payload", b"key", ((b"h", b"1"), (b"h", b""), (b"i", b"22")), 5)
GOLDEN_MESSAGE = bytes.fromhex(
    "01 05 0003 00000003 00000007"  # magic, attributes, headers, key, payload
    "6b6579 7061796c6f6164"
    "0001 00000001 68 31"  # a header's key may come again, and its value may be empty
    "0001 00000000 68"
    "0001 00000002 69 3232"
)
GOLDEN_PLAIN = bytes.fromhex("01 00 0000 00000000 00000002 6869")
GOLDEN_ENTRY = bytes.fromhex(
    "01 00 0002 0002 0000"  # magic, compression, messages, runs, pieces of a snapshot to come
    "0000018bcfe56800 0000000000000004 0000000000000007"  # time, bytes ever, last snapshot
    "00000003 00000024"  # bytes of the snapshot and of the body
    "01 0001 0000000000000009 70"  # one message of producer p, sequence 9
    "00 0001 0000000000000000"  # one of nobody
    "736e70"
    "0000000e 0000001c"  # where the messages end
    "01 00 0000 00000000 00000002 6869"
    "01 00 0000 00000000 00000002 6869"
)
HEAD = EntryHead(
    time_ms=1_700_000_000_000,
    count=2,
    runs=(ProducerRun(b"p", 9, 1), ProducerRun(b"", 0, 1)),
    snapshot_entry=7,
    snapshot=b"snp",
    appended_bytes=4,
)


def test_a_message_has_these_bytes() -> None:
    assert encode_message(MESSAGE) == GOLDEN_MESSAGE
    assert decode_message(memoryview(GOLDEN_MESSAGE)) == MESSAGE
    assert encode_message(DlogMessage(b"hi")) == GOLDEN_PLAIN
    assert MESSAGE.size_bytes == len(GOLDEN_MESSAGE)


def test_an_entry_has_these_bytes() -> None:
    assert encode_entry(HEAD, (GOLDEN_PLAIN, GOLDEN_PLAIN), (14, 14)) == GOLDEN_ENTRY
    decoded = decode_entry(GOLDEN_ENTRY)
    assert decoded.head == HEAD
    assert [bytes(decoded.payload(index)) for index in range(2)] == [b"hi", b"hi"]
    assert decode_head(GOLDEN_ENTRY)[0] == HEAD


@pytest.mark.parametrize("compression", list(Codec))
def test_a_compressed_entry_is_what_it_was(compression: Codec) -> None:
    messages = [encode_message(DlogMessage(b"%d" % n * 50, b"k")) for n in range(100)]
    runs = (ProducerRun(b"", 0, 100),)
    head = EntryHead(1, 100, runs, compression=compression)
    data = encode_entry(head, messages, [len(each) for each in messages])
    if compression is not Codec.NONE:
        assert len(data) < sum(map(len, messages)) / 2
    assert [bytes(decode_entry(data).raw(index)) for index in range(100)] == messages


def test_a_newer_version_is_refused_whatever_follows() -> None:
    with pytest.raises(UnsupportedVersion, match="format 2"):
        decode_message(memoryview(b"\x02"))
    with pytest.raises(UnsupportedVersion, match="version 2"):
        decode_entry(b"\x02" + GOLDEN_ENTRY[1:])
    with pytest.raises(UnsupportedVersion, match="compression 9"):
        decode_entry(b"\x01\x09" + GOLDEN_ENTRY[2:])


def test_what_is_cut_off_or_too_long_is_damaged() -> None:
    for size in range(1, len(GOLDEN_MESSAGE)):
        with pytest.raises(StoreDamaged):
            decode_message(memoryview(GOLDEN_MESSAGE[:size]))
    with pytest.raises(StoreDamaged):
        decode_message(memoryview(GOLDEN_MESSAGE + b"x"))
    for size in range(len(GOLDEN_ENTRY)):
        with pytest.raises(StoreError):
            decode_entry(GOLDEN_ENTRY[:size])
    with pytest.raises(StoreDamaged):
        decode_entry(GOLDEN_ENTRY + b"x")


def test_a_small_entry_cannot_ask_for_much_memory() -> None:
    head = EntryHead(1, 1, (ProducerRun(b"", 0, 1),), compression=Codec.ZSTD)
    data = bytearray(encode_entry(head, (GOLDEN_PLAIN,), (14,)))
    data[36:40] = (200 << 20).to_bytes(4, "big")
    with pytest.raises(StoreDamaged):
        decode_entry(bytes(data))
    data[36:40] = (17).to_bytes(4, "big")
    with pytest.raises(StoreDamaged):
        decode_entry(bytes(data))


def test_a_message_beyond_its_format_is_refused() -> None:
    with pytest.raises(InvalidInput):
        encode_message(DlogMessage(b"", attributes=256))
    with pytest.raises(InvalidInput):
        encode_message(DlogMessage(b"", headers=[(b"", b"")] * (1 << 16)))
    with pytest.raises(InvalidInput):
        encode_message(DlogMessage(b"", headers=[(b"k" * (1 << 16), b"")]))
