"""How a command reaches Zeppelin's meta server."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from raftwood.app.commands.source import DEFAULTS, Source
from raftwood.app.connecting import connected_zeppelin
from raftwood.app.event_loop import run
from raftwood.app.output import Format
from raftwood.base.environment import Environment
from raftwood.disk.real_environment import real_environment
from raftwood.zeppelin.meta.client import MetaClient


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
