"""OTLP logs: an export request as protobuf or JSON to sections, and the answers it wants.

A resource's attributes are tags, its scope's as `otel.scope.*`; a record's attributes are its
contents, beside `body`, `severity_text`, `severity_number`, `trace_id`, `span_id`, `flags` and
`event_name`. Values that are no texts stand as JSON.
"""

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.logs.v1.logs_pb2 import ScopeLogs
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from raftwood.base.errors import InvalidInput
from raftwood.base.files import Buffer
from raftwood.loghub.decode_bounds import (
    DEFAULT_BOUNDS,
    Children,
    DecodeBounds,
    ProtobufFields,
    Span,
    check_json_document,
    check_protobuf,
    span_bytes,
)
from raftwood.loghub.errors import BatchTooLarge
from raftwood.loghub.server.ways_in import otlp_json, times
from raftwood.loghub.server.ways_in.records import PAUSE, Section, encode_record, sliced

_OWN: Final = frozenset(
    ("body", "severity_text", "severity_number", "trace_id", "span_id", "flags", "event_name")
)
_encode_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_Plain = Callable[[Any], Any]


def decode(
    body: Buffer, *, is_json: bool, received_ns: int, bounds: DecodeBounds = DEFAULT_BOUNDS
) -> Iterator[Section]:
    """All records of a request, or `InvalidInput`; a record without a time has its observed one.

    The request is taken apart first, and its records are decoded a slice at a time.
    """
    data = bytes(body)
    request: Any
    plain: _Plain
    if is_json:
        for _ in check_json_document(data, bounds, "the export request"):
            yield PAUSE
        request, plain = otlp_json.JsonRequest(data, bounds), otlp_json.plain
    else:
        request, plain = _ProtobufRequest(data, bounds), _plain
    tag_count = 0
    for of_resource in request.resources():
        resource, scopes = of_resource or ([], [])
        if not scopes:
            yield PAUSE
            continue
        tags = dict(_pairs(request.resource(resource), plain))
        for of_scope in request.scopes(scopes):
            scope, records = of_scope or ([], [])
            if not records:
                yield PAUSE
                continue
            all_tags = tags | dict(_scope_pairs(request.scope(scope), plain))
            tag_count += len(all_tags)
            if tag_count > bounds.request_values_max:
                raise BatchTooLarge(
                    "the export request has more scopes than the attributes of their resources "
                    "allow: send it in several requests"
                )
            for part in sliced(records, request.size_of):
                found = [_record(each, plain, received_ns) for each in request.records(part)]
                yield Section(all_tags, found)


_PAIR: Final[dict[int, Any]] = {}
_ANY: Final[dict[int, Any]] = {5: {1: {}}, 6: {1: _PAIR}}
_PAIR[2] = _ANY
_ANY[5][1] = _ANY
_ATTRIBUTES: Final = {1: _PAIR}
_SCOPE: Final = {3: _PAIR}
_RECORD: Final = {5: _ANY, 6: _PAIR}


class _ProtobufRequest:
    """Where the parts of an ExportLogsServiceRequest stand."""

    def __init__(self, data: bytes, bounds: DecodeBounds) -> None:
        self._bounds = bounds
        self._fields = ProtobufFields(data, "the ExportLogsServiceRequest")

    def resources(self) -> Iterator[tuple[list[Span], list[Span]] | None]:
        for number, _, begin, end in self._fields.walk(0, len(self._fields.data)):
            if number == 1:
                yield from self._fields.split(begin, end)

    def scopes(self, spans: list[Span]) -> Iterator[tuple[list[Span], list[Span]] | None]:
        for _, begin, end in spans:
            yield from self._fields.split(begin, end)

    size_of = staticmethod(span_bytes)

    def resource(self, spans: list[Span]) -> Any:
        return self._merged(Resource, spans, _ATTRIBUTES, "a resource of the export request")

    def scope(self, spans: list[Span]) -> Any:
        return self._merged(InstrumentationScope, spans, _SCOPE, "a scope of the export request")

    def records(self, spans: list[Span]) -> Any:
        fields, bounds = self._fields, self._bounds
        for span in spans:
            if span_bytes(span) > bounds.keys_max:
                name = "a record of the export request"
                check_protobuf(fields.data, *span[1:], _RECORD, bounds, name)
        return _decoded(ScopeLogs, fields.run_of(spans)).log_records

    def _merged(self, kind: Any, spans: list[Span], children: Children, name: str) -> Any:
        # One that comes in several parts is what they are together.
        data = b"".join([self._fields.data[begin:end] for _, begin, end in spans])
        check_protobuf(data, 0, len(data), children, self._bounds, name)
        return _decoded(kind, data)


