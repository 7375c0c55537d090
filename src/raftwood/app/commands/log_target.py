"""How a command reaches the log service: the options, the role that it takes, and its shards."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from raftwood.app.cluster_network import client_network, operator_network, reader_network
from raftwood.app.commands.source import DEFAULTS, Source
from raftwood.app.connecting import given_addresses
from raftwood.app.event_loop import run
from raftwood.app.output import Format
from raftwood.app.settings import Settings
from raftwood.base.environment import Environment
from raftwood.disk.real_environment import real_environment
from raftwood.logservice.client.keeper_client import KeeperClient
from raftwood.logservice.client.log_client import AsyncLogClient
from raftwood.logservice.client.shard_link import ask_store_addresses
from raftwood.logservice.hakeeper.views import ShardView
from raftwood.net.discovery import discover
from raftwood.net.stores import ClientNetwork, Stores


@Parameter(name="*")
@dataclass(frozen=True)
class Target:
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
        addresses = given_addresses(settings, self.connect)

        async def main() -> int:
            network = role(settings)
            found = await discover(environment, network, addresses, ask_store_addresses)
            stores = Stores(environment, network, found)
            try:
                return await work(environment, stores, settings)
            finally:
                await stores.close()

        with real_environment() as environment:
            return run(main())


TARGET = Target()
_POLL_S = 0.2

ReadOnly = Annotated[
    bool,
    Parameter(name="--read-only", negative="", help="As one who may only read: secrets.readers."),
]


def shard_of(text: str) -> int | str:
    """A shard's number, or else its name."""
    return int(text) if text.isascii() and text.isdecimal() else text


async def wait_for_leader(keeper: KeeperClient, shard: int, wait_s: float) -> ShardView:
    """The shard as it is once it has a leader, or when the time is over."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    view = await keeper.find_shard(shard)
    while not view.leader and loop.time() < deadline:
        await asyncio.sleep(_POLL_S)
        view = await keeper.find_shard(shard)
    return view
