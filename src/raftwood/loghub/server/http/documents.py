"""What anybody may read of a gateway: the description of its API."""

from raftwood.base.errors import RaftwoodError
from raftwood.loghub.model import AccessKey
from raftwood.loghub.server.http.request import Request
from raftwood.loghub.server.http.routes import Answer, Route
from raftwood.loghub.server.sls.error_answers import error_answer
from raftwood.loghub.server.sls.openapi import openapi_json


class Documents:
    """A `RouteGroup`: `/openapi.json`."""

    name = "documents"

    def __init__(self) -> None:
        self._openapi = Route("openapi", self._show_openapi)
        self._rendered = b""

    def find(self, method: str, path: str) -> Route | None:
        return self._openapi if method in ("GET", "HEAD") and path == "/openapi.json" else None

    def authenticate(self, request: Request) -> AccessKey | None:  # noqa: ARG002
        return None

    def error_answer(self, error: RaftwoodError, request: Request) -> Answer:  # noqa: ARG002
        return error_answer(error)

    async def _show_openapi(self, request: Request) -> Answer:  # noqa: ARG002
        self._rendered = self._rendered or openapi_json()
        return Answer(body=self._rendered)
