"""One store as a server: its raft host, the tenant that runs on it, and what it serves.

Takes all it needs from the environment and the settings, so that it runs in simulation as well;
signals and log lines are the command's. A tenant is the metastore, or the log service: see
`tenants`.
"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import msgspec

from raftwood import __version__
from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidConfiguration, Unavailable
from raftwood.base.logs import get_logger
from raftwood.base.metrics import Metrics
from raftwood.net import Call, ClientTls, Server, ServerLimits, ServerTls, Service, TypedMethod
from raftwood.net.identity import split_address
from raftwood.net.method_numbers import MethodNumber
from raftwood.raft.node_host import NodeHost
from raftwood.server.cluster import listen_address, reload_certificates, server_tls, store_network
from raftwood.server.settings import Settings


class Tenant(Protocol):
    """Made when the host is open; `close` comes before the host's."""

    def register(self, service: Service) -> None:
        """Take part in what the store serves."""

    async def start(self, *, joins: bool) -> None:
        """Start the groups and all that goes on beside them."""

    def problems(self) -> Mapping[str, str]:
        """Whether it is of use here: a reason why not, or nothing, for each part."""

    async def close(self) -> None: ...


MakeTenant: TypeAlias = Callable[[Environment, NodeHost, Settings, Metrics], Tenant]


class StoreDescription(msgspec.Struct, frozen=True):
    """A store as a process."""

    store: int
    address: str
    pid: int
    version: str
    groups: list[int]


DESCRIBE = TypedMethod(
    MethodNumber.STORE_DESCRIBE, "store-describe", request=type(None), response=StoreDescription
)
METRICS = TypedMethod(
    MethodNumber.STORE_METRICS, "store-metrics", request=type(None), response=bytes
)


class StoreService:
    """Serves one store's description and metrics."""

    def __init__(self, host: NodeHost, address: str, metrics: Metrics) -> None:
        self._host = host
        self._address = address
        self._metrics = metrics
        host.register_metrics(metrics)

    def register(self, service: Service) -> None:
        service.typed(DESCRIBE, self._describe)
        service.typed(METRICS, self._render)

    async def _describe(self, _: Call, __: None) -> StoreDescription:
        return StoreDescription(
            store=self._host.id,
            address=self._address,
            pid=os.getpid(),
            version=__version__,
            groups=sorted({*self._host.groups(), *self._host.halted()}),
        )

    async def _render(self, _: Call, __: None) -> bytes:
        return self._metrics.render()


HAND_OVER_MS = 3_000
DRAIN_MS = 1_000
STOP_S_MAX = 15.0

_log = get_logger("store")


class StoreServer:
    """Use `start`, and `close` when done."""

    def __init__(
        self,
        host: NodeHost,
        server: Server,
        tenant: Tenant,
        *,
        address: str,
        certificates: Sequence[ServerTls | ClientTls],
    ) -> None:
        self.host = host
        self.tenant = tenant
        self._server = server
        self.address = address
        self._certificates = certificates

    @classmethod
    async def start(
        cls,
        environment: Environment,
        settings: Settings,
        make_tenant: MakeTenant,
        *,
        joins: bool,
        metrics: Metrics,
    ) -> "StoreServer":
        """Open the store, listen, and start what runs on it; `joins` where others add it later.

        From then on `metrics` tell of it.
        """
        _check_members(settings, joins=joins)
        network = store_network(settings)
        tls = server_tls(settings)
        address = listen_address(settings)
        name, port = split_address(address)
        host = await NodeHost.open(
            environment,
            settings.node.data_folder,
            cluster=settings.cluster.name,
            store=settings.node.store_id,
            network=network,
            settings=settings.raft,
            log_settings=settings.log,
            peers=settings.cluster.addresses(),
        )
        service = Service()
        host.register(service)
        tenant = make_tenant(environment, host, settings, metrics)
        tenant.register(service)
        StoreService(host, address, metrics).register(service)
        server = Server(
            service,
            network.server_credentials(host.id),
            environment.random,
            ServerLimits(connections=settings.connections),
        )
        server.admission.count_in(metrics, "store")
        certificates = [each for each in (tls, network.tls) if each is not None]
        started = cls(host, server, tenant, address=address, certificates=certificates)
        try:
            await started._listen(name, port, tls)
            await tenant.start(joins=joins)
        except BaseException:
            await tenant.close()
            await server.close(drain_timeout_ms=0)
            await host.close()
            raise
        return started

    async def _listen(self, name: str, port: int, tls: ServerTls | None) -> None:
        try:
            await self._server.listen(name, port, tls=tls)
        except OSError as error:
            raise Unavailable(
                f"cannot listen on {self.address}: {error.strerror or error}; set node.listen to "
                "an address of this machine that is free"
            ) from error

    def reload_certificates(self) -> None:
        """Read the TLS files again, for new connections; what was stays where they are bad."""
        reload_certificates(self._certificates)

    async def close(self) -> None:
        """Hand over what it leads, answer what is under way, then stop; each within its time."""
        await self.tenant.close()
        await self.host.close(hand_over_ms=HAND_OVER_MS)
        await self._server.close(drain_timeout_ms=DRAIN_MS)


async def serve(
    environment: Environment,
    settings: Settings,
    make_tenant: MakeTenant,
    *,
    joins: bool,
    metrics: Metrics,
    stop: asyncio.Event,
    on_ready: Callable[[StoreServer], None],
) -> None:
    """Run a store until it is told to stop, or cancelled."""
    server = await StoreServer.start(
        environment, settings, make_tenant, joins=joins, metrics=metrics
    )
    try:
        on_ready(server)
        await stop.wait()
    finally:
        # A disk that hangs must not keep the process: what was acked is safe without its end.
        overdue = asyncio.get_running_loop().call_later(
            STOP_S_MAX, environment.end_process, f"the store did not stop in {STOP_S_MAX:g} s"
        )
        await server.close()
        overdue.cancel()


def _check_members(settings: Settings, *, joins: bool) -> None:
    if joins:
        return
    own, members = settings.node.store_id, settings.cluster.addresses()
    if not members:
        raise InvalidConfiguration(
            "cluster.members is empty: name the first stores, such as "
            f"{own}={listen_address(settings)}, on each of them alike; or give --join where others "
            "add this store later"
        )
    if own not in members:
        raise InvalidConfiguration(
            f"store {own} is not among cluster.members: correct node.store_id, or give --join, "
            "each time it is started, where others add this store"
        )
