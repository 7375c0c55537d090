"""What requests of each protocol become, and how what is wrong with them is named."""

import gzip
import json
from collections.abc import Callable
from typing import Any

import cramjam
import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse

from raftwood.base.errors import InvalidInput, ProtocolError, RaftwoodError, TooLarge
from raftwood.loghub.server.ways_in import (
    elasticsearch,
    fluent_forward,
    json_lines,
    loki,
    otlp,
    syslog,
)
from raftwood.loghub.server.ways_in.records import RecordSection
from tests.kits.fuzz import ways_in as targets
from tests.kits.loghub.ways_in import NOW_NS, Stored, read_sections

TIME_NS = 1_799_999_999_000_000_001


def lines(body: bytes, time_field: str = "") -> list[Stored]:
    return read_sections(json_lines.decode(body, received_ns=NOW_NS, time_field=time_field))


# JSON lines


def test_each_line_is_a_record() -> None:
    body = b'{"time": 1799999999, "text": "a\\nb", "deep": {"x": [1, null]}, "n": 1.5}\n'
    body += b'\n{"a": ""}\r\n'
    first, second = lines(body)
    assert first.contents == {
        "time": "1799999999",
        "text": "a\nb",
        "deep": '{"x":[1,null]}',
        "n": "1.5",
    }
    assert first.time_ns == 1_799_999_999 * 10**9
    assert second.contents == {"a": ""}
    assert second.time_ns == NOW_NS


def test_an_array_is_taken_too_and_an_empty_body() -> None:
    assert [each.contents for each in lines(b' [{"a": "1"}, {"a": "2"}]')] == [
        {"a": "1"},
        {"a": "2"},
    ]
    assert lines(b"") == lines(b"\n \n") == lines(b"[]") == []


