"""How a command reaches LogHub: the options, and the access key that it comes with."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from raftwood.app.cluster_network import client_tls
from raftwood.app.commands.source import DEFAULTS, Source
from raftwood.app.event_loop import run
from raftwood.app.gateway_link import GatewayLink
from raftwood.app.output import Format
from raftwood.app.settings import Settings
from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidConfiguration, InvalidInput
from raftwood.base.quantities import BYTES, parse_quantity
from raftwood.disk.real_environment import real_environment
from raftwood.loghub.model import check_stream_names

Work = Callable[[GatewayLink], Coroutine[Any, Any, int]]
Stream = Annotated[str, Parameter(help="PROJECT/LOGSTORE.")]


@Parameter(name="*")
@dataclass(frozen=True)
class Gateways:
    """Which gateways, and as whom."""

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
    source: Source = DEFAULTS

    def link(self, environment: Environment, settings: Settings) -> GatewayLink:
        """To be connected by its user."""
        client = settings.loghub_client
        key = self.access_key or client.access_key
        for name, is_given in (("access_key", key), ("access_secret", client.access_secret)):
            if not is_given:
                raise InvalidConfiguration(
                    f"loghub_client.{name} is not set: `raftwood key create PROJECT=ROLE` makes a "
                    f"key, and prints what to add to the file"
                )
        given = [each.strip() for each in (self.gateways or "").split(",") if each.strip()]
        return GatewayLink(
            environment,
            given or client.gateways,
            key=key,
            secret=client.access_secret.reveal(),
            tls=client_tls(settings),
        )

    def run(self, work: Work) -> int:
        """Do something with a connection to a gateway; answers the exit status."""
        settings = self.source.load().settings

        async def main() -> int:
            async with self.link(environment, settings) as link:
                return await work(link)

        with real_environment() as environment:
            return run(main())


GATEWAYS = Gateways()


@Parameter(name="*")
@dataclass(frozen=True)
class HubTarget:
    """Which gateways, and how to print what came of it."""

    output: Annotated[Format, Parameter(name="--format", help="How to print it.")] = "text"
    gateways: Gateways = GATEWAYS

    def run(self, work: Work) -> int:
        """As `Gateways.run`."""
        return self.gateways.run(work)


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
    if text is None:
        return None
    try:
        return parse_quantity(text, BYTES)
    except ValueError as error:
        raise InvalidInput(f"{option} {text[:60]!r}: {error}") from error
