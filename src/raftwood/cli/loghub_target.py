"""How a command reaches LogHub: the options, and the access key that it comes with."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any, Final

from cyclopts import Parameter

from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidConfiguration, InvalidInput, Unauthenticated
from raftwood.base.text import BYTES
from raftwood.cli.options import DEFAULTS, Source, quantity_of
from raftwood.cli.output import Format
from raftwood.disk.real_environment import real_environment
from raftwood.loghub.client.gateways import Gateways, HubAccess, addresses_of
from raftwood.loghub.client.hub_client import AsyncLogHubClient
from raftwood.loghub.model import check_stream_names
from raftwood.server.cluster import client_tls
from raftwood.server.event_loop import run
from raftwood.server.settings import Settings

Work = Callable[[AsyncLogHubClient], Coroutine[Any, Any, int]]
WorkIn = Callable[[Environment, AsyncLogHubClient], Coroutine[Any, Any, int]]
CONNECT_MS: Final = 5_000
CALL_MS: Final = 60_000
"""A logstore of many shards makes many logs."""
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
        return await _connected(environment, self._access(self.source.load().settings))

    def _access(self, settings: Settings) -> HubAccess:
        client = settings.loghub_client
        key = self.access_key or client.access_key
        for name, is_given in (("access_key", key), ("access_secret", client.access_secret)):
            if not is_given:
                raise InvalidConfiguration(
                    f"loghub_client.{name} is not set: `raftwood key create PROJECT=ROLE` makes a "
                    "key, and prints what to add to the file; or use a context that has one, see "
                    "`raftwood context list`"
                )
        return HubAccess(
            addresses=addresses_of(self.gateways or client.gateways),
            access_key=key,
            access_secret=client.access_secret.as_key(),
            tls=client_tls(settings),
        )


HUB = HubTarget()


async def _connected(environment: Environment, access: HubAccess) -> AsyncLogHubClient:
    gateways = Gateways(environment, access)
    try:
        await gateways.start(CONNECT_MS)
    except BaseException as error:
        await gateways.close()
        if isinstance(error, Unauthenticated):
            raise Unauthenticated(
                f"no gateway takes access key {access.access_key}: {error.message}. An operator "
                "sees with `raftwood key list` whether there is such a key"
            ) from error
        raise
    return AsyncLogHubClient(environment, gateways, timeout_ms=CALL_MS)


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