def _decoded(kind: Any, data: bytes) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise InvalidInput("the body is no ExportLogsServiceRequest") from error


def _record(record: Any, plain: _Plain, received_ns: int) -> bytes:
    time_ns = int(record.time_unix_nano) or int(record.observed_time_unix_nano) or None
    return encode_record(times.sensible(time_ns, received_ns), _contents(record, plain))


def _contents(record: Any, plain: _Plain) -> Iterator[tuple[bytes, bytes]]:
    if (body := plain(record.body)) is not None:
        yield b"body", _text(body)
    if text := record.severity_text:
        yield b"severity_text", text.encode()
    if number := record.severity_number:
        yield b"severity_number", b"%d" % number
    if trace := record.trace_id:
        yield b"trace_id", _hexadecimal(trace)
    if span := record.span_id:
        yield b"span_id", _hexadecimal(span)
    if flags := record.flags:
        yield b"flags", b"%d" % flags
    if event := record.event_name:
        yield b"event_name", event.encode()
    for attribute in record.attributes:
        key = attribute.key
        if key in _OWN:
            key = f"attributes.{key}"
        yield key.encode(), _text(plain(attribute.value))


def _pairs(owner: Any, plain: _Plain, prefix: str = "") -> Iterable[tuple[bytes, bytes]]:
    for attribute in owner.attributes:
        yield f"{prefix}{attribute.key}".encode(), _text(plain(attribute.value))


def _scope_pairs(scope: Any, plain: _Plain) -> Iterable[tuple[bytes, bytes]]:
    if scope.name:
        yield b"otel.scope.name", scope.name.encode()
    if scope.version:
        yield b"otel.scope.version", scope.version.encode()
    yield from _pairs(scope, plain, "otel.scope.")


def _hexadecimal(identifier: bytes | str) -> bytes:
    # JSON has it so already.
    return identifier.hex().encode() if isinstance(identifier, bytes) else identifier.encode()


def _text(value: Any) -> bytes:
    if value is None:
        return b""
    return value.encode() if type(value) is str else _encode_json(value).encode()


def _plain(value: Any) -> Any:
    """An `AnyValue` of protobuf as what JSON has; None for one that is not set."""
    if text := value.string_value:
        return text
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [_plain(each) for each in value.array_value.values]
    if kind == "kvlist_value":
        return {each.key: _plain(each.value) for each in value.kvlist_value.values}
    if kind == "bytes_value":
        return base64.b64encode(value.bytes_value).decode()
    return getattr(value, kind)  # a text without a character among them


def encode_answer(*, is_json: bool, refused: int = 0, why: str = "") -> bytes:
    """Success, or with `refused` a partial one."""
    if is_json:
        partial = {"rejectedLogRecords": str(refused), "errorMessage": why}
        return _encode_json({"partialSuccess": partial} if refused else {}).encode()
    answer = ExportLogsServiceResponse()
    if refused:
        answer.partial_success.rejected_log_records = refused
        answer.partial_success.error_message = why
    return answer.SerializeToString()


def encode_status(message: str, *, is_json: bool) -> bytes:
    """A `google.rpc.Status` that says why; its code is left to HTTP's, as OTLP allows."""
    if is_json:
        return _encode_json({"message": message}).encode()
    text = message.encode()[:8_000].decode(errors="ignore").encode()
    low, high = len(text) & 0x7F, len(text) >> 7
    return b"".join((b"\x12", bytes((low | 0x80, high) if high else (low,)), text))
