"""Bookies inside another process, each with a folder and a disk thread of its own."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from msgspec.structs import replace

from raftwood.app.cluster_network import bookie_network, client_network
from raftwood.app.settings import Settings
from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidInput
from raftwood.base.metrics import Metrics
from raftwood.base.seams import MetaStore
from raftwood.disk.real_environment import real_environment
from raftwood.dlog.bookie.local_bookies import LocalBookies
from raftwood.dlog.bookie.membership import bookie_address
from raftwood.dlog.bookie.remote_bookies import RemoteBookies
from raftwood.dlog.bookie.server import BookieServer
from raftwood.dlog.ledgers.seams import Bookies

BOOKIES_MAX = 64


def remote_bookies(environment: Environment, settings: Settings, store: MetaStore) -> RemoteBookies:
    """Bookies that are registered in the metastore, wherever they run."""
    return RemoteBookies(
        environment,
        client_network(settings),
        settings.bookie_client,
        address_of=partial(bookie_address, store),
    )


@asynccontextmanager
async def embedded_bookies(
    environment: Environment,
    settings: Settings,
    store: MetaStore,
    folder: str,
    *,
    count: int,
    addresses: Sequence[str] = (),
    metrics: Metrics | None = None,
) -> AsyncIterator[Bookies]:
    """So many bookies below a folder, registered in the metastore, and the way to talk to them.

    With `addresses`, one for each, other processes reach them as well, and this one reaches those
    of others; they may be others the next time, for the bookies are known by names.
    """
    if not 1 <= count <= BOOKIES_MAX or len(addresses) not in (0, count):
        raise InvalidInput(
            f"{count} bookies at {len(addresses)} addresses: give 1 to {BOOKIES_MAX} bookies, and "
            "an address for each or none"
        )
    async with AsyncExitStack() as stack:
        servers: list[BookieServer] = []
        for number in range(count):
            address = addresses[number] if addresses else ""
            # Syncs of one environment wait for one another, those of several don't.
            own = stack.enter_context(real_environment())
            server = await BookieServer.start(
                own,
                replace(settings.bookie, data_folder=f"{folder}/bookie-{number + 1}"),
                store,
                cluster=settings.cluster.name,
                network=bookie_network(settings, address) if address else None,
                metrics=metrics,
                log_settings=settings.log,
                id_=f"embedded-{number + 1}",
            )
            stack.push_async_callback(server.close)
            servers.append(server)
        others = None
        if addresses:
            others = remote_bookies(environment, settings, store)
        bookies = LocalBookies({each.bookie.id: each.bookie for each in servers}, others)
        stack.push_async_callback(bookies.close)
        yield bookies
