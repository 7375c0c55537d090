"""What a way in over HTTP is made of: a group of routes with its own login and its own errors.

class Lines:                                   # a RouteGroup
    name = "lines"
    def find(self, method, path): ...          # Route("put", self._put) or None
    def authenticate(self, request): ...       # the key, else raise Unauthenticated
    def error_answer(self, error, request): ...

    async def _put(self, request: Request) -> Answer:
        body = await request.body(bytes_max=10 << 20)
        ...
        return Answer(status=204)
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from raftwood.base.errors import RaftwoodError
from raftwood.base.files import Buffer
from raftwood.loghub.model import AccessKey
from raftwood.loghub.server.http.request import Request

Headers = tuple[tuple[bytes, bytes], ...]


class Answer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is sent back; the length and the request's id are added by the front."""

    status: int = 200
    body: Buffer = b""
    content_type: bytes = b"application/json"
    headers: Headers = ()
    """Names in lower case, as some clients need them."""


Handler = Callable[[Request], Awaitable[Answer]]


class Route(msgspec.Struct, frozen=True):
    """One call; its name stands in metrics, so that there are few of them."""

    name: str
    handle: Handler


class RouteGroup(Protocol):
    """One way in."""

    @property
    def name(self) -> str: ...

    def find(self, method: str, path: str) -> Route | None:
        """None where the path belongs to somebody else. For one of its own that does not exist, or
        not with the method, a route that raises."""
        ...

    def authenticate(self, request: Request) -> AccessKey | None:
        """By the headers, before a byte of the body is read; None where anybody may come in."""
        ...

    def error_answer(self, error: RaftwoodError, request: Request) -> Answer:
        """The error as the clients of this way in expect it."""
        ...
