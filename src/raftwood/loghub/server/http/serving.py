"""A gateway's HTTP port, with all that is served there."""

import ssl

from raftwood.base.environment import Environment
from raftwood.base.metrics import Metrics
from raftwood.base.sections import ConnectionSettings
from raftwood.loghub.server.gateway import Gateway
from raftwood.loghub.server.http.documents import Documents
from raftwood.loghub.server.http.front import FrontLimits, HttpFront
from raftwood.loghub.server.sls.routes import SlsRoutes
from raftwood.loghub.server.ways_in.serving import http_groups
from raftwood.loghub.server.ways_in.settings import WaysInSettings
from raftwood.loghub.settings import GatewaySettings
from raftwood.net.http_listener import HttpLimits, HttpListener


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
    """Listen on `settings.http_listen`."""
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
