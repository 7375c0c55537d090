"""`raftwood gateway`: one gateway of LogHub, until it is told to stop."""

from typing import Annotated

from cyclopts import App, Parameter

from raftwood.app.commands.source import DEFAULTS, Source
from raftwood.app.output import write_line

app = App(name="gateway", help_format="plaintext")


@app.command
def start(
    *,
    connect: Annotated[
        str | None,
        Parameter(help="Stores of the log service, HOST:PORT[,…]; else cluster.members."),
    ] = None,
    ready_file: Annotated[
        str | None,
        Parameter(
            help="Written once it serves: its addresses (native, HTTP) and its process number."
        ),
    ] = None,
    source: Source = DEFAULTS,
) -> None:
    """Run one gateway until SIGTERM or SIGINT; any number of them may run, none is special.

    It keeps nothing: streams are logs of the log service, all else is in its metastore.
    """
    from raftwood.app.gateway_running import run_gateway  # noqa: PLC0415 (loads the server)

    run_gateway(source, connect, ready_file=ready_file)


@app.command
def openapi() -> None:
    """Print the OpenAPI description of what a gateway serves to SLS clients over HTTP."""
    from raftwood.loghub.server.sls.openapi import openapi_json  # noqa: PLC0415

    write_line(openapi_json().decode())
