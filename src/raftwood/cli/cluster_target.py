"""How a command reaches a cluster's log service, Zeppelin's meta server, or a metastore."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Final

from cyclopts import Parameter

from raftwood.base.environment import Environment
from raftwood.base.errors import Conflict, InvalidInput, Unavailable
from raftwood.base.seams import MetaStore
from raftwood.cli.options import DEFAULTS, Source
from raftwood.cli.output import Format
from raftwood.disk.real_environment import real_environment
from raftwood.logservice.client.keeper_client import KeeperClient
from raftwood.logservice.client.log_client import AsyncLogClient
from raftwood.logservice.hakeeper.commands import KeeperShardView
from raftwood.metastore.file_store import FileMetaStore
from raftwood.net.stores import ClientNetwork, Stores
from raftwood.server.clients import connected_log_stores
from raftwood.server.cluster import client_network, operator_network, reader_network
from raftwood.server.cluster_client import connected_metastore, connected_zeppelin
from raftwood.server.event_loop import run
from raftwood.server.settings import Settings
from raftwood.zeppelin.meta.client import MetaClient


@Parameter(name="*")
@dataclass(frozen=True)
class LogTarget:
    """Which cluster, and how to print what came of it."""

    connect: Annotated[
        str | None,
        Parameter(help="Some stores, HOST:PORT[,HOST:PORT]; else cluster.members of the settings."),
    ] = None
    output: Annotated[Format, Parameter(name="--format", help="How to print it.")] = "text"
    source: Source = DEFAULTS

    def with_keeper(
        self,
        work: Callable[[KeeperClient, Settings], Coroutine[Any, Any, int]],
        *,
        role: Callable[[Settings], ClientNetwork] = operator_network,
    ) -> int:
        """Do something with HAKeeper; answers the exit status."""

        async def with_these(_: Environment, stores: Stores, settings: Settings) -> int:
            keeper = KeeperClient(stores)
            try:
                return await work(keeper, settings)
            finally:
                await keeper.close()

        return self.with_stores(with_these, role=role)

    def with_log(
        self,
        shard: str,
        work: Callable[[AsyncLogClient, Environment], Coroutine[Any, Any, int]],
        *,
        writes: bool = False,
        as_reader: bool = False,
    ) -> int:
        """Do something with one shard; answers the exit status.

        What only reads works also where the shard takes no writes.
        """

        async def with_these(environment: Environment, stores: Stores, _: Settings) -> int:
            async with await AsyncLogClient.attach(
                environment, stores, shard=shard_of(shard), is_read_only=not writes
            ) as client:
                return await work(client, environment)

        return self.with_stores(with_these, role=reader_network if as_reader else client_network)

    def with_stores(
        self,
        work: Callable[[Environment, Stores, Settings], Coroutine[Any, Any, int]],
        *,
        role: Callable[[Settings], ClientNetwork] = operator_network,
    ) -> int:
        """Do something with connections to the stores; answers the exit status."""
        settings = self.source.load().settings

        async def main() -> int:
            async with connected_log_stores(
                environment, settings, self.connect, role(settings)
            ) as stores:
                return await work(environment, stores, settings)

        with real_environment() as environment:
            return run(main())


LOG_TARGET = LogTarget()
_POLL_S = 0.2

ReadOnly = Annotated[
    bool,
    Parameter(name="--read-only", negative="", help="As one who may only read: secrets.readers."),
]


def shard_of(text: str) -> int | str:
    """A shard's number, or else its name."""
    return int(text) if text.isascii() and text.isdecimal() else text


