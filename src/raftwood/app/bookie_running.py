"""A bookie as a process, until it is told to stop."""

from functools import partial

from raftwood.app.bookies import auditing, remote_bookies
from raftwood.app.cluster_network import bookie_network, reload_certificates
from raftwood.app.commands.source import Source
from raftwood.app.connecting import awaited_metastore
from raftwood.app.serving import Place, Started, run_server
from raftwood.base.errors import InvalidConfiguration
from raftwood.dlog.bookie.server import BookieServer


def run_bookie(
    source: Source, connect: str | None, *, begins_anew: bool, ready_file: str | None
) -> None:
    """Run one bookie until SIGTERM or SIGINT; `ready_file` is written once it serves."""
    settings = source.load().settings
    if settings.bookie.id.endswith(":0"):
        raise InvalidConfiguration(
            f"bookie.listen is {settings.bookie.listen}: a bookie is known by its address for "
            "ever, so give it a port"
        )

    async def start(place: Place) -> Started:
        store = await awaited_metastore(place.stack, place.environment, settings, connect)
        network = bookie_network(settings, settings.bookie.listen)
        server = await BookieServer.start(
            place.environment,
            settings.bookie,
            store,
            cluster=settings.cluster.name,
            network=network,
            metrics=place.metrics,
            log_settings=settings.log,
            begins_anew=begins_anew,
        )
        name, address = settings.cluster.name, server.bookie.id
        await place.stack.enter_async_context(
            auditing(
                place.environment,
                settings,
                store,
                remote_bookies(place.environment, settings, store),
                name=address,
                metrics=place.metrics,
            )
        )
        return Started(
            server=server,
            line=f"bookie {address} of cluster {name} serves on {settings.bookie.listen}",
            addresses=(address,),
            reload_certificates=partial(
                reload_certificates, [] if network.tls is None else [network.tls]
            ),
        )

    run_server("bookie", source, settings, start, ready_file=ready_file)
