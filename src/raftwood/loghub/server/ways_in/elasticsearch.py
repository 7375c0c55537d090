"""Elasticsearch over HTTP: `_bulk`, and the pages that clients read before they send anything.

An index is a logstore. Documents are appended: `index` and `create` do the same; `update` and
`delete` get an error for their item. A document's own `_id` is kept as a content. The routes exist
at the root of the port, and below /elasticsearch for users who want to keep them apart.
"""

import re
from collections.abc import Iterator
from typing import Any, ClassVar, Final

import msgspec

from raftwood.base.errors import InvalidInput, NotFound, RaftwoodError
from raftwood.base.files import Buffer
from raftwood.loghub import json_records
from raftwood.loghub.decode_bounds import DEFAULT_BOUNDS, SLICE_BYTES, DecodeBounds, check_json
from raftwood.loghub.errors import BatchTooLarge
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
    SLICE_RECORDS,
    LogstoreName,
    RecordSection,
    encode_record,
    gathered,
)

VERSION: Final = "9.0.0"
"""The version that clients see: they accept servers of their own major version, and newer clients
accept this one.
"""
_STORING: Final = ("index", "create")
_WITH_DOCUMENT: Final = (*_STORING, "update")
_ACTIONS: Final = (*_WITH_DOCUMENT, "delete")


class _Target(msgspec.Struct, frozen=True):
    """The target of an action."""

    index: str | None = msgspec.field(default=None, name="_index")
    id: str | int | None = msgspec.field(default=None, name="_id")


_decode_action: Final = msgspec.json.Decoder(dict[str, _Target]).decode
_LINE_WORK_BYTES: Final = 256
"""A line costs as much work as so many bytes, even an empty one."""


class BulkItem(msgspec.Struct, kw_only=True, gc=False):
    """An action of a request; one without a record has failed already."""

    action: str
    index: str
    id: str | None
    record: bytes | None = None
    status: int = 201
    error_type: str = ""
    reason: str = ""

    def fail(self, status: int, kind: str, reason: str) -> None:
        self.status, self.error_type, self.reason = status, kind, reason

    def answer(self, made_id: str) -> dict[str, Any]:
        told: dict[str, Any] = {"_index": self.index, "_id": self.id or made_id}
        if self.error_type:
            told["_id"] = self.id
            told["error"] = {"type": self.error_type, "reason": self.reason}
        else:
            told |= {
                "_version": 1,
                "result": "created",
                "_shards": {"total": 1, "successful": 1, "failed": 0},
                "_seq_no": 0,
                "_primary_term": 1,
            }
        return {self.action: told | {"status": self.status}}


def decode(
    body: Buffer, *, index: str, received_ns: int, bounds: DecodeBounds = DEFAULT_BOUNDS
) -> Iterator[BulkItem | RecordSection]:
    """Yields every action in order; `InvalidInput` if a line that should be an action is not.

    `index` is for actions that name none. A section among them is a pause.
    """
    lines = lines_of(bytes(body))
    work = 0
    for number, line in lines:
        work += len(line) + _LINE_WORK_BYTES
        if work >= SLICE_BYTES:
            work = 0
            yield PAUSE
        if not line or line.isspace():
            continue
        item = _item(line, number, index, bounds)
        if item.action in _WITH_DOCUMENT:
            behind = next(lines, None)
            if behind is None:
                raise InvalidInput(f"line {number} is an action without a document behind it")
            _take_document(item, behind[1], behind[0], received_ns, bounds)
            work += len(behind[1])
        yield item