async def wait_for_leader(keeper: KeeperClient, shard: int, wait_s: float) -> KeeperShardView:
    """The shard as it is once it has a leader, or when the time is over."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    view = await keeper.find_shard(shard)
    while not view.leader and loop.time() < deadline:
        await asyncio.sleep(_POLL_S)
        view = await keeper.find_shard(shard)
    return view


_WITHOUT_READS: Final = ("0.1.0",)
"""Releases whose stores refuse `SetReads`, which all replicas of the meta server have to make."""


@Parameter(name="*")
@dataclass(frozen=True)
class KvCluster:
    """The stores whose guest the meta server is."""

    connect: Annotated[
        str | None,
        Parameter(
            help="Stores of the log service, HOST:PORT[,HOST:PORT]; else cluster.members of the "
            "settings."
        ),
    ] = None
    source: Source = DEFAULTS

    def run(self, work: Callable[[MetaClient, Environment], Coroutine[Any, Any, int]]) -> int:
        """Do something with the meta server; answers the exit status."""
        settings = self.source.load().settings

        async def main() -> int:
            async with connected_zeppelin(environment, settings, self.connect) as meta:
                return await work(meta, environment)

        with real_environment() as environment:
            return run(main())

    def check_stores_know_reads(self) -> None:
        """Refused while a store is of a release that does not know what reads may be told."""

        async def work(keeper: KeeperClient, _: Settings) -> int:
            for store in (await keeper.describe()).stores:
                if store.version in _WITHOUT_READS:
                    raise Conflict(
                        f"store {store.store} runs release {store.version}, which does not know "
                        "what a table's reads may be: upgrade it first"
                    )
            return 0

        LogTarget(connect=self.connect, source=self.source).with_keeper(work)


KV_CLUSTER = KvCluster()


@Parameter(name="*")
@dataclass(frozen=True)
class KvTarget:
    """Which cluster, and how to print what came of it."""

    cluster: KvCluster = KV_CLUSTER
    output: Annotated[Format, Parameter(name="--format", help="How to print it.")] = "text"

    def run(self, work: Callable[[MetaClient, Environment], Coroutine[Any, Any, int]]) -> int:
        return self.cluster.run(work)


KV = KvTarget()


@Parameter(name="*")
@dataclass(frozen=True)
class MetastoreTarget:
    """The options; each is another kind of metastore."""

    file: Annotated[str | None, Parameter(help="The folder of a metastore.")] = None
    connect: Annotated[
        str | None,
        Parameter(
            help="The metastore of a cluster, by some of its stores: HOST:PORT[,HOST:PORT]; "
            "without any of these options, by cluster.members."
        ),
    ] = None
    zookeeper: Annotated[
        str | None,
        Parameter(help="A metastore in ZooKeeper: HOST:PORT[,HOST:PORT][/chroot]."),
    ] = None
    source: Source = DEFAULTS


METASTORE_TARGET = MetastoreTarget()


@asynccontextmanager
async def opened(environment: Environment, where: MetastoreTarget) -> AsyncIterator[MetaStore]:
    """The metastore that was named, until the end of the block."""
    if where.file is None and where.zookeeper is None:
        settings = where.source.load().settings
        if where.connect is not None or settings.cluster.members:
            async with connected_metastore(environment, settings, where.connect) as found:
                yield found
            return
    store = await _open(environment, where)
    try:
        yield store
    finally:
        await store.close()


async def _open(environment: Environment, where: MetastoreTarget) -> MetaStore:
    match where:
        case MetastoreTarget(file=str(folder), connect=None, zookeeper=None):
            return await FileMetaStore.open(environment, folder)
        case MetastoreTarget(file=None, connect=None, zookeeper=str(address)):
            return await _open_zookeeper(environment, address)
    raise InvalidInput(
        "name one metastore: --file FOLDER, --connect HOST:PORT or --zookeeper HOST:PORT/CHROOT; "
        "or set cluster.members"
    )


async def _open_zookeeper(environment: Environment, address: str) -> MetaStore:
    try:
        from raftwood.metastore.zookeeper_store import ZooKeeperMetaStore  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "kazoo":
            raise
        raise Unavailable(
            "--zookeeper needs kazoo: install it with pip install 'raftwood[zookeeper]'"
        ) from None
    return await ZooKeeperMetaStore.open(environment, address)
