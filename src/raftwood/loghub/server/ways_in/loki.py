"""Loki's push, POST /loki/api/v1/push: streams as JSON or as snappy-compressed protobuf.

A stream's labels are tags, an entry's line is the content `line`, and its structured metadata are
contents beside it. Protobuf's messages are described in place, like those of
`loghub/log_groups.py`.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, ClassVar, Final, TypeVar

import cramjam
import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from raftwood.base.errors import InvalidInput, NotFound, RaftwoodError, TooLarge
from raftwood.base.files import Buffer
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
)

T = TypeVar("T")
_Field = descriptor_pb2.FieldDescriptorProto
_PACKAGE: Final = "raftwood.loki"
_LABEL: Final = re.compile(
    r'\s*([A-Za-z_][A-Za-z0-9_.:]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|\Z)', re.DOTALL
)
_ESCAPE: Final = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)
_ESCAPES: Final = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", '"': '"', "'": "'",
}  # fmt: skip


class _Stream(msgspec.Struct, frozen=True):
    """A stream in JSON; its values are decoded a slice at a time."""

    stream: msgspec.Raw
    values: list[msgspec.Raw] = []
    """Each is a time in nanoseconds, a line, and perhaps metadata."""


class _Push(msgspec.Struct, frozen=True):
    """A push in JSON."""

    streams: list[_Stream]


_decode_json: Final = msgspec.json.Decoder(_Push).decode
_decode_labels: Final = msgspec.json.Decoder(dict[str, str]).decode
_decode_values: Final = msgspec.json.Decoder(list[list[str | dict[str, str]]]).decode
_NAME: Final = "the push"


def _describe() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="raftwood/loki.proto", package=_PACKAGE, syntax="proto3"
    )

    def add(owner: str, *fields: tuple[str, int, int, str]) -> None:
        message = file.message_type.add(name=owner)
        for name, number, kind, of in fields:
            is_many = name in ("metadata", "entries", "streams")
            message.field.add(
                name=name,
                number=number,
                label=_Field.LABEL_REPEATED if is_many else _Field.LABEL_OPTIONAL,
                type=kind,
                type_name=f".{_PACKAGE}.{of}" if of else None,
            )

    whole, text, message = _Field.TYPE_INT64, _Field.TYPE_BYTES, _Field.TYPE_MESSAGE
    add("Time", ("seconds", 1, whole, ""), ("nanos", 2, whole, ""))
    add("Pair", ("name", 1, text, ""), ("value", 2, text, ""))
    add(
        "Entry",
        ("timestamp", 1, message, "Time"),
        ("line", 2, text, ""),
        ("metadata", 3, message, "Pair"),
    )
    add("Stream", ("labels", 1, text, ""), ("entries", 2, message, "Entry"))
    add("Push", ("streams", 1, message, "Stream"))
    return file


_pool: Final = descriptor_pool.DescriptorPool()
_pool.Add(_describe())
PushRequest: Final[Any] = message_factory.GetMessageClass(
    _pool.FindMessageTypeByName(f"{_PACKAGE}.Push")
)
Stream: Final[Any] = message_factory.GetMessageClass(
    _pool.FindMessageTypeByName(f"{_PACKAGE}.Stream")
)
_STREAMS: Final = 1
_METADATA: Final[Children] = {3: {}}


def decode_json(
    body: Buffer, *, received_ns: int, bounds: DecodeBounds = DEFAULT_BOUNDS
) -> Iterator[RecordSection]:
    """Decodes all streams, or raises `InvalidInput` that names what is wrong."""
    data = bytes(body)
    for _ in check_json_document(data, bounds, _NAME):
        yield PAUSE
    try:
        push = _decode_json(data)
    except UNREADABLE as error:
        raise refused(_NAME, error) from error
    for number, stream in enumerate(push.streams, 1):
        name = f"stream {number} of {_NAME}"
        pairs = _decoded(_decode_labels, stream.stream, bounds, name)
        labels = {key.encode(): value.encode() for key, value in pairs.items()}
        if not stream.values:
            yield PAUSE
        for part in sliced(enumerate(stream.values, 1), lambda each: len(memoryview(each[1]))):
            yield RecordSection(
                labels,
                [
                    _json_entry(value, (at, number), received_ns)
                    for at, value in _values(part, bounds, name)
                ],
            )


def _values(
    part: list[tuple[int, msgspec.Raw]], bounds: DecodeBounds, name: str
) -> Iterator[tuple[int, list[str | dict[str, str]]]]:
    """Decodes values together; checks the large ones first."""
    encoded = [bytes(value) for _, value in part]
    first = part[0][0]
    for at, data in enumerate(encoded, first):
        if len(data) > bounds.keys_max:
            check_json(data, bounds, f"value {at} of {name}")
    try:
        values = _decode_values(b"[%b]" % b",".join(encoded))
    except UNREADABLE as error:
        raise refused(f"values {first} to {first + len(part) - 1} of {name}", error) from error
    return zip(range(first, first + len(part)), values, strict=True)


def _decoded(
    decode: Callable[[bytes], T], value: msgspec.Raw, bounds: DecodeBounds, name: str
) -> T:
    data = bytes(value)
    check_json(data, bounds, name)
    try:
        return decode(data)
    except UNREADABLE as error:
        raise refused(name, error) from error


def _json_entry(
    value: list[str | dict[str, str]], place: tuple[int, int], received_ns: int
) -> bytes:
    time, line, metadata = (*value, {})[:3] if len(value) in (2, 3) else (None, None, None)
    if not (isinstance(time, str) and isinstance(line, str) and isinstance(metadata, dict)):
        raise InvalidInput(
            f"value {place[0]} of stream {place[1]} is no [time, line] or [time, line, metadata]"
        )
    if not (time.isascii() and time.isdigit() and len(time) <= 20):
        raise InvalidInput(
            f"value {place[0]} of stream {place[1]} has the time {time[:40]!r}: give nanoseconds "
            "since 1970"
        )
    pairs = ((key.encode(), value.encode()) for key, value in metadata.items())
    return encode_record(
        json_records.sensible(int(time), received_ns), _contents(line.encode(), pairs)
    )


def decode_protobuf(
    body: Buffer, *, received_ns: int, bytes_max: int, bounds: DecodeBounds = DEFAULT_BOUNDS
) -> Iterator[RecordSection]:
    """Decodes all streams, or raises `InvalidInput`; decompresses nothing above the limit."""
    unpacked_bytes(body, bytes_max=bytes_max)
    return decode_unpacked(unpack(body), received_ns=received_ns, bounds=bounds)


def decode_unpacked(
    data: bytes, *, received_ns: int, bounds: DecodeBounds = DEFAULT_BOUNDS
) -> Iterator[RecordSection]:
    """Like `decode_protobuf`, for decompressed data."""
    push = ProtobufFields(data, _NAME)
    number = 0
    for field, _, at, end in push.walk(0, len(data)):
        if field != _STREAMS:
            continue
        number += 1
        for found in push.split(at, end):
            labels, entries = found or ([], [])
            if not entries:
                yield PAUSE
            if found is None:
                continue
            text = data[labels[-1][1] : labels[-1][2]] if labels else b""
            name = f"the labels of stream {number}"
            tags = parse_labels(text, name, labels_max=bounds.keys_max)
            for part in sliced(entries, span_bytes):
                yield RecordSection(
                    tags, [_entry(entry, received_ns) for entry in _entries(push, part, bounds)]
                )


def _entries(push: ProtobufFields, spans: list[Span], bounds: DecodeBounds) -> Any:
    """Decodes entries together; checks the large ones first."""
    for span in spans:
        if span_bytes(span) > bounds.keys_max:
            check_protobuf(push.data, *span[1:], _METADATA, bounds, "an entry of the push")
    try:
        return Stream.FromString(push.run_of(spans)).entries
    except DecodeError as error:
        raise InvalidInput("the push is no logproto.PushRequest") from error


def unpacked_bytes(body: Buffer, *, bytes_max: int) -> int:
    """Returns the size that a push declares; `TooLarge` if it is above the limit."""
    try:
        size = int(cramjam.snappy.decompress_raw_len(body))
    except cramjam.DecompressionError as error:
        raise _no_snappy(error) from error
    if size > bytes_max:
        raise TooLarge(f"the push is above {bytes_max} bytes when decompressed: send less")
    return size


def unpack(body: Buffer) -> bytes:
    """Decompresses a push whose size was checked before."""
    try:
        return bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError as error:
        raise _no_snappy(error) from error


def _no_snappy(error: cramjam.DecompressionError) -> InvalidInput:
    return InvalidInput(f"the push is not compressed by snappy: {str(error)[:200]}")


def _entry(entry: Any, received_ns: int) -> bytes:
    time = entry.timestamp
    time_ns = json_records.sensible(time.seconds * json_records.NS_PER_S + time.nanos, received_ns)
    pairs = ((pair.name, pair.value) for pair in entry.metadata)
    return encode_record(time_ns, _contents(entry.line, pairs))


def _contents(
    line: bytes, metadata: Iterable[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes]]:
    yield b"line", line
    for key, value in metadata:
        yield b"metadata.line" if key == b"line" else key, value


def parse_labels(
    data: bytes, name: str, *, labels_max: int = DEFAULT_BOUNDS.keys_max
) -> dict[bytes, bytes]:
    """Parses `{name="value", …}`, with values quoted as in Go."""
    try:
        text = data.decode().strip()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{name} are no UTF-8") from error
    if not (text.startswith("{") and text.endswith("}")):
        raise InvalidInput(f'{name} are {text[:80]!r}: give them as {{name="value"}}')
    inner = text[1:-1].strip()
    labels: dict[bytes, bytes] = {}
    at = 0
    while at < len(inner):
        if (found := _LABEL.match(inner, at)) is None:
            raise InvalidInput(f"{name} cannot be read at {inner[at : at + 40]!r}")
        if len(labels) >= labels_max:
            raise BatchTooLarge(f"{name} are more than {labels_max}: send fewer")
        labels[found[1].encode()] = _ESCAPE.sub(_unescaped, found[2]).encode(errors="replace")
        at = found.end()
    return labels


def _unescaped(found: re.Match[str]) -> str:
    digits = found[1] or found[2] or found[3]
    if digits is None:
        return _ESCAPES.get(found[4], found[0])
    code = int(digits, 16)
    return chr(code) if code <= 0x10FFFF else "\ufffd"


_PATH: Final = "/loki/api/v1/push"


class LokiRoutes(HttpWay):
    """Routes of Loki: a tenant (X-Scope-OrgID) is a project."""

    name: ClassVar[str] = "loki"

    def find(self, method: str, path: str) -> HttpRoute | None:
        if path != _PATH:
            return None
        return HttpRoute("push", self._push if method == "POST" else self._unknown)

    async def _unknown(self, request: HttpRequest) -> HttpResponse:
        raise NotFound(f"there is no {request.method} {_PATH}: POST streams")

    async def _push(self, request: HttpRequest) -> HttpResponse:
        place = self.place(request, project=request.header(b"x-scope-orgid"))
        # Protobuf is always compressed by snappy, even if no header says so.
        body = await self.body(request, own_encoding="snappy")
        received_ns = self.putting.now_ns()
        if media_type(request) == "application/json":
            decoded = decode_json(body, received_ns=received_ns, bounds=self.bounds)
        else:
            size = unpacked_bytes(body, bytes_max=self.raw_bytes_max)
            data = await self.long_work.do(partial(unpack, body), size=size)
            decoded = decode_unpacked(data, received_ns=received_ns, bounds=self.bounds)
        await self.put(request, place, await gathered(decoded, self.putting.turns))
        return HttpResponse(status=204)

    def error_answer(self, error: RaftwoodError, request: HttpRequest) -> HttpResponse:  # noqa: ARG002
        status = status_of(error)
        return HttpResponse(
            status=status,
            body=error.message.encode() + b"\n",
            content_type=b"text/plain; charset=utf-8",
            headers=headers_of(status),
        )
