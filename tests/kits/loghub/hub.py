"""Gateways in the test's process that native clients reach by sockets, and that can be killed."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from raftwood.base.environment import Environment
from raftwood.loghub.client.hub_client import AsyncLogHubClient
from raftwood.loghub.model import AccessKey
from raftwood.loghub.server.gateway import Gateway
from raftwood.loghub.server.rpc_service import RpcService
from raftwood.loghub.wire import CLUSTER, GATEWAY_ROLE
from raftwood.net import Identity, Secret, Server, ServerCredentials, Service
from tests.kits.loghub.streams import GatewayKit, gateway_kit

PROJECT = "web"
LOGSTORE = "access"


class Hub(msgspec.Struct):
    """Gateways, their servers, and the key of an admin."""

    kit: GatewayKit
    key: AccessKey
    servers: list[Server]
    ports: list[int]
    loop: asyncio.AbstractEventLoop
    clients: list[AsyncLogHubClient] = []

    @property
    def environment(self) -> Environment:
        return self.kit.environment

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self.ports]

    @property
    def gateway(self) -> Gateway:
        return self.kit.gateways[0]

    async def client(self) -> AsyncLogHubClient:
        """One more; it is closed with the hub."""
        made = await AsyncLogHubClient.connect(
            self.environment, self.addresses, access_key=self.key.id, access_secret=self.key.secret
        )
        self.clients.append(made)
        return made

    def call(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something on the hub's loop, from another thread."""
        asyncio.run_coroutine_threadsafe(work, self.loop).result()

    async def kill(self, place: int) -> None:
        """Cut all connections to a gateway; it takes no more."""
        await self.servers[place].close(drain_timeout_ms=0)

    async def revive(self, place: int) -> None:
        self.servers[place] = _server(self.kit.gateways[place], self.environment)
        await self.servers[place].listen(port=self.ports[place])


def _server(gateway: Gateway, environment: Environment) -> Server:
    service = Service()
    RpcService(gateway).register(service)

    def secret_of(identity: Identity) -> Secret | None:
        key = gateway.access.key(identity.node_id)
        return None if key is None else Secret(key.secret.encode())

    credentials = ServerCredentials(
        cluster_id=CLUSTER,
        identity=Identity(role=GATEWAY_ROLE, node_id="gateway"),
        secret_of=secret_of,
    )
    return Server(service, credentials, environment.random)


async def _heard_of(gateway: Gateway, key: str) -> None:
    """Gateways hear of new keys by a watch."""
    for _ in range(1000):
        if gateway.access.key(key) is not None:
            return
        await asyncio.sleep(0.001)
    raise AssertionError("the gateway never heard of the key")


@asynccontextmanager
async def hub(folder: Path, *, gateways: int = 1, shards: int = 2) -> AsyncIterator[Hub]:
    """Gateways with a logstore."""
    async with gateway_kit(folder) as kit:
        for _ in range(gateways):
            await kit.gateway()
        key = await kit.admin()
        made = Hub(kit, key, [], [], asyncio.get_running_loop())
        try:
            for gateway in kit.gateways:
                await _heard_of(gateway, key.id)
                server = _server(gateway, kit.environment)
                made.servers.append(server)
                made.ports.append(await server.listen())
            client = await made.client()
            await client.create_project(PROJECT)
            await client.create_logstore(PROJECT, LOGSTORE, shard_count=shards)
            yield made
        finally:
            for each in made.clients:
                await each.close()
            for server in made.servers:
                await server.close(drain_timeout_ms=0)
