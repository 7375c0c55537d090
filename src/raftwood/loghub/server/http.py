"""The front of a gateway's HTTP port: finds the route, authenticates, answers.

    front = HttpFront(environment, [sls, otlp], metrics=metrics)
    listener = await HttpListener.start(front, "127.0.0.1:8080", HttpLimits())

It is plain ASGI, because the request objects of a framework would slow puts and pulls down. A way
in over HTTP is a `RouteGroup`, with its own login and its own errors:

    class Lines:                                   # a RouteGroup
        name = "lines"
        def find(self, method, path): ...          # HttpRoute("put", self._put) or None
        def authenticate(self, request): ...       # the key, else raise Unauthenticated
        def error_answer(self, error, request): ...

        async def _put(self, request: HttpRequest) -> HttpResponse:
            body = await request.body(bytes_max=10 << 20)
            ...
            return HttpResponse(status=204)

An `HttpRequest` is parsed on demand, and its body is read within bounds. `key_of_authorization` is
for keys that are sent with their secret; SLS clients sign instead. `access.check_role` checks what
a key may do.
"""

import asyncio
import base64
import binascii
import hmac
import re
from collections.abc import Awaitable, Callable, Collection, Coroutine, MutableMapping, Sequence
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import parse_qsl

import msgspec
from prometheus_client import Counter, Histogram

from raftwood.base.environment import Environment
from raftwood.base.errors import (
    ConnectionLost,
    InternalError,
    InvalidInput,
    NotFound,
    Overloaded,
    RaftwoodError,
    Unauthenticated,
)
from raftwood.base.files import Buffer
from raftwood.base.logs import get_logger
from raftwood.base.metrics import Metrics
from raftwood.loghub.errors import BatchTooLarge, InvalidParameter
from raftwood.loghub.model import AccessKey
from raftwood.net.http_listener import AUTHENTICATED

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
PARAMETERS_MAX: Final = 64
_Result = TypeVar("_Result")


def _nobody_asks() -> None:
    pass


