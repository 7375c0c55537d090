"""What is decoded is judged before anything is made of it: by what was looked at, and by memory."""

import asyncio
import gzip
import json
import re
import tracemalloc
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any

import cramjam
import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from raftwood.base.errors import InvalidInput, RaftwoodError
from raftwood.loghub import decode_bounds
from raftwood.loghub.decode_bounds import (
    SLICE_BYTES,
    DecodeBounds,
    ProtobufFields,
    check_json,
    check_protobuf,
    structure,
)
from raftwood.loghub.errors import BatchTooLarge
from raftwood.loghub.log_groups import LogGroup
from raftwood.loghub.server.sls import bodies
from raftwood.loghub.server.ways_in import (
    elasticsearch,
    fluent_forward,
    json_lines,
    loki,
    otlp,
    records,
)
from raftwood.loghub.server.ways_in.records import (
    SLICE_RECORDS,
    RecordSection,
    encode_record,
    gathered,
)
from raftwood.net.listeners import FairScheduler, TurnLimits
from tests.kits.loghub.ways_in import NOW_NS
from tests.kits.running import run

MB = 1 << 20
MANY_KEYS = b"{" + b",".join(b'"k%07d":1' % number for number in range(600_000)) + b"}"
MANY_VALUES = b'{"a":[' + b"1," * 4_000_000 + b"1]}"
DEEP = b'{"a":' + b"[" * 4_000_000 + b"]" * 4_000_000 + b"}"
TEXTS = b'{"a":"' + b'\\"[{,:' * 1_000_000 + b'"}'
"""Looks like structure, and is none."""


def field(number: int, data: bytes) -> bytes:
    size = bytearray()
    left = len(data)
    while left > 0x7F:
        size.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([number << 3 | 2, *size, left]) + data


def entries(value: bytes) -> bytes:
    return b'{"streams":[{"stream":{},"values":[' + value + b"]}]}"


