"""Loki over HTTP: POST /loki/api/v1/push, as JSON or protobuf."""

from functools import partial
from typing import ClassVar, Final

from raftwood.base.errors import NotFound, RaftwoodError
from raftwood.loghub.server.http.request import Request
from raftwood.loghub.server.http.routes import Answer, Route
from raftwood.loghub.server.ways_in import loki
from raftwood.loghub.server.ways_in.http_way import (
    HttpWay,
    headers_of,
    media_type,
    status_of,
)
from raftwood.loghub.server.ways_in.putting import gathered

_PATH: Final = "/loki/api/v1/push"


class LokiRoutes(HttpWay):
    """A tenant (X-Scope-OrgID) is a project."""

    name: ClassVar[str] = "loki"

    def find(self, method: str, path: str) -> Route | None:
        if path != _PATH:
            return None
        return Route("push", self._push if method == "POST" else self._unknown)

    async def _unknown(self, request: Request) -> Answer:
        raise NotFound(f"there is no {request.method} {_PATH}: POST streams")

    async def _push(self, request: Request) -> Answer:
        place = self.place(request, project=request.header(b"x-scope-orgid"))
        # Protobuf is always compressed by snappy, whether it says so or not.
        body = await self.body(request, own_encoding="snappy")
        received_ns = self.putting.now_ns()
        if media_type(request) == "application/json":
            decoded = loki.decode_json(body, received_ns=received_ns, bounds=self.bounds)
        else:
            size = loki.unpacked_bytes(body, bytes_max=self.raw_bytes_max)
            data = await self.long_work.do(partial(loki.unpack, body), size=size)
            decoded = loki.decode_unpacked(data, received_ns=received_ns, bounds=self.bounds)
        await self.put(request, place, await gathered(decoded, self.putting.turns))
        return Answer(status=204)

    def error_answer(self, error: RaftwoodError, request: Request) -> Answer:  # noqa: ARG002
        status = status_of(error)
        return Answer(
            status=status,
            body=error.message.encode() + b"\n",
            content_type=b"text/plain; charset=utf-8",
            headers=headers_of(status),
        )
