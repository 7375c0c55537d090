"""JSON lines, or one JSON array, of objects: each becomes a record.

POST /api/v1/projects/PROJECT/logstores/LOGSTORE/lines.
"""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from raftwood.base.errors import NotFound, RaftwoodError
from raftwood.base.files import Buffer
from raftwood.loghub import json_records
from raftwood.loghub.decode_bounds import (
    DEFAULT_BOUNDS,
    SLICE_BYTES,
    DecodeBounds,
    check_json,
    check_json_document,
)
from raftwood.loghub.json_records import (
    TIME_FIELDS,
    UNREADABLE,
    contents_of,
    decode_object,
    lines_of,
    refused,
    time_of,
)
from raftwood.loghub.server.http import HttpRequest, HttpResponse, HttpRoute
from raftwood.loghub.server.ways_in.http_way import HttpWay, headers_of, status_of
from raftwood.loghub.server.ways_in.records import (
    PAUSE,
    RecordSection,
    encode_record,
    gathered,
    sliced,
)

_decode_array: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_Line = tuple[int, bytes | msgspec.Raw]


def decode(
    body: Buffer,
    *,
    received_ns: int,
    time_field: str = "",
    bounds: DecodeBounds = DEFAULT_BOUNDS,
) -> Iterator[RecordSection]:
    """Decodes all lines, or raises `InvalidInput` that names the first wrong one; skips blank
    lines.

    The time is in `time_field`, or if that is empty in the first of `TIME_FIELDS`.
    """
    fields = (time_field,) if time_field else TIME_FIELDS
    data = bytes(body)
    lines, name = _lines(data), "line {}"
    if data[:SLICE_BYTES].lstrip()[:1] == b"[":
        for _ in check_json_document(data, bounds, "the JSON array"):
            yield PAUSE
        lines, name = _items(data), "item {} of the array"
    for part in sliced(lines, _size_of):
        yield RecordSection(
            {},
            [
                _record(name, number, line, fields, received_ns, bounds)
                for number, line in part
                if line
            ],
        )


def _record(
    name: str,
    number: int,
    line: bytes | msgspec.Raw,
    fields: tuple[str, ...],
    received_ns: int,
    bounds: DecodeBounds,
) -> bytes:
    data = line if type(line) is bytes else bytes(line)
    check_json(data, bounds, name, number)
    try:
        record = decode_object(data)
    except UNREADABLE as error:
        raise refused(name.format(number), error) from error
    time_ns = json_records.sensible(time_of(record, fields), received_ns)
    return encode_record(time_ns, contents_of(record))


def _size_of(line: _Line) -> int:
    data = line[1]
    return len(data if type(data) is bytes else memoryview(data))


def _items(body: bytes) -> Iterator[_Line]:
    try:
        items = _decode_array(body)
    except UNREADABLE as error:
        raise refused("the JSON array", error) from error
    yield from enumerate(items, 1)


def _lines(body: bytes) -> Iterator[_Line]:
    """Yields blank lines as empty ones: many of them cost work too."""
    for number, line in lines_of(body):
        yield number, b"" if line.isspace() else line


_PREFIX: Final = "/api/v1/projects/"
_PATH: Final = re.compile(r"/api/v1/projects/([^/]+)/logstores/([^/]+)/lines")


class LinesRoutes(HttpWay):
    """Answers the number of stored records; the parameter `time_field` names the time's field."""

    name = "lines"

    def find(self, method: str, path: str) -> HttpRoute | None:
        if not path.startswith(_PREFIX):
            return None
        if method == "POST" and _PATH.fullmatch(path):
            return HttpRoute("put", self._put)
        return HttpRoute("unknown", self._unknown)

    async def _unknown(self, request: HttpRequest) -> HttpResponse:
        raise NotFound(
            f"there is nothing at {request.method} {request.path[:200]}: POST JSON lines to "
            "/api/v1/projects/PROJECT/logstores/LOGSTORE/lines"
        )

    async def _put(self, request: HttpRequest) -> HttpResponse:
        found = _PATH.fullmatch(request.path)
        assert found is not None
        place = self.place(request, project=found[1], logstore=found[2])
        sections = await gathered(
            decode(
                await self.body(request),
                received_ns=self.putting.now_ns(),
                time_field=request.parameters.get("time_field", ""),
                bounds=self.bounds,
            ),
            self.putting.turns,
        )
        await self.put(request, place, sections)
        return HttpResponse(
            body=msgspec.json.encode({"records": sum(len(section.records) for section in sections)})
        )

    def error_answer(self, error: RaftwoodError, request: HttpRequest) -> HttpResponse:  # noqa: ARG002
        status = status_of(error)
        told = {"error": {"code": error.code, "message": error.message}}
        return HttpResponse(
            status=status, body=msgspec.json.encode(told), headers=headers_of(status)
        )
