"""Four bookies of every kind, as one thing that can be broken: in this process, as processes, and
Apache BookKeeper's.
"""

import asyncio
import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.seams import MetaStore
from raftwood.disk.real_environment import real_environment
from raftwood.dlog.bookie.bookie import Bookie
from raftwood.dlog.bookie.metadata_store import MetaLedgers
from raftwood.dlog.bookkeeper.bookies import BookKeeperBookies
from raftwood.dlog.bookkeeper.connection import BookKeeperSettings
from raftwood.dlog.bookkeeper.metadata_store import BookKeeperMetadataStore
from raftwood.dlog.ledgers.client import LedgerClient
from raftwood.dlog.ledgers.context import LedgerSettings
from raftwood.dlog.ledgers.metadata import BookieId
from raftwood.dlog.ledgers.seams import Bookies, LedgerMetadataStore
from raftwood.dlog.log.dlogs import Dlogs
from raftwood.dlog.settings import DlogSettings
from raftwood.metastore.file_store import FileMetaStore
from tests.kits.dlog.bookie_processes import BookieProcesses
from tests.kits.dlog.bookie_servers import BookieServers
from tests.kits.processes import RAFTWOOD
from tests.kits.servers.bookkeeper import BookKeeperCluster
from tests.kits.servers.zookeeper_clients import opened as opened_zookeeper

COUNT = 4
HASTY = LedgerSettings(
    add_timeout_ms=500,
    read_timeout_ms=1_000,
    change_timeout_ms=5_000,
    change_retry_ms=100,
    quarantine_ms=3_000,
)
_HASTY_LOGS = DlogSettings(pause_ms=10, pause_max_ms=200, open_timeout_ms=20_000)
_REGISTERED_S_MAX = 30


class Seat(msgspec.Struct, frozen=True):
    """What one client has."""

    environment: Environment
    store: MetaStore
    bookies: Bookies
    metadata: LedgerMetadataStore
    ledgers: LedgerClient
    dlogs: Dlogs


class Site(ABC):
    """Bookies that outlive their clients; whoever breaks one mends it."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """For those who live on one loop."""
        yield

    @abstractmethod
    def seams(
        self,
    ) -> AbstractAsyncContextManager[tuple[Environment, MetaStore, Bookies, LedgerMetadataStore]]:
        """As a process of its own has them; the last two are closed by a `LedgerClient`."""

    @asynccontextmanager
    async def seat(self) -> AsyncIterator[Seat]:
        async with self.seams() as (environment, store, bookies, metadata):
            ledgers = LedgerClient(bookies, metadata, environment, HASTY)
            dlogs = Dlogs(environment, store, ledgers, _HASTY_LOGS)
            try:
                yield Seat(environment, store, bookies, metadata, ledgers, dlogs)
            finally:
                await ledgers.close()

    @abstractmethod
    async def kill(self, bookie: BookieId) -> None: ...

    @abstractmethod
    async def pause(self, bookie: BookieId) -> None:
        """It hangs, and nobody is told."""

    @abstractmethod
    async def mend(self, bookie: BookieId) -> None:
        """After any of the two, or none."""

    @property
    def append_command(self) -> tuple[str, ...] | None:
        """A process that appends lines to a log, where the bookies are not in this one."""
        return None

    async def _registered(self, bookie: BookieId) -> None:
        async with self.seat() as seat, asyncio.timeout(_REGISTERED_S_MAX):
            while bookie not in [  # noqa: ASYNC110  others register it
                each.id for each in await seat.metadata.bookies()
            ]:
                await asyncio.sleep(0.05)


class _Hanging:
    """Stands for a bookie whose disk does not answer."""

    def __init__(self, bookie: Bookie) -> None:
        self._bookie = bookie
        self._resumed = asyncio.Event()
        self._later: list[Callable[[], None]] = []

    def add(self, *arguments: Any, **named: Any) -> Any:
        return self._bookie.add(*arguments, **named)

    def when_durable(self, done: Callable[[], None]) -> None:
        self._later.append(done)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._bookie, name)

        async def call(*arguments: Any, **named: Any) -> Any:
            await self._resumed.wait()
            return await method(*arguments, **named)

        return call

    def resume(self) -> None:
        for done in self._later:
            self._bookie.when_durable(done)
        self._resumed.set()


class EmbeddedSite(Site):
    """In this process, with a metastore in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        """Goes on from one loop to the next."""
        self._hanging: dict[BookieId, _Hanging] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        with real_environment() as environment:
            store = await FileMetaStore.open(environment, f"{self._folder}/meta")
            ids = [f"bookie-{number}" for number in range(COUNT)]
            servers = BookieServers(environment, store, self._folder, ids, is_remote=False)
            self._environment, self._store, self._servers = environment, store, servers
            try:
                await servers.start_all()
                yield
            finally:
                await servers.close()
                await store.close()

    @asynccontextmanager
    async def seams(
        self,
    ) -> AsyncIterator[tuple[Environment, MetaStore, Bookies, LedgerMetadataStore]]:
        metadata = MetaLedgers(self._store, self._environment.random)
        yield self._environment, self._store, self._servers.client(), metadata

    async def kill(self, bookie: BookieId) -> None:
        await self._servers.stop(bookie)

    async def pause(self, bookie: BookieId) -> None:
        self._hanging[bookie] = _Hanging(self._servers.running[bookie].bookie)
        self._servers.replace(bookie, self._hanging[bookie])  # type: ignore[arg-type]

    async def mend(self, bookie: BookieId) -> None:
        hanging = self._hanging.pop(bookie, None)
        if bookie not in self._servers.running:
            await self._servers.start(bookie)
        elif hanging is not None:
            self._servers.replace(bookie, self._servers.running[bookie].bookie)
            hanging.resume()


