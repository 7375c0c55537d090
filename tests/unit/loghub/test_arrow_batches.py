"""LogGroups become Arrow and Arrow becomes LogGroups; a stranger's stream is judged first."""

import contextlib
import datetime
from decimal import Decimal
from typing import Any

import numpy
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftwood.base.errors import InvalidInput, TooLarge
from raftwood.loghub import arrow_columns
from raftwood.loghub.arrow_batches import (
    arrow_to_log_groups,
    log_group_to_arrow,
    read_arrow_stream,
    write_arrow_stream,
)
from raftwood.loghub.arrow_columns import _by_protobuf, columns_of
from raftwood.loghub.errors import BatchTooLarge
from raftwood.loghub.log_groups import LogGroup


def _group(
    *records: tuple[int, dict[bytes, bytes]], time_ns: int | None = None, **shared: Any
) -> bytes:
    group = LogGroup(**shared)
    for time, contents in records:
        log = group.Logs.add(Time=time)
        if time_ns is not None:
            log.Time_ns = time_ns
        for key, value in contents.items():
            log.Contents.add(Key=key, Value=value)
    data: bytes = group.SerializeToString()
    return data


def test_a_group_becomes_a_table() -> None:
    data = _group(
        (100, {b"level": b"info", b"message": b"a message that is longer than twelve bytes"}),
        (101, {b"message": b"short", b"raw": b"\xff\xfe"}),
        time_ns=7,
        Topic=b"web",
        Source=b"10.0.0.1",
        LogTags=[{"Key": b"host", "Value": b"h1"}],
    )
    batch = log_group_to_arrow(data)
    assert batch.column("__time__").cast(pyarrow.int64()).to_pylist() == [
        100_000_000_007,
        101_000_000_007,
    ]
    assert batch.drop_columns(["__time__"]).to_pydict() == {
        "__topic__": ["web", "web"],
        "__source__": ["10.0.0.1"] * 2,
        "__tag__:host": ["h1", "h1"],
        "level": ["info", None],
        "message": ["a message that is longer than twelve bytes", "short"],
        "raw": [None, b"\xff\xfe"],
    }
    assert batch.schema.field("raw").type == pyarrow.binary()


def test_a_group_without_records_is_an_empty_table() -> None:
    assert log_group_to_arrow(_group()).num_rows == 0


def test_a_content_that_is_called_as_another_column_keeps_its_value() -> None:
    batch = log_group_to_arrow(_group((100, {b"__time__": b"x", b"\xff": b"1", b"\xfe": b"2"})))
    assert batch.column("__time___").to_pylist() == ["x"]
    assert batch.column("\ufffd").to_pylist() == ["1"]
    assert batch.column("\ufffd_").to_pylist() == ["2"]


_keys = st.sampled_from([b"", b"a", b"level", b"a-key-of-many-bytes", b"a-key-of-more-bytes"])
_records = st.lists(
    st.tuples(
        st.integers(0, (1 << 32) - 1),
        st.lists(st.tuples(_keys, st.binary(max_size=20) | st.just(b"x" * 300)), max_size=5),
        st.none() | st.integers(0, 999_999_999),
    ),
    max_size=12,
)


@settings(max_examples=100)
@given(_records)
def test_reading_all_records_at_once_finds_what_protobuf_finds(records: list[Any]) -> None:
    group = LogGroup()
    for time, contents, time_ns in records:
        log = group.Logs.add(Time=time)
        if time_ns is not None:
            log.Time_ns = time_ns
        for key, value in contents:
            log.Contents.add(Key=key, Value=value)
    data = group.SerializeToString()
    fast, slow = columns_of(data), _by_protobuf(data)
    assert fast.time_ns.tolist() == slow.time_ns.tolist()
    assert {key: values.to_pylist() for key, values in fast.values.items()} == {
        key: values.to_pylist() for key, values in slow.values.items()
    }


@settings(max_examples=100)
@given(st.data())
def test_damaged_groups_are_refused_or_read_as_protobuf_reads_them(draws: st.DataObject) -> None:
    data = bytearray(
        _group((100, {b"level": b"info", b"user": b"u1"}), (101, {b"level": b"warn"}), Topic=b"t")
    )
    for _ in range(draws.draw(st.integers(1, 3))):
        data[draws.draw(st.integers(0, len(data) - 1))] = draws.draw(st.integers(0, 255))
    cut = bytes(data[: draws.draw(st.integers(0, len(data)))])
    try:
        slow = _by_protobuf(cut)
    except InvalidInput:
        slow = None
    try:
        fast = columns_of(cut)
    except InvalidInput:
        fast = None
    assert (fast is None) == (slow is None)
    if fast is not None and slow is not None:
        assert fast.time_ns.tolist() == slow.time_ns.tolist()
        assert {key: each.to_pylist() for key, each in fast.values.items()} == {
            key: each.to_pylist() for key, each in slow.values.items()
        }


def test_records_that_all_have_keys_of_their_own_are_refused_as_a_table() -> None:
    records = [(100, {b"key-%d" % index: b"x"}) for index in range(1100)]
    with pytest.raises(TooLarge, match="as records"):
        log_group_to_arrow(_group(*records))