def export(record: bytes) -> bytes:
    return b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[' + record + b"]}]}]}"


def protobuf_export(record: bytes) -> bytes:
    return field(1, field(2, field(2, record)))


def protobuf_push(entry: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(field(1, field(1, b"{}") + field(2, entry))))


Decode = Callable[[bytes], object]


def lines(body: bytes) -> object:
    return list(json_lines.decode(body, received_ns=NOW_NS))


def bulk(body: bytes) -> object:
    (item,) = elasticsearch.decode(b'{"create":{}}\n' + body, index="i", received_ns=NOW_NS)
    assert isinstance(item, elasticsearch.BulkItem)
    if item.status == 413:
        raise BatchTooLarge(item.reason)
    return item


def otlp_json(body: bytes) -> object:
    return list(otlp.decode(body, is_json=True, received_ns=NOW_NS))


def otlp_protobuf(body: bytes) -> object:
    return list(otlp.decode(body, is_json=False, received_ns=NOW_NS))


def loki_json(body: bytes) -> object:
    return list(loki.decode_json(body, received_ns=NOW_NS))


def loki_protobuf(body: bytes) -> object:
    return list(loki.decode_protobuf(body, received_ns=NOW_NS, bytes_max=16 * MB))


def fluent(body: bytes) -> object:
    decoded = fluent_forward.decode_message(body, received_ns=NOW_NS, bytes_max=16 * MB)
    found = list(decoded.sections)
    # Left out, for a chunk that is refused comes again.
    if decoded.too_large == 1 and not any(each.records for each in found):
        raise BatchTooLarge("more than it may")
    return found


def log_group(body: bytes) -> object:
    async def main() -> int:
        return await bodies._log_records(body, FairScheduler(), DecodeBounds())

    return run(main())


def fluent_event(record: bytes) -> bytes:
    return b"\x93\xa3tag\x01" + record


ANY_VALUE = field(5, field(1, field(3, b"")) * 1_000_000)
BOMBS: dict[str, tuple[Decode, bytes]] = {
    "lines, keys": (lines, MANY_KEYS),
    "lines, values": (lines, MANY_VALUES),
    "lines, nesting": (lines, DEEP),
    "lines, blank": (lines, b"\n" * 8 * MB),
    "array, items": (lines, b"[" + b"1," * 4_000_000 + b"1]"),
    "array, keys": (lines, b"[" + MANY_KEYS + b"]"),
    "bulk, keys": (bulk, MANY_KEYS),
    "bulk, nesting": (bulk, DEEP),
    "loki, keys": (loki_json, entries(b'["1","x",' + MANY_KEYS + b"]")),
    "loki, entries": (loki_json, entries(b"[]," * 2_000_000 + b"[]")),
    "loki protobuf, metadata": (loki_protobuf, protobuf_push(field(3, b"") * 1_000_000)),
    "loki protobuf, entries": (
        loki_protobuf,
        bytes(cramjam.snappy.compress_raw(field(1, field(1, b"{}") + field(2, b"") * 1_000_000))),
    ),
    "otlp, records": (otlp_json, export(b"{}," * 2_000_000 + b"{}")),
    "otlp, values": (
        otlp_json,
        export(b'{"body":{"arrayValue":{"values":[' + b"{}," * 100_000 + b"{}]}}}"),
    ),
    "otlp protobuf, records": (otlp_protobuf, field(1, field(2, field(2, b"") * 1_000_000))),
    "otlp protobuf, attributes": (otlp_protobuf, protobuf_export(field(6, b"") * 1_000_000)),
    "otlp protobuf, values": (otlp_protobuf, protobuf_export(field(5, ANY_VALUE))),
    "fluent, keys": (
        fluent,
        fluent_event(b"\xdf" + (10**6).to_bytes(4, "big") + b"\xa0" * 2 * 10**6),
    ),
    "fluent, values": (
        fluent,
        fluent_event(b"\x81\xa1a\xdd" + (10**6).to_bytes(4, "big") + b"\xc0" * 10**6),
    ),
    "log group, logs": (log_group, field(1, b"\x08\x01") * 1_000_000),
    "log group, contents": (log_group, field(1, b"\x08\x01" + field(2, b"") * 1_000_000)),
    "log group, tags": (log_group, field(6, field(1, b"") + field(2, b"")) * 1_000_000),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_before_it_takes_memory(name: str) -> None:
    decode, body = BOMBS[name]
    tracemalloc.start()
    try:
        with pytest.raises(BatchTooLarge, match="more than"):
            decode(body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Copies of the body are allowed, which was sent; what would be made of it is many times that.
    assert peak < 3 * len(body) + 24 * MB
    assert peak < 100 * MB


@pytest.mark.parametrize("body", [MANY_KEYS, MANY_VALUES, DEEP], ids=["keys", "values", "nesting"])
def test_no_more_is_looked_at_than_tells_that_it_is_too_much(
    monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    seen = 0

    def counted(data: bytes) -> Iterable[bytes]:
        nonlocal seen
        for marks in structure(data):
            seen += len(marks)
            yield marks

    monkeypatch.setattr(decode_bounds, "structure", counted)
    with pytest.raises(BatchTooLarge):
        check_json(body, DecodeBounds(), "it")
    assert seen < len(body) // 20


def test_texts_that_look_like_structure_are_none() -> None:
    check_json(TEXTS, DecodeBounds(), "it")
    ((section,)) = json_lines.decode(TEXTS, received_ns=NOW_NS)
    assert len(section.records) == 1


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b'{"a":1,"b":2,"c":3}', "record_keys_max"),
        (b'{"a":[1,2,3,4,5,6,7,8]}', "record_values_max"),
        (b'{"a":[[[1]]]}', "record_nesting_max"),
    ],
)
def test_the_refusal_names_the_setting(body: bytes, named: str) -> None:
    bounds = DecodeBounds(keys_max=2, values_max=8, nesting_max=3)
    with pytest.raises(BatchTooLarge, match=named):
        list(json_lines.decode(body, received_ns=NOW_NS, bounds=bounds))
    more = DecodeBounds(keys_max=3, values_max=9, nesting_max=4)
    assert list(json_lines.decode(body, received_ns=NOW_NS, bounds=more))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='a"\\[]{},:\né', max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(alphabet='k"\\:,', max_size=4), inner, max_size=4)
    ),
    max_leaves=20,
)


def measured(value: Any, depth: int = 0) -> tuple[int, int]:
    """Keys, and levels of nesting."""
    if isinstance(value, dict):
        inner = [measured(each, depth + 1) for each in value.values()]
        keys = len(value)
    elif isinstance(value, list):
        inner = [measured(each, depth + 1) for each in value]
        keys = 0
    else:
        return 0, depth
    return keys + sum(each[0] for each in inner), max([depth + 1, *(each[1] for each in inner)])


@given(value=JSON, window_bytes=st.integers(1, 9), is_ascii=st.booleans())
def test_structure_is_told_from_text_wherever_windows_end(
    value: Any, window_bytes: int, is_ascii: bool
) -> None:
    data = json.dumps(value, ensure_ascii=is_ascii).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode_bounds, "_WINDOW_BYTES", window_bytes)
        marks = b"".join(structure(data))
    without_texts = re.sub(rb'"(?:[^"\\]|\\.)*"', b"", data)
    assert marks == re.sub(rb"[^\[\]{},:]", b"", without_texts)
    steps = [1 if mark in b"[{" else -1 for mark in marks if mark not in b",:"]
    assert (marks.count(b":"), max(accumulate(steps, initial=0))) == measured(value)


@given(data=st.binary(max_size=60))
def test_fields_of_any_bytes_are_those_of_protobuf_or_refused(data: bytes) -> None:
    try:
        found = list(ProtobufFields(data, "it").walk(0, len(data)))
    except RaftwoodError:
        return
    assert [each[1] for each in found] == [0, *(each[3] for each in found)][:-1] or not found
    assert not found or found[-1][3] == len(data)


