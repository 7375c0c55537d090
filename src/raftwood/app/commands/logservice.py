"""`raftwood logservice`: one store of the log service, until it is told to stop."""

from typing import Annotated

from cyclopts import App, Parameter

from raftwood.app.commands.source import DEFAULTS, Source
from raftwood.app.log_tenant import log_settings, log_tenant
from raftwood.app.store_running import run_store

app = App(name="logservice", help_format="plaintext")


@app.command
def start(
    *,
    join: Annotated[
        bool,
        Parameter(negative="", help="This store is no first member: it joins a running cluster."),
    ] = False,
    ready_file: Annotated[
        str | None,
        Parameter(help="Written once the store serves: its address and process number."),
    ] = None,
    source: Source = DEFAULTS,
) -> None:
    """Run one store until SIGTERM or SIGINT; then it hands over what it leads, and ends.

    The stores that cluster.members names set the cluster up together, in any order of their starts.
    A second signal ends it at once. SIGHUP makes it read its TLS files again.
    """
    settings = log_settings(source.load().settings)
    run_store(source, settings, log_tenant, joins=join, ready_file=ready_file)