@pytest.mark.parametrize("shared", ["topic", "tag", "tags"])
def test_what_all_records_share_is_refused_as_a_table_where_it_is_large(shared: str) -> None:
    group = LogGroup()
    for _ in range(20_000):
        group.Logs.add(Time=1)
    if shared == "topic":
        group.Topic = b"t" * 10_000
    else:
        for number in range(1 if shared == "tag" else 8_000):
            group.LogTags.add(Key=b"%d" % number, Value=b"v" * (10_000 if shared == "tag" else 1))
    with pytest.raises(TooLarge, match="read them as records"):
        log_group_to_arrow(group.SerializeToString())


def test_a_group_comes_back_byte_for_byte() -> None:
    data = _group(
        (1_700_000_000, {b"level": b"info", b"message": b"x" * 20_000}),
        (1_700_000_001, {b"level": b"", b"message": b"y"}),
        time_ns=5,
        Topic=b"web",
        Source=b"here",
        LogTags=[{"Key": b"host", "Value": b"h1"}],
    )
    stream = write_arrow_stream(log_group_to_arrow(data))
    assert arrow_to_log_groups(stream, received_s=0) == [data]


def _contents(data: bytes) -> list[dict[bytes, bytes]]:
    return [
        {content.Key: content.Value for content in log.Contents}
        for log in LogGroup.FromString(data).Logs
    ]


def test_columns_of_any_type_become_text() -> None:
    table = pyarrow.table(
        {
            "number": [1, None],
            "real": [0.5, 2.0],
            "flag": [True, False],
            "day": [datetime.date(2024, 5, 1), None],
            "wait": [datetime.timedelta(seconds=3), None],
            "interval": [pyarrow.MonthDayNano([1, 2, 3]), None],
            "price": [Decimal("1.50"), None],
            "list": [[1, 2], []],
            "map": [{"a": "b"}, None],
            "none": [None, None],
            "raw": [b"\xff", b""],
            "word": pyarrow.array(["yes", "no"]).dictionary_encode(),
            "view": pyarrow.array(["seen", None], pyarrow.string_view()),
        }
    )
    (group,) = arrow_to_log_groups(write_arrow_stream(table), received_s=1_700_000_000)
    first, second = _contents(group)
    assert first == {
        b"number": b"1",
        b"real": b"0.5",
        b"flag": b"true",
        b"day": b"2024-05-01",
        b"wait": b"3000000",
        b"interval": b"MonthDayNano(months=1, days=2, nanoseconds=3)",
        b"price": b"1.50",
        b"list": b"[1,2]",
        b"map": b'{"a":"b"}',
        b"raw": b"\xff",
        b"word": b"yes",
        b"view": b"seen",
    }
    assert set(second) == {b"real", b"flag", b"list", b"raw", b"word"}
    assert [log.Time for log in LogGroup.FromString(group).Logs] == [1_700_000_000] * 2


def test_a_change_of_topic_or_tag_begins_another_group() -> None:
    table = pyarrow.table(
        {
            "__time__": [1, 2, 3, 4],
            "__topic__": ["a", "a", "b", None],
            "__tag__:host": ["x", "y", "y", "y"],
            "n": [1, 2, 3, 4],
        }
    )
    groups = [
        LogGroup.FromString(each)
        for each in arrow_to_log_groups(write_arrow_stream(table), received_s=0)
    ]
    assert [(each.Topic, each.LogTags[0].Value, len(each.Logs)) for each in groups] == [
        (b"a", b"x", 1),
        (b"a", b"y", 1),
        (b"b", b"y", 1),
        (b"", b"y", 1),
    ]
    assert [log.Time for each in groups for log in each.Logs] == [1, 2, 3, 4]


