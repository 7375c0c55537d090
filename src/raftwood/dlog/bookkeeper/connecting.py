"""Ledgers in Apache BookKeeper, from the address of its ZooKeeper on."""

from collections.abc import Mapping

from raftwood.base.environment import Environment
from raftwood.dlog.bookkeeper.bookies import BookKeeperBookies
from raftwood.dlog.bookkeeper.metadata_store import BookKeeperMetadataStore
from raftwood.dlog.bookkeeper.settings import BookKeeperSettings
from raftwood.dlog.ledgers.ledger_client import LedgerClient
from raftwood.dlog.ledgers.settings import LedgerSettings
from raftwood.net.tls import ClientTls


async def connect_bookkeeper(
    address: str,
    environment: Environment,
    *,
    ledgers: LedgerSettings | None = None,
    bookies: BookKeeperSettings | None = None,
    racks: Mapping[str, str] | None = None,
    tls: ClientTls | None = None,
) -> LedgerClient:
    """`HOST:PORT[,HOST:PORT][/chroot]` of ZooKeeper; close the client when done.

    With `racks`, by bookie, copies of an entry go to several of them.
    """
    metadata = await BookKeeperMetadataStore.open(address, racks=racks)
    return LedgerClient(
        BookKeeperBookies(metadata.address_of, bookies, tls=tls), metadata, environment, ledgers
    )
