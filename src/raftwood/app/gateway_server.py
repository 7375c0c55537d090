"""One gateway as a server: native clients, HTTP and the other ways in, over a metastore and logs.

Takes all it needs from its arguments, so that it runs in simulation as well; signals and log lines
are the command's.
"""

from typing import Final

import msgspec

from raftwood.app.cluster_network import server_tls
from raftwood.app.settings import Settings
from raftwood.base.environment import Environment
from raftwood.base.errors import Unavailable
from raftwood.base.metrics import Metrics
from raftwood.base.seams import Logs, MetaStore
from raftwood.loghub.server.gateway import Gateway
from raftwood.loghub.server.rpc_service import RpcService
from raftwood.loghub.wire import CLUSTER, GATEWAY_ROLE, KEY_ROLE
from raftwood.net import Identity, Secret, Server, ServerCredentials, Service
from raftwood.net.store_names import split_address

DRAIN_MS: Final = 2_000


class GatewayServer:
    """Use `start`, and `close` when done; metastore and logs stay their owner's."""

    def __init__(self, gateway: Gateway, server: Server, *, address: str) -> None:
        self.gateway = gateway
        self._server = server
        self.address = address

    @classmethod
    async def start(
        cls,
        environment: Environment,
        settings: Settings,
        store: MetaStore,
        logs: Logs,
        *,
        metrics: Metrics,
    ) -> "GatewayServer":
        """Read the metadata, then listen."""
        gateway = Gateway(
            environment,
            store,
            logs,
            settings=settings.gateway,
            loghub=settings.loghub,
            metrics=metrics,
            record_bytes_max=settings.logservice.record_bytes_max,
        )
        service = Service()
        RpcService(gateway).register(service)
        name = f"gateway-{environment.random.randbytes(6).hex()}"
        credentials = ServerCredentials(
            cluster_id=CLUSTER,
            identity=Identity(role=GATEWAY_ROLE, node_id=name),
            secret_of=_Secrets(gateway).secret_of,
        )
        server = Server(service, credentials, environment.random)
        try:
            await gateway.start()
            address = await _listen(server, settings)
        except BaseException:
            await server.close(drain_timeout_ms=0)
            await gateway.close()
            raise
        return cls(gateway, server, address=address)

    def problem(self) -> str:
        """Why it is of no use at the moment; empty where it is."""
        return "" if self.gateway.metadata.is_fresh else "the metastore does not answer"

    async def close(self) -> None:
        """Answer what is under way, within its time, then stop."""
        await self._server.close(drain_timeout_ms=DRAIN_MS)
        await self.gateway.close()


class _Secrets(msgspec.Struct, frozen=True):
    gateway: Gateway

    def secret_of(self, peer: Identity) -> Secret | None:
        key = self.gateway.access.key(peer.node_id) if peer.role == KEY_ROLE else None
        return None if key is None else Secret(key.secret.encode())


async def _listen(server: Server, settings: Settings) -> str:
    address = settings.gateway.listen
    name, port = split_address(address)
    try:
        port = await server.listen(name, port, tls=server_tls(settings))
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {address}: {error.strerror or error}; set gateway.listen to an "
            "address of this machine that is free"
        ) from error
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
