"""Elasticsearch over HTTP: `_bulk`, and what clients look at before they send anything.

At the root of the port, and below /elasticsearch for those who would rather keep it apart.
"""

import re
from typing import ClassVar, Final

import msgspec

from raftwood.base.errors import NotFound, RaftwoodError
from raftwood.loghub.server.http.request import Request
from raftwood.loghub.server.http.routes import Answer, Route
from raftwood.loghub.server.ways_in import elasticsearch
from raftwood.loghub.server.ways_in.elasticsearch import Item
from raftwood.loghub.server.ways_in.http_way import HttpWay, headers_of, status_of
from raftwood.loghub.server.ways_in.putting import Place, gathered
from raftwood.loghub.server.ways_in.records import Section

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
    """An index is a logstore of the project; an access key may be sent as an API key."""

    name: ClassVar[str] = "elasticsearch"

    def find(self, method: str, path: str) -> Route | None:
        inner = _inner(path)
        if method in ("POST", "PUT") and _BULK.fullmatch(inner):
            return Route("bulk", self._bulk)
        if method in ("GET", "HEAD") and inner == "/":
            return Route("greeting", self._greet)
        if method in ("GET", "HEAD") and inner in _ABOUT:
            return Route("about", self._about)
        return Route("unknown", self._unknown) if path.startswith(_PREFIX + "/") else None

    async def _unknown(self, request: Request) -> Answer:
        raise NotFound(f"there is no {request.method} {request.path[:200]}: only _bulk is")

    async def _greet(self, request: Request) -> Answer:
        return self._answer(request, elasticsearch.encode_greeting())

    async def _about(self, request: Request) -> Answer:
        return self._answer(request, msgspec.json.encode(_ABOUT[_inner(request.path)]))

    async def _bulk(self, request: Request) -> Answer:
        found = _BULK.fullmatch(_inner(request.path))
        assert found is not None
        project = self.project(request)
        began_ns = self.putting.now_ns()
        body = await self.body(request)
        decoded = await gathered(
            elasticsearch.decode(
                body, index=found[1] or "", received_ns=began_ns, bounds=self.bounds
            ),
            self.putting.turns,
        )
        items = [item for item in decoded if isinstance(item, Item)]
        by_index: dict[str, list[int]] = {}
        for number, item in enumerate(items):
            by_index.setdefault(item.index, []).append(number)
        made_ids = [""] * len(items)
        for index, numbers in by_index.items():
            await self._put(request, Place(project, index), items, numbers, made_ids)
        took_ms = max(0, self.putting.now_ns() - began_ns) // 1_000_000
        parts = []
        for part in elasticsearch.encode_answer(items, made_ids=made_ids, took_ms=took_ms):
            parts.append(part)
            await self.putting.turns.pause()
        return self._answer(request, b"".join(parts))

    async def _put(
        self,
        request: Request,
        place: Place,
        items: list[Item],
        numbers: list[int],
        made_ids: list[str],
    ) -> None:
        """All of one index; it fails for all of them or for none."""
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
            results = await self.put(request, place, [Section({}, records)])
        except RaftwoodError as error:
            status = status_of(error)
            for number in stored:
                items[number].fail(status, elasticsearch.error_type(status), error.message)
            return
        for ordinal, number in enumerate(stored):
            made_ids[number] = f"{results[0].shard}-{results[0].position}-{ordinal}"

    def _answer(self, request: Request, body: bytes) -> Answer:
        is_head = request.method == "HEAD"
        return Answer(
            body=b"" if is_head else body, content_type=_kind(request), headers=(_PRODUCT,)
        )

    def error_answer(self, error: RaftwoodError, request: Request) -> Answer:
        status = status_of(error)
        body = elasticsearch.encode_error(status, elasticsearch.error_type(status), error.message)
        return Answer(
            status=status,
            body=b"" if request.method == "HEAD" else body,
            content_type=_kind(request),
            headers=(_PRODUCT, *headers_of(status)),
        )


def _inner(path: str) -> str:
    if path == _PREFIX or path.startswith(_PREFIX + "/"):
        return path[len(_PREFIX) :] or "/"
    return path


def _kind(request: Request) -> bytes:
    """Clients take the version of answers that they asked for."""
    found = _COMPATIBLE.search(request.header(b"accept"))
    if found is None:
        return b"application/json"
    return b"application/vnd.elasticsearch+json;compatible-with=%b" % found[1].encode()
