"""Ledgers in Apache BookKeeper, from the address of its ZooKeeper on."""

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
    tls: ClientTls | None = None,
) -> LedgerClient:
    """`HOST:PORT[,HOST:PORT][/chroot]` of ZooKeeper; close the client when done."""
    metadata = await BookKeeperMetadataStore.open(address)
    return LedgerClient(
        BookKeeperBookies(metadata.address_of, bookies, tls=tls), metadata, environment, ledgers
    )
