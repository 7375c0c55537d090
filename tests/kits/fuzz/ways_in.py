"""The decoders of LogHub's ways in, as targets for a mutator.

What is taken becomes a LogGroup that readers can decode; all else is a `RaftwoodError`.
"""

import gzip
import json
import random
from collections.abc import Callable, Iterable
from typing import Any

import cramjam
import msgpack
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from raftwood.base.errors import RaftwoodError
from raftwood.base.settings import Secret
from raftwood.loghub.log_groups import decode_log_group
from raftwood.loghub.server.ways_in import (
    elasticsearch,
    fluent_forward,
    json_lines,
    loki,
    otlp,
    syslog,
)
from raftwood.loghub.server.ways_in.fluent_forward import FluentHandshake
from raftwood.loghub.server.ways_in.records import RecordSection
from tests.kits.loghub.ways_in import pack

NOW_NS = 1_800_000_000_000_000_000
_BYTES_MAX = 1 << 20
_HANDSHAKE = FluentHandshake(Secret("key"), random.Random(0))
_TIME = "1799999999000000001"


def _check(decode: Callable[[bytes], Iterable[RecordSection]], data: bytes) -> None:
    try:
        packed = pack(list(decode(data)), bytes_max=_BYTES_MAX)
    except RaftwoodError:
        return
    for group in packed:
        assert len(decode_log_group(group.body).Logs) == group.records


def otlp_target(data: bytes) -> None:
    _check(lambda body: otlp.decode(body, is_json=False, received_ns=NOW_NS), data)


def _request() -> ExportLogsServiceRequest:
    request = ExportLogsServiceRequest()
    of_resource = request.resource_logs.add()
    of_resource.resource.attributes.add(key="service.name").value.string_value = "shop"
    of_scope = of_resource.scope_logs.add()
    of_scope.scope.name = "library"
    for number in range(2):
        record = of_scope.log_records.add(
            time_unix_nano=int(_TIME), severity_number=9, severity_text="INFO", flags=1
        )
        record.trace_id, record.span_id = bytes(16), bytes(8)
        record.body.string_value = f"order {number}"
        values = record.attributes.add(key="body").value.array_value.values
        values.add().int_value = number
        values.add().double_value = 0.5
        values.add().bool_value = True
        values.add().bytes_value = b"\xff"
        values.add().kvlist_value.values.add(key="k").value.string_value = "v"
    return request


def otlp_seeds() -> list[bytes]:
    return [_request().SerializeToString()]


def otlp_json_target(data: bytes) -> None:
    _check(lambda body: otlp.decode(body, is_json=True, received_ns=NOW_NS), data)


def otlp_json_seeds() -> list[bytes]:
    value = {"arrayValue": {"values": [{"intValue": "1"}, {"doubleValue": 0.5}, {}]}}
    pairs = {"kvlistValue": {"values": [{"key": "k", "value": {"bytesValue": "AA=="}}]}}
    record = {
        "timeUnixNano": _TIME,
        "severityNumber": 9,
        "body": {"stringValue": "order"},
        "traceId": "0af7651916cd43dd8448eb211c80319c",
        "attributes": [{"key": "a", "value": value}, {"key": "b", "value": pairs}],
    }
    attributes = [{"key": "service.name", "value": {"stringValue": "shop"}}]
    of_scope = {"scope": {"name": "library"}, "logRecords": [record]}
    of_resource = {"resource": {"attributes": attributes}, "scopeLogs": [of_scope]}
    return [json.dumps({"resourceLogs": [of_resource]}).encode()]


def lines_target(data: bytes) -> None:
    _check(lambda body: json_lines.decode(body, received_ns=NOW_NS), data)


def lines_seeds() -> list[bytes]:
    line = json.dumps({"time": "2026-11-16T08:00:00.5+01:00", "text": "größer", "n": [1, None]})
    number = json.dumps({"ts": 1_799_999_999.25, "deep": {"a": {"b": True}}})
    return [f"{line}\n\n{number}\r\n".encode(), f"[{line}, {number}]".encode()]


def loki_json_target(data: bytes) -> None:
    _check(lambda body: loki.decode_json(body, received_ns=NOW_NS), data)


def loki_json_seeds() -> list[bytes]:
    streams = [
        {"stream": {"app": "shop"}, "values": [[_TIME, "line"], [_TIME, "more", {"id": "1"}]]},
        {"stream": {"app": "till", "line": "x"}, "values": [[_TIME, "line"]]},
    ]
    return [json.dumps({"streams": streams}).encode()]


def _push() -> bytes:
    push = loki.PushRequest()
    stream = push.streams.add(labels=b'{app="shop", path="a\\"b\\n\\u00e4\\x41"}')
    entry = stream.entries.add(line=b"line \xff")
    entry.timestamp.seconds = NOW_NS // 1_000_000_000
    entry.metadata.add(name=b"line", value=b"1")
    push.streams.add(labels=b"{}").entries.add(line=b"")
    return bytes(push.SerializeToString())


