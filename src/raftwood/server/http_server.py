"""What a process serves over HTTP: whether it lives, whether it is ready, and its metrics.

    server = await HttpServer.start(settings.http, metrics=metrics, token=token, checks=checks)
    ...
    await server.close()

On the loop of everything else, so that `/livez` says that the loop turns.
"""

import hmac
from collections.abc import Callable, Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router

from raftwood.base.metrics import CONTENT_TYPE, Metrics
from raftwood.base.settings import ConnectionSettings, HttpSettings, Secret
from raftwood.net.http_listener import AUTHENTICATED, HttpLimits, HttpListener

Check = Callable[[], str]
"""Why something is not ready; empty where it is. Anybody may read it."""


_REQUEST_BYTES_MAX: Final = 128 << 10
_ABOUT: Final = """\
This port of Raftwood tells how a process is (the setting http.listen):

  /livez     whether it lives
  /readyz    whether it can serve, and else why not
  /metrics   metrics for Prometheus; requires the token secrets.metrics

Records come and go at a gateway's ports: gateway.http_listen over HTTP, and gateway.listen for
native clients.
"""


class HttpServer:
    """Use `start`, and `close` when done."""

    def __init__(self, listener: HttpListener) -> None:
        self._listener = listener
        self.address = listener.address

    @classmethod
    async def start(
        cls,
        settings: HttpSettings,
        *,
        metrics: Metrics,
        token: Secret,
        checks: Mapping[str, Check],
        connections: ConnectionSettings = ConnectionSettings(),  # noqa: B008
    ) -> "HttpServer":
        """Listen on `settings.listen`; `token` is what `/metrics` asks for."""
        limits = HttpLimits(
            keep_alive_ms=settings.keep_alive_ms,
            request_ms=settings.request_ms,
            connections_max=settings.connections_max,
            connections=connections,
            request_bytes_max=_REQUEST_BYTES_MAX,
        )
        router = _Pages(metrics, token, checks).router()
        listener = await HttpListener.start(router, settings.listen, limits)
        listener.admission.count_in(metrics, "http")
        return cls(listener)

    async def close(self) -> None:
        await self._listener.close()


class _Pages:
    """What is answered."""

    def __init__(self, metrics: Metrics, token: Secret, checks: Mapping[str, Check]) -> None:
        self._metrics = metrics
        self._token = token.reveal().encode()
        self._checks = checks

    def router(self) -> Router:
        routes = [
            Route("/", self._about),
            Route("/livez", self._live),
            Route("/readyz", self._ready),
            Route("/metrics", self._show_metrics),
        ]
        return Router(routes, redirect_slashes=False)

    async def _about(self, _: Request) -> Response:
        return PlainTextResponse(_ABOUT, headers={"cache-control": "no-store"})

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
        request.scope["extensions"][AUTHENTICATED]()
        return Response(
            self._metrics.render(), media_type=CONTENT_TYPE, headers={"cache-control": "no-store"}
        )


def _text(text: str, status: int = 200) -> Response:
    return PlainTextResponse(text + "\n", status, headers={"cache-control": "no-store"})
