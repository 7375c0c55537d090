"""`raftwood kv node start`: one node of Zeppelin, until it is told to stop."""

from functools import partial
from typing import Annotated

from cyclopts import App, Parameter

from raftwood.cli.options import SERVER_DEFAULTS, ServerSource
from raftwood.cli.process import ServerContext, StartedServer, run_server
from raftwood.server.cluster import kv_node_network, reload_certificates
from raftwood.server.cluster_client import awaited_zeppelin
from raftwood.zeppelin.node.server import NodeServer


def run_kv_node(source: ServerSource, connect: str | None, *, ready_file: str | None) -> None:
    """Run one node until SIGTERM or SIGINT; `ready_file` is written once it serves."""
    settings = source.load().settings

    async def start(place: ServerContext) -> StartedServer:
        meta = await awaited_zeppelin(place.stack, place.environment, settings, connect)
        network = kv_node_network(settings)
        server = await NodeServer.start(
            place.environment,
            settings.zeppelin_node,
            meta,
            network=network,
            meta_settings=settings.zeppelin_meta,
            store_settings=settings.zeppelin_store,
            log_settings=settings.log,
            metrics=place.metrics,
        )
        name, addresses = settings.cluster.name, server.addresses
        return StartedServer(
            server=server,
            line=f"kv node {server.id} of cluster {name} serves on {server.address}",
            addresses=(addresses.data, addresses.replication, addresses.admin, server.id),
            reload_certificates=partial(reload_certificates, network.certificates),
        )

    run_server("kv-node", source, settings, start, ready_file=ready_file)


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
    source: ServerSource = SERVER_DEFAULTS,
) -> None:
    """Run one node until SIGTERM or SIGINT.

    It keeps partitions in zeppelin_node.data_folder, by which it is known for ever, and registers
    with the cluster's meta server. A second signal ends it at once. SIGHUP makes it read its TLS
    files again.
    """
    run_kv_node(source, connect, ready_file=ready_file)