class ByteBudget:
    """Limits the memory of the bodies of all requests under way."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0

    def take(self, size: int) -> None:
        if self.bytes + size > self.bytes_max:
            raise Overloaded(
                f"the gateway has no room for {size} more bytes of requests: try again in a moment"
            )
        self.bytes += size

    def give_back(self, size: int) -> None:
        self.bytes -= size


class HttpRequest:
    """One request; `key` is its access key, once it is authenticated."""

    __slots__ = (
        "_budget",
        "_has_more",
        "_parameters",
        "_receive",
        "_taken",
        "authenticated",
        "client",
        "headers",
        "id",
        "key",
        "method",
        "path",
        "project",
        "query_string",
    )

    def __init__(
        self,
        scope: MutableMapping[str, Any],
        receive: Receive,
        budget: ByteBudget,
        *,
        id: str,  # noqa: A002
        project: str,
        headers: dict[bytes, bytes],
    ) -> None:
        self.id = id
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query_string: bytes = scope["query_string"]
        self.headers = headers
        """Headers by name in lower case; if a header was sent twice, the last one."""
        client = scope.get("client")
        self.client: str = client[0] if client else ""
        """The address of the peer, which may be a proxy."""
        self.project = project
        """The project of the Host header; empty if it names none."""
        self.key: AccessKey | None = None
        self._receive = receive
        self._budget = budget
        self._taken = 0
        self._has_more = True
        self._parameters: dict[str, str] | None = None
        self.authenticated: Callable[[], None] = scope.get("extensions", {}).get(
            AUTHENTICATED, _nobody_asks
        )
        """To be called once the request is authenticated."""

    @property
    def parameters(self) -> dict[str, str]:
        """Returns the decoded query; `InvalidParameter` if a parameter is given twice."""
        if self._parameters is None:
            self._parameters = _parsed(self.query_string) if self.query_string else {}
        return self._parameters

    def header(self, name: bytes) -> str:
        """Returns a header's text; empty if there is none."""
        return self.headers.get(name, b"").decode("latin-1")

    async def body(self, *, bytes_max: int) -> bytes:
        """Reads the body as sent; `BatchTooLarge` before anything above the bound is held."""
        declared = self.headers.get(b"content-length")
        if declared is not None:
            # The HTTP parser accepts only a number here.
            self._check(int(declared), bytes_max)
        parts: list[bytes] = []
        size = 0
        while self._has_more:
            part = await self._part()
            size += len(part)
            self._check(size, bytes_max)
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _check(self, size: int, bytes_max: int) -> None:
        if size > bytes_max:
            raise BatchTooLarge(
                f"the body has {size} bytes or more, {bytes_max} are allowed: send smaller batches"
            )
        if size > self._taken:
            self.reserve(size - self._taken)

    @property
    def has_unread_body(self) -> bool:
        headers = self.headers
        is_empty = b"transfer-encoding" not in headers and not int(
            headers.get(b"content-length", 0)
        )
        return self._has_more and not is_empty

    async def drop_body(self, *, bytes_max: int) -> None:
        """Reads and drops the rest of the body: a client that still sends when it is refused would
        otherwise find the connection cut, and not read the reason.
        """
        headers = self.headers
        if b"expect" in headers:
            return
        left = bytes_max if b"transfer-encoding" in headers else 0
        left = int(headers.get(b"content-length", left))
        if left > bytes_max:
            return
        while left > 0 and self._has_more:
            left -= len(await self._part())

    async def unless_gone(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Returns the result of long work; ends it with `ConnectionLost` if the client is gone."""
        working = asyncio.create_task(work)
        leaving = asyncio.create_task(self._left())
        try:
            await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise ConnectionLost("the client went away before it was answered")
        finally:
            working.cancel()
            leaving.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)

    async def _left(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _part(self) -> bytes:
        message = await self._receive()
        self._has_more = message.get("more_body", False)
        if message["type"] != "http.request":
            raise ConnectionLost("the client went away before its request was whole")
        part: bytes = message.get("body", b"")
        return part

    def reserve(self, size: int) -> None:
        """Accounts for an unpacked body, or for an answer until it is sent."""
        self._budget.take(size)
        self._taken += size

    def release(self) -> None:
        """Releases what was reserved; the request is answered."""
        self._budget.give_back(self._taken)
        self._taken = 0


def _parsed(query: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=PARAMETERS_MAX,
        )
    except ValueError as error:
        raise InvalidParameter(
            f"the query cannot be read: give at most {PARAMETERS_MAX} parameters, in UTF-8"
        ) from error
    found = dict(pairs)
    if len(found) < len(pairs):
        raise InvalidInput("a parameter is given twice: give each once")
    return found


Headers = tuple[tuple[bytes, bytes], ...]


class HttpResponse(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An answer; the front adds its length and the request's id."""

    status: int = 200
    body: Buffer = b""
    content_type: bytes = b"application/json"
    headers: Headers = ()
    """Names are in lower case, because some clients need them so."""


Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]


class HttpRoute(msgspec.Struct, frozen=True):
    """One call; its name is a label of metrics, so there must be few names."""

    name: str
    handle: Handler


class RouteGroup(Protocol):
    """The routes of one way in."""

    @property
    def name(self) -> str: ...

    def find(self, method: str, path: str) -> HttpRoute | None:
        """Returns None if the path belongs to another group. If the path is its own, but unknown or
        without the method, returns a route that raises.
        """
        ...

    def authenticate(self, request: HttpRequest) -> AccessKey | None:
        """Authenticates by the headers, before the body is read; None if no login is needed."""
        ...

    def error_answer(self, error: RaftwoodError, request: HttpRequest) -> HttpResponse:
        """Encodes an error as the clients of this way in expect it."""
        ...


_ADDRESS: Final = re.compile(r"\[.*|\d{1,3}(?:\.\d{1,3}){3}(?::\d*)?")


def project_of_host(host: str, endpoints: Collection[str] = ()) -> str:
    """Returns the project of a Host header; empty for an address, or a name of the gateway
    (`endpoints`).

    The first label of any other name is the project.
    """
    if _ADDRESS.fullmatch(host):
        return ""
    name = host.partition(":")[0]
    for endpoint in endpoints:
        if name.lower() == endpoint:
            return ""
        if name.lower().endswith("." + endpoint):
            return name[: -len(endpoint) - 1]
    first, dot, _ = name.partition(".")
    return first if dot else ""


