"""What a process tells over HTTP: whether it lives, whether it is ready, and its metrics.

    server = await HttpServer.start(settings.http, metrics=metrics, token=token, checks=checks)
    ...
    await server.close()

On the loop of everything else, so that `/livez` says that the loop turns. uvicorn's protocol is
used without its server, which would take the signals and end the process where a port is taken.
"""

import asyncio
import hmac
import logging
from collections.abc import Callable, Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from raftwood.base.errors import Unavailable
from raftwood.base.logs import get_logger
from raftwood.base.metrics import CONTENT_TYPE, Metrics
from raftwood.base.sections import HttpSettings
from raftwood.base.settings import Secret

Check = Callable[[], str]
"""Why something is not ready; empty where it is. Anybody may read it."""

STOP_S_MAX: Final = 1.0
"""For answers under way; after it connections are cut."""

_log = get_logger("http")


class HttpServer:
    """Use `start`, and `close` when done."""

    def __init__(
        self, listener: asyncio.Server, connections: set["_Connection"], state: ServerState
    ) -> None:
        self._listener = listener
        self._connections = connections
        self._state = state
        host, port = listener.sockets[0].getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @classmethod
    async def start(
        cls,
        settings: HttpSettings,
        *,
        metrics: Metrics,
        token: Secret,
        checks: Mapping[str, Check],
    ) -> "HttpServer":
        """Listen on `settings.listen`; `token` is what `/metrics` asks for."""
        _take_over_logs()
        config = Config(
            _Pages(metrics, token, checks).router(),
            http="h11",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            workers=1,
        )
        config.load()
        connections: set[_Connection] = set()
        state = ServerState()
        name, _, port = settings.listen.rpartition(":")
        try:
            listener = await asyncio.get_running_loop().create_server(
                lambda: _Connection(config, state, settings, connections),
                name.strip("[]"),
                int(port),
            )
        except OSError as error:
            raise Unavailable(
                f"cannot listen on {settings.listen}: {error.strerror or error}; set http.listen "
                "to an address of this machine that is free"
            ) from error
        return cls(listener, connections, state)

    async def close(self) -> None:
        """Finish answers that are under way, within a bounded time, and let nobody in any more."""
        self._listener.close()
        for connection in list(self._connections):
            connection.shutdown()
        await self._wait_for_ends()
        for connection in list(self._connections):
            connection.transport.abort()
        await self._wait_for_ends()

    async def _wait_for_ends(self) -> None:
        ends = [*(connection.closed for connection in self._connections), *self._state.tasks]
        if ends:
            await asyncio.wait(ends, timeout=STOP_S_MAX)


class _Pages:
    """What is answered."""

    def __init__(self, metrics: Metrics, token: Secret, checks: Mapping[str, Check]) -> None:
        self._metrics = metrics
        self._token = token.reveal().encode()
        self._checks = checks

    def router(self) -> Router:
        routes = [
            Route("/livez", self._live),
            Route("/readyz", self._ready),
            Route("/metrics", self._show_metrics),
        ]
        return Router(routes, redirect_slashes=False)

    async def _live(self, _: Request) -> Response:
        return _text("ok")

    async def _ready(self, _: Request) -> Response:
        reasons = {name: check() for name, check in self._checks.items()}
        lines = [f"{name}: {reason}" for name, reason in reasons.items() if reason]
        return _text("\n".join(lines), 503) if lines else _text("ok")

    async def _show_metrics(self, request: Request) -> Response:
        if not self._token:
            return _text("no token is set for metrics: set secrets.metrics", 403)
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        # Headers come as Latin-1, whatever their bytes mean.
        is_right = hmac.compare_digest(token.strip().encode("latin-1"), self._token)
        if scheme.lower() != "bearer" or not is_right:
            answer = _text("send `Authorization: Bearer TOKEN` with the token secrets.metrics", 401)
            answer.headers["www-authenticate"] = "Bearer"
            return answer
        return Response(
            self._metrics.render(), media_type=CONTENT_TYPE, headers={"cache-control": "no-store"}
        )


def _text(text: str, status: int = 200) -> Response:
    return PlainTextResponse(text + "\n", status, headers={"cache-control": "no-store"})


class _Connection(H11Protocol):
    """uvicorn's, with what it lacks: a cap on connections, and a time for each request."""

    def __init__(
        self,
        config: Config,
        state: ServerState,
        settings: HttpSettings,
        connections: set["_Connection"],
    ) -> None:
        super().__init__(config, state, {}, asyncio.get_running_loop())
        self.timeout_keep_alive = settings.keep_alive_ms / 1000  # type: ignore[assignment]
        self.closed: asyncio.Future[None] = self.loop.create_future()
        self._all = connections
        self._connections_max = settings.connections_max
        self._request_s = settings.request_ms / 1000
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._all.add(self)
        if len(self._all) > self._connections_max:
            _log.debug("connection refused", limit="http.connections_max")
            transport.abort()
        self._set_deadline()

    def data_received(self, data: bytes) -> None:
        if self._deadline is None:
            self._set_deadline()
        super().data_received(data)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._drop_deadline()
        if not self._is_idle():
            self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._drop_deadline()
        super().connection_lost(exc)
        # It does so itself only where the client ended the connection in order.
        self._unset_keepalive_if_required()
        self._all.discard(self)
        self.closed.set_result(None)

    def _is_idle(self) -> bool:
        """The answer is out, and the time to keep the connection runs."""
        has_sent = self.transport.get_write_buffer_size() == 0
        return self.timeout_keep_alive_task is not None and has_sent

    def _set_deadline(self) -> None:
        self._deadline = self.loop.call_later(self._request_s, self._on_deadline)

    def _drop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_deadline(self) -> None:
        # A client that sends or reads a byte now and then would hold its place for ever.
        self._deadline = None
        if not self._is_idle():
            self.transport.abort()


class _LogBridge(logging.Handler):
    """uvicorn's lines as ours; what clients do wrong is no warning to whoever runs the store."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR:
            _log.error(record.getMessage().strip(), exc_info=record.exc_info)
        else:
            _log.debug(record.getMessage().strip())


def _take_over_logs() -> None:
    logger = logging.getLogger("uvicorn.error")
    logger.handlers = [_LogBridge()]
    logger.propagate = False
