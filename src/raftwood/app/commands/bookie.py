"""`raftwood bookie`: one bookie, until it is told to stop; and which ones there are."""

from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from raftwood.app.bookie_running import run_bookie
from raftwood.app.commands.source import DEFAULTS, Source
from raftwood.app.connecting import connected_metastore
from raftwood.app.event_loop import run
from raftwood.app.output import Format, write_rows
from raftwood.disk.real_environment import real_environment
from raftwood.dlog.bookie.membership import running_bookies

app = App(name="bookie", help_format="plaintext")

_Connect = Annotated[
    str | None,
    Parameter(
        help="Stores of the cluster with the metastore, HOST:PORT[,…]; else cluster.members."
    ),
]
_COLUMNS = {"id": "bookie", "rack": "rack", "is_read_only": "read-only"}


@app.command
def start(
    *,
    connect: _Connect = None,
    begin_anew: Annotated[
        bool,
        Parameter(
            negative="",
            help="Its old folder is gone, and its ledgers were copied elsewhere or are given up.",
        ),
    ] = False,
    ready_file: Annotated[
        str | None,
        Parameter(help="Written once it serves: its address and process number."),
    ] = None,
    source: Source = DEFAULTS,
) -> None:
    """Run one bookie until SIGTERM or SIGINT; then it answers what is under way, and ends.

    It keeps entries of ledgers in bookie.data_folder, and registers in the cluster's metastore
    under its address. A second signal ends it at once. SIGHUP makes it read its TLS files again.
    """
    run_bookie(source, connect, begins_anew=begin_anew, ready_file=ready_file)


@app.command(name="list")
def list_bookies(
    *,
    connect: _Connect = None,
    output: Annotated[Format, Parameter(name="--format", help="How to print it.")] = "text",
    source: Source = DEFAULTS,
) -> None:
    """List the bookies that run."""
    settings = source.load().settings

    async def main() -> None:
        async with connected_metastore(environment, settings, connect) as store:
            found = await running_bookies(store)
        write_rows([msgspec.structs.asdict(each) for each in found], _COLUMNS, output)

    with real_environment() as environment:
        run(main())
