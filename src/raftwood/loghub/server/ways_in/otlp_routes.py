"""OTLP over HTTP: POST /v1/logs, as protobuf or JSON."""

from typing import ClassVar, Final

from raftwood.base.errors import InvalidInput, NotFound, RaftwoodError
from raftwood.loghub.server.http.request import Request
from raftwood.loghub.server.http.routes import Answer, Route
from raftwood.loghub.server.ways_in import otlp
from raftwood.loghub.server.ways_in.http_way import (
    HttpWay,
    headers_of,
    media_type,
    status_of,
)
from raftwood.loghub.server.ways_in.putting import gathered
from raftwood.loghub.server.ways_in.records import take_out_too_large

_PATH: Final = "/v1/logs"
_PROTOBUF: Final = "application/x-protobuf"
_JSON: Final = "application/json"


class OtlpRoutes(HttpWay):
    """Answers are of the kind that the request was."""

    name: ClassVar[str] = "otlp"

    def find(self, method: str, path: str) -> Route | None:
        if path != _PATH:
            return None
        return Route("export", self._export if method == "POST" else self._unknown)

    async def _unknown(self, request: Request) -> Answer:
        raise NotFound(f"there is no {request.method} {_PATH}: POST an export request")

    async def _export(self, request: Request) -> Answer:
        kind = media_type(request)
        if kind not in (_PROTOBUF, _JSON):
            raise InvalidInput(
                f"a body of type {kind[:80]!r} is not taken: send {_PROTOBUF} or {_JSON}"
            )
        is_json = kind == _JSON
        place = self.place(request)
        body = await self.body(request)
        sections = await gathered(
            otlp.decode(
                body, is_json=is_json, received_ns=self.putting.now_ns(), bounds=self.bounds
            ),
            self.putting.turns,
        )
        bytes_max = self.putting.group_bytes_max
        refused = take_out_too_large(sections, bytes_max=bytes_max)
        await self.put(request, place, sections)
        why = f"{refused} records are above {bytes_max} bytes: make them smaller" if refused else ""
        answer = otlp.encode_answer(is_json=is_json, refused=refused, why=why)
        return Answer(body=answer, content_type=kind.encode())

    def error_answer(self, error: RaftwoodError, request: Request) -> Answer:
        status = status_of(error)
        is_json = media_type(request) == _JSON
        return Answer(
            status=status,
            body=otlp.encode_status(error.message, is_json=is_json),
            content_type=(_JSON if is_json else _PROTOBUF).encode(),
            headers=headers_of(status),
        )
