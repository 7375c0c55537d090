"""LogGroups that are put together by hand are what protobuf makes of them, byte for byte."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftwood.base import log_group_codec
from raftwood.base.errors import InvalidInput
from raftwood.base.log_group_codec import (
    ContentTable,
    encode_record,
    encode_shared,
    time_field,
    time_fields,
)
from raftwood.base.protobuf_bytes import field_bytes, read_varint, varint
from raftwood.loghub.log_groups import Log, LogGroup
from raftwood.loghub.server.ways_in import records as ways_in
from raftwood.loghub.server.ways_in.records import RecordSection

SIZES = st.sampled_from([127, 128, 255, 256, 2_047, 2_048, 16_383, 16_384, 70_000])
VALUES = st.binary(max_size=200) | SIZES.map(lambda size: b"x" * size)
KEYS = st.text(max_size=10) | st.sampled_from(["k" * 127, "k" * 128, "k" * 129])
CONTENTS = st.dictionaries(KEYS, VALUES, max_size=5)
TIMES = st.integers(0, (1 << 32) * 1_000_000_000 - 1)


def by_protobuf(contents: dict[str, bytes], time_ns: int) -> bytes:
    """A `Log`. All encoders write its nanoseconds before its contents."""
    seconds, nanoseconds = divmod(time_ns, 1_000_000_000)
    rest = Log()
    for key, value in contents.items():
        rest.Contents.add(Key=key.encode(), Value=value)
    time: bytes = Log(Time=seconds).SerializeToString()
    after: bytes = rest.SerializePartialToString()
    return b"".join((time, b"\x25", nanoseconds.to_bytes(4, "little"), after))


@given(CONTENTS, TIMES)
def test_records_of_all_encoders_are_those_of_protobuf(
    contents: dict[str, bytes], time_ns: int
) -> None:
    expected = by_protobuf(contents, time_ns)
    pairs = [(key.encode(), value) for key, value in contents.items()]
    assert ways_in.encode_record(time_ns, pairs) == expected
    assert encode_record(contents, time_ns) == field_bytes(1, expected)
    (packed,) = ways_in.pack([RecordSection({}, [expected])], bytes_max=1 << 20)
    assert packed is not None
    assert packed.body == field_bytes(1, expected)


@given(st.lists(TIMES))
def test_times_of_many_records_are_those_of_each(times_ns: list[int]) -> None:
    assert time_fields(times_ns) == [time_field(each) for each in times_ns]


@given(VALUES, VALUES, st.lists(st.tuples(VALUES, VALUES), max_size=3))
def test_shared_fields_are_those_of_protobuf(
    topic: bytes, source: bytes, tags: list[tuple[bytes, bytes]]
) -> None:
    group = LogGroup()
    if topic:
        group.Topic = topic
    if source:
        group.Source = source
    for key, value in tags:
        group.LogTags.add(Key=key, Value=value)
    assert encode_shared(topic=topic, source=source, tags=tags) == group.SerializeToString()


def test_text_and_its_bytes_are_the_same() -> None:
    assert encode_record({"ß": "é"}, 1) == encode_record({"ß": "é".encode()}, 1)


def test_escaped_bytes_go_back_to_what_they_were() -> None:
    text = b"caf\xe9".decode("utf-8", "surrogateescape")
    (log,) = LogGroup.FromString(encode_record({text: text}, 0)).Logs
    assert (log.Contents[0].Key, log.Contents[0].Value) == (b"caf\xe9", b"caf\xe9")


@pytest.mark.parametrize("odd", [{"a": 5}, {"a": None}, {5: "a"}, {"a": "\ud800"}, {"\ud800": ""}])
def test_what_is_no_text_is_refused(odd: Any) -> None:
    with pytest.raises(InvalidInput):
        encode_record(odd, 0)


@pytest.mark.parametrize("time_ns", [-1, (1 << 32) * 1_000_000_000])
def test_times_out_of_range_are_refused(time_ns: int) -> None:
    with pytest.raises(InvalidInput, match="not between 1970 and 2106"):
        encode_record({}, time_ns)


def test_a_table_holds_so_many_heads_and_short_keys_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_group_codec, "_HEADS_MAX", 50)
    table = ContentTable[bytes](bytes)
    for number in range(1_000):
        size = number % 17
        key = b"k%d" % (number % 23)
        content = field_bytes(1, key) + field_bytes(2, bytes(size))
        assert table[key][size] + bytes(size) == field_bytes(2, content)
        assert len(table) + sum(map(len, table.values())) <= 50
    assert table[b"k" * 200][3].endswith(b"k\x12\x03")
    assert b"k" * 200 not in table


@given(st.integers(0, (1 << 70) - 1), st.binary(max_size=3))
def test_numbers_are_read_back(value: int, behind: bytes) -> None:
    encoded = varint(value)
    assert read_varint(b"x" + encoded + behind, 1) == (value, 1 + len(encoded))
    with pytest.raises(IndexError):
        read_varint(encoded[:-1], 0)


def test_a_number_of_too_many_bits_is_refused() -> None:
    assert read_varint(b"\xff" * 4 + b"\x7f", 0, bits_max=35) == ((1 << 35) - 1, 5)
    with pytest.raises(ValueError, match="more than 35 bits"):
        read_varint(b"\xff" * 5 + b"\x01", 0, bits_max=35)
