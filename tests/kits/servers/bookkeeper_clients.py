"""Clients of a real BookKeeper, for tests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from raftwood.disk.real_environment import real_environment
from raftwood.dlog.bookkeeper.bookies import connect_bookkeeper
from raftwood.dlog.bookkeeper.connection import BookKeeperSettings
from raftwood.dlog.ledgers.client import LedgerClient
from raftwood.dlog.ledgers.context import LedgerSettings
from raftwood.net.tls import ClientTls
from tests.kits.servers.bookkeeper import BookKeeperCluster


@asynccontextmanager
async def opened(
    cluster: BookKeeperCluster,
    *,
    ledgers: LedgerSettings | None = None,
    bookies: BookKeeperSettings | None = None,
    tls: ClientTls | None = None,
) -> AsyncIterator[LedgerClient]:
    with real_environment() as environment:
        client = await connect_bookkeeper(
            cluster.address, environment, ledgers=ledgers, bookies=bookies, tls=tls
        )
        try:
            yield client
        finally:
            await client.close()
