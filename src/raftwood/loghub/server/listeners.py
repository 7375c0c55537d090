"""A gateway's ports beside RPC: HTTP with all groups of routes, and the socket servers.

`serve_http` opens the HTTP port; `SocketWays` opens those of syslog and Fluent Forward.
"""

import asyncio
import ssl
from typing import ClassVar, Final, Self

from raftwood.base.environment import Environment
from raftwood.base.errors import NotFound, RaftwoodError
from raftwood.base.metrics import Metrics
from raftwood.base.settings import ConnectionSettings
from raftwood.loghub.model import AccessKey
from raftwood.loghub.server.gateway import Gateway
from raftwood.loghub.server.http import (
    FrontLimits,
    HttpFront,
    HttpRequest,
    HttpResponse,
    HttpRoute,
    RouteGroup,
)
from raftwood.loghub.server.sls.api import SlsRoutes
from raftwood.loghub.server.sls.messages import error_answer
from raftwood.loghub.server.sls.openapi import openapi_json
from raftwood.loghub.server.ways_in.elasticsearch import ElasticsearchRoutes
from raftwood.loghub.server.ways_in.fluent_forward import FluentServer
from raftwood.loghub.server.ways_in.json_lines import LinesRoutes
from raftwood.loghub.server.ways_in.loki import LokiRoutes
from raftwood.loghub.server.ways_in.otlp import OtlpRoutes
from raftwood.loghub.server.ways_in.records import SectionWriter
from raftwood.loghub.server.ways_in.settings import WaysInSettings
from raftwood.loghub.server.ways_in.syslog import SyslogServer
from raftwood.loghub.settings import GatewaySettings
from raftwood.net.http_listener import HttpLimits, HttpListener
from raftwood.net.tls import ServerTls, TlsFiles


class Documents:
    """A `RouteGroup`: `/openapi.json`."""

    name = "documents"

    def __init__(self) -> None:
        self._openapi = HttpRoute("openapi", self._show_openapi)
        self._rendered = b""

    def find(self, method: str, path: str) -> HttpRoute | None:
        return self._openapi if method in ("GET", "HEAD") and path == "/openapi.json" else None

    def authenticate(self, request: HttpRequest) -> AccessKey | None:  # noqa: ARG002
        return None

    def error_answer(self, error: RaftwoodError, request: HttpRequest) -> HttpResponse:  # noqa: ARG002
        return error_answer(error)

    async def _show_openapi(self, request: HttpRequest) -> HttpResponse:  # noqa: ARG002
        self._rendered = self._rendered or openapi_json()
        return HttpResponse(body=self._rendered)


_SIGNED: Final = ("log", "sls", "acs")
"""How the authentication schemes of SLS begin."""
_ABOUT: Final = b"""\
This is the HTTP port of a Raftwood gateway. It takes:

  SLS clients             the API in /openapi.json
  JSON lines              POST /api/v1/projects/PROJECT/logstores/LOGSTORE/lines
  OTLP over HTTP          POST /v1/logs
  Loki's push API         POST /loki/api/v1/push
  Elasticsearch's bulks   POST /_bulk

Each needs an access key: `raftwood key create PROJECT=writer` makes one. Send it as
`Authorization: Basic`, with id:secret in base64.

`raftwood` and `import raftwood` use the gateway's native port instead: the setting gateway.listen
there, and loghub_client.gateways for its clients.
"""


class RootRoutes:
    """`/`, which several kinds of clients ask for: the headers tell them apart.

    SLS's clients sign. Elasticsearch's send a key, or accept JSON alone. A browser and curl send no
    key and accept a text: they get one that says what this port is.
    """

    name: ClassVar[str] = "root"

    def __init__(self, *, signed: RouteGroup, other: RouteGroup) -> None:
        self._signed = signed
        self._other = other

    def find(self, method: str, path: str) -> HttpRoute | None:
        return HttpRoute("get", self._get) if method in ("GET", "HEAD") and path == "/" else None

    def _is_anonymous(self, request: HttpRequest) -> bool:
        accepted = request.header(b"accept")
        is_text = accepted == "*/*" or "text/" in accepted
        return is_text and not request.header(b"authorization")

    def _owner(self, request: HttpRequest) -> RouteGroup:
        login = request.header(b"authorization").lower()
        return self._signed if login.startswith(_SIGNED) else self._other

    async def _get(self, request: HttpRequest) -> HttpResponse:
        if self._is_anonymous(request):
            body = b"" if request.method == "HEAD" else _ABOUT
            return HttpResponse(body=body, content_type=b"text/plain; charset=utf-8")
        route = self._owner(request).find(request.method, request.path)
        if route is None:
            raise NotFound(f"there is no {request.method} /")
        return await route.handle(request)

    def authenticate(self, request: HttpRequest) -> AccessKey | None:
        if self._is_anonymous(request):
            return None
        return self._owner(request).authenticate(request)

    def error_answer(self, error: RaftwoodError, request: HttpRequest) -> HttpResponse:
        return self._owner(request).error_answer(error, request)