def test_the_field_of_the_time_can_be_named() -> None:
    body = b'{"time": 1799999999, "when": "2026-11-16T08:00:00Z"}'
    assert lines(body, "when")[0].time_ns == 1_794_816_000 * 10**9
    assert lines(body, "missing")[0].time_ns == NOW_NS


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b'{"a": 1}\n{"a": \n', "line 2"),
        (b'{"a": 1}\n\n"text"', "line 3"),
        (b'{"a": "\xff"}', "line 1"),
        (b'[{"a": 1}, 2]', "item 2"),
        (b'[{"a": 1}', "the JSON array"),
        (b'{"a": ' + b"[" * 5_000, "line 1"),
    ],
)
def test_the_line_that_is_wrong_is_named(body: bytes, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        lines(body)


# OTLP


def test_protobuf_and_json_of_otlp_become_the_same() -> None:
    (protobuf,) = targets.otlp_seeds()
    stored = read_sections(otlp.decode(protobuf, is_json=False, received_ns=NOW_NS))
    assert [each.contents["body"] for each in stored] == ["order 0", "order 1"]
    assert stored[1].contents == {
        "body": "order 1",
        "severity_text": "INFO",
        "severity_number": "9",
        "trace_id": "0" * 32,
        "span_id": "0" * 16,
        "flags": "1",
        "attributes.body": '[1,0.5,true,"/w==",{"k":"v"}]',
    }
    assert stored[1].tags == {"service.name": "shop", "otel.scope.name": "library"}
    assert stored[1].time_ns == TIME_NS
    (text,) = targets.otlp_json_seeds()
    (other,) = read_sections(otlp.decode(text, is_json=True, received_ns=NOW_NS))
    assert other.tags == stored[1].tags
    assert other.time_ns == TIME_NS
    assert other.contents == {
        "body": "order",
        "severity_number": "9",
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "a": "[1,0.5,null]",
        "b": '{"k":"AA=="}',
    }


def test_what_otlp_left_out_is_the_receipt() -> None:
    request: Any = {"resourceLogs": [{"scopeLogs": [{"logRecords": [{}]}]}]}
    body = json.dumps(request).encode()
    (stored,) = read_sections(otlp.decode(body, is_json=True, received_ns=NOW_NS))
    assert (stored.time_ns, stored.contents, stored.tags) == (NOW_NS, {}, {})


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"{", "export request"),
        (b'{"resourceLogs": 1}', "resourceLogs"),
        (b'{"resourceLogs": [{"scopeLogs": [{"logRecords": [{"traceId": "xy"}]}]}]}', "traceId"),
        (
            b'{"resourceLogs": [{"scopeLogs": [{"logRecords": [{"timeUnixNano": "x"}]}]}]}',
            "timeUnixNano",
        ),
    ],
)
def test_the_field_of_otlp_that_is_wrong_is_named(body: bytes, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        list(otlp.decode(body, is_json=True, received_ns=NOW_NS))


def test_answers_of_otlp_are_in_the_encoding_of_the_request() -> None:
    answer = ExportLogsServiceResponse
    assert otlp.encode_answer(is_json=False) == b""
    assert otlp.encode_answer(is_json=True) == b"{}"
    partial = answer.FromString(otlp.encode_answer(is_json=False, refused=2, why="large"))
    assert partial.partial_success.rejected_log_records == 2
    assert json.loads(otlp.encode_answer(is_json=True, refused=2, why="large")) == {
        "partialSuccess": {"rejectedLogRecords": "2", "errorMessage": "large"}
    }


@pytest.mark.parametrize("length", [0, 5, 127, 128, 300, 20_000])
def test_a_status_is_one_of_google(length: int) -> None:
    from google.rpc.status_pb2 import Status

    status = Status.FromString(otlp.encode_status("ä" * length, is_json=False))
    assert status.message == "ä" * min(length, 4_000)


# Loki


def test_streams_of_loki_are_records_with_labels() -> None:
    (body,) = targets.loki_json_seeds()
    stored = read_sections(loki.decode_json(body, received_ns=NOW_NS))
    assert [each.contents for each in stored] == [
        {"line": "line", "__tag__:app": "shop"},
        {"line": "more", "id": "1", "__tag__:app": "shop"},
        {"line": "line", "__tag__:app": "till", "__tag__:line": "x"},
    ]
    assert stored[0].time_ns == TIME_NS


def test_protobuf_of_loki_has_labels_as_text() -> None:
    _, body = targets.loki_protobuf_seeds()
    first, second = loki.decode_protobuf(body, received_ns=NOW_NS, bytes_max=1_000)
    assert first.tags == {b"app": b"shop", b"path": 'a"b\näA'.encode()}
    assert second.tags == {}
    assert b"line \xff" in first.records[0]
    assert b"metadata.line" in first.records[0]


@pytest.mark.parametrize(
    ("streams", "named"),
    [
        ([{"stream": {}, "values": [["1", "a"], ["x", "a"]]}], "value 2 of stream 1"),
        ([{"stream": {}, "values": [["1"]]}], "value 1 of stream 1"),
        ([{"stream": {}, "values": [["1", "a", "b"]]}], "value 1 of stream 1"),
        ([{"stream": {"a": 1}, "values": []}], "stream"),
        ([{"values": []}], "stream"),
    ],
)
def test_the_value_of_loki_that_is_wrong_is_named(streams: Any, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        list(loki.decode_json(json.dumps({"streams": streams}).encode(), received_ns=NOW_NS))


@pytest.mark.parametrize("labels", [b"app", b"{app}", b'{app="a}', b'{app="a" b="c"}', b"{\xff}"])
def test_labels_that_are_none_are_refused(labels: bytes) -> None:
    with pytest.raises(InvalidInput, match="labels"):
        loki.parse_labels(labels, "the labels of stream 1")


def test_a_push_that_would_be_too_large_is_not_decompressed() -> None:
    body = bytes(cramjam.snappy.compress_raw(bytes(100_000)))
    with pytest.raises(TooLarge):
        list(loki.decode_protobuf(body, received_ns=NOW_NS, bytes_max=10_000))
    with pytest.raises(InvalidInput, match="snappy"):
        list(loki.decode_protobuf(b"\xff\xff\xff", received_ns=NOW_NS, bytes_max=1 << 30))


# Elasticsearch


def items_of(body: bytes) -> list[elasticsearch.BulkItem]:
    found = elasticsearch.decode(body, index="default", received_ns=NOW_NS)
    return [each for each in found if isinstance(each, elasticsearch.BulkItem)]


def test_actions_of_a_bulk_are_told_apart() -> None:
    (body,) = targets.bulk_seeds()
    items = items_of(body)
    assert [(each.action, each.index, each.status) for each in items] == [
        ("index", "a", 201),
        ("create", "default", 201),
        ("delete", "default", 400),
        ("update", "default", 400),
    ]
    records = [each.record for each in items if each.record is not None]
    stored = read_sections([RecordSection({}, records)])
    assert stored[0].contents["_id"] == "1"
    assert stored[0].time_ns == 1_794_816_000 * 10**9
    answer = json.loads(
        b"".join(elasticsearch.encode_answer(items, made_ids=list("wxyz"), took_ms=3))
    )
    assert answer["errors"] is True
    assert [next(iter(each.values()))["_id"] for each in answer["items"]] == ["1", "x", "7", "1"]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b'{"index": {}}', "without a document"),
        (b'{"index": {}}\n{}\n{"what": {}}\n{}\n', r"line \[3\]"),
        (b'{"index": {}, "create": {}}\n{}\n', r"line \[1\]"),
        (b"{}\n{}\n", r"line \[1\]"),
        (b"text\n", r"line \[1\]"),
    ],
)
def test_an_action_that_is_none_refuses_the_bulk(body: bytes, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        list(elasticsearch.decode(body, index="default", received_ns=NOW_NS))
    with pytest.raises(InvalidInput, match="names no index"):
        list(elasticsearch.decode(b'{"index": {}}\n{}\n', index="", received_ns=NOW_NS))


def test_a_document_that_is_none_fails_alone() -> None:
    body = b'{"index": {}}\n{"a": \n{"index": {}}\n{"a": 1}\n'
    bad, good = items_of(body)
    assert (bad.status, bad.error_type) == (400, "document_parsing_exception")
    assert "line 2" in bad.reason
    assert good.record is not None


# Syslog


def message(frame: bytes) -> dict[str, str]:
    record = syslog.decode_message(frame, received_ns=NOW_NS)
    (stored,) = read_sections([RecordSection({}, [record])])
    return stored.contents


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (b"<13>1 - - - - - -", {"facility": "user", "severity": "notice", "message": ""}),
        (
            b"<0>1 - h a - - [x] hi",
            {
                "facility": "kern",
                "severity": "emergency",
                "hostname": "h",
                "app_name": "a",
                "message": "hi",
            },
        ),
        (
            b"<34>Oct 11 22:14:15 host su: failed",
            {
                "facility": "auth",
                "severity": "critical",
                "message": "Oct 11 22:14:15 host su: failed",
            },
        ),
        (b"plain text", {"message": "plain text"}),
        (b"<999>1 - - - - - - x", {"message": "<999>1 - - - - - - x"}),
        (
            b'<13>1 - - - - - [x k="] y',
            {"facility": "user", "severity": "notice", "message": '1 - - - - - [x k="] y'},
        ),
    ],
)
def test_any_message_of_syslog_is_kept(frame: bytes, expected: dict[str, str]) -> None:
    assert message(frame) == expected


