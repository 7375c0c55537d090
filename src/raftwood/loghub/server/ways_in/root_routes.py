"""GET / belongs to two ways in: SLS lists projects there, Elasticsearch says who it is."""

from typing import ClassVar, Final

from raftwood.base.errors import NotFound, RaftwoodError
from raftwood.loghub.model import AccessKey
from raftwood.loghub.server.http.request import Request
from raftwood.loghub.server.http.routes import Answer, Route, RouteGroup

_SIGNED: Final = ("log", "sls", "acs")
"""How the schemes of SLS's logins begin."""


class RootRoutes:
    """Which of the two is meant the login tells: SLS's clients sign, others send their key."""

    name: ClassVar[str] = "root"

    def __init__(self, *, signed: RouteGroup, other: RouteGroup) -> None:
        self._signed = signed
        self._other = other

    def find(self, method: str, path: str) -> Route | None:
        return Route("get", self._get) if method in ("GET", "HEAD") and path == "/" else None

    def _owner(self, request: Request) -> RouteGroup:
        login = request.header(b"authorization").lower()
        return self._signed if login.startswith(_SIGNED) else self._other

    async def _get(self, request: Request) -> Answer:
        route = self._owner(request).find(request.method, request.path)
        if route is None:
            raise NotFound(f"there is no {request.method} /")
        return await route.handle(request)

    def authenticate(self, request: Request) -> AccessKey | None:
        return self._owner(request).authenticate(request)

    def error_answer(self, error: RaftwoodError, request: Request) -> Answer:
        return self._owner(request).error_answer(error, request)
