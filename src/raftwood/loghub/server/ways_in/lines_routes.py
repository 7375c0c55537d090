"""JSON lines over HTTP: POST /api/v1/projects/PROJECT/logstores/LOGSTORE/lines."""

import re
from typing import Final

import msgspec

from raftwood.base.errors import NotFound, RaftwoodError
from raftwood.loghub.server.http.request import Request
from raftwood.loghub.server.http.routes import Answer, Route
from raftwood.loghub.server.ways_in import json_lines
from raftwood.loghub.server.ways_in.http_way import HttpWay, headers_of, status_of
from raftwood.loghub.server.ways_in.putting import gathered

_PREFIX: Final = "/api/v1/projects/"
_PATH: Final = re.compile(r"/api/v1/projects/([^/]+)/logstores/([^/]+)/lines")


class LinesRoutes(HttpWay):
    """Answers how many records were stored; the parameter `time_field` names the time's field."""

    name = "lines"

    def find(self, method: str, path: str) -> Route | None:
        if not path.startswith(_PREFIX):
            return None
        if method == "POST" and _PATH.fullmatch(path):
            return Route("put", self._put)
        return Route("unknown", self._unknown)

    async def _unknown(self, request: Request) -> Answer:
        raise NotFound(
            f"there is nothing at {request.method} {request.path[:200]}: POST JSON lines to "
            "/api/v1/projects/PROJECT/logstores/LOGSTORE/lines"
        )

    async def _put(self, request: Request) -> Answer:
        found = _PATH.fullmatch(request.path)
        assert found is not None
        place = self.place(request, project=found[1], logstore=found[2])
        sections = await gathered(
            json_lines.decode(
                await self.body(request),
                received_ns=self.putting.now_ns(),
                time_field=request.parameters.get("time_field", ""),
                bounds=self.bounds,
            ),
            self.putting.turns,
        )
        await self.put(request, place, sections)
        return Answer(
            body=msgspec.json.encode({"records": sum(len(section.records) for section in sections)})
        )

    def error_answer(self, error: RaftwoodError, request: Request) -> Answer:  # noqa: ARG002
        status = status_of(error)
        told = {"error": {"code": error.code, "message": error.message}}
        return Answer(status=status, body=msgspec.json.encode(told), headers=headers_of(status))
