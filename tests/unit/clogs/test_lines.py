"""Lines become the LogGroup that LogHub's own client would have made of them."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftwood.base import log_group_codec
from raftwood.base.errors import InvalidInput
from raftwood.base.log_group_codec import encode_record, encode_shared
from raftwood.clogs.lines import encode_fields, encode_lines
from raftwood.loghub.client.pulled_batches import rows_of
from raftwood.loghub.log_groups import decode_log_group

NOW_NS = 1_763_377_000_123_456_789
sizes = st.one_of(st.integers(0, 300), st.sampled_from([127, 128, 16_383, 16_384, 70_000]))
line_lists = st.lists(st.one_of(st.binary(max_size=30), sizes.map(lambda size: b"x" * size)))
times = st.integers(0, (1 << 32) * 1_000_000_000 - 1)
texts = st.text(max_size=20)
tag_lists = st.lists(st.tuples(texts, texts), max_size=3)


def as_loghub(
    records: Sequence[Mapping[str, str | bytes]],
    times_ns: Sequence[int],
    *,
    topic: str = "",
    source: str = "",
    tags: Sequence[tuple[str, str]] = (),
) -> bytes:
    shared = encode_shared(
        topic=topic.encode(),
        source=source.encode(),
        tags=[(key.encode(), value.encode()) for key, value in tags],
    )
    return b"".join([*map(encode_record, records, times_ns), shared])


def test_lines_are_read_back_with_what_they_share() -> None:
    data = encode_lines(
        [b"one", b"", b"\xff two"],
        time_ns=NOW_NS,
        topic="shop",
        source="10.0.0.7",
        tags=[("file", "/var/log/app.log"), ("line", "ü")],
    )
    group = decode_log_group(data)
    assert [(log.Time, log.Time_ns) for log in group.Logs] == [(1_763_377_000, 123_456_789)] * 3
    assert [[(each.Key, each.Value) for each in log.Contents] for log in group.Logs] == [
        [(b"message", b"one")],
        [(b"message", b"")],
        [(b"message", b"\xff two")],
    ]
    assert (group.Topic, group.Source) == (b"shop", b"10.0.0.7")
    assert [(tag.Key, tag.Value) for tag in group.LogTags] == [
        (b"file", b"/var/log/app.log"),
        (b"line", "ü".encode()),
    ]


@given(line_lists, times, texts, texts, tag_lists, texts)
def test_lines_of_one_time_are_the_bytes_that_loghub_makes(
    lines: list[bytes],
    time_ns: int,
    topic: str,
    source: str,
    tags: list[tuple[str, str]],
    field: str,
) -> None:
    data = encode_lines(lines, time_ns=time_ns, topic=topic, source=source, tags=tags, field=field)
    records = [{field: line} for line in lines]
    shared = {"topic": topic, "source": source}
    assert data == as_loghub(records, [time_ns] * len(lines), **shared, tags=tags)
    assert [log.Contents[0].Value for log in decode_log_group(data).Logs] == lines


@given(line_lists, st.data(), st.booleans())
def test_lines_with_times_of_their_own_are_the_bytes_that_loghub_makes(
    lines: list[bytes], data: st.DataObject, is_recent: bool
) -> None:
    some = st.integers(NOW_NS, NOW_NS + 10**10) if is_recent else times
    times_ns = data.draw(st.lists(some, min_size=len(lines), max_size=len(lines)))
    encoded = encode_lines(lines, time_ns=times_ns, topic="t", source="s", tags=[("k", "v")])
    expected = as_loghub(
        [{"message": line} for line in lines], times_ns, topic="t", source="s", tags=[("k", "v")]
    )
    assert encoded == expected
    assert rows_of(encoded).times_ns == times_ns


@given(
    st.lists(st.dictionaries(texts, st.one_of(texts, st.binary(max_size=200)), max_size=4)),
    st.data(),
)
def test_lines_with_more_fields_are_the_bytes_that_loghub_makes(
    fields: list[dict[str, str | bytes]], data: st.DataObject
) -> None:
    fields = [{key: each[key] for key in each if key != "message"} for each in fields]
    times_ns = data.draw(st.lists(times, min_size=len(fields), max_size=len(fields)))
    lines, more = [b"line"] * len(fields), list(map(encode_fields, fields))
    records = [{"message": b"line", **each} for each in fields]
    encoded = encode_lines(lines, time_ns=times_ns, topic="t", more=more)
    assert encoded == as_loghub(records, times_ns, topic="t")
    encoded = encode_lines(lines, time_ns=NOW_NS, more=more)
    assert encoded == as_loghub(records, [NOW_NS] * len(records))


def test_all_is_read_by_columns_as_well() -> None:
    """The quick way of LogHub's readers."""
    lines = [b"%d" % number * (number % 50) for number in range(1000)]
    times_ns = [NOW_NS + number * 7_654_321 for number in range(1000)]
    rows = rows_of(encode_lines(lines, time_ns=times_ns, topic="t", tags=[("a", "b")]))
    assert rows.contents == [{"message": line.decode()} for line in lines]
    assert (rows.times_ns, rows.topic, rows.tags) == (times_ns, "t", {"a": "b"})


def test_text_that_cannot_be_told_exactly_is_not_lost() -> None:
    more = [encode_fields({"a": "\udcff", "b": "x\ud800y", "c": "ü"})]
    data = encode_lines([b"line"], time_ns=NOW_NS, more=more)
    assert [each.Value for each in decode_log_group(data).Logs[0].Contents] == [
        b"line",
        b"\xff",
        b"x\\ud800y",
        "ü".encode(),
    ]


@pytest.mark.parametrize("time_ns", [-1, (1 << 32) * 1_000_000_000])
def test_times_that_loghub_cannot_tell_are_refused(time_ns: int) -> None:
    for given_time in (time_ns, [time_ns]):
        with pytest.raises(InvalidInput, match="not between 1970 and 2106"):
            encode_lines([b"x"], time_ns=given_time)
        with pytest.raises(InvalidInput, match="not between 1970 and 2106"):
            encode_lines([b"x"], time_ns=given_time, more=[b""])


def test_a_time_is_given_for_each_line_or_for_all() -> None:
    for count in (1, 3):
        with pytest.raises(InvalidInput, match=f"2 lines have {count} times"):
            encode_lines([b"a", b"b"], time_ns=[NOW_NS] * count)
        with pytest.raises(InvalidInput, match=f"2 lines have {count} times"):
            encode_lines([b"a", b"b"], time_ns=[NOW_NS] * count, more=[b"", b""])


def test_no_line_is_an_empty_group() -> None:
    assert encode_lines([], time_ns=NOW_NS) == encode_lines([], time_ns=[]) == b""
    assert encode_lines([], time_ns=NOW_NS, more=[]) == b""


def test_a_batch_is_right_though_the_table_is_emptied_within_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_group_codec, "_HEADS_MAX", 5)
    lines = [b"x" * (number % 17) for number in range(100)]
    for _ in range(2):
        for time_ns in (NOW_NS, [NOW_NS] * len(lines)):
            data = encode_lines(lines, time_ns=time_ns, field="bounded")
            assert data == as_loghub([{"bounded": line} for line in lines], [NOW_NS] * 100)
