"""Cells of real stores: `raftwood serve` three times, with records in the metastore."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Self

from raftwood.base.configuration import load_configuration
from raftwood.base.errors import RaftwoodError
from raftwood.disk.real_environment import real_environment
from raftwood.metastore.raft_store import RaftMetaStore
from raftwood.raft.client import AsyncRaftClient
from raftwood.server.cluster import METASTORE_GROUP, operator_network
from raftwood.server.settings import Settings
from tests.damage import stores
from tests.damage.cells import Outcome, Seen, judged
from tests.damage.real_folders import (
    ALONE_S,
    SERVED_S,
    WHOLE_S,
    Kept,
    RealScene,
    refusals,
    served,
    settled,
)
from tests.kits.processes import StoreProcess
from tests.kits.raft.stores import Stores

_PADDING: Final = b"." * 500
_AT_ONCE: Final = 20
_SETTINGS: Final = """
[logs]
format = "json"
[log]
segment_bytes = 65536
flush_bytes_max = 8192
pending_bytes_max = 65536
cache_bytes_max = 0
[raft]
tick_ms = 100
message_bytes_max = 8192
in_flight_bytes_max = 16384
snapshot_entries = 50
snapshot_entries_kept = 15
"""
_TRY_MS: Final = 2_000
_WRITE_MS: Final = 60_000


class RealStores(RealScene):
    files = stores.FILES

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._stores = Stores(folder, more=0, extra=_SETTINGS)

    def __enter__(self) -> Self:
        self._stores.__enter__()  # writes their configuration
        return super().__enter__()

    @property
    def helpers(self) -> Sequence[StoreProcess]:
        return ()

    @property
    def processes(self) -> Sequence[StoreProcess]:
        return list(self._stores.processes.values())

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[AsyncRaftClient]:
        settings = load_configuration(Settings, file=str(self._stores.config)).settings
        with real_environment() as environment:
            network = operator_network(settings)
            async with AsyncRaftClient(environment, network, self._stores.addresses) as client:
                yield client

    # Filling.

    def fill(self, kept: Kept, *, lags: bool) -> None:
        asyncio.run(self._fill_all(kept, lags=lags))

    async def _fill_all(self, kept: Kept, *, lags: bool) -> None:
        first, second, third = self.processes
        await self._begin(first, second, third)
        async with self._client() as client:
            await self._write(client, stores.LINES)
            kept.note_older()
            if lags:
                await _stop(third)
            await self._write(client, stores.LINES)
            kept.note_older()
            await self._write(client, stores.LAST_LINES)
        if lags:
            await _stop(first, second)
        else:
            for each in self.processes:
                await each.kill()

    async def _begin(self, *processes: StoreProcess) -> None:
        for each in processes:
            each.launch(each.command)
        await settled(*processes)

    async def _write(self, client: AsyncRaftClient, count: int) -> None:
        store = RaftMetaStore(client, METASTORE_GROUP, timeout_ms=_WRITE_MS)
        for _ in range(count // _AT_ONCE):
            first = len(self.acked)
            lines = [b"line %d %s" % (first + each, _PADDING) for each in range(_AT_ONCE)]
            await asyncio.gather(
                *(
                    store.compare_and_set(f"line/{number:06}", line, version=0)
                    for number, line in enumerate(lines, first)
                )
            )
            self.acked += lines
        await store.close()

    # Observing.

    def observe(self) -> Seen:
        return asyncio.run(self._observe())

    async def _observe(self) -> Seen:
        first, second, third = self.processes
        lines: list[bytes] | None = None
        async with self._client() as client:
            for timeout_s, begun in ((ALONE_S, (first, third)), (SERVED_S, (second,))):
                await self._begin(*begun)
                if sum(each.is_running for each in self.processes) < 2:
                    continue
                lines = await served(lambda: self._read(client), timeout_s)
                if lines is not None and (bad := judged(lines, self.acked, set(self.acked))):
                    return bad
            if lines is None:
                return Seen(Outcome.OPERATOR, refusals(self.processes) or self._warnings())
            problem = await self._until_whole(client)
            if problem or not all(each.is_running for each in self.processes):
                return Seen(Outcome.REFUSED, refusals(self.processes) or problem)
            lines = await served(lambda: self._read(client), SERVED_S)
            if bad := judged(lines or [], self.acked, set(self.acked)):
                return bad
        has_repaired = any(each.told("replica repaired") for each in self.processes)
        return Seen(Outcome.REPAIRED if has_repaired else Outcome.UNHARMED)

    async def _read(self, client: AsyncRaftClient) -> list[bytes]:
        """What clients are given now, by a leader that can still commit."""
        store = RaftMetaStore(client, METASTORE_GROUP, timeout_ms=_TRY_MS)
        try:
            await store.grant_lease(ttl_ms=60_000)
            lines: list[bytes] = []
            start: str | None = ""
            while start is not None:
                found = await store.range(prefix="line/", start=start, limit=100)
                lines += [bytes(entry.value) for entry in found.entries]
                start = found.next_start
            return lines
        finally:
            await store.close()

    async def _until_whole(self, client: AsyncRaftClient) -> str:
        """What is wrong with a replica in the end; nothing where all have all."""
        deadline = time.monotonic() + WHOLE_S
        while problem := await self._problem(client):
            if time.monotonic() > deadline:
                return problem
            await asyncio.sleep(0.1)
        return ""

    async def _problem(self, client: AsyncRaftClient) -> str:
        running = [each for each in self.processes if each.is_running]
        try:
            leader = await client.admin.leader_status(METASTORE_GROUP, timeout_ms=_TRY_MS)
            for each in running:
                status = await client.admin.status(
                    METASTORE_GROUP, store=each.store, timeout_ms=_TRY_MS
                )
                if status.problem:
                    return f"{each.name}: {status.problem}"
                if each.store not in leader.voters or status.applied < leader.commit:
                    return f"{each.name} has not all yet"
        except RaftwoodError as error:
            return error.message
        return ""

    def _warnings(self) -> str:
        waits = [each.told("repair waits") for each in self.processes]
        return "; ".join(told[-1]["reason"] for told in waits if told)


async def _stop(*processes: StoreProcess) -> None:
    for each in processes:
        each.signal(signal.SIGTERM)
    for each in processes:
        assert await each.ended() == 0, each.tail()
