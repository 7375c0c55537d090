"""Stores as the program runs them, from settings alone, in a simulation."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

from raftwood.base.configuration import compose
from raftwood.base.environment import Environment
from raftwood.base.metrics import Metrics
from raftwood.net.stores import Stores
from raftwood.raft.client import AsyncRaftClient
from raftwood.server.cluster import METASTORE_GROUP
from raftwood.server.cluster_client import connected_client, connected_stores
from raftwood.server.settings import Settings
from raftwood.server.store import MakeTenant, StoreServer, serve
from raftwood.server.tenants import MetastoreTenant, log_settings, log_tenant
from raftwood.testing import Machine, Simulation, simulate

SECRETS = b"""
[secrets]
stores = "known to the stores alone"
clients = "known to stores and clients"
readers = "known to those who only read"
operators = "known to those who operate them"
"""


def settings_of(store: int, *flags: str) -> Settings:
    """Of one store of three; further ones have an address of the same kind."""
    members = ",".join(f"{each}=s{each}:7000" for each in (1, 2, 3))
    given = [
        f"cluster.members={members}",
        f"node.store_id={store}",
        f"node.listen=s{store}:7000",
        "node.data_folder=/data/store",
        *flags,
    ]
    return compose(Settings, data=SECRETS, flags=given).settings


class StoreCluster:
    """Stores by number, each on a machine of its own."""

    def __init__(
        self,
        simulation: Simulation,
        make_tenant: MakeTenant = MetastoreTenant,
        flags: tuple[str, ...] = (),
    ) -> None:
        self._make_tenant = make_tenant
        self._flags = flags
        self.simulation = simulation
        self.environment = simulation.environment
        self.machines: dict[int, Machine] = {}
        self.servers: dict[int, StoreServer] = {}
        self._stops: dict[int, asyncio.Event] = {}

    def start(self, *stores: int, joins: bool = False, flags: tuple[str, ...] = ()) -> None:
        for store in stores:
            if store not in self.machines:
                self.machines[store] = self.simulation.add_node(f"s{store}")
            self.servers.pop(store, None)
            self.machines[store].start(self._program(store, joins, flags))

    def _program(
        self, store: int, joins: bool, flags: tuple[str, ...]
    ) -> Callable[[Environment], Coroutine[Any, Any, None]]:
        def ready(server: StoreServer) -> None:
            self.servers[store] = server

        async def program(environment: Environment) -> None:
            stop = self._stops[store] = asyncio.Event()
            settings = settings_of(store, *self._flags, *flags)
            if self._make_tenant is log_tenant:
                settings = log_settings(settings)
            metrics = Metrics(store=str(store))
            await serve(
                environment,
                settings,
                self._make_tenant,
                joins=joins,
                metrics=metrics,
                stop=stop,
                on_ready=ready,
            )

        return program

    def client(self, *stores: int) -> AbstractAsyncContextManager[AsyncRaftClient]:
        return connected_client(self.environment, settings_of(1), _addresses(stores))

    def operator(self, *stores: int) -> AbstractAsyncContextManager[Stores]:
        return connected_stores(self.environment, settings_of(1), _addresses(stores))

    async def until(self, is_true: Callable[[], bool]) -> None:
        await self.simulation.wait_until(is_true, timeout_s=60.0)

    async def ready(self, *stores: int) -> None:
        await self.until(lambda: all(store in self.servers for store in stores))

    def leader(self, group: int = METASTORE_GROUP) -> int:
        leading = [
            store
            for store, server in self.servers.items()
            if self.machines[store].running
            and group in server.host.groups()
            and server.host.is_leading(group)
        ]
        return leading[0] if len(leading) == 1 else 0

    async def wait_for_leader(self, group: int = METASTORE_GROUP) -> int:
        await self.until(lambda: self.leader(group) != 0)
        return self.leader(group)

    async def stop(self, *stores: int) -> None:
        """As with a signal: an orderly end."""
        running = [each for each in stores or self.machines if self.machines[each].running]
        for store in running:
            self._stops[store].set()
        await self.until(lambda: not any(self.machines[store].running for store in running))


def _addresses(stores: tuple[int, ...]) -> str:
    return ",".join(f"s{store}:7000" for store in stores or (1, 2, 3))


def run_stores(
    scenario: Callable[[StoreCluster], Coroutine[Any, Any, None]], seed: int = 1, **options: Any
) -> None:
    """Run a scenario on a new cluster; the stores are stopped at its end."""

    async def whole(simulation: Simulation) -> None:
        cluster = StoreCluster(simulation, **options)
        await scenario(cluster)
        await cluster.stop()

    simulate(seed, whole, virtual_seconds_max=600.0)
