"""Sections packed into LogGroups: shared tags once, others with each record, sizes bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftwood.base.compression import Codec
from raftwood.loghub.batches import decompress
from raftwood.loghub.errors import BatchTooLarge
from raftwood.loghub.log_groups import decode_log_group
from raftwood.loghub.server.ways_in.records import (
    PackedLogGroup,
    RecordSection,
    encode_record,
    take_out_too_large,
)
from tests.kits.loghub.ways_in import NOW_NS, pack, read_group

PAIRS = st.lists(st.tuples(st.binary(max_size=200), st.binary(max_size=20_000)), max_size=4)


def record(text: str) -> bytes:
    return encode_record(NOW_NS, [(b"text", text.encode())])


@given(st.integers(0, (1 << 32) * 10**9 - 1), PAIRS)
def test_a_record_is_what_readers_decode(time_ns: int, pairs: list[tuple[bytes, bytes]]) -> None:
    (packed,) = pack([RecordSection({}, [encode_record(time_ns, pairs)])], bytes_max=1 << 20)
    (log,) = decode_log_group(packed.body).Logs
    assert log.Time * 10**9 + log.Time_ns == time_ns
    assert [(each.Key, each.Value) for each in log.Contents] == pairs


def test_tags_that_all_share_stand_once() -> None:
    sections = [
        RecordSection({b"app": b"shop", b"host": b"a"}, [record("1"), record("2")]),
        RecordSection({b"app": b"shop", b"host": b"b"}, [record("3")]),
        RecordSection({b"app": b"other"}, []),
    ]
    (packed,) = pack(sections, source=b"10.0.0.1", bytes_max=1 << 20)
    stored = read_group(packed.body)
    assert [each.tags for each in stored] == [{"app": "shop"}] * 3
    assert [each.contents for each in stored] == [
        {"text": "1", "__tag__:host": "a"},
        {"text": "2", "__tag__:host": "a"},
        {"text": "3", "__tag__:host": "b"},
    ]
    assert stored[0].source == "10.0.0.1"


@given(st.lists(st.integers(0, 300), max_size=50), st.integers(400, 2_000))
def test_what_is_too_much_for_one_group_is_cut_in_order(sizes: list[int], bytes_max: int) -> None:
    texts = [f"{number}:" + "x" * size for number, size in enumerate(sizes)]
    sections = [RecordSection({b"app": b"shop"}, [record(text) for text in texts])]
    packed = pack(sections, bytes_max=bytes_max)
    assert all(len(group.body) <= bytes_max for group in packed)
    found = [each.contents["text"] for group in packed for each in read_group(group.body)]
    assert found == texts


def test_a_record_that_fits_no_group_is_named() -> None:
    sections = [RecordSection({}, [record("short"), record("x" * 2_000)])]
    with pytest.raises(BatchTooLarge, match="record 2 takes"):
        pack(sections, bytes_max=1_000)


def test_records_that_fit_no_group_can_be_taken_out() -> None:
    sections = [RecordSection({b"a": b"b" * 100}, [record("short"), record("x" * 2_000)])]
    assert take_out_too_large(sections, bytes_max=1_000) == 1
    (packed,) = pack(sections, bytes_max=1_000)
    assert [each.contents["text"] for each in read_group(packed.body)] == ["short"]


@given(st.integers(500, 1_500), st.integers(0, 10), st.integers(0, 80))
def test_what_is_left_after_taking_out_can_be_packed(size: int, tags: int, tag_bytes: int) -> None:
    many = {b"%d" % number: b"x" * tag_bytes for number in range(tags)}
    sections = [RecordSection(many, [record("x" * size)]), RecordSection({}, [record("y" * size)])]
    take_out_too_large(sections, bytes_max=2_000)
    pack(sections, bytes_max=2_000)


def test_nothing_becomes_no_group() -> None:
    assert pack([], bytes_max=100) == []
    assert pack([RecordSection({b"a": b"b"}, [])], bytes_max=100) == []


def test_a_batch_is_compressed_where_that_helps() -> None:
    body = bytes(10_000)
    batch = PackedLogGroup(body, 3).batch()
    assert batch.codec is Codec.LZ4
    assert decompress(batch.body, batch.codec, raw_bytes=batch.raw_bytes) == body
    assert PackedLogGroup(b"short", 1).batch().codec is Codec.NONE
