"""Log stores with the metastore as their guest, and gateways before them, each on its machine."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from typing import Any

from raftwood.base.configuration import compose
from raftwood.base.environment import Environment
from raftwood.base.errors import RaftwoodError
from raftwood.base.metrics import Metrics
from raftwood.logservice.server.log_store import Guest
from raftwood.metastore.state_machine import MetaStateMachine
from raftwood.raft.node_host import NodeHost
from raftwood.server.cluster import METASTORE_SHARD
from raftwood.server.cluster_client import awaited_cluster
from raftwood.server.gateway import GatewayServer
from raftwood.server.settings import Settings
from raftwood.server.tenants import MetastoreTime
from raftwood.testing import Machine, Simulation
from tests.kits.logservice.log_cluster import address
from tests.kits.logservice.simulation.world import SupervisedCluster

STORES = (1, 2, 3)
GATEWAY_PORT = 7200
_SECRETS = b"""
[secrets]
stores = "of the storesof the storesof the stores"
clients = "of clientsof clientsof clients"
operators = "of operatorsof operatorsof operators"
"""


def gateway_name(number: int) -> str:
    return f"g{number}"


def gateway_settings(number: int, *flags: str) -> Settings:
    members = ",".join(f"{store}={address(store)}" for store in STORES)
    given = [
        "cluster.name=test",
        f"cluster.members={members}",
        f"gateway.listen={gateway_name(number)}:{GATEWAY_PORT}",
        "gateway.http_listen=",
        *flags,
    ]
    return compose(Settings, data=_SECRETS, flags=given).settings


class HubCluster(SupervisedCluster):
    """`servers` are for looking only, calls go over the network."""

    def __init__(
        self,
        simulation: Simulation,
        *,
        flags: tuple[str, ...] = (),
        machine: Callable[[], MetaStateMachine] = MetaStateMachine,
        **options: Any,
    ) -> None:
        super().__init__(simulation, first=STORES, guests=self._guests, **options)
        self.flags = flags
        self._machine = machine
        self.gateways: dict[int, Machine] = {}
        self.servers: dict[int, GatewayServer] = {}

    def _guests(self, environment: Environment, host: NodeHost) -> Mapping[int, Guest]:
        time = MetastoreTime(environment, host, METASTORE_SHARD)
        guest = Guest(name="metastore", machine=self._machine, run=time.run)
        return {METASTORE_SHARD: guest}

    def start_gateways(self, *numbers: int) -> None:
        for number in numbers:
            if number not in self.gateways:
                self.gateways[number] = self.simulation.add_node(gateway_name(number))
            self.gateways[number].start(self._gateway_program(number))

    def _gateway_program(self, number: int) -> Callable[[Environment], Coroutine[Any, Any, None]]:
        async def program(environment: Environment) -> None:
            self.servers.pop(number, None)
            settings = gateway_settings(number, *self.flags)
            try:
                async with AsyncExitStack() as stack:
                    store, logs = await awaited_cluster(stack, environment, settings, None)
                    server = await GatewayServer.start(
                        environment, settings, store, logs, metrics=Metrics()
                    )
                    self.servers[number] = server
                    try:
                        await asyncio.get_running_loop().create_future()
                    except asyncio.CancelledError:
                        # Told to stop; one that was killed does nothing more.
                        await server.close()
                        raise
            except RaftwoodError as error:
                # As a supervisor sees it: it is started again.
                environment.end_process(f"no start: {error}")

        return program

    def serves(self, number: int) -> bool:
        return number in self.servers and self.gateways[number].running

    async def stop_gateways(self) -> None:
        for machine in self.gateways.values():
            process = machine.node.process
            if process is not None and process.main is not None:
                process.main.cancel()
        await self.until(lambda: not any(each.running for each in self.gateways.values()))
