"""Log stores in a simulation: the server code of a process, on simulated disks and wires."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from raftwood.base.environment import Environment
from raftwood.base.metrics import Metrics
from raftwood.disk.segment_log import LogSettings
from raftwood.logservice.client.keeper_client import KeeperClient
from raftwood.logservice.client.log_client import AsyncLogClient
from raftwood.logservice.server.log_store import Guest, LogStore, LogStorePlace, host_settings
from raftwood.logservice.settings import HaKeeperSettings, LogServiceSettings
from raftwood.net import Secret, Server, Service
from raftwood.net.identity import OPERATOR_ROLE, READER_ROLE, STORE_ROLE
from raftwood.net.stores import ClientNetwork, Stores
from raftwood.raft.node_host import NodeHost
from raftwood.raft.settings import RaftHostSettings
from raftwood.raft.transport import HostNetwork
from raftwood.testing import Machine, Simulation, simulate

NETWORK = HostNetwork(
    cluster="test",
    secret=Secret(b"of the stores" * 3),
    client_secret=Secret(b"of clients" * 3),
    reader_secret=Secret(b"of readers" * 3),
    operator_secret=Secret(b"of operators" * 3),
)
CLIENT = ClientNetwork(cluster="test", secret=Secret(b"of clients" * 3))
READER = ClientNetwork(cluster="test", secret=Secret(b"of readers" * 3), role=READER_ROLE)
OPERATOR = ClientNetwork(cluster="test", secret=Secret(b"of operators" * 3), role=OPERATOR_ROLE)
RAFT = RaftHostSettings(message_bytes_max=4 << 10, in_flight_bytes_max=64 << 10)
LOG = LogSettings(segment_bytes=256 << 10, flush_bytes_max=64 << 10, pending_bytes_max=256 << 10)
SERVICE = LogServiceSettings(
    record_bytes_max=16 << 10,
    truncation_ms=500,
    snapshot_entries=20,
    snapshots_kept=8,
    disk_alarm_bytes=0,
    disk_refuse_bytes=0,
)
KEEPER = HaKeeperSettings(
    log_shards=1, tick_ms=200, heartbeat_ms=400, store_down_ticks=25, order_ticks=20
)


GuestsOf = Callable[[Environment, NodeHost], Mapping[int, Guest]]


def address(store: int) -> str:
    return f"s{store}:7000"


class LogCluster:
    """Stores by number; `stores` are for looking only, calls go over the network."""

    def __init__(
        self,
        simulation: Simulation,
        *,
        first: Sequence[int] = (1, 2, 3),
        service: LogServiceSettings = SERVICE,
        keeper: HaKeeperSettings = KEEPER,
        raft: RaftHostSettings = RAFT,
        log: LogSettings = LOG,
        guests: GuestsOf = lambda _, __: {},
    ) -> None:
        self.simulation = simulation
        self.environment = simulation.environment
        self.first = {store: address(store) for store in first}
        self.service = service
        self.keeper_settings = keeper
        self.raft = raft
        self.log = log
        self.guests = guests
        self.machines: dict[int, Machine] = {}
        self.stores: dict[int, LogStore] = {}
        self.metrics: dict[int, Metrics] = {}
        self._connections: list[Stores] = []

    # Stores

    def start(self, *stores: int, joins: bool = False) -> None:
        for store in stores:
            if store not in self.machines:
                self.machines[store] = self.simulation.add_node(f"s{store}")
            self.stores.pop(store, None)
            self.machines[store].start(self._program(store, joins=joins))

    def _program(
        self, store: int, *, joins: bool
    ) -> Callable[[Environment], Coroutine[Any, Any, None]]:
        async def program(environment: Environment) -> None:
            host = await NodeHost.open(
                environment,
                "/data/store",
                cluster="test",
                store=store,
                network=NETWORK,
                settings=host_settings(self.raft),
                log_settings=self.log,
                peers=self.first,
            )
            place = LogStorePlace(
                address=address(store),
                folder="/data/store",
                version="0",
                first_members=self.first,
                network=ClientNetwork(
                    cluster="test", secret=NETWORK.secret, name=str(store), role=STORE_ROLE
                ),
            )
            metrics = self.metrics[store] = Metrics()
            started = LogStore(
                environment,
                host,
                place,
                self.service,
                self.keeper_settings,
                metrics,
                self.guests(environment, host),
            )
            service = Service()
            host.register(service)
            started.register(service)
            try:
                async with Server(
                    service, NETWORK.server_credentials(store), environment.random
                ) as server:
                    await server.listen(f"s{store}", 7000)
                    await started.start(joins=joins)
                    self.stores[store] = started
                    await asyncio.get_running_loop().create_future()
            finally:
                await started.close()
                await host.close(hand_over_ms=2_000)

        return program

    def is_running(self, store: int) -> bool:
        return store in self.stores and self.machines[store].running

    def leader(self, shard: int) -> int:
        leading = [
            store
            for store, each in self.stores.items()
            if self.is_running(store)
            and shard in each.host.groups()
            and each.host.is_leading(shard)
        ]
        return leading[0] if len(leading) == 1 else 0

    async def wait_for_leader(self, shard: int) -> int:
        await self.until(lambda: self.leader(shard) != 0)
        return self.leader(shard)

    async def until(self, is_true: Callable[[], bool], timeout_s: float = 120.0) -> None:
        await self.simulation.wait_until(is_true, timeout_s=timeout_s)

    async def stop(self, *stores: int) -> None:
        """An orderly end, so that a task or file left open shows as a leak."""
        chosen = [self.machines[store] for store in stores or self.machines]
        for machine in chosen:
            process = machine.node.process
            if machine.running and process is not None and process.main is not None:
                process.main.cancel()
        await self.until(lambda: not any(machine.running for machine in chosen))

    # Clients

    async def client(
        self, shard: int | str = 1, *, network: ClientNetwork = CLIENT, **options: Any
    ) -> AsyncLogClient:
        addresses = [address(store) for store in self.machines]
        return await AsyncLogClient.connect(
            self.environment, network, addresses, shard=shard, **options
        )

    def operator(self) -> KeeperClient:
        stores = Stores(
            self.environment, OPERATOR, {store: address(store) for store in self.machines}
        )
        self._connections.append(stores)
        return KeeperClient(stores)

    async def close_clients(self) -> None:
        for stores in self._connections:
            await stores.close()


def run_log_cluster(
    scenario: Callable[[LogCluster], Coroutine[Any, Any, None]],
    *,
    seed: int = 1,
    virtual_seconds_max: float = 600.0,
    **options: Any,
) -> None:
    """Run a scenario on a new cluster; the stores are stopped at its end."""

    async def whole(simulation: Simulation) -> None:
        cluster = LogCluster(simulation, **options)
        await scenario(cluster)
        await cluster.close_clients()
        await cluster.stop()

    simulate(seed, whole, virtual_seconds_max=virtual_seconds_max)
