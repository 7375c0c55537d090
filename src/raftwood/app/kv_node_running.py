"""A node of Zeppelin as a process, until it is told to stop."""

from functools import partial

from raftwood.app.cluster_network import kv_node_network, reload_certificates
from raftwood.app.commands.source import Source
from raftwood.app.connecting import awaited_zeppelin
from raftwood.app.serving import Place, Started, run_server
from raftwood.zeppelin.node.node_server import NodeServer


def run_kv_node(source: Source, connect: str | None, *, ready_file: str | None) -> None:
    """Run one node until SIGTERM or SIGINT; `ready_file` is written once it serves."""
    settings = source.load().settings

    async def start(place: Place) -> Started:
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
        return Started(
            server=server,
            line=f"kv node {server.id} of cluster {name} serves on {server.address}",
            addresses=(addresses.data, addresses.replication, addresses.admin, server.id),
            reload_certificates=partial(reload_certificates, network.certificates),
        )

    run_server("kv-node", source, settings, start, ready_file=ready_file)
