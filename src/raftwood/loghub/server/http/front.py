"""The application behind a gateway's HTTP port: finds the route, lets in, answers.

    front = HttpFront(environment, [sls, otlp], metrics=metrics)
    listener = await HttpListener.start(front, "127.0.0.1:8080", HttpLimits())

Plain ASGI, without a framework's requests: puts and pulls come through here.
"""

from collections.abc import Awaitable, Callable, Collection, MutableMapping, Sequence
from typing import Any, Final

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
)
from raftwood.base.files import Buffer
from raftwood.base.logs import get_logger
from raftwood.base.metrics import Metrics
from raftwood.loghub.errors import BatchTooLarge
from raftwood.loghub.server.http.hosts import project_of_host
from raftwood.loghub.server.http.request import ByteBudget, Receive, Request
from raftwood.loghub.server.http.routes import Answer, Route, RouteGroup

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_ONCE: Final = (b"host", b"authorization", b"date", b"content-md5", b"content-type")
_ONCE_PREFIXES: Final = (b"x-log-", b"x-acs-", b"x-raftwood-")
_CHUNK_BYTES: Final = 256 << 10
_log = get_logger("gateway")


async def _nothing_here(request: Request) -> Answer:
    raise NotFound(f"there is nothing at {request.method} {request.path[:200]}")


_NOT_FOUND: Final = Route("unknown", _nothing_here)
_CLOSE: Final = (b"connection", b"close")
_BY_STATUS: Final[dict[int, type[RaftwoodError]]] = {503: Overloaded} | dict.fromkeys(
    (413, 414, 431), BatchTooLarge
)


async def _no_body() -> MutableMapping[str, Any]:
    return {"type": "http.disconnect"}


class FrontLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What all requests under way may take together."""

    requests_max: int = 4096
    body_bytes_max: int = 256 << 20
    dropped_bytes_max: int = 32 << 20
    """Of one body that is refused: it is read and thrown away, so that the client reads why."""


class HttpFront:
    """An ASGI application over groups of routes; the first group that knows a path has it."""

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
        request = Request(
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
                    # The listener throws away some more of it, so that the client reads why.
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
        """What the listener answers itself (`net.http_listener.Explain`), as the way in would."""
        request = Request(
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

    def _find(self, method: str, path: str) -> tuple[RouteGroup, Route]:
        for group in self._groups:
            route = group.find(method, path)
            if route is not None:
                return group, route
        return self._groups[0], _NOT_FOUND

    async def _answered(
        self, request: Request, group: RouteGroup, route: Route, repeated: str
    ) -> Answer:
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

    async def _drop_body(self, request: Request) -> None:
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
    """A header that says who asks for what, and is given twice: a proxy in between might take the
    one, and the gateway the other.
    """
    found: set[bytes] = set()
    for name, _ in headers:
        if name in found and (name in _ONCE or name.startswith(_ONCE_PREFIXES)):
            return name.decode("latin-1")
        found.add(name)
    return ""


async def _send(send: Send, answer: Answer, request_id: str) -> None:
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
        # Each waits until most of what came before is read, so that an answer is accounted for as
        # long as it is held.
        view = memoryview(body)
        for start in range(0, len(body) - _CHUNK_BYTES, _CHUNK_BYTES):
            part = view[start : start + _CHUNK_BYTES]
            await send({"type": "http.response.body", "body": part, "more_body": True})
        body = view[start + _CHUNK_BYTES :]
    await send({"type": "http.response.body", "body": body})