def _item(line: bytes, number: int, index: str, bounds: DecodeBounds) -> BulkItem:
    check_json(line, bounds, "the action in line {}", number)
    try:
        actions = _decode_action(line)
    except UNREADABLE as error:
        raise refused(f"Malformed action/metadata line [{number}]: it", error) from error
    action, target = next(iter(actions.items()), ("", _Target()))
    if len(actions) != 1 or action not in _ACTIONS:
        raise InvalidInput(
            f"Malformed action/metadata line [{number}]: expected one of {', '.join(_ACTIONS)}"
        )
    identifier = None if target.id is None else str(target.id)
    item = BulkItem(action=action, index=target.index or index, id=identifier)
    if not item.index:
        raise InvalidInput(f"line {number} names no index, and neither does the path")
    if action not in _STORING:
        item.fail(
            400,
            "illegal_argument_exception",
            f"[{action}] cannot be done to a log: only [index] and [create] can",
        )
    return item


def _take_document(
    item: BulkItem, line: bytes, number: int, received_ns: int, bounds: DecodeBounds
) -> None:
    if item.error_type:
        return
    try:
        check_json(line, bounds, "the document in line {}", number)
        document = decode_object(line)
    except BatchTooLarge as error:
        item.fail(413, "content_too_long_exception", error.message)
        return
    except UNREADABLE as error:
        why = refused(f"the document in line {number}", error).message
        item.fail(400, "document_parsing_exception", why)
        return
    contents = contents_of(document)
    if item.id is not None:
        contents.append((b"_id", item.id.encode()))
    time_ns = json_records.sensible(time_of(document, TIME_FIELDS), received_ns)
    item.record = encode_record(time_ns, contents)


def error_type(status: int) -> str:
    """Returns Elasticsearch's name for a status."""
    by_status = {
        401: "security_exception",
        403: "security_exception",
        404: "index_not_found_exception",
        413: "content_too_long_exception",
        429: "es_rejected_execution_exception",
        503: "cluster_block_exception",
    }
    return by_status.get(status, "illegal_argument_exception")


def encode_answer(items: list[BulkItem], *, made_ids: list[str], took_ms: int) -> Iterator[bytes]:
    """Yields the answer in pieces, between which the loop can run."""
    has_errors = b"true" if any(item.error_type for item in items) else b"false"
    yield b'{"errors":%b,"took":%d,"items":[' % (has_errors, took_ms)
    encode = msgspec.json.Encoder().encode
    for at in range(0, len(items), SLICE_RECORDS):
        part = slice(at, at + SLICE_RECORDS)
        told = [item.answer(made) for item, made in zip(items[part], made_ids[part], strict=True)]
        yield b"," * (at > 0) + encode(told)[1:-1]
    yield b"]}"


def encode_error(status: int, kind: str, reason: str) -> bytes:
    cause = {"type": kind, "reason": reason}
    return msgspec.json.encode({"error": {"root_cause": [cause], **cause}, "status": status})


def encode_greeting() -> bytes:
    """Returns the answer to `GET /`."""
    return msgspec.json.encode(
        {
            "name": "raftwood",
            "cluster_name": "raftwood",
            "cluster_uuid": "raftwood",
            "version": {
                "number": VERSION,
                "build_flavor": "default",
                "build_type": "raftwood",
                "build_snapshot": False,
                "lucene_version": "10.0.0",
                "minimum_wire_compatibility_version": "8.18.0",
                "minimum_index_compatibility_version": "8.0.0",
            },
            "tagline": "You Know, for Search",
        }
    )


_PREFIX: Final = "/elasticsearch"
_BULK: Final = re.compile(r"(?:/([^/]+))?/_bulk")
_COMPATIBLE: Final = re.compile(r"compatible-with=([789])")
_PRODUCT: Final = (b"x-elastic-product", b"Elasticsearch")
_RECORD_OVERHEAD_BYTES: Final = 512
_ABOUT: Final = {
    "/_license": {"license": {"status": "active", "uid": "raftwood", "type": "basic"}},
    "/_cluster/health": {"cluster_name": "raftwood", "status": "green", "timed_out": False},
}
"""Beats ask for the first, Vector for the second."""


