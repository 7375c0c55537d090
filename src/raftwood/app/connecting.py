"""From the addresses that a user names to connections with a running cluster."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from raftwood.app.cluster_network import client_network, operator_network
from raftwood.app.groups import METASTORE_GROUP
from raftwood.app.settings import Settings
from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidInput
from raftwood.net.discovery import discover
from raftwood.net.stores import ClientNetwork, Stores
from raftwood.raft.remote.admin import ask_members
from raftwood.raft.remote.client import AsyncRaftClient


@asynccontextmanager
async def connected_client(
    environment: Environment, settings: Settings, addresses: str | None
) -> AsyncIterator[AsyncRaftClient]:
    """A client of the cluster's groups."""
    network = client_network(settings)
    found = await find_stores(environment, settings, addresses, network)
    async with AsyncRaftClient(environment, network, found) as client:
        yield client


@asynccontextmanager
async def connected_stores(
    environment: Environment, settings: Settings, addresses: str | None
) -> AsyncIterator[Stores]:
    """Connections to the cluster's stores, for operators."""
    network = operator_network(settings)
    found = await find_stores(environment, settings, addresses, network)
    stores = Stores(environment, network, found)
    try:
        yield stores
    finally:
        await stores.close()


async def find_stores(
    environment: Environment,
    settings: Settings,
    addresses: str | None,
    network: ClientNetwork,
) -> dict[int, str]:
    """The cluster's stores by number; `addresses` as HOST:PORT[,HOST:PORT]."""
    given = [each.strip() for each in (addresses or "").split(",") if each.strip()]
    given = given or list(settings.cluster.addresses().values())
    if not given:
        raise InvalidInput("name some stores: --connect HOST:PORT, or cluster.members in the file")
    return await discover(environment, network, given, partial(ask_members, METASTORE_GROUP))