def test_runs_of_fields_are_messages() -> None:
    group = LogGroup(Topic=b"t", Source=b"s")
    for number in range(300):
        log = group.Logs.add(Time=number + 1)
        log.Contents.add(Key=b"k", Value=b"v" * number * 10)
    data = group.SerializeToString()
    assert log_group(data) == 300
    with pytest.raises(InvalidInput):
        log_group(data[:-1])
    with pytest.raises(InvalidInput):
        log_group(data + field(1, b""))  # a log without its time


def test_what_lies_deep_in_protobuf_counts() -> None:
    value = b""
    for _ in range(60):
        value = field(5, field(1, value))
    bounds = DecodeBounds(nesting_max=20, keys_max=16, values_max=64)
    with pytest.raises(BatchTooLarge, match="levels of nesting"):
        check_protobuf(value, 0, len(value), otlp._ANY, bounds, "it")
    check_protobuf(value, 0, len(value), otlp._ANY, DecodeBounds(values_max=200), "it")


# Slices

RECORD = b'{"message":"%s","n":1}' % (b"x" * 3_000)


def many_records() -> dict[str, Iterable[RecordSection]]:
    request = ExportLogsServiceRequest()
    scope = request.resource_logs.add().scope_logs.add()
    for _ in range(1_000):
        scope.log_records.add().body.string_value = "x" * 3_000
    push = field(1, field(1, b"{}") + field(2, field(2, b"x" * 3_000)) * 1_000)
    event = msgpack.packb([1, {"a": "x" * 3_000}])
    of_otlp = b'{"body":{"stringValue":"%s"}}' % (b"x" * 3_000)
    chunk = msgpack.packb(["tag", event * 1_000])
    forwarded = b"\x92\xa3tag\xdc\x03\xe8" + event * 1_000
    return {
        "lines": json_lines.decode(RECORD + b"\n" + (RECORD + b"\n") * 999, received_ns=NOW_NS),
        "array": json_lines.decode(b"[" + b",".join([RECORD] * 1_000) + b"]", received_ns=NOW_NS),
        "otlp": otlp.decode(request.SerializeToString(), is_json=False, received_ns=NOW_NS),
        "otlp json": otlp.decode(
            export(b",".join([of_otlp] * 1_000)), is_json=True, received_ns=NOW_NS
        ),
        "loki": loki.decode_protobuf(
            bytes(cramjam.snappy.compress_raw(push)), received_ns=NOW_NS, bytes_max=16 * MB
        ),
        "loki json": loki.decode_json(
            entries(b",".join([b'["1","%s"]' % (b"x" * 3_000)] * 1_000)), received_ns=NOW_NS
        ),
        "packed forward": fluent_forward.decode_message(
            chunk, received_ns=NOW_NS, bytes_max=16 * MB
        ).sections,
        "forward": fluent_forward.decode_message(
            forwarded, received_ns=NOW_NS, bytes_max=16 * MB
        ).sections,
    }


@pytest.mark.parametrize("way", many_records())
def test_a_slice_has_few_records_and_few_bytes(way: str) -> None:
    sections = list(many_records()[way])
    assert sum(len(each.records) for each in sections) == 1_000
    for section in sections:
        assert len(section.records) <= SLICE_RECORDS
        assert sum(map(len, section.records)) <= SLICE_BYTES + 8_000


def test_tags_that_records_do_not_share_cannot_make_gigabytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(records, "PACKED_BYTES_MAX", 100_000)
    record = encode_record(NOW_NS, [])
    sections = [RecordSection({b"tag": b"%d" % each * 1_000}, [record] * 100) for each in range(2)]
    with pytest.raises(BatchTooLarge, match="tags"):
        list(records.pack(sections, bytes_max=MB))


@pytest.mark.parametrize("values", [30_000, 40_000], ids=["let in", "left out"])
@pytest.mark.parametrize("is_packed", [True, False], ids=["gzip", "plain"])
def test_events_of_many_values_have_a_turn_each(values: int, is_packed: bool) -> None:
    events = msgpack.packb([1, {"a": [0] * values}]) * 20
    packed = gzip.compress(events, mtime=0) if is_packed else events
    options = {"compressed": "gzip"} if is_packed else {}
    decoded = fluent_forward.decode_message(
        msgpack.packb(["tag", packed, options]), received_ns=NOW_NS, bytes_max=16 * MB
    )
    turns = 0

    async def main() -> list[RecordSection]:
        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count_turns())
        # Of which at the most one goes on at once, and the other waits.
        found = await gathered(decoded.sections, FairScheduler(TurnLimits(pieces_max=2)))
        counting.cancel()
        await asyncio.wait([counting])
        return found

    count = sum(len(each.records) for each in run(main()))
    assert (count, decoded.too_large) == ((20, 0) if values == 30_000 else (0, 20))
    assert turns >= 10
