"""How a command reaches LogHub: the options, and the access key that it comes with."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidInput
from raftwood.base.text import BYTES
from raftwood.cli.options import DEFAULTS, Source, quantity_of
from raftwood.cli.output import Format
from raftwood.disk.real_environment import real_environment
from raftwood.loghub.client.hub_client import AsyncLogHubClient
from raftwood.loghub.model import check_stream_names
from raftwood.server.clients import hub_access, loghub_client
from raftwood.server.event_loop import run

Work = Callable[[AsyncLogHubClient], Coroutine[Any, Any, int]]
WorkIn = Callable[[Environment, AsyncLogHubClient], Coroutine[Any, Any, int]]
Stream = Annotated[str, Parameter(help="PROJECT/LOGSTORE.")]


@Parameter(name="*")
@dataclass(frozen=True)
class HubTarget:
    """Which gateways, as whom, and how to print what came of it."""

    gateways: Annotated[
        str | None,
        Parameter(help="Some gateways, HOST:PORT[,HOST:PORT]; else loghub_client.gateways."),
    ] = None
    access_key: Annotated[
        str | None,
        Parameter(
            help="The id of an access key; else loghub_client.access_key. The secret is "
            "loghub_client.access_secret, in the file or as RAFTWOOD_LOGHUB_CLIENT__ACCESS_SECRET."
        ),
    ] = None
    output: Annotated[Format, Parameter(name="--format", help="How to print it.")] = "text"
    source: Source = DEFAULTS

    def run(self, work: Work) -> int:
        """Do something as a client of LogHub; answers the exit status."""
        return self.run_in(lambda _, client: work(client))

    def run_in(self, work: WorkIn) -> int:
        """As `run`, for what needs the clocks and the randomness too."""

        async def main() -> int:
            async with await self.connect(environment) as client:
                return await work(environment, client)

        with real_environment() as environment:
            return run(main())

    async def connect(self, environment: Environment) -> AsyncLogHubClient:
        """A client; its caller closes it."""
        settings = self.source.load().settings
        access = hub_access(settings, gateways=self.gateways, access_key=self.access_key)
        return await loghub_client(environment, access)


HUB = HubTarget()


def stream_of(text: str) -> tuple[str, str]:
    """The project and the logstore of PROJECT/LOGSTORE."""
    project, slash, logstore = text.partition("/")
    if not (project and slash and logstore):
        raise InvalidInput(f"{text[:140]!r} names no logstore: write PROJECT/LOGSTORE")
    check_stream_names(project, logstore)
    return project, logstore


def size_of(option: str, text: str | None) -> int | None:
    """A number of bytes, with a unit or without."""
    return None if text is None else quantity_of(option, text, BYTES)