FindKey = Callable[[str], AccessKey | None]
_HOW_TO_SEND: Final = (
    "send `Authorization: Basic` with id:secret in base64, or `Authorization: Bearer id:secret`"
)


def key_of_authorization(request: HttpRequest, find: FindKey) -> AccessKey:
    """Returns the key of `Authorization: Basic base64(id:secret)` or `Bearer id:secret`."""
    scheme, _, rest = request.header(b"authorization").partition(" ")
    name, _, secret = _credentials(scheme.lower(), rest.strip()).partition(":")
    if not name and not secret:
        raise Unauthenticated(f"the request has no access key: {_HOW_TO_SEND}")
    key = find(name)
    # An unknown key is compared too, so that it takes as long as a wrong secret.
    known = key.secret if key is not None else ""
    is_right = hmac.compare_digest(secret.encode(), known.encode())
    if key is None or not is_right or not known:
        raise Unauthenticated(f"the access key or its secret is wrong: {_HOW_TO_SEND}")
    return key


def _credentials(scheme: str, text: str) -> str:
    if scheme == "bearer":
        return text
    if scheme in ("basic", "apikey"):  # the latter is Elasticsearch's
        try:
            return base64.b64decode(text, validate=True).decode()
        except (binascii.Error, ValueError):
            return ""
    return ""


Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_ONCE: Final = (b"host", b"authorization", b"date", b"content-md5", b"content-type")
_ONCE_PREFIXES: Final = (b"x-log-", b"x-acs-", b"x-raftwood-")
_CHUNK_BYTES: Final = 256 << 10
_log = get_logger("gateway")


async def _nothing_here(request: HttpRequest) -> HttpResponse:
    raise NotFound(f"there is nothing at {request.method} {request.path[:200]}")


_NOT_FOUND: Final = HttpRoute("unknown", _nothing_here)
_CLOSE: Final = (b"connection", b"close")
_BY_STATUS: Final[dict[int, type[RaftwoodError]]] = {503: Overloaded} | dict.fromkeys(
    (413, 414, 431), BatchTooLarge
)


async def _no_body() -> MutableMapping[str, Any]:
    return {"type": "http.disconnect"}


class FrontLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of all requests under way together."""

    requests_max: int = 4096
    body_bytes_max: int = 256 << 20
    dropped_bytes_max: int = 32 << 20
    """Limit of one refused body: it is read and dropped, so that the client reads the reason."""


class HttpFront:
    """An ASGI application over groups of routes; the first group that knows a path handles it."""

    def __init__(
        self,
        environment: Environment,
        groups: Sequence[RouteGroup],
        *,
        metrics: Metrics,
        limits: FrontLimits | None = None,
        endpoints: Collection[str] = (),
    ) -> None:
        self._environment = environment
        self._groups = groups
        self._limits = limits or FrontLimits()
        self._endpoints = tuple(endpoints)
        self._budget = ByteBudget(self._limits.body_bytes_max)
        self._metrics = metrics
        self._requests = 0
        self._counters: dict[tuple[str, int], Counter] = {}
        self._timers: dict[str, Histogram] = {}
        metrics.pull_gauge("gateway_requests", "Requests under way.", lambda: self._requests)
        metrics.pull_gauge(
            "gateway_request_bytes", "Held for requests under way.", lambda: self._budget.bytes
        )

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        clock = self._environment.clock
        began_ns = clock.monotonic_ns()
        headers = dict(scope["headers"])
        repeated = _repeated(scope["headers"]) if len(headers) < len(scope["headers"]) else ""
        request = HttpRequest(
            scope,
            receive,
            self._budget,
            id=f"{self._environment.random.getrandbits(96):024X}",
            project=project_of_host(headers.get(b"host", b"").decode("latin-1"), self._endpoints),
            headers=headers,
        )
        group, route = self._find(request.method, request.path)
        self._requests += 1
        try:
            answer = await self._answered(request, group, route, repeated)
            if answer.status >= 400 and request.has_unread_body:
                await self._drop_body(request)
                if request.has_unread_body:
                    # The listener drops some more of it, so that the client reads the reason.
                    answer = msgspec.structs.replace(answer, headers=(*answer.headers, _CLOSE))
            elapsed_ns = clock.monotonic_ns() - began_ns
            self._count(f"{group.name}_{route.name}", answer.status, elapsed_ns)
            await _send(send, answer, request.id)
        finally:
            self._requests -= 1
            request.release()

    def explain(
        self, scope: MutableMapping[str, Any], status: int, message: str
    ) -> tuple[bytes, bytes]:
        """Formats an error of the listener (`net.http_listener.Explain`), as the way in would."""
        request = HttpRequest(
            {"method": "", "path": "/", "query_string": b"", **scope},
            _no_body,
            self._budget,
            id="",
            project="",
            headers=dict(scope["headers"]),
        )
        group, route = self._find("POST", request.path)
        error: RaftwoodError = _BY_STATUS.get(status, InvalidInput)(message)
        self._count(f"{group.name}_{route.name}", status, 0)
        answer = group.error_answer(error, request)
        return answer.content_type, bytes(answer.body)

    def _find(self, method: str, path: str) -> tuple[RouteGroup, HttpRoute]:
        for group in self._groups:
            route = group.find(method, path)
            if route is not None:
                return group, route
        return self._groups[0], _NOT_FOUND

    async def _answered(
        self, request: HttpRequest, group: RouteGroup, route: HttpRoute, repeated: str
    ) -> HttpResponse:
        try:
            if self._requests > self._limits.requests_max:
                raise Overloaded("too many requests are under way: try again in a moment")
            if repeated:
                raise InvalidInput(f"the header {repeated} is given twice: give it once")
            request.key = group.authenticate(request)
            if request.key is not None:
                request.authenticated()
            return await route.handle(request)
        except RaftwoodError as error:
            if error.http_status >= 500 and not error.retriable:
                _log.error("request failed", call=route.name, request=request.id, exc_info=True)
            return group.error_answer(error, request)
        except Exception:
            _log.error("request failed", call=route.name, request=request.id, exc_info=True)
            return group.error_answer(
                InternalError("the gateway failed; its log tells more under the request's id"),
                request,
            )

    async def _drop_body(self, request: HttpRequest) -> None:
        try:
            await request.drop_body(bytes_max=self._limits.dropped_bytes_max)
        except ConnectionLost:
            _log.debug("client went away", request=request.id)

    def _count(self, call: str, status: int, elapsed_ns: int) -> None:
        counter = self._counters.get((call, status))
        if counter is None:
            counter = self._counters[call, status] = self._metrics.counter(
                "gateway_answers_total",
                "Requests answered over HTTP.",
                labels={"call": call, "status": str(status)},
            )
        counter.inc()
        timer = self._timers.get(call)
        if timer is None:
            timer = self._timers[call] = self._metrics.histogram(
                "gateway_answer_seconds", "Until an answer was ready.", labels={"call": call}
            )
        timer.observe(elapsed_ns / 1e9)


def _repeated(headers: Sequence[tuple[bytes, bytes]]) -> str:
    """Returns the name of a routing or login header that is given twice: a proxy might use one
    value, and the gateway the other.
    """
    found: set[bytes] = set()
    for name, _ in headers:
        if name in found and (name in _ONCE or name.startswith(_ONCE_PREFIXES)):
            return name.decode("latin-1")
        found.add(name)
    return ""


async def _send(send: Send, answer: HttpResponse, request_id: str) -> None:
    headers = [
        (b"content-length", b"%d" % len(answer.body)),
        (b"x-log-requestid", request_id.encode()),
        *answer.headers,
    ]
    if answer.body:
        headers.append((b"content-type", answer.content_type))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    body: Buffer = answer.body
    if len(body) > _CHUNK_BYTES:
        # Each send waits until most of the previous part is read, so the answer stays accounted for
        # as long as it is held.
        view = memoryview(body)
        for start in range(0, len(body) - _CHUNK_BYTES, _CHUNK_BYTES):
            part = view[start : start + _CHUNK_BYTES]
            await send({"type": "http.response.body", "body": part, "more_body": True})
        body = view[start + _CHUNK_BYTES :]
    await send({"type": "http.response.body", "body": body})
