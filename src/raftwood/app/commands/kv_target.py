"""How a command reaches Zeppelin's meta server."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any, Final

from cyclopts import Parameter

from raftwood.app.commands.log_target import Target
from raftwood.app.commands.source import DEFAULTS, Source
from raftwood.app.connecting import connected_zeppelin
from raftwood.app.event_loop import run
from raftwood.app.output import Format
from raftwood.app.settings import Settings
from raftwood.base.environment import Environment
from raftwood.base.errors import Conflict
from raftwood.disk.real_environment import real_environment
from raftwood.logservice.client.keeper_client import KeeperClient
from raftwood.zeppelin.meta.client import MetaClient

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

        Target(connect=self.connect, source=self.source).with_keeper(work)


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