class ElasticsearchRoutes(HttpWay):
    """Elasticsearch's routes: an index is a logstore; an access key may be sent as an API key."""

    name: ClassVar[str] = "elasticsearch"

    def find(self, method: str, path: str) -> HttpRoute | None:
        inner = _inner(path)
        if method in ("POST", "PUT") and _BULK.fullmatch(inner):
            return HttpRoute("bulk", self._bulk)
        if method in ("GET", "HEAD") and inner == "/":
            return HttpRoute("greeting", self._greet)
        if method in ("GET", "HEAD") and inner in _ABOUT:
            return HttpRoute("about", self._about)
        return HttpRoute("unknown", self._unknown) if path.startswith(_PREFIX + "/") else None

    async def _unknown(self, request: HttpRequest) -> HttpResponse:
        raise NotFound(f"there is no {request.method} {request.path[:200]}: only _bulk is")

    async def _greet(self, request: HttpRequest) -> HttpResponse:
        return self._answer(request, encode_greeting())

    async def _about(self, request: HttpRequest) -> HttpResponse:
        return self._answer(request, msgspec.json.encode(_ABOUT[_inner(request.path)]))

    async def _bulk(self, request: HttpRequest) -> HttpResponse:
        found = _BULK.fullmatch(_inner(request.path))
        assert found is not None
        project = self.project(request)
        began_ns = self.putting.now_ns()
        body = await self.body(request)
        decoded = await gathered(
            decode(body, index=found[1] or "", received_ns=began_ns, bounds=self.bounds),
            self.putting.turns,
        )
        items = [item for item in decoded if isinstance(item, BulkItem)]
        by_index: dict[str, list[int]] = {}
        for number, item in enumerate(items):
            by_index.setdefault(item.index, []).append(number)
        made_ids = [""] * len(items)
        for index, numbers in by_index.items():
            await self._put(request, LogstoreName(project, index), items, numbers, made_ids)
        took_ms = max(0, self.putting.now_ns() - began_ns) // 1_000_000
        parts = []
        for part in encode_answer(items, made_ids=made_ids, took_ms=took_ms):
            parts.append(part)
            await self.putting.turns.pause()
        return self._answer(request, b"".join(parts))

    async def _put(
        self,
        request: HttpRequest,
        place: LogstoreName,
        items: list[BulkItem],
        numbers: list[int],
        made_ids: list[str],
    ) -> None:
        """Puts all items of one index; all of them fail, or none."""
        bytes_max = self.putting.group_bytes_max - _RECORD_OVERHEAD_BYTES
        records = []
        stored = []
        for number in numbers:
            item = items[number]
            if item.record is None:
                continue
            if len(item.record) > bytes_max:
                item.fail(413, "content_too_long_exception", f"it is above {bytes_max} bytes")
                continue
            records.append(item.record)
            stored.append(number)
        try:
            results = await self.put(request, place, [RecordSection({}, records)])
        except RaftwoodError as error:
            status = status_of(error)
            for number in stored:
                items[number].fail(status, error_type(status), error.message)
            return
        for ordinal, number in enumerate(stored):
            made_ids[number] = f"{results[0].shard}-{results[0].position}-{ordinal}"

    def _answer(self, request: HttpRequest, body: bytes) -> HttpResponse:
        is_head = request.method == "HEAD"
        return HttpResponse(
            body=b"" if is_head else body, content_type=_kind(request), headers=(_PRODUCT,)
        )

    def error_answer(self, error: RaftwoodError, request: HttpRequest) -> HttpResponse:
        status = status_of(error)
        body = encode_error(status, error_type(status), error.message)
        return HttpResponse(
            status=status,
            body=b"" if request.method == "HEAD" else body,
            content_type=_kind(request),
            headers=(_PRODUCT, *headers_of(status)),
        )


def _inner(path: str) -> str:
    if path == _PREFIX or path.startswith(_PREFIX + "/"):
        return path[len(_PREFIX) :] or "/"
    return path


def _kind(request: HttpRequest) -> bytes:
    """Returns the content type; clients require the version that they asked for."""
    found = _COMPATIBLE.search(request.header(b"accept"))
    if found is None:
        return b"application/json"
    return b"application/vnd.elasticsearch+json;compatible-with=%b" % found[1].encode()
