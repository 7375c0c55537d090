"""The meta record and cursors as bytes, what fits into them, and what may be freed."""

from typing import Any

import pytest
from msgspec.structs import replace

from raftwood.base.errors import InvalidInput, InvalidName, StoreDamaged, UnsupportedVersion
from raftwood.base.position import Position, position_of_entry
from raftwood.dlog.log.cursors import decode_cursor, encode_cursor
from raftwood.dlog.log.meta import (
    LEDGERS_MAX,
    PROPERTIES_BYTES_MAX,
    LedgerInfo,
    LogConfig,
    LogMeta,
    checked_log_name,
    checked_properties,
    decode_meta,
    encode_meta,
)
from raftwood.dlog.log.retention import orphans, retained_from, shrunk

BIG = (1 << 63) - 1
VALUE_BYTES_MAX = 512 << 10
"""What a metastore takes."""


def closed(ledger: int, *, last_entry: int = 9, size: int = 100, last_ms: int = 0) -> LedgerInfo:
    return LedgerInfo(ledger, 0, is_closed=True, last_entry=last_entry, bytes=size, last_ms=last_ms)


def log(*ledgers: LedgerInfo, **config: Any) -> LogMeta:
    return LogMeta(token=b"t" * 16, ledgers=ledgers, config=LogConfig(**config))


def test_a_record_is_read_as_it_was_written() -> None:
    meta = replace(log(closed(3), LedgerInfo(9, 1)), first=Position(7 << 64), properties={"a": "b"})
    assert decode_meta(encode_meta(meta), name="a") == meta


def test_a_newer_record_is_refused_and_a_damaged_one_too() -> None:
    data = encode_meta(log())
    with pytest.raises(UnsupportedVersion, match="format 2"):
        decode_meta(data[:4] + b"\x02" + data[5:], name="a")
    for damaged in (b"", b"DLOX\x01", data[:-1], encode_meta(log(closed(3), closed(2)))):
        with pytest.raises(StoreDamaged):
            decode_meta(damaged, name="a")


def test_the_largest_record_fits_into_a_metastore() -> None:
    ledgers = [
        LedgerInfo(BIG - n, BIG, True, BIG, BIG, BIG, BIG, True, BIG) for n in range(LEDGERS_MAX)
    ]
    properties = checked_properties({"k": "v" * (PROPERTIES_BYTES_MAX - 1)})
    meta = replace(log(*reversed(ledgers)), properties=properties)
    assert len(encode_meta(meta)) < VALUE_BYTES_MAX
    with pytest.raises(InvalidInput):
        checked_properties({"k": "v" * PROPERTIES_BYTES_MAX})


def test_names_have_parts_and_nothing_strange() -> None:
    assert checked_log_name("a/b-1.c_2") == "a/b-1.c_2"
    for name in ("", "/a", "a b", "a" * 256, "ü", "a//b", "a/", "a/.b", "a\n"):
        with pytest.raises(InvalidName):
            checked_log_name(name)


def test_a_cursor_is_read_as_it_was_written_and_a_newer_one_refused() -> None:
    data = encode_cursor(Position(1 << 100), retains=True)
    cursor = decode_cursor(data, name="c", version=3)
    assert (cursor.position, cursor.retains, cursor.version) == (1 << 100, True, 3)
    with pytest.raises(UnsupportedVersion):
        decode_cursor(data[:4] + b"\x09" + data[5:], name="c", version=3)
    with pytest.raises(StoreDamaged):
        decode_cursor(data[:-1], name="c", version=3)


def test_shrinking_spares_the_last_two_and_what_was_fenced_of_late() -> None:
    meta = log(closed(1), closed(2), closed(3), closed(4), LedgerInfo(5, 0), grace_ms=100)
    end = position_of_entry(ledger=5, entry=3)
    smaller, freed = shrunk(meta, end, now_ms=1000)
    assert [each.ledger for each in freed] == [1, 2, 3]
    assert smaller.first == end
    assert smaller.shrunk_bytes == 300
    fenced = replace(meta.ledgers[1], fenced_ms=950)
    meta = replace(meta, ledgers=(meta.ledgers[0], fenced, *meta.ledgers[2:]))
    assert [each.ledger for each in shrunk(meta, end, now_ms=1000)[1]] == [1]
    assert [each.ledger for each in shrunk(meta, end, now_ms=1050)[1]] == [1, 2, 3]
    inside = position_of_entry(ledger=2, entry=4)
    assert [each.ledger for each in shrunk(meta, inside, now_ms=1050)[1]] == [1]


def test_retention_goes_by_age_and_by_bytes_and_heeds_cursors() -> None:
    ledgers = [closed(n, last_ms=n * 100) for n in range(1, 6)]
    by_age = log(*ledgers, retention_ms=700)
    assert retained_from(by_age, now_ms=1000) == position_of_entry(ledger=3, entry=0)
    by_bytes = log(*ledgers, retention_bytes=250)
    assert retained_from(by_bytes, now_ms=1000) == position_of_entry(ledger=4, entry=0)
    needed = [position_of_entry(ledger=2, entry=5)]
    kept = retained_from(by_bytes, now_ms=1000, needed=needed)
    assert kept == position_of_entry(ledger=2, entry=0)
    assert retained_from(log(*ledgers), now_ms=10_000_000) == 0


def test_an_orphan_is_below_the_last_ledger_and_in_no_list() -> None:
    meta = log(closed(3), replace(closed(5), is_offloaded=True), LedgerInfo(7, 0))
    assert orphans(meta, [1, 3, 4, 5, 7, 9]) == [1, 4, 5]
    assert orphans(None, [2, 1]) == [1, 2]