def http_groups(
    environment: Environment,
    gateway: Gateway,
    settings: WaysInSettings,
    limits: GatewaySettings,
    *,
    sls: RouteGroup,
) -> list[RouteGroup]:
    """Returns the groups for `HttpFront`, in this order; SLS's own routes among them."""
    putting = SectionWriter(environment, gateway)
    elasticsearch = ElasticsearchRoutes(gateway, putting, settings, limits)
    return [
        RootRoutes(signed=sls, other=elasticsearch),
        sls,
        OtlpRoutes(gateway, putting, settings, limits),
        LokiRoutes(gateway, putting, settings, limits),
        LinesRoutes(gateway, putting, settings, limits),
        elasticsearch,
    ]


class SocketWays:
    """Syslog and Fluent, if the settings give them an address; `close` when done."""

    def __init__(self, syslog: SyslogServer, fluent: FluentServer, tls: ServerTls | None) -> None:
        self.syslog = syslog
        self.fluent = fluent
        self.certificates = [] if tls is None else [tls]

    @classmethod
    async def start(
        cls,
        environment: Environment,
        gateway: Gateway,
        settings: WaysInSettings,
        *,
        metrics: Metrics,
        connections: ConnectionSettings = ConnectionSettings(),  # noqa: B008
    ) -> Self:
        putting = SectionWriter(environment, gateway)
        tls = None
        if settings.syslog_tls_listen or settings.fluent_tls_listen:
            tls = ServerTls(
                TlsFiles(
                    certificate=settings.certificate,
                    key=settings.key,
                    authorities=settings.client_authorities or None,
                )
            )
        ways = cls(
            SyslogServer(environment, putting, settings, metrics, connections),
            FluentServer(environment, putting, settings, metrics, connections),
            tls,
        )
        try:
            await ways.syslog.start(tls=tls)
            await ways.fluent.start(tls=tls)
        except BaseException:
            await ways.close()
            raise
        return ways

    async def close(self) -> None:
        await asyncio.gather(self.syslog.close(), self.fluent.close())


async def serve_http(
    environment: Environment,
    gateway: Gateway,
    settings: GatewaySettings,
    *,
    metrics: Metrics,
    ways_in: WaysInSettings = WaysInSettings(),  # noqa: B008
    connections: ConnectionSettings = ConnectionSettings(),  # noqa: B008
    tls: ssl.SSLContext | None = None,
) -> HttpListener:
    """Listens on `settings.http_listen`."""
    sls = SlsRoutes(
        environment, gateway, body_bytes_max=settings.body_bytes_max, bounds=ways_in.bounds
    )
    front_limits = FrontLimits(
        requests_max=4 * settings.connections_max, body_bytes_max=settings.bodies_bytes_max
    )
    front = HttpFront(
        environment,
        [*http_groups(environment, gateway, ways_in, settings, sls=sls), Documents()],
        metrics=metrics,
        limits=front_limits,
        endpoints=settings.http_endpoints,
    )
    limits = HttpLimits(
        keep_alive_ms=settings.keep_alive_ms,
        request_ms=settings.request_ms,
        connections_max=settings.connections_max,
        connections=connections,
        request_bytes_max=2 * front_limits.dropped_bytes_max,
    )
    listener = await HttpListener.start(
        front,
        settings.http_listen,
        limits,
        tls=tls,
        setting="gateway.http_listen",
        explain=front.explain,
    )
    listener.admission.count_in(metrics, "gateway_http")
    return listener