class ProcessSite(Site):
    """`raftwood bookie start`, with the metastore of a store."""

    def __init__(self, processes: BookieProcesses) -> None:
        self._processes = processes
        self._by_id = {each.id: each for each in processes.all}

    @asynccontextmanager
    async def seams(
        self,
    ) -> AsyncIterator[tuple[Environment, MetaStore, Bookies, LedgerMetadataStore]]:
        async with self._processes.client() as (environment, store, bookies):
            yield environment, store, bookies, MetaLedgers(store, environment.random)

    async def kill(self, bookie: BookieId) -> None:
        await self._by_id[bookie].kill()

    async def pause(self, bookie: BookieId) -> None:
        self._by_id[bookie].pause()

    async def mend(self, bookie: BookieId) -> None:
        process = self._by_id[bookie]
        if process.is_running:
            process.resume()
        else:
            process.begin()
            await process.ready()
        await self._registered(bookie)

    @property
    def append_command(self) -> tuple[str, ...]:
        return (*RAFTWOOD, "dlog", "append", f"--config={self._processes.config}")


class BookKeeperSite(Site):
    """Apache BookKeeper's, with the metastore in their ZooKeeper."""

    def __init__(self, cluster: BookKeeperCluster) -> None:
        self._cluster = cluster
        self._by_id = {BookieId(each.id): each for each in cluster.bookies}

    @asynccontextmanager
    async def seams(
        self,
    ) -> AsyncIterator[tuple[Environment, MetaStore, Bookies, LedgerMetadataStore]]:
        async with opened_zookeeper(self._cluster.zookeeper.address) as store:
            with real_environment() as environment:
                metadata = await BookKeeperMetadataStore.open(self._cluster.address)
                settings = BookKeeperSettings(request_timeout_ms=2_000)
                bookies = BookKeeperBookies(metadata.address_of, settings)
                yield environment, store, bookies, metadata

    async def kill(self, bookie: BookieId) -> None:
        self._by_id[bookie].kill()

    async def pause(self, bookie: BookieId) -> None:
        self._by_id[bookie].pause()

    async def mend(self, bookie: BookieId) -> None:
        process = self._by_id[bookie]
        if process.is_running():
            process.resume()
        else:
            await asyncio.to_thread(process.restart)
        await self._registered(bookie)

    @property
    def append_command(self) -> tuple[str, ...]:
        return (*RAFTWOOD, "dlog", "append", f"--bookkeeper={self._cluster.address}")


class DoomedProcess:
    """A writer in a process of its own, which is killed."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )

    def send(self, line: bytes) -> None:
        assert self._process.stdin is not None
        os.write(self._process.stdin.fileno(), line + b"\n")

    def check_runs(self) -> None:
        assert self._process.poll() is None, self._process.communicate()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()
