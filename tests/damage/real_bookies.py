"""Cells of real bookies: three with one ledger, whose writer dies and which is taken over."""

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from raftwood.dlog.bookie.metadata_store import MetaLedgers
from raftwood.dlog.ledgers.client import LedgerClient
from raftwood.dlog.ledgers.metadata import LedgerConfig
from raftwood.dlog.ledgers.writer import QuorumWriter
from tests.damage import bookies
from tests.damage.cells import Outcome, Seen, judged
from tests.damage.real_folders import (
    ALONE_S,
    SERVED_S,
    Kept,
    RealScene,
    refusals,
    served,
    settled,
)
from tests.kits.dlog.bookie_processes import BookieProcesses
from tests.kits.processes import StoreProcess
from tests.kits.raft.stores import Stores

_PADDING: Final = b"." * 2_000
_LOG: Final = (
    "--set=log.segment_bytes=65536",
    "--set=log.flush_bytes_max=8192",
    "--set=log.cache_bytes_max=0",
)
_CONFIG: Final = LedgerConfig(ensemble=3, write_quorum=3, ack_quorum=2, password=b"p")


class RealBookies(RealScene):
    files = bookies.FILES

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._stores = Stores(folder, first=1, more=0)
        self._bookies = BookieProcesses(folder, self._stores, 3)
        self._ledgers: dict[bool, int] = {}

    def __enter__(self) -> Self:
        self._stores.__enter__()  # writes the configuration
        return super().__enter__()

    @property
    def helpers(self) -> Sequence[StoreProcess]:
        return list(self._stores.processes.values())

    @property
    def processes(self) -> Sequence[StoreProcess]:
        return self._bookies.all

    # Filling.

    def fill(self, kept: Kept, *, lags: bool) -> None:
        self._stores.start(1)
        asyncio.run(self._write_all(kept, lags=lags))
        assert self._stores.processes[1].stop() == 0

    async def _write_all(self, kept: Kept, *, lags: bool) -> None:
        first, second, third = self.processes
        await self._begin(*self.processes)
        async with self._bookies.client() as (environment, store, remote):
            client = LedgerClient(remote, MetaLedgers(store, environment.random), environment)
            writer = await client.create(_CONFIG)
            self._ledgers[lags] = writer.ledger
            await self._append(writer, bookies.ENTRIES)
            kept.note_older()
            if lags:
                third.pause()
            await self._append(writer, bookies.ENTRIES)
            kept.note_older()
            await self._append(writer, bookies.LAST_ENTRIES)
            await writer.abandon()
            await third.kill()
            for each in (first, second):
                each.signal(signal.SIGTERM if lags else signal.SIGKILL)
                await each.ended()
            await client.close()

    async def _begin(self, *processes: StoreProcess) -> None:
        for each in processes:
            each.begin(*_LOG)
        await settled(*processes)

    async def _append(self, writer: QuorumWriter, count: int) -> None:
        for _ in range(count):
            entry = b"entry %d %s" % (len(self.acked), _PADDING)
            await writer.append(entry)
            self.acked.append(entry)

    # Observing.

    def observe(self) -> Seen:
        self._stores.start(1)
        return asyncio.run(self._observe())

    async def _observe(self) -> Seen:
        first, second, third = self.processes
        entries: list[bytes] | None = None
        async with self._bookies.client() as (environment, store, remote):
            client = LedgerClient(remote, MetaLedgers(store, environment.random), environment)
            try:
                for timeout_s, begun in ((ALONE_S, (first, third)), (SERVED_S, (second,))):
                    await self._begin(*begun)
                    entries = await served(lambda: self._taken_over(client), timeout_s)
                    if entries is not None and (
                        bad := judged(entries, self.acked, set(self.acked))
                    ):
                        return bad
            finally:
                await client.close()
        reason = refusals(self.processes)
        if entries is None:
            return Seen(Outcome.OPERATOR, reason)
        return Seen(Outcome.REFUSED, reason) if reason else Seen(Outcome.UNHARMED)

    async def _taken_over(self, client: LedgerClient) -> list[bytes]:
        reader = await client.open(self._ledgers[self.lags], recover=True, password=b"p")
        if reader.last_confirmed < 0:
            return []
        entries = await reader.read(first=0, last=reader.last_confirmed)
        return [bytes(entry.data) for entry in entries]
