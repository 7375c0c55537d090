"""`NodeServer`: a node on the network, with its data folder and its place in the cluster.

It gets its environment from its arguments, so that it runs in simulation too.
"""

import asyncio
from contextlib import AsyncExitStack
from typing import Final, Protocol

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidConfiguration, Unavailable
from raftwood.base.metrics import Metrics
from raftwood.disk.rocksdb import RocksFolders
from raftwood.disk.segment_log import LogSettings
from raftwood.net import Server, ServerLimits, ServerTls, Service
from raftwood.zeppelin.meta.client import MetaClient
from raftwood.zeppelin.model import NodeAddresses, NodeId
from raftwood.zeppelin.node.admin import AdminService, show_node
from raftwood.zeppelin.node.admin_protocol import NodeNetwork
from raftwood.zeppelin.node.checkpoints import PartitionCheckpoints
from raftwood.zeppelin.node.data_server import ClientLatency, DataServer
from raftwood.zeppelin.node.engine_folders import ENGINES_FOLDER, Engines
from raftwood.zeppelin.node.expiry_sweep import ExpirySweep
from raftwood.zeppelin.node.membership import NodeMembership, NodeRegistration
from raftwood.zeppelin.node.served_copies import ServedCopies
from raftwood.zeppelin.node.store import NodeStore
from raftwood.zeppelin.replication.replica import ServingLease
from raftwood.zeppelin.replication.replicator import Replicator
from raftwood.zeppelin.settings import StoreSettings, ZeppelinMetaSettings, ZeppelinNodeSettings

DRAIN_MS: Final = 1_000
_WILDCARDS: Final = ("0.0.0.0", "::", "*")  # noqa: S104  they are refused


class NodeServer:
    """A whole node. Call `start`, and `close` when done; the caller closes the meta client."""

    def __init__(
        self, admin: AdminService, addresses: NodeAddresses, stack: AsyncExitStack
    ) -> None:
        self.admin = admin
        self.addresses = addresses
        self._stack = stack

    @classmethod
    async def start(
        cls,
        environment: Environment,
        settings: ZeppelinNodeSettings,
        meta: MetaClient,
        *,
        network: NodeNetwork,
        engines: Engines | None = None,
        meta_settings: ZeppelinMetaSettings | None = None,
        store_settings: StoreSettings | None = None,
        log_settings: LogSettings | None = None,
        metrics: Metrics | None = None,
    ) -> "NodeServer":
        """Opens the folder, listens, and joins the cluster.

        Returns once the meta server's topology is applied, however long that takes. `engines` are
        RocksDBs by default.
        """
        stack = AsyncExitStack()
        try:
            store_settings = store_settings or StoreSettings()
            folder = settings.data_folder
            engines = engines or _rocksdb(folder, store_settings)
            store = await NodeStore.open(
                environment,
                folder,
                engines,
                cluster=network.replication.cluster,
                settings=store_settings,
                log_settings=log_settings,
            )
            stack.push_async_callback(store.close)
            view = ServedCopies(store.id, environment.clock, ServingLease())
            latency = ClientLatency()
            replicator = Replicator(
                environment,
                network.replication,
                store.id,
                boot=store.boot,
                copies_folder=f"{folder}/{ENGINES_FOLDER}",
                lease=view.lease,
                changed=view.replica_changed,
                copy_limits=settings.copy_limits(),
                waited_ms=latency.take_ms,
            )
            stack.push_async_callback(replicator.close)
            checkpoints = PartitionCheckpoints(view, environment, engines)
            stack.push_async_callback(checkpoints.close)
            server = DataServer(
                view,
                environment,
                connections_max=settings.connections_max,
                connections=network.replication.connections,
                checkpoints=checkpoints,
                latency=latency,
                is_behind=lambda: store.is_behind,
            )
            stack.push_async_callback(server.close)
            service = Service()
            operators = Server(
                service,
                network.operator_credentials(store.id),
                environment.random,
                ServerLimits(connections=network.replication.connections),
            )
            stack.push_async_callback(operators.close, DRAIN_MS)
            listening = _Listening(settings.advertise_host, network.tls)
            addresses = NodeAddresses(
                data=await listening.on(settings.listen, "listen", server),
                replication=await listening.on(
                    settings.replication_listen, "replication_listen", replicator
                ),
                admin=await listening.on(settings.admin_listen, "admin_listen", operators),
            )
            membership = NodeMembership(
                environment,
                meta,
                meta_settings or ZeppelinMetaSettings(),
                store,
                replicator,
                view,
                NodeRegistration(addresses=addresses, failure_domain=settings.failure_domain),
            )
            stack.push_async_callback(membership.close)
            admin = AdminService(
                clock=environment.clock,
                store=store,
                replicator=replicator,
                membership=membership,
                server=server,
            )
            admin.register(service)
            sweep = ExpirySweep(view, environment.clock)
            stack.push_async_callback(sweep.close)
            if metrics is not None:
                show_node(metrics, admin, sweep)
                server.admission.count_in(metrics, "node")
                replicator.admission.count_in(metrics, "node_replication")
                operators.admission.count_in(metrics, "node_admin")
            await membership.start()
            sweep.start()
        except (Exception, asyncio.CancelledError):
            await stack.aclose()
            raise
        return cls(admin, addresses, stack)

    @property
    def id(self) -> NodeId:
        return self.admin.store.id

    @property
    def address(self) -> str:
        """The address for clients of Redis."""
        return self.addresses.data

    def problem(self) -> str:
        """Why the node is of little use at the moment; empty if it works."""
        return self.admin.membership.problem()

    async def close(self) -> None:
        """Hands over to other nodes, stops serving, and makes everything durable."""
        await self.admin.membership.leave()
        await self._stack.aclose()


def _rocksdb(folder: str, settings: StoreSettings) -> RocksFolders:
    return RocksFolders(
        f"{folder}/{ENGINES_FOLDER}",
        cache_bytes=settings.engine_cache_bytes,
        # Twice the flush size: a flush starts before the buffer is full, so writes hardly ever
        # wait.
        write_buffer_bytes=2 * settings.flush_bytes,
    )


class _Listener(Protocol):
    async def listen(self, host: str, port: int, *, tls: ServerTls | None) -> int: ...


class _Listening(msgspec.Struct, frozen=True):
    advertise_host: str
    tls: ServerTls | None

    async def on(self, address: str, setting: str, listener: _Listener) -> str:
        """Listens; returns the address that others connect to."""
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        named = self.advertise_host or host
        if named in _WILDCARDS:
            raise InvalidConfiguration(
                f"zeppelin_node.{setting} is {address}, which others cannot connect to: set "
                "zeppelin_node.advertise_host to the name or address of this machine"
            )
        try:
            bound = await listener.listen(host, int(port), tls=self.tls)
        except (OSError, OverflowError) as error:
            raise Unavailable(
                f"cannot listen on {address}: {error}; set zeppelin_node.{setting} to an address "
                "of this machine that is free"
            ) from error
        return f"[{named}]:{bound}" if ":" in named else f"{named}:{bound}"
