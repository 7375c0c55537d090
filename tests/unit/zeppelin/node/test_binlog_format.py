"""Runs of a binlog come back as they were written, or as damage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftwood.base.errors import StoreDamaged, UnsupportedVersion
from raftwood.zeppelin.node.binlog import BinlogRun, decode_records, decode_run, encode_run, hour_of
from raftwood.zeppelin.records import BinlogRecord, KeyWrite, encode_record

WRITES = st.builds(
    KeyWrite, st.binary(max_size=9), st.none() | st.binary(max_size=20), st.integers(0, 2**62)
)
ORIGINS = st.none() | st.tuples(st.binary(max_size=4), st.integers(0, 2**62))


@st.composite
def runs(draw: st.DrawFn) -> list[BinlogRecord]:
    epoch, first = draw(st.integers(0, 2**40)), draw(st.integers(1, 2**40))
    return [
        BinlogRecord(
            epoch,
            sequence,
            tuple(draw(st.lists(WRITES, max_size=3))),
            draw(st.booleans()),
            draw(ORIGINS),
        )
        for sequence in range(first, first + draw(st.integers(1, 5)))
    ]


def encoded(records: list[BinlogRecord]) -> bytes:
    return encode_run(
        epoch=records[0].epoch,
        first_sequence=records[0].sequence,
        records=[encode_record(record) for record in records],
    )


@given(records=runs())
def test_a_run_comes_back(records: list[BinlogRecord]) -> None:
    assert decode_records(decode_run(encoded(records))) == records


@given(records=runs(), data=st.data())
def test_any_changed_byte_is_damage(records: list[BinlogRecord], data: st.DataObject) -> None:
    run = bytearray(encoded(records))
    run[data.draw(st.integers(0, len(run) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises((StoreDamaged, UnsupportedVersion)):
        decode_run(bytes(run))


@given(records=runs(), data=st.data())
def test_a_run_that_was_cut_is_damage(records: list[BinlogRecord], data: st.DataObject) -> None:
    run = encoded(records)
    with pytest.raises(StoreDamaged):
        decode_run(run[: data.draw(st.integers(0, len(run) - 1))])


def test_a_run_stands_as_it_always_did() -> None:
    records = [
        BinlogRecord(3, 9, (KeyWrite(b"k", b"v"), KeyWrite(b"gone", None))),
        BinlogRecord(3, 10, (KeyWrite(b"t", b"v", 1_700_000_000_000),), True, (b"client", 5)),
    ]
    assert encoded(records).hex() == (
        "52575a42"
        "01000000"
        "02000000"
        "0300000000000000"
        "0900000000000000"
        "baa66265cb302f57"
        "17000000"
        "1f000000"
        "9503099293c4016bc401760093c404676f6e65c000c2c0"
        "95030a9193c40174c40176cf0000018bcfe56800c392c406636c69656e7405"
    )


def test_a_run_knows_the_hour_of_its_writing() -> None:
    run = encode_run(epoch=1, first_sequence=1, records=[b"r"], hour=0x07_53_01)
    assert run[:8].hex() == "52575a42" + "01015307"
    assert decode_run(run).hour == hour_of(run) == 0x07_53_01
    with pytest.raises(StoreDamaged):
        hour_of(run[:10])


def test_a_newer_version_is_refused() -> None:
    run = bytearray(encoded([BinlogRecord(1, 1, ())]))
    run[4] = 2
    with pytest.raises(UnsupportedVersion, match="format 2"):
        decode_run(bytes(run))


@pytest.mark.parametrize("record", [BinlogRecord(1, 3, ()), BinlogRecord(2, 2, ())])
def test_a_record_in_anothers_place_is_damage(record: BinlogRecord) -> None:
    run = BinlogRun(1, 2, [encode_record(record)])
    with pytest.raises(StoreDamaged, match="stands where 2 of epoch 1 should"):
        decode_records(run)


def test_a_record_that_cannot_be_read_is_damage() -> None:
    with pytest.raises(StoreDamaged, match="cannot be read"):
        decode_records(BinlogRun(1, 1, [b"\xc1"]))
