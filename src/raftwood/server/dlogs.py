"""From the settings to ledgers, the logs made of them, and these as gateways share them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidConfiguration
from raftwood.base.file_systems import file_system_of
from raftwood.base.seams import MetaStore
from raftwood.dlog.bookie.metadata_store import MetaLedgers
from raftwood.dlog.ledgers.client import LedgerClient
from raftwood.dlog.ledgers.seams import Bookies, LedgerStore
from raftwood.dlog.log.dlogs import Dlogs
from raftwood.dlog.log.offload import ArrowOffloadStore
from raftwood.dlog.peers import PeerNetwork
from raftwood.dlog.settings import SharedDlogSettings
from raftwood.dlog.shared_logs import SharedLogs
from raftwood.loghub.wire import CLUSTER, GATEWAY_ROLE
from raftwood.net.tls import ClientTls
from raftwood.server.bookies import remote_bookies
from raftwood.server.cluster import client_tls, operators_secret
from raftwood.server.settings import Settings


@asynccontextmanager
async def opened_ledgers(
    environment: Environment,
    settings: Settings,
    store: MetaStore,
    bookies: Bookies | None = None,
) -> AsyncIterator[LedgerStore]:
    """As `dlog.store` says; on bookies of our own, by these where some run in this process."""
    if settings.dlog.store == "bookkeeper":
        ledgers = await bookkeeper_ledgers(environment, settings.dlog)
    elif settings.dlog.store == "bookies":
        if bookies is None:
            bookies = remote_bookies(environment, settings, store)
        ledgers = LedgerClient(bookies, MetaLedgers(store, environment.random), environment)
    else:
        raise InvalidConfiguration(
            "dlog.store is not set: bookies for those of this cluster, bookkeeper for Apache "
            "BookKeeper"
        )
    try:
        yield ledgers
    finally:
        await ledgers.close()


async def bookkeeper_ledgers(
    environment: Environment, settings: SharedDlogSettings
) -> LedgerClient:
    """Ledgers of Apache BookKeeper, by its ZooKeeper: HOST:PORT[,HOST:PORT][/chroot]."""
    if not settings.bookkeeper:
        raise InvalidConfiguration(
            "dlog.bookkeeper is not set: give BookKeeper's ZooKeeper, HOST:PORT/ledgers"
        )
    try:
        from raftwood.dlog.bookkeeper.bookies import connect_bookkeeper  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(
            f"BookKeeper needs {error.name}: install it with pip install 'raftwood[bookkeeper]'"
        ) from error
    files = settings.bookkeeper_files()
    tls = None if files is None else ClientTls(files)
    return await connect_bookkeeper(
        settings.bookkeeper, environment, racks=settings.racks(), tls=tls
    )


def dlogs_of(
    environment: Environment, settings: Settings, store: MetaStore, ledgers: LedgerStore
) -> Dlogs:
    """Logs of these ledgers, with those that were offloaded where the settings say so."""
    folder = settings.dlog.offload
    offload = ArrowOffloadStore(*file_system_of(folder)) if folder else None
    return Dlogs(environment, store, ledgers, settings.dlog_client, offload=offload)


@asynccontextmanager
async def opened_dlogs(
    environment: Environment,
    settings: Settings,
    store: MetaStore,
    bookies: Bookies | None = None,
) -> AsyncIterator[SharedLogs | None]:
    """Logs for a gateway; None where `dlog.store` is not set."""
    if not settings.dlog.store:
        yield None
        return
    async with AsyncExitStack() as stack:
        ledgers = await stack.enter_async_context(
            opened_ledgers(environment, settings, store, bookies)
        )
        dlogs = dlogs_of(environment, settings, store, ledgers)
        network = PeerNetwork(
            cluster=CLUSTER,
            secret=operators_secret(settings),
            server_role=GATEWAY_ROLE,
            tls=client_tls(settings),
        )
        logs = SharedLogs(
            environment,
            store,
            dlogs,
            network,
            name=f"gateway-{environment.random.randbytes(6).hex()}",
            settings=settings.dlog,
        )
        stack.push_async_callback(logs.close)
        yield logs