def loki_protobuf_target(data: bytes) -> None:
    """Compressed as it came, and as what a compressed one holds."""

    def decode(body: bytes) -> Iterable[RecordSection]:
        return loki.decode_protobuf(body, received_ns=NOW_NS, bytes_max=_BYTES_MAX)

    _check(decode, data)
    _check(decode, bytes(cramjam.snappy.compress_raw(data)))


def loki_protobuf_seeds() -> list[bytes]:
    return [_push(), bytes(cramjam.snappy.compress_raw(_push()))]


def bulk_target(data: bytes) -> None:
    def decode(body: bytes) -> list[RecordSection]:
        found = elasticsearch.decode(body, index="logs", received_ns=NOW_NS)
        items = [each for each in found if isinstance(each, elasticsearch.BulkItem)]
        list(elasticsearch.encode_answer(items, made_ids=[""] * len(items), took_ms=1))
        for item in items:
            assert (item.record is None) == bool(item.error_type)
        return [RecordSection({}, [item.record for item in items if item.record is not None])]

    _check(decode, data)


def bulk_seeds() -> list[bytes]:
    lines: tuple[dict[str, Any], ...] = (
        {"index": {"_index": "a", "_id": "1"}},
        {"@timestamp": "2026-11-16T08:00:00Z", "message": "text", "n": 1},
        {"create": {}},
        {"message": "other"},
        {"delete": {"_id": 7}},
        {"update": {"_id": "1"}},
        {"doc": {}},
    )
    return [b"".join(json.dumps(line).encode() + b"\n" for line in lines)]


def syslog_target(data: bytes) -> None:
    """The bytes in two pieces; what comes in one is the same."""

    def read(*pieces: bytes) -> list[bytes] | None:
        reader = syslog.FrameReader(bytes_max=200)
        frames: list[bytes] = []
        try:
            for piece in pieces:
                frames += reader.feed(piece)
                assert reader.held_bytes <= 200 + syslog.LENGTH_DIGITS_MAX + 1
        except RaftwoodError:
            return None
        return frames + reader.end()

    cut = data[0] if data else 0
    frames = read(data[1:])
    assert read(data[1:cut], data[max(cut, 1) :]) == frames

    record = syslog.decode_message((frames or [data])[0], received_ns=NOW_NS)
    _check(lambda _: [RecordSection({}, [record])], data)


def syslog_seeds() -> list[bytes]:
    full = (
        b'<165>1 2026-11-16T08:00:00.003Z host app 1 ID [a@1 k="v\\"\\]" l="m"][b] \xef\xbb\xbfhi'
    )
    short = b"<13>1 - - - - - -"
    old = b"<34>Oct 11 22:14:15 host su: failed"
    lines = b"\n".join((full, short, old, b""))
    counted = b"".join(b"%d %b" % (len(each), each) for each in (full, short))
    return [bytes([40]) + lines, bytes([9]) + counted, bytes([60]) + counted + short]


def fluent_target(data: bytes) -> None:
    """The bytes in two pieces; what comes in one is the same."""

    def read(*pieces: bytes) -> list[bytes] | None:
        reader = fluent_forward.MessageReader(bytes_max=4_000)
        found: list[bytes] = []
        try:
            for piece in pieces:
                found += reader.feed(piece)
        except RaftwoodError:
            return None
        return found

    cut = data[0] if data else 0
    messages = read(data[1:])
    assert read(data[1:cut], data[max(cut, 1) :]) == messages
    for message in messages or ():
        _check(_forwarded, message)
        try:
            _HANDSHAKE.received(fluent_forward.unpacked(message))
        except RaftwoodError:
            continue
        raise AssertionError("a stranger got in")


def _forwarded(message: bytes) -> Iterable[RecordSection]:
    found = fluent_forward.decode_message(message, received_ns=NOW_NS, bytes_max=_BYTES_MAX)
    return found.sections


def fluent_seeds() -> list[bytes]:
    time = msgpack.ExtType(0, (NOW_NS // 1_000_000_000).to_bytes(4, "big") + bytes(4))
    record = {"text": "größer", "n": [1, -1, 0.5, None, True], "deep": {"a": b"\xff"}}
    events = [[time, record], [1_799_999_999, {}], [[time, {}], record]]
    packed = b"".join(map(msgpack.packb, events))
    messages = [
        ["tag", time, record, {"chunk": "c1"}],
        ["tag", 1_799_999_999, record],
        ["tag", events, {"chunk": "c2", "size": 3}],
        ["tag", packed, {"chunk": "c3"}],
        ["tag", gzip.compress(packed, mtime=0), {"compressed": "gzip"}],
        ["PING", "host", "salt", "0" * 128, "", ""],
    ]
    encoded = [bytes(msgpack.packb(message)) for message in messages]
    return [*(bytes([30]) + each for each in encoded), bytes([99]) + encoded[1] + encoded[3]]
