"""Connections to a running cluster, from the addresses that a user names."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final, TypeVar

from raftwood.base.environment import Environment
from raftwood.base.errors import (
    DeadlineExceeded,
    InvalidInput,
    NotFound,
    RaftwoodError,
    Unavailable,
)
from raftwood.base.logs import get_logger
from raftwood.base.seams import Logs, MetaStore
from raftwood.logservice.client.keeper_client import KeeperClient
from raftwood.logservice.client.shard_link import ask_store_addresses
from raftwood.logservice.client.shard_logs import ShardLogs
from raftwood.logservice.errors import LogShardNotFound
from raftwood.logservice.wire import LOCATE
from raftwood.metastore.raft_store import RaftMetaStore
from raftwood.net import Connection
from raftwood.net.stores import ClientNetwork, Stores, discover
from raftwood.raft.admin import ask_members
from raftwood.raft.client import AsyncRaftClient
from raftwood.server.cluster import (
    METASTORE_GROUP,
    METASTORE_SHARD,
    ZEPPELIN_SHARD,
    client_network,
    operator_network,
)
from raftwood.server.settings import Settings
from raftwood.zeppelin.meta.client import MetaClient

_AGAIN_S: Final = 0.5
_Connected = TypeVar("_Connected")
_log = get_logger("connecting")


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
async def connected_metastore(
    environment: Environment, settings: Settings, addresses: str | None
) -> AsyncIterator[MetaStore]:
    """The metastore of a cluster, of log stores or of `raftwood serve`, whichever answers."""
    network = client_network(settings)
    asked = _AskedStores(METASTORE_SHARD)
    given = given_addresses(settings, addresses)
    found = await discover(environment, network, given, asked.ask)
    async with AsyncRaftClient(environment, network, found) as client:
        store = RaftMetaStore(client, METASTORE_SHARD if asked.serve_logs else METASTORE_GROUP)
        try:
            yield store
        finally:
            await store.close()


class _AskedStores:
    """What stores say when they are asked who they are, and where a guest of theirs is."""

    def __init__(self, guest: int) -> None:
        self._guest = guest
        self.serve_logs = True

    def check(self) -> None:
        if not self.serve_logs:
            raise InvalidInput("these stores run no log service: name those of a log service")

    async def ask(self, connection: Connection, timeout_ms: int) -> dict[int, str]:
        try:
            stores = await ask_store_addresses(connection, timeout_ms)
        except LogShardNotFound:
            return {}
        except NotFound:  # it is no log store
            self.serve_logs = False
            return await ask_members(METASTORE_GROUP, connection, timeout_ms)
        return stores | await _addresses_of(self._guest, connection, timeout_ms)


async def _addresses_of(guest: int, connection: Connection, timeout_ms: int) -> dict[int, str]:
    try:
        return (await connection.ask(LOCATE, guest, timeout_ms)).addresses
    except RaftwoodError:
        return {}  # it has not begun yet: some store will know


@asynccontextmanager
async def connected_zeppelin(
    environment: Environment, settings: Settings, addresses: str | None
) -> AsyncIterator[MetaClient]:
    """The meta server of Zeppelin, on a cluster of log stores."""
    network = client_network(settings)
    asked = _AskedStores(ZEPPELIN_SHARD)
    given = given_addresses(settings, addresses)
    found = await discover(environment, network, given, asked.ask)
    asked.check()
    async with AsyncRaftClient(environment, network, found) as client:
        yield MetaClient(client, ZEPPELIN_SHARD)


@asynccontextmanager
async def connected_keeper(
    environment: Environment, settings: Settings, addresses: str | None
) -> AsyncIterator[KeeperClient]:
    """HAKeeper, on a cluster of log stores, for an operator."""
    network = operator_network(settings)
    given = given_addresses(settings, addresses)
    asked = _AskedStores(METASTORE_SHARD)
    found = await discover(environment, network, given, asked.ask)
    asked.check()
    stores = Stores(environment, network, found)
    keeper = KeeperClient(stores)
    try:
        yield keeper
    finally:
        await keeper.close()
        await stores.close()


@asynccontextmanager
async def connected_cluster(
    environment: Environment, settings: Settings, addresses: str | None
) -> AsyncIterator[tuple[MetaStore, Logs]]:
    """The metastore and the logs of a running cluster of log stores, for one who may make logs."""
    network = operator_network(settings)
    given = given_addresses(settings, addresses)
    asked = _AskedStores(METASTORE_SHARD)
    found = await discover(environment, network, given, asked.ask)
    asked.check()
    stores = Stores(environment, network, found)
    logs = ShardLogs(environment, stores, replicas=settings.loghub.log_replicas)
    try:
        async with AsyncRaftClient(environment, network, found) as client:
            store = RaftMetaStore(client, METASTORE_SHARD)
            try:
                yield store, logs
            finally:
                await store.close()
    finally:
        await logs.close()
        await stores.close()


async def awaited_cluster(
    stack: AsyncExitStack, environment: Environment, settings: Settings, addresses: str | None
) -> tuple[MetaStore, Logs]:
    """As `connected_cluster`, once the stores and their metastore answer: they may be started
    later than whoever needs them. The connections end with the stack.
    """
    return await _awaited(
        stack,
        lambda: connected_cluster(environment, settings, addresses),
        lambda both: both[0].status(),
    )


async def awaited_metastore(
    stack: AsyncExitStack, environment: Environment, settings: Settings, addresses: str | None
) -> MetaStore:
    """As `connected_metastore`, once it answers."""
    return await _awaited(
        stack,
        lambda: connected_metastore(environment, settings, addresses),
        lambda store: store.status(),
    )


async def awaited_zeppelin(
    stack: AsyncExitStack, environment: Environment, settings: Settings, addresses: str | None
) -> MetaClient:
    """As `connected_zeppelin`, once it answers."""
    return await _awaited(
        stack,
        lambda: connected_zeppelin(environment, settings, addresses),
        lambda meta: meta.topology(),
    )


async def _awaited(
    stack: AsyncExitStack,
    connected: Callable[[], AbstractAsyncContextManager[_Connected]],
    ask: Callable[[_Connected], Awaitable[object]],
) -> _Connected:
    said = ""
    while True:
        try:
            async with AsyncExitStack() as attempt:
                found = await attempt.enter_async_context(connected())
                await ask(found)
                stack.push_async_exit(attempt.pop_all())
                return found
        except (Unavailable, DeadlineExceeded) as error:
            if error.message != said:
                said = error.message
                _log.warning("waiting for the log stores", reason=said)
        await asyncio.sleep(_AGAIN_S)


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
    given = given_addresses(settings, addresses)
    return await discover(environment, network, given, partial(ask_members, METASTORE_GROUP))


def given_addresses(settings: Settings, addresses: str | None) -> list[str]:
    """Of some stores: as HOST:PORT[,HOST:PORT], else those that the settings name."""
    given = [each.strip() for each in (addresses or "").split(",") if each.strip()]
    given = given or list(settings.cluster.addresses().values())
    if not given:
        raise InvalidInput(
            "name some stores: --connect HOST:PORT, or cluster.members in the file or the context"
        )
    return given
