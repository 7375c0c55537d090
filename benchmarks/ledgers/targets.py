"""Where ledgers are: Apache BookKeeper, or bookies of our own as processes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.kits.servers.zookeeper_clients import opened as opened_zookeeper

from raftwood.base.configuration import load_configuration
from raftwood.base.environment import Environment
from raftwood.base.seams import MetaStore
from raftwood.dlog.bookie.metadata_store import MetaLedgers
from raftwood.dlog.bookkeeper.bookies import connect_bookkeeper
from raftwood.dlog.ledgers.client import LedgerClient
from raftwood.server.bookies import remote_bookies
from raftwood.server.cluster_client import connected_metastore
from raftwood.server.settings import Settings

OWN = "config="


@asynccontextmanager
async def opened_target(
    environment: Environment, target: str
) -> AsyncIterator[tuple[LedgerClient, MetaStore]]:
    """`config=FILE` for the cluster with these settings, else the address of BookKeeper's
    ZooKeeper; the metastore is in the same place.
    """
    if target.startswith(OWN):
        file = target.removeprefix(OWN)
        settings = load_configuration(Settings, file=file).settings
        async with connected_metastore(environment, settings, None) as store:
            bookies = remote_bookies(environment, settings, store)
            metadata = MetaLedgers(store, environment.random)
            client = LedgerClient(bookies, metadata, environment)
            try:
                yield client, store
            finally:
                await client.close()
        return
    async with opened_zookeeper(target.partition("/")[0]) as store:
        client = await connect_bookkeeper(target, environment)
        try:
            yield client, store
        finally:
            await client.close()
