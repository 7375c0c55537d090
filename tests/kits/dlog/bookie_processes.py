"""Bookies as real processes, over a metastore of one store."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from raftwood.app.cluster_network import client_network
from raftwood.app.connecting import connected_metastore
from raftwood.app.settings import Settings
from raftwood.base.configuration import load_configuration
from raftwood.base.environment import Environment
from raftwood.base.seams import MetaStore
from raftwood.disk.real_environment import real_environment
from raftwood.dlog.bookie.remote_bookies import RemoteBookies
from raftwood.dlog.bookie.settings import BookieClientSettings
from raftwood.dlog.ledgers.model import BookieId
from tests.kits.disk.store_process import StoreProcess
from tests.kits.raft.stores import COMMAND, Stores
from tests.kits.servers.zookeeper import free_ports

QUICK = BookieClientSettings(request_timeout_ms=2_000)


class BookieProcess(StoreProcess):
    """`raftwood bookie start` in a folder of its own."""

    def __init__(self, number: int, folder: Path, address: str, config: Path) -> None:
        super().__init__(number, folder / "bookies", address)
        self.id = BookieId(address)
        self._config = config
        self.folder.parent.mkdir(exist_ok=True)
        self._ready_file = self.folder.parent / f"ready-{number}"

    def launch_bookie(self, *flags: str) -> None:
        self._ready_file.unlink(missing_ok=True)
        self.launch(
            (
                *COMMAND,
                *("bookie", "start"),
                f"--config={self._config}",
                f"--set=bookie.listen={self.address}",
                f"--set=bookie.data_folder={self.folder}",
                f"--set=bookie.rack=rack-{self.store}",
                "--set=bookie.lease_ms=2000",
                "--set=logs.format=json",
                f"--ready-file={self._ready_file}",
                *flags,
            )
        )

    async def ready(self) -> None:
        began = time.monotonic()
        while not self._ready_file.exists():
            self.check_starts(began)
            await asyncio.sleep(0.02)

    async def start(self, *flags: str) -> None:
        self.launch_bookie(*flags)
        await self.ready()


class BookieProcesses:
    """A store with the metastore, and bookies; nothing of it outlives the block."""

    def __init__(self, folder: Path, stores: Stores, count: int) -> None:
        self.stores = stores
        self.config = folder / "cluster.toml"
        self.all = [
            BookieProcess(number, folder, f"127.0.0.1:{port}", self.config)
            for number, port in enumerate(free_ports(count), 1)
        ]

    @property
    def settings(self) -> Settings:
        return load_configuration(Settings, file=str(self.config)).settings

    async def start(self) -> None:
        for each in self.all:
            each.launch_bookie()
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
