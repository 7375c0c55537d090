"""Bookies inside another process, each with a folder and a disk thread of its own."""

import os
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from msgspec.structs import replace

from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidInput, StoreDamaged, StoreError
from raftwood.base.logs import get_logger
from raftwood.base.metrics import Metrics
from raftwood.base.seams import MetaStore
from raftwood.disk.real_environment import real_environment
from raftwood.dlog.bookie.auditor import Auditor
from raftwood.dlog.bookie.local_bookies import LocalBookies
from raftwood.dlog.bookie.membership import WrongFolder, bookie_address
from raftwood.dlog.bookie.metadata_store import MetaLedgers
from raftwood.dlog.bookie.remote_bookies import RemoteBookies
from raftwood.dlog.bookie.server import BookieServer
from raftwood.dlog.ledgers.client import LedgerClient
from raftwood.dlog.ledgers.repair import GRACE_MS
from raftwood.dlog.ledgers.seams import Bookies
from raftwood.server.cluster import bookie_network, client_network
from raftwood.server.settings import Settings

BOOKIES_MAX = 64
_log = get_logger("bookies")


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
    begin_anew: Collection[str] = (),
) -> AsyncIterator[Bookies]:
    """So many bookies below a folder, registered in the metastore, and the way to talk to them.

    With `addresses`, one for each, other processes reach them as well, and this one reaches those
    of others; they may be others the next time, for the bookies are known by names. One that is
    damaged stays away, and the others serve; named in `begin_anew`, it begins in an empty folder.
    """
    if not 1 <= count <= BOOKIES_MAX or len(addresses) not in (0, count):
        raise InvalidInput(
            f"{count} bookies at {len(addresses)} addresses: give 1 to {BOOKIES_MAX} bookies, and "
            "an address for each or none"
        )
    async with AsyncExitStack() as stack:
        servers: list[BookieServer] = []
        problems: list[StoreError] = []
        for number in range(count):
            address = addresses[number] if addresses else ""
            id_, data_folder = f"embedded-{number + 1}", f"{folder}/bookie-{number + 1}"
            start = partial(
                BookieServer.start,
                # Syncs of one environment wait for one another, those of several don't.
                stack.enter_context(real_environment()),
                replace(settings.bookie, data_folder=data_folder),
                store,
                cluster=settings.cluster.name,
                network=bookie_network(settings, address) if address else None,
                metrics=metrics,
                log_settings=settings.log,
                id_=id_,
            )
            try:
                server = await start()
            except (StoreDamaged, WrongFolder) as error:
                if id_ not in begin_anew:
                    problems.append(error)
                    _log.error(
                        "a bookie is damaged and stays away",
                        bookie=id_,
                        reason=error.message,
                        remedy=f"start with --begin-anew {id_}, then run: raftwood bookie repair "
                        f"{id_}",
                    )
                    continue
                _move_away(data_folder)
                server = await start(begins_anew=True)
            stack.push_async_callback(server.close)
            servers.append(server)
        if not servers:
            raise problems[0]
        others = None
        if addresses:
            others = remote_bookies(environment, settings, store)
        bookies = LocalBookies({each.bookie.id: each.bookie for each in servers}, others)
        await stack.enter_async_context(
            auditing(
                environment, settings, store, bookies, name=servers[0].bookie.id, metrics=metrics
            )
        )
        yield bookies


def _move_away(folder: str) -> None:
    """What is left of a damaged bookie is not deleted: it may be the last copy."""
    number = 1
    while os.path.exists(f"{folder}.damaged-{number}"):
        number += 1
    if os.path.exists(folder):
        os.rename(folder, f"{folder}.damaged-{number}")
        _log.warning("a damaged bookie begins anew", old_folder=f"{folder}.damaged-{number}")


@asynccontextmanager
async def auditing(
    environment: Environment,
    settings: Settings,
    store: MetaStore,
    bookies: Bookies,
    *,
    name: str,
    metrics: Metrics | None,
) -> AsyncIterator[None]:
    """Repairs bookies that are away for long, if no other process does; closes `bookies`."""
    client = LedgerClient(bookies, MetaLedgers(store, environment.random), environment)
    after_ms = settings.bookie.rereplicate_after_ms
    repairing = partial(client.repair, grace_ms=GRACE_MS)
    auditor = Auditor(store, repairing, name=name, after_ms=after_ms, metrics=metrics)
    if after_ms:
        auditor.start()
    try:
        yield
    finally:
        await auditor.close()
        await client.close()
