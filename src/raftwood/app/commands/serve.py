"""`raftwood serve`: one store of a cluster with a metastore, until it is told to stop."""

from typing import Annotated

from cyclopts import App, Parameter

from raftwood.app.commands.source import DEFAULTS, Source
from raftwood.app.metastore_tenant import MetastoreTenant
from raftwood.app.store_running import run_store

app = App(name="serve", help_format="plaintext")


@app.default
def main(
    *,
    join: Annotated[
        bool,
        Parameter(negative="", help="This store is no first member: others add it to the cluster."),
    ] = False,
    source: Source = DEFAULTS,
) -> None:
    """Run one store until SIGTERM or SIGINT; then it hands over what it leads, and ends.

    A second signal ends it at once. SIGHUP makes it read its TLS files again.
    """
    run_store(source, source.load().settings, MetastoreTenant, joins=join)
