"""One gateway as a server: all ways in, over a metastore and logs.

Native clients, HTTP, shippers and sockets. Takes all it needs from its arguments, so that it runs
in simulation as well; signals and log lines are the command's. `LogsByKind` puts the logs of the
log service and of DLog under one roof: a log's name says where it is kept.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidConfiguration, Unavailable
from raftwood.base.metrics import Metrics
from raftwood.base.seams import Log, Logs, MetaStore
from raftwood.dlog.peers import PEER_ROLE
from raftwood.dlog.shared_logs import SharedLogs
from raftwood.loghub.model import LogKind
from raftwood.loghub.server.gateway import Gateway
from raftwood.loghub.server.listeners import SocketWays, serve_http
from raftwood.loghub.server.rpc_service import RpcService
from raftwood.loghub.shards import kind_of_log
from raftwood.loghub.wire import CLUSTER, GATEWAY_ROLE, KEY_ROLE
from raftwood.net import (
    Identity,
    Secret,
    Server,
    ServerCredentials,
    ServerLimits,
    ServerTls,
    Service,
)
from raftwood.net.http_listener import HttpListener
from raftwood.net.identity import split_address
from raftwood.server.cluster import operators_secret, reload_certificates, server_tls
from raftwood.server.receiver import ReceiverServer
from raftwood.server.settings import Settings


class LogsByKind:
    """The `Logs` behind it stay their owner's."""

    def __init__(self, kinds: Mapping[LogKind, Logs]) -> None:
        self.kinds = kinds

    def _of(self, name: str) -> Logs:
        kind = kind_of_log(name)
        logs = self.kinds.get(kind)
        if logs is None:
            raise InvalidConfiguration(
                f"log {name} is kept in {kind.value}, and this process has none: set dlog.store "
                "in its configuration, as the other gateways have it"
            )
        return logs

    async def create(self, name: str) -> None:
        """A log without batches; nothing where it is there already."""
        await self._of(name).create(name)

    async def open(self, name: str) -> Log:
        """`NotFound` where there is none."""
        return await self._of(name).open(name)

    async def remove(self, name: str) -> None:
        """The log and all its batches; nothing where it is gone already."""
        await self._of(name).remove(name)

    async def names(self, prefix: str) -> list[str]:
        """Of all logs whose name begins so, in order."""
        found: list[str] = []
        for kind, logs in self.kinds.items():
            # A log of another kind's name was not made by LogHub.
            found += [each for each in await logs.names(prefix) if kind_of_log(each) is kind]
        return sorted(found)


DRAIN_MS: Final = 2_000


class GatewayServer:
    """Use `start`, and `close` when done; metastore and logs stay their owner's."""

    def __init__(self, gateway: Gateway, server: Server) -> None:
        self.gateway = gateway
        self._server = server
        self._http: HttpListener | None = None
        self._sockets: SocketWays | None = None
        self._receiver: ReceiverServer | None = None
        self._certificates: list[ServerTls] = []
        self.address = ""
        """Where native clients are served."""
        self.http_address = ""
        """Where HTTP is served; empty where it is not."""
        self.clogs_address = ""
        """Where shippers are served; empty where they are not."""

    @classmethod
    async def start(
        cls,
        environment: Environment,
        settings: Settings,
        store: MetaStore,
        logs: Logs,
        *,
        metrics: Metrics,
        dlogs: SharedLogs | None = None,
    ) -> "GatewayServer":
        """Read the metadata, then listen. `logs` are the log service's; without `dlogs`, logstores
        that are kept in DLOG are refused.
        """
        kinds: dict[LogKind, Logs] = {LogKind.LOGSERVICE: logs}
        if dlogs is not None:
            kinds[LogKind.DLOG] = dlogs
        gateway = Gateway(
            environment,
            store,
            LogsByKind(kinds),
            settings=settings.gateway,
            loghub=settings.loghub,
            metrics=metrics,
            record_bytes_max=settings.logservice.record_bytes_max,
            log_kinds=kinds,
        )
        service = Service()
        RpcService(gateway).register(service)
        name = f"gateway-{environment.random.randbytes(6).hex()}"
        peers: Secret | None = None
        if dlogs is not None:
            dlogs.register(service)
            name, peers = dlogs.name, operators_secret(settings)
        credentials = ServerCredentials(
            cluster_id=CLUSTER,
            identity=Identity(role=GATEWAY_ROLE, node_id=name),
            secret_of=_Secrets(gateway, peers).secret_of,
        )
        server = Server(
            service, credentials, environment.random, ServerLimits(connections=settings.connections)
        )
        server.admission.count_in(metrics, "gateway")
        started = cls(gateway, server)
        try:
            await gateway.start()
            await started._listen(environment, settings, metrics)
            if dlogs is not None:
                await dlogs.start(settings.gateway.advertise or started.address)
        except BaseException:
            await started.close(drain_ms=0)
            raise
        return started

    async def _listen(self, environment: Environment, settings: Settings, metrics: Metrics) -> None:
        tls = server_tls(settings)
        if tls is not None:
            self._certificates.append(tls)
        self.address = await _listen(self._server, settings.gateway.listen, tls)
        if settings.gateway.http_listen:
            self._http = await serve_http(
                environment,
                self.gateway,
                settings.gateway,
                metrics=metrics,
                ways_in=settings.ways_in,
                connections=settings.connections,
                tls=None if tls is None else tls.context,
            )
            self.http_address = self._http.address
        self._sockets = await SocketWays.start(
            environment,
            self.gateway,
            settings.ways_in,
            metrics=metrics,
            connections=settings.connections,
        )
        self._certificates += self._sockets.certificates
        if settings.clogs.listen:
            self._receiver = await ReceiverServer.start(
                environment, settings, self.gateway, metrics=metrics, tls=tls
            )
            self.clogs_address = self._receiver.address

    def reload_certificates(self) -> None:
        """Read the TLS files again, for new connections; what was stays where they are bad."""
        reload_certificates(self._certificates)

    def problem(self) -> str:
        """Why it is of no use at the moment; empty where it is."""
        return "" if self.gateway.metadata.is_fresh else "the metastore does not answer"

    async def close(self, *, drain_ms: int = DRAIN_MS) -> None:
        """Answer what is under way, within its time, then stop."""
        if self._receiver is not None:
            await self._receiver.close(drain_ms=drain_ms)
        if self._sockets is not None:
            await self._sockets.close()
        if self._http is not None:
            await self._http.close()
        await self._server.close(drain_timeout_ms=drain_ms)
        await self.gateway.close()


class _Secrets(msgspec.Struct, frozen=True):
    gateway: Gateway
    peers: Secret | None
    """Of gateways that share logs; None where this one shares none."""

    def secret_of(self, peer: Identity) -> Secret | None:
        if peer.role == PEER_ROLE:
            return self.peers
        key = self.gateway.access.key(peer.node_id) if peer.role == KEY_ROLE else None
        return None if key is None else Secret(key.secret)


async def _listen(server: Server, address: str, tls: ServerTls | None) -> str:
    name, port = split_address(address)
    try:
        port = await server.listen(name, port, tls=tls)
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {address}: {error.strerror or error}; set gateway.listen to an "
            "address of this machine that is free"
        ) from error
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
