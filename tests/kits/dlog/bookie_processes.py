"""Bookies as real processes, over a metastore of one store."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from raftwood.base.configuration import load_configuration
from raftwood.base.environment import Environment
from raftwood.base.seams import MetaStore
from raftwood.disk.real_environment import real_environment
from raftwood.dlog.bookie.remote_bookies import RemoteBookies
from raftwood.dlog.bookie.settings import BookieClientSettings
from raftwood.dlog.ledgers.metadata import BookieId
from raftwood.server.cluster import client_network
from raftwood.server.cluster_client import connected_metastore
from raftwood.server.settings import Settings
from tests.kits.ports import LOCAL, free_ports
from tests.kits.processes import RAFTWOOD, StoreProcess
from tests.kits.raft.stores import Stores

QUICK = BookieClientSettings(request_timeout_ms=2_000)


class BookieProcess(StoreProcess):
    """`raftwood bookie start` in a folder of its own."""

    def __init__(self, number: int, folder: Path, port: int, config: Path) -> None:
        name, address = f"bookie-{number}", f"{LOCAL}:{port}"
        own = {
            "bookie.listen": address,
            "bookie.data_folder": folder / name,
            "bookie.rack": f"rack-{number}",
            "bookie.lease_ms": 2_000,
            "logs.format": "json",
        }
        sets = [f"--set={key}={value}" for key, value in own.items()]
        command = (*RAFTWOOD, "bookie", "start", f"--config={config}", *sets)
        super().__init__(name, number, folder, address, command)
        self.id = BookieId(address)


class BookieProcesses:
    """A store with the metastore, and bookies; nothing of it outlives the block."""

    def __init__(self, folder: Path, stores: Stores, count: int) -> None:
        self.stores = stores
        self.config = folder / "cluster.toml"
        self.all = [
            BookieProcess(number, folder, port, self.config)
            for number, port in enumerate(free_ports(count), 1)
        ]

    @property
    def settings(self) -> Settings:
        return load_configuration(Settings, file=str(self.config)).settings

    async def start(self) -> None:
        for each in self.all:
            each.begin()
        for each in self.all:
            await each.ready()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[tuple[Environment, MetaStore, RemoteBookies]]:
        """What a client of ledgers needs."""
        with real_environment() as environment:
            async with connected_metastore(environment, self.settings, None) as store:
                bookies = RemoteBookies(environment, client_network(self.settings), QUICK)
                try:
                    yield environment, store, bookies
                finally:
                    await bookies.close()


@contextmanager
def bookie_processes(folder: Path, count: int) -> Iterator[BookieProcesses]:
    with Stores(folder, first=1, more=0) as stores:
        stores.start(1)
        processes = BookieProcesses(folder, stores, count)
        try:
            yield processes
        finally:
            for each in processes.all:
                each.discard()
