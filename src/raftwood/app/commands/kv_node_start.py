"""`raftwood kv node start`: one node of Zeppelin, until it is told to stop."""

from typing import Annotated

from cyclopts import App, Parameter

from raftwood.app.commands.source import DEFAULTS, Source
from raftwood.app.kv_node_running import run_kv_node

app = App(name="start", help_format="plaintext")


@app.default
def start(
    *,
    connect: Annotated[
        str | None,
        Parameter(help="Stores of the log service, HOST:PORT[,…]; else cluster.members."),
    ] = None,
    ready_file: Annotated[
        str | None,
        Parameter(
            help="Written once it serves: its addresses (data, replication, admin), its id, and "
            "its process number."
        ),
    ] = None,
    source: Source = DEFAULTS,
) -> None:
    """Run one node until SIGTERM or SIGINT.

    It keeps partitions in zeppelin_node.data_folder, by which it is known for ever, and registers
    with the cluster's meta server. A second signal ends it at once. SIGHUP makes it read its TLS
    files again.
    """
    run_kv_node(source, connect, ready_file=ready_file)
