"""Any bytes as what a log keeps: entries, meta records, cursors, offloaded ledgers."""

import contextlib

from raftwood.base.compression import Codec
from raftwood.base.errors import StoreError
from raftwood.base.position import Position
from raftwood.dlog.log.cursors import decode_cursor, encode_cursor
from raftwood.dlog.log.entries import (
    DlogMessage,
    EntryHead,
    ProducerRun,
    decode_entry,
    encode_entry,
    encode_message,
)
from raftwood.dlog.log.meta import LedgerInfo, LogMeta, decode_meta, encode_meta
from raftwood.dlog.log.offload import (
    FOOT_BYTES,
    OffloadEncoder,
    check_head,
    decode_entries,
    decode_index,
    foot_of,
)
from raftwood.dlog.log.producers import DlogProducers, decode_piece


def entry_target(data: bytes) -> None:
    with contextlib.suppress(StoreError):
        entry = decode_entry(data)
        assert sum(run.count for run in entry.head.runs) == len(entry)
        if entry.head.snapshot:
            decode_piece(bytes(entry.head.snapshot))
        for index in range(len(entry)):
            assert len(entry.raw(index)) == entry.message(index).size_bytes


def entry_seeds() -> list[bytes]:
    messages = [encode_message(DlogMessage(b"payload", b"key", ((b"h", b"v"),))) for _ in range(2)]
    table = DlogProducers()
    table.add(b"p", 4, Position(1 << 70))
    runs = (ProducerRun(b"p", 5, 2),)
    return [
        encode_entry(
            EntryHead(
                1_700_000_000_000,
                2,
                runs,
                snapshot=next(table.pieces(1000)),
                compression=compression,
                appended_bytes=100,
            ),
            messages,
            [len(each) for each in messages],
        )
        for compression in Codec
    ]


def meta_target(data: bytes) -> None:
    with contextlib.suppress(StoreError):
        meta = decode_meta(data, name="fuzz")
        assert decode_meta(encode_meta(meta), name="fuzz") == meta
    with contextlib.suppress(StoreError):
        decode_cursor(data, name="fuzz", version=1)


def meta_seeds() -> list[bytes]:
    ledgers = (LedgerInfo(1, 2, is_closed=True, last_entry=7), LedgerInfo(5, 9))
    meta = LogMeta(token=b"t" * 16, ledgers=ledgers, properties={"a": "b"})
    return [encode_meta(meta), encode_cursor(Position(1 << 99), retains=True)]


def offload_target(data: bytes) -> None:
    with contextlib.suppress(StoreError):
        check_head(data, ledger=3)
        offset, length = foot_of(data[-FOOT_BYTES:], ledger=3, size=len(data))
        index = decode_index(data[offset : offset + length], ledger=3)
        if index.offsets:
            first, size = index.range_of(first=0, last=index.last_entry)
            list(decode_entries(data[first : first + size], ledger=3))


def offload_seeds() -> list[bytes]:
    encoder = OffloadEncoder(3)
    entries = encoder.entries([b"one", b"", b"three"])
    return [encoder.head() + entries + encoder.foot()]