def test_frames_come_in_any_pieces_and_both_kinds() -> None:
    data = b"5 <1>ab<2>cd\r\n\n6 <3>e\nf<4>g"
    for cut in range(len(data)):
        reader = syslog.FrameReader(bytes_max=10)
        found = reader.feed(data[:cut]) + reader.feed(data[cut:])
        assert found + reader.end() == [b"<1>ab", b"<2>cd", b"<3>e\nf", b"<4>g"]


@pytest.mark.parametrize("data", [b"11 ", b"<1>" + b"x" * 8, b"1234567890", b"12x", b"5x"])
def test_a_frame_that_can_be_none_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        syslog.FrameReader(bytes_max=10).feed(data)


# Fluent


def forwarded(*parts: Any) -> tuple[list[Stored], bytes | None]:
    data = msgpack.packb(parts)
    found = fluent_forward.decode_message(data, received_ns=NOW_NS, bytes_max=100_000)
    stored = read_sections(found.sections)
    return stored, found.chunk


EVENT_TIME = msgpack.ExtType(0, (1_799_999_999).to_bytes(4, "big") + (1).to_bytes(4, "big"))
RECORD = {"text": "größer", "n": 1, "deep": {"a": [b"\xff", None]}}
CONTENTS = {"text": "größer", "n": "1", "deep": '{"a":["\ufffd",null]}'}
PACKED = msgpack.packb([EVENT_TIME, RECORD]) * 2


@pytest.mark.parametrize(
    ("parts", "count"),
    [
        (("tag", EVENT_TIME, RECORD, {"chunk": "c"}), 1),
        (("tag", [[EVENT_TIME, RECORD]] * 3, {"chunk": "c"}), 3),
        (("tag", [[[EVENT_TIME, {"meta": 1}], RECORD]], {"chunk": "c"}), 1),
        (("tag", PACKED, {"chunk": "c", "size": 2}), 2),
        (("tag", gzip.compress(PACKED, mtime=0), {"chunk": "c", "compressed": "gzip"}), 2),
        (
            ("tag", gzip.compress(PACKED, mtime=0) * 2, {"chunk": "c", "compressed": "gzip"}),
            4,
        ),
    ],
)
def test_each_mode_of_fluent_is_understood(parts: Any, count: int) -> None:
    stored, chunk = forwarded(*parts)
    assert chunk == b"c"
    assert len(stored) == count
    for each in stored:
        assert each.contents == CONTENTS
        assert each.tags == {"tag": "tag"}
        assert each.time_ns == TIME_NS


