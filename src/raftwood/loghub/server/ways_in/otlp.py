"""OTLP logs over HTTP, POST /v1/logs: an export request as protobuf or JSON, and its answers.

A resource's attributes are tags, its scope's as `otel.scope.*`; a record's attributes are its
contents, beside `body`, `severity_text`, `severity_number`, `trace_id`, `span_id`, `flags` and
`event_name`. Values other than texts are stored as JSON.

OTLP's JSON differs from protobuf's: ids are hexadecimal, and 64-bit numbers may be texts. Its
structs have the field names of the protobuf messages, so that the same code walks both.
"""

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, ClassVar, Final

import msgspec
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.logs.v1.logs_pb2 import ScopeLogs
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from raftwood.base.errors import InvalidInput, NotFound, RaftwoodError
from raftwood.base.files import Buffer
from raftwood.base.protobuf_bytes import field_bytes
from raftwood.loghub import json_records
from raftwood.loghub.decode_bounds import (
    DEFAULT_BOUNDS,
    Children,
    DecodeBounds,
    ProtobufFields,
    Span,
    check_json,
    check_json_document,
    check_protobuf,
    span_bytes,
)
from raftwood.loghub.errors import BatchTooLarge
from raftwood.loghub.json_records import UNREADABLE, refused
from raftwood.loghub.server.http import HttpRequest, HttpResponse, HttpRoute
from raftwood.loghub.server.ways_in.http_way import HttpWay, headers_of, media_type, status_of
from raftwood.loghub.server.ways_in.records import (
    PAUSE,
    RecordSection,
    encode_record,
    gathered,
    sliced,
    take_out_too_large,
)

_Whole = Annotated[str, msgspec.Meta(pattern=r"\A-?[0-9]{1,20}\Z")] | int
_Id = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-fA-F]*\Z", max_length=64)]


class _Message(msgspec.Struct, frozen=True, rename="camel"):
    """A part of an OTLP request; unknown fields are skipped."""


class _Values(_Message, frozen=True):
    """A list."""

    values: "list[_Any]" = []


class _Pairs(_Message, frozen=True):
    """A map."""

    values: "list[_Pair]" = []


class _Any(_Message, frozen=True):
    """A value of some kind."""

    string_value: str | None = None
    bool_value: bool | None = None
    int_value: _Whole | None = None
    double_value: float | str | None = None
    array_value: _Values | None = None
    kvlist_value: _Pairs | None = None
    bytes_value: str | None = None


class _Pair(_Message, frozen=True):
    """An attribute."""

    key: str = ""
    value: _Any | None = None


class _Resource(_Message, frozen=True):
    """The source of the records."""

    attributes: list[_Pair] = []


class _Scope(_Message, frozen=True):
    """The library that made the records."""

    name: str = ""
    version: str = ""
    attributes: list[_Pair] = []


class _Record(_Message, frozen=True):
    """One record."""

    time_unix_nano: _Whole = 0
    observed_time_unix_nano: _Whole = 0
    severity_number: int = 0
    severity_text: str = ""
    body: _Any | None = None
    attributes: list[_Pair] = []
    flags: int = 0
    trace_id: _Id = ""
    span_id: _Id = ""
    event_name: str = ""


_EMPTY: Final = msgspec.Raw(b"{}")


class _OfScope(_Message, frozen=True):
    """Records of one scope; they are decoded a slice at a time."""

    scope: msgspec.Raw = _EMPTY
    log_records: list[msgspec.Raw] = []


class _OfResource(_Message, frozen=True):
    """Records of one resource."""

    resource: msgspec.Raw = _EMPTY
    scope_logs: list[_OfScope] = []


class _Request(_Message, frozen=True):
    """An export request."""

    resource_logs: list[_OfResource] = []


_decode_request: Final = msgspec.json.Decoder(_Request).decode
_decode_resource: Final = msgspec.json.Decoder(_Resource).decode
_decode_scope: Final = msgspec.json.Decoder(_Scope).decode
_decode_records: Final = msgspec.json.Decoder(list[_Record]).decode


class JsonRequest:
    """A request split into its parts; `InvalidInput` names the wrong field."""

    def __init__(self, data: bytes, bounds: DecodeBounds) -> None:
        self._bounds = bounds
        try:
            self._request = _decode_request(data)
        except UNREADABLE as error:
            raise refused("the export request", error) from error

    def resources(self) -> Iterator[tuple[msgspec.Raw, list[_OfScope]]]:
        return ((each.resource, each.scope_logs) for each in self._request.resource_logs)

    def scopes(self, scopes: list[_OfScope]) -> Iterator[tuple[msgspec.Raw, list[msgspec.Raw]]]:
        return ((each.scope, each.log_records) for each in scopes)

    @staticmethod
    def size_of(record: msgspec.Raw) -> int:
        return len(memoryview(record))

    def resource(self, data: msgspec.Raw) -> Any:
        return self._decoded(_decode_resource, data, "a resource of the export request")

    def scope(self, data: msgspec.Raw) -> Any:
        return self._decoded(_decode_scope, data, "a scope of the export request")

    def records(self, part: list[msgspec.Raw]) -> Any:
        """Decodes records together; checks the large ones first."""
        encoded = [bytes(each) for each in part]
        for data in encoded:
            if len(data) > self._bounds.keys_max:
                check_json(data, self._bounds, "a record of the export request")
        try:
            return _decode_records(b"[%b]" % b",".join(encoded))
        except UNREADABLE as error:
            raise refused("a record of the export request", error) from error

    def _decoded(self, decode: Callable[[bytes], Any], raw: msgspec.Raw, name: str) -> Any:
        data = bytes(raw)
        check_json(data, self._bounds, name)
        try:
            return decode(data)
        except UNREADABLE as error:
            raise refused(name, error) from error


