"""Cells of bookies: three of them with one ledger, whose writer dies and which is taken over."""

import asyncio
import random
from typing import Final

from raftwood.base.errors import RaftwoodError
from raftwood.disk.segment_log import LogSettings
from raftwood.dlog.bookie.metadata_store import MetaLedgers
from raftwood.dlog.ledgers.client import LedgerClient
from raftwood.dlog.ledgers.context import LedgerSettings
from raftwood.dlog.ledgers.metadata import BookieId, LedgerConfig
from raftwood.dlog.ledgers.writer import QuorumWriter
from raftwood.metastore.file_store import FileMetaStore
from raftwood.testing import Simulation, simulate
from raftwood.testing.disk import SimulatedFiles
from tests.damage.cells import (
    LOG_FILES,
    Cell,
    Outcome,
    Pick,
    Seen,
    bring_back,
    harm_one_of,
    judged,
    saved,
    victims,
)
from tests.kits.dlog.bookie_servers import BookieServers

IDS: Final = ("b1", "b2", "b3")
ENTRIES: Final = 40
"""Written before one and before the other of two older copies."""
LAST_ENTRIES: Final = 10
FILES: Final[dict[str, Pick]] = LOG_FILES
_FOLDER: Final = "/bookies"
_PADDING: Final = b"." * 300
_LOG: Final = LogSettings(segment_bytes=16 << 10, flush_bytes_max=8 << 10, cache_bytes_max=0)
_CONFIG: Final = LedgerConfig(ensemble=3, write_quorum=3, ack_quorum=2, password=b"p")
_LEDGERS: Final = LedgerSettings(
    add_timeout_ms=400, read_timeout_ms=500, change_timeout_ms=2_000, change_retry_ms=100
)
_ALONE_S: Final = 10.0
"""For so long the damaged bookie and the one that lags are without the other."""
_SERVED_S: Final = 30.0


def run_bookie_cell(cell: Cell, seed: int) -> Seen:
    """Even seeds: the third bookie was away for the last entries, the others were stopped in order.
    Odd ones: all had everything and were killed.
    """

    async def scenario(simulation: Simulation) -> Seen:
        store = await FileMetaStore.open(simulation.environment, "/meta")
        scene = _Scene(simulation, store, cell, seed)
        try:
            return await scene.run()
        finally:
            await scene.servers.close()
            await store.close()
            await asyncio.sleep(0)

    return simulate(f"{cell} {seed}", scenario, virtual_seconds_max=2_000.0).result


class _Scene:
    def __init__(self, simulation: Simulation, store: FileMetaStore, cell: Cell, seed: int) -> None:
        self._environment = simulation.environment
        self._store = store
        self._cell = cell
        self._lags = seed % 2 == 0
        self._random = random.Random(f"{cell} {seed}")
        self.servers = BookieServers(
            simulation.environment, store, _FOLDER, list(IDS), is_remote=False, log_settings=_LOG
        )
        files = simulation.environment.files
        assert isinstance(files, SimulatedFiles)
        self._file_system = files.disk.file_system
        self._ids = list(self.servers.ids)
        self._refusals: dict[BookieId, str] = {}
        self._entries: list[bytes] = []

    async def run(self) -> Seen:
        await self.servers.start_all()
        client = self._client()
        try:
            older = await self._write(client)
        finally:
            await client.close()
        await self._stop()
        chosen = [self._ids[number] for number in victims(self._cell.scope, range(3))]
        hits = [self._harm(bookie, older[bookie]) for bookie in chosen]
        if not any(hits):
            return Seen(Outcome.NOT_HIT)
        client = self._client()
        try:
            return await self._observe(client)
        finally:
            await client.close()

    def _client(self) -> LedgerClient:
        metadata = MetaLedgers(self._store, self._environment.random)
        return LedgerClient(self.servers.client(), metadata, self._environment, _LEDGERS)

    async def _write(self, client: LedgerClient) -> dict[BookieId, dict[str, bytes]]:
        """Answers the bookies' files as they were on the way."""
        writer = await client.create(_CONFIG)
        self._ledger = writer.ledger
        await self._append(writer, ENTRIES)
        older = {bookie: self._files(bookie) for bookie in self._ids}
        if self._lags:
            self.servers.hide(self._ids[2])
        await self._append(writer, ENTRIES)
        for bookie in self._ids:
            older[bookie] |= self._files(bookie)
        await self._append(writer, LAST_ENTRIES)
        await writer.abandon()
        return older

    async def _append(self, writer: QuorumWriter, count: int) -> None:
        for _ in range(count):
            entry = b"entry %d %s" % (len(self._entries), _PADDING)
            await writer.append(entry)
            self._entries.append(entry)

    def _files(self, bookie: BookieId) -> dict[str, bytes]:
        return saved(self._file_system, self.servers.folder_of(bookie))

    async def _stop(self) -> None:
        for bookie in self._ids:
            files = self._files(bookie)
            await self.servers.stop(bookie)
            if not self._lags:  # as if it were killed
                bring_back(self._file_system, self.servers.folder_of(bookie), files)

    def _harm(self, bookie: BookieId, older: dict[str, bytes]) -> bool:
        return harm_one_of(
            self._file_system,
            self.servers.folder_of(bookie),
            FILES[self._cell.file],
            self._cell.damage,
            older,
            self._random,
        )

    async def _start(self, *bookies: BookieId) -> None:
        for bookie in bookies:
            try:
                await self.servers.start(bookie)
            except RaftwoodError as error:
                self._refusals[bookie] = error.message

    async def _observe(self, client: LedgerClient) -> Seen:
        first, second, third = self._ids
        entries: list[bytes] | None = None
        for timeout_s, bookies in ((_ALONE_S, (first, third)), (_SERVED_S, (second,))):
            await self._start(*bookies)
            entries = await self._served(client, timeout_s)
            if entries is not None and (bad := judged(entries, self._entries, set(self._entries))):
                return bad
        reason = "; ".join(f"{bookie}: {why}" for bookie, why in self._refusals.items())
        if entries is None:
            return Seen(Outcome.OPERATOR, reason)
        problems = [
            f"{bookie}: {why}"
            for bookie, server in self.servers.running.items()
            if (why := server.problem())
        ]
        if self._refusals or problems:
            return Seen(Outcome.REFUSED, "; ".join([reason, *problems]))
        return Seen(Outcome.UNHARMED)

    async def _served(self, client: LedgerClient, timeout_s: float) -> list[bytes] | None:
        """What the ledger holds for whoever takes it over; None where that cannot be done now."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        return await self._taken_over(client)
                    except RaftwoodError:
                        await asyncio.sleep(0.5)
        except TimeoutError:
            return None

    async def _taken_over(self, client: LedgerClient) -> list[bytes]:
        reader = await client.open(self._ledger, recover=True, password=b"p")
        if reader.last_confirmed < 0:
            return []
        entries = await reader.read(first=0, last=reader.last_confirmed)
        return [bytes(entry.data) for entry in entries]
