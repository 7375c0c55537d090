"""All ways in of a gateway: groups of routes for its HTTP port, and servers on their own ports."""

import asyncio
from typing import Self

from raftwood.base.environment import Environment
from raftwood.base.metrics import Metrics
from raftwood.base.sections import ConnectionSettings
from raftwood.loghub.server.gateway import Gateway
from raftwood.loghub.server.http.routes import RouteGroup
from raftwood.loghub.server.ways_in.elasticsearch_routes import ElasticsearchRoutes
from raftwood.loghub.server.ways_in.fluent_server import FluentServer
from raftwood.loghub.server.ways_in.lines_routes import LinesRoutes
from raftwood.loghub.server.ways_in.loki_routes import LokiRoutes
from raftwood.loghub.server.ways_in.otlp_routes import OtlpRoutes
from raftwood.loghub.server.ways_in.putting import Putting
from raftwood.loghub.server.ways_in.root_routes import RootRoutes
from raftwood.loghub.server.ways_in.settings import WaysInSettings
from raftwood.loghub.server.ways_in.syslog_server import SyslogServer
from raftwood.loghub.settings import GatewaySettings
from raftwood.net.tls import ServerTls, TlsFiles


def http_groups(
    environment: Environment,
    gateway: Gateway,
    settings: WaysInSettings,
    limits: GatewaySettings,
    *,
    sls: RouteGroup,
) -> list[RouteGroup]:
    """For `HttpFront`, in this order; SLS's own routes among them."""
    putting = Putting(environment, gateway)
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
    """Syslog and Fluent, where the settings give them an address; `close` when done."""

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
        putting = Putting(environment, gateway)
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