def _stream(batch: Any, **options: Any) -> bytes:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(
        sink, batch.schema, options=pyarrow.ipc.IpcWriteOptions(**options)
    ) as writer:
        writer.write(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_buffers_are_refused(compression: str) -> None:
    batch = pyarrow.record_batch({"a": ["x" * 10_000]})
    with pytest.raises(InvalidInput, match="compress"):
        read_arrow_stream(_stream(batch, compression=compression))
    words = pyarrow.record_batch({"a": pyarrow.array(["x" * 10_000] * 3).dictionary_encode()})
    assert read_arrow_stream(_stream(words))[0].num_rows == 3
    with pytest.raises(InvalidInput, match="compress"):
        read_arrow_stream(_stream(words, compression=compression))


def test_more_fields_and_batches_than_there_may_be_are_refused_before_they_are_read() -> None:
    empty = pyarrow.record_batch({"a": pyarrow.array([], pyarrow.int8())})
    many = stream_of(empty.schema, [empty] * 5_000)
    with pytest.raises(BatchTooLarge, match="batches"):
        read_arrow_stream(many, is_new=True)
    # One that is stored stays readable.
    assert len(read_arrow_stream(many)) == 5_000
    columns = [(f"k{number}", pyarrow.int8()) for number in range(60_000)]
    for schema in (pyarrow.schema(columns), pyarrow.schema([("s", pyarrow.struct(columns))])):
        with pytest.raises(BatchTooLarge, match="schema"):
            read_arrow_stream(stream_of(schema, []), is_new=True)
    few = pyarrow.schema([("s", pyarrow.struct(columns[:5_000]))])
    with pytest.raises(BatchTooLarge, match="fields"):
        read_arrow_stream(stream_of(few, []), is_new=True)


def stream_of(schema: Any, batches: list[Any]) -> bytes:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def test_types_that_can_stand_for_far_more_than_was_sent_are_refused() -> None:
    runs = pyarrow.RunEndEncodedArray.from_arrays([1 << 30], ["x" * 1000])
    for array in (
        pyarrow.array(["x" * 100], pyarrow.string_view()),
        runs,
        pyarrow.array([[1]], pyarrow.list_view(pyarrow.int8())),
        pyarrow.array([[["x"]]], pyarrow.list_(pyarrow.list_(pyarrow.string_view()))),
    ):
        with pytest.raises(InvalidInput, match="cast it"):
            read_arrow_stream(_stream(pyarrow.record_batch({"a": array})))


def _array(kind: Any, length: int, *children: Any) -> Any:
    return pyarrow.Array.from_buffers(kind, length, [None], children=list(children))


_ROWS = 1 << 20


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param({"a": pyarrow.nulls(2 * _ROWS)}, id="nulls"),
        pytest.param({f"a{n}": pyarrow.nulls(_ROWS) for n in range(20)}, id="columns of nulls"),
        pytest.param({"a" * 10_000: pyarrow.nulls(_ROWS)}, id="a long name"),
        pytest.param(
            {
                "a": pyarrow.DictionaryArray.from_arrays(
                    numpy.zeros(5000, dtype=numpy.int8), pyarrow.array(["x" * 100_000])
                )
            },
            id="a word that is used often",
        ),
        pytest.param(
            {"a": _array(pyarrow.list_(pyarrow.null(), 1000), _ROWS, pyarrow.nulls(1000 * _ROWS))},
            id="lists of nulls",
        ),
        pytest.param(
            {"a": pyarrow.array([[True] * 10_000_000])},
            id="many small values",
        ),
        pytest.param(
            {"a": pyarrow.StructArray.from_arrays([pyarrow.nulls(_ROWS)], ["b" * 1000])},
            id="a long name inside",
        ),
    ],
)
def test_what_stands_for_far_more_than_it_takes_is_refused(columns: dict[str, Any]) -> None:
    stream = _stream(pyarrow.record_batch(columns))
    with pytest.raises(BatchTooLarge):
        read_arrow_stream(stream)


def test_a_stream_has_a_bound_and_what_a_dictionary_stands_for_another() -> None:
    with pytest.raises(BatchTooLarge):
        read_arrow_stream(b"x" * 101, bytes_max=100)
    words = pyarrow.array(["a long word", "another long word"] * 1000).dictionary_encode()
    stream = _stream(pyarrow.record_batch({"a": words}))
    (batch,) = read_arrow_stream(stream, bytes_max=len(stream))
    assert batch.num_rows == 2000


@settings(max_examples=100)
@given(st.data())
def test_a_damaged_stream_is_refused_or_read(draws: st.DataObject) -> None:
    data = bytearray(_stream(pyarrow.record_batch({"a": ["x", "yy"], "b": [[1], [2, 3]]})))
    for _ in range(draws.draw(st.integers(1, 4))):
        data[draws.draw(st.integers(0, len(data) - 1))] = draws.draw(st.integers(0, 255))
    cut = bytes(data[: draws.draw(st.integers(0, len(data)) | st.just(len(data)))])
    with contextlib.suppress(InvalidInput):
        arrow_to_log_groups(cut, received_s=0)


def test_without_pyarrow_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from raftwood.base.errors import InvalidConfiguration
    from raftwood.loghub import arrow_batches

    def fail(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(arrow_batches, "import_module", fail)
    with pytest.raises(InvalidConfiguration, match=r"raftwood\[arrow\]"):
        log_group_to_arrow(b"")


def test_the_fast_way_is_the_one_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_columns, "_by_protobuf", None)
    mixed = _group((100, {b"a": b"1", b"b": b"2"}), (101, {b"b": b"2"}), (102, {b"c": b"3"}))
    assert columns_of(mixed).values[b"b"].to_pylist() == [b"2", b"2", None]


def test_records_are_found_wherever_fields_stand_between_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrow_columns, "_by_protobuf", None)
    topic, source = b"\x1a\x03web", b"\x22\x05first"
    long = _group((101, {b"a": b"x" * 300}))
    joined = topic + source + _group((100, {b"a": b"1"})) + topic + long + long + source
    columns = columns_of(joined)
    assert columns.values[b"a"].to_pylist() == [b"1", b"x" * 300, b"x" * 300]
    assert (columns.time_ns // 1_000_000_000).tolist() == [100, 101, 101]
    assert (columns.topic, columns.source) == (b"web", b"first")