def plain_json(value: _Any | None) -> Any:
    """Converts a value to what JSON has for it; None if it is not set."""
    if value is None:
        return None
    if value.string_value is not None:
        return value.string_value
    if value.int_value is not None:
        return int(value.int_value)
    if value.array_value is not None:
        return [plain_json(each) for each in value.array_value.values]
    if value.kvlist_value is not None:
        return {each.key: plain_json(each.value) for each in value.kvlist_value.values}
    for other in (value.bool_value, value.double_value, value.bytes_value):
        if other is not None:
            return other
    return None


_OWN: Final = frozenset(
    ("body", "severity_text", "severity_number", "trace_id", "span_id", "flags", "event_name")
)
_encode_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_Plain = Callable[[Any], Any]


def decode(
    body: Buffer, *, is_json: bool, received_ns: int, bounds: DecodeBounds = DEFAULT_BOUNDS
) -> Iterator[RecordSection]:
    """Decodes all records of a request, or raises `InvalidInput`; a record without a time has its
    observed one.

    The request is split first, and its records are decoded a slice at a time.
    """
    data = bytes(body)
    request: Any
    plain: _Plain
    if is_json:
        for _ in check_json_document(data, bounds, "the export request"):
            yield PAUSE
        request, plain = JsonRequest(data, bounds), plain_json
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
                yield RecordSection(all_tags, found)


_PAIR: Final[dict[int, Any]] = {}
_ANY: Final[dict[int, Any]] = {5: {1: {}}, 6: {1: _PAIR}}
_PAIR[2] = _ANY
_ANY[5][1] = _ANY
_ATTRIBUTES: Final = {1: _PAIR}
_SCOPE: Final = {3: _PAIR}
_RECORD: Final = {5: _ANY, 6: _PAIR}


class _ProtobufRequest:
    """The places of the parts of an ExportLogsServiceRequest."""

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
        # A message that is sent in several parts is the concatenation of them.
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
    return encode_record(json_records.sensible(time_ns, received_ns), _contents(record, plain))


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
    # JSON has hexadecimal ids already.
    return identifier.hex().encode() if isinstance(identifier, bytes) else identifier.encode()


def _text(value: Any) -> bytes:
    if value is None:
        return b""
    return value.encode() if type(value) is str else _encode_json(value).encode()


def _plain(value: Any) -> Any:
    """Converts protobuf's `AnyValue` to what JSON has for it; None if it is not set."""
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
    return getattr(value, kind)  # includes an empty text


def encode_answer(*, is_json: bool, refused: int = 0, why: str = "") -> bytes:
    """Encodes success, or with `refused` a partial one."""
    if is_json:
        partial = {"rejectedLogRecords": str(refused), "errorMessage": why}
        return _encode_json({"partialSuccess": partial} if refused else {}).encode()
    answer = ExportLogsServiceResponse()
    if refused:
        answer.partial_success.rejected_log_records = refused
        answer.partial_success.error_message = why
    return answer.SerializeToString()


def encode_status(message: str, *, is_json: bool) -> bytes:
    """Encodes a `google.rpc.Status` with the reason; HTTP's status is the code, as OTLP allows."""
    if is_json:
        return _encode_json({"message": message}).encode()
    return field_bytes(2, message.encode()[:8_000].decode(errors="ignore").encode())


_PATH: Final = "/v1/logs"
_PROTOBUF: Final = "application/x-protobuf"
_JSON: Final = "application/json"


class OtlpRoutes(HttpWay):
    """Answers are in the request's encoding."""

    name: ClassVar[str] = "otlp"

    def find(self, method: str, path: str) -> HttpRoute | None:
        if path != _PATH:
            return None
        return HttpRoute("export", self._export if method == "POST" else self._unknown)

    async def _unknown(self, request: HttpRequest) -> HttpResponse:
        raise NotFound(f"there is no {request.method} {_PATH}: POST an export request")

    async def _export(self, request: HttpRequest) -> HttpResponse:
        kind = media_type(request)
        if kind not in (_PROTOBUF, _JSON):
            raise InvalidInput(
                f"a body of type {kind[:80]!r} is not taken: send {_PROTOBUF} or {_JSON}"
            )
        is_json = kind == _JSON
        place = self.place(request)
        body = await self.body(request)
        sections = await gathered(
            decode(body, is_json=is_json, received_ns=self.putting.now_ns(), bounds=self.bounds),
            self.putting.turns,
        )
        bytes_max = self.putting.group_bytes_max
        refused = take_out_too_large(sections, bytes_max=bytes_max)
        await self.put(request, place, sections)
        why = f"{refused} records are above {bytes_max} bytes: make them smaller" if refused else ""
        answer = encode_answer(is_json=is_json, refused=refused, why=why)
        return HttpResponse(body=answer, content_type=kind.encode())

    def error_answer(self, error: RaftwoodError, request: HttpRequest) -> HttpResponse:
        status = status_of(error)
        is_json = media_type(request) == _JSON
        return HttpResponse(
            status=status,
            body=encode_status(error.message, is_json=is_json),
            content_type=(_JSON if is_json else _PROTOBUF).encode(),
            headers=headers_of(status),
        )