def test_fluent_without_options_has_no_chunk() -> None:
    assert forwarded("tag", 1_799_999_999, {})[1] is None
    assert forwarded("tag", [])[0] == []


@pytest.mark.parametrize(
    "parts",
    [
        (),
        ("tag",),
        ("tag", 5),
        (5, 5, {}),
        ("tag", 5, "text"),
        ("tag", [[5]]),
        ("tag", [None]),
        ("tag", [5]),
        ("tag", b"\xff" * 10 + b"\xdd"),
        ("tag", PACKED[:-1]),
        ("tag", b"text", {"compressed": "gzip"}),
        ("tag", gzip.compress(PACKED, mtime=0)[:-1], {"compressed": "gzip"}),
        ("tag", [], "text"),
    ],
)
def test_what_is_no_message_of_fluent_is_refused(parts: Any) -> None:
    with pytest.raises((ProtocolError, InvalidInput)):
        forwarded(*parts)


def test_a_chunk_of_fluent_that_would_be_too_large_is_not_decompressed() -> None:
    with pytest.raises(TooLarge):
        forwarded("tag", gzip.compress(bytes(1_000_000), mtime=0), {"compressed": "gzip"})


def test_nesting_without_end_is_refused() -> None:
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    with pytest.raises(ProtocolError, match="nested"):
        forwarded("tag", 5, {"deep": deep})
    with pytest.raises(ProtocolError):
        fluent_forward.unpacked(b"\x91" * 5_000 + b"\x01")


def test_lengths_are_believed_only_up_to_the_limit() -> None:
    for claim in (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"):
        with pytest.raises(ProtocolError, match="above 1000 bytes"):
            fluent_forward.MessageReader(bytes_max=1_000).feed(claim)
    nested = b"\xdc\x01\x00" * 3
    with pytest.raises(ProtocolError, match="above 700 bytes"):
        fluent_forward.MessageReader(bytes_max=700).feed(nested)


@pytest.mark.parametrize(
    ("data", "messages"),
    [
        (b"\xdd" + (256 << 10).to_bytes(4, "big") + b"\x01" * (256 << 10), 1),
        (b"\x01" * (256 << 10), 256 << 10),
        (b"\xdd" + (256 << 10).to_bytes(4, "big") + b"\x01" * (255 << 10), 0),
    ],
    ids=["one message of many values", "many messages", "one that is not whole"],
)
def test_a_stream_is_looked_at_in_slices_of_so_many_values(data: bytes, messages: int) -> None:
    reader = fluent_forward.MessageReader(bytes_max=16 << 20)
    slices = list(reader.feed_in_slices(data))
    assert len(slices) >= 30
    assert max(map(len, slices)) <= 8_192
    assert sum(map(len, slices)) == messages
    assert b"".join(each for part in slices for each in part) == (data if messages else b"")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.binary()
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)  # fmt: skip


@settings(max_examples=50)
@given(st.lists(VALUES, max_size=3), st.data())
def test_messages_are_cut_out_of_a_stream_where_they_end(values: list[Any], data: Any) -> None:
    messages = [msgpack.packb(value) for value in values]
    stream = b"".join(messages)
    cut = data.draw(st.integers(0, len(stream)))
    reader = fluent_forward.MessageReader(bytes_max=1 << 20)
    assert reader.feed(stream[:cut]) + reader.feed(stream[cut:]) == messages
    assert reader.held_bytes == 0


# All of them


@pytest.mark.parametrize(
    "target",
    [
        targets.bulk_target,
        targets.fluent_target,
        targets.lines_target,
        targets.loki_json_target,
        targets.loki_protobuf_target,
        targets.otlp_json_target,
        targets.otlp_target,
        targets.syslog_target,
    ],
)
@given(data=st.binary(max_size=300))
def test_any_bytes_are_records_or_an_error_that_is_ours(
    target: Callable[[bytes], None], data: bytes
) -> None:
    target(data)


@given(value=VALUES.map(lambda value: {"a": value}))
def test_any_document_is_a_record(value: dict[str, Any]) -> None:
    body = json.dumps(value, default=lambda each: each.decode("latin-1")).encode()
    try:
        stored = lines(body.replace(b"NaN", b"0").replace(b"Infinity", b"0"))
    except RaftwoodError:
        return  # a lone surrogate is no text
    assert len(stored) == 1
