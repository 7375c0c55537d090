"""Cells of raft stores: three of them with one group, whose lines are known."""

import asyncio
import random
from collections.abc import Mapping
from typing import Final

import msgspec

from raftwood.base.errors import RaftwoodError
from raftwood.disk.segment_log import LogSettings
from raftwood.raft.client import AsyncRaftClient
from raftwood.testing import Simulation, simulate
from tests.damage.cells import (
    LOG_FILES,
    Cell,
    Outcome,
    Pick,
    Seen,
    harm_one_of,
    judged,
    saved,
    victims,
)
from tests.kits.raft.damage import STORE, HaltingCluster, is_whole
from tests.kits.raft.host_cluster import GROUP, SETTINGS

STORES: Final = (1, 2, 3)
LINES: Final = 160
"""Written before one and before the other of two older copies."""
LAST_LINES: Final = 20
_PADDING: Final = b"." * 500
_SETTINGS: Final = msgspec.structs.replace(SETTINGS, snapshot_entries=50, snapshot_entries_kept=15)
_LOG: Final = LogSettings(
    segment_bytes=64 << 10, flush_bytes_max=8 << 10, pending_bytes_max=64 << 10, cache_bytes_max=0
)
_ALONE_S: Final = 15.0
"""For so long the damaged store and the one that lags are without the third."""
_SERVED_S: Final = 60.0
_WHOLE_S: Final = 120.0


def newest_snapshot(files: Mapping[str, bytes]) -> str | None:
    found = [path for path in files if path.endswith(".snapshot") and f"/{GROUP}-" in path]
    return max(found, key=_index_of, default=None)


def _index_of(path: str) -> int:
    return int(path.rpartition("-")[2].removesuffix(".snapshot"))


FILES: Final[dict[str, Pick]] = {**LOG_FILES, "snapshot": newest_snapshot}


def run_store_cell(cell: Cell, seed: int) -> Seen:
    """Even seeds: the third store had stood still, the others were stopped in order. Odd ones: all
    had everything and were killed.
    """

    async def scenario(simulation: Simulation) -> Seen:
        return await _Scene(simulation, cell, seed).run()

    return simulate(f"{cell} {seed}", scenario, virtual_seconds_max=2_000.0).result


class _Scene:
    def __init__(self, simulation: Simulation, cell: Cell, seed: int) -> None:
        self._cell = cell
        self._lags = seed % 2 == 0
        self._random = random.Random(f"{cell} {seed}")
        self._cluster = HaltingCluster(simulation, settings=_SETTINGS, log_settings=_LOG)
        self._proposed: set[bytes] = set()
        self._acked: list[bytes] = []

    async def run(self) -> Seen:
        cluster = self._cluster
        cluster.start(*STORES)
        async with cluster.client() as client:
            await self._write(client, LINES)
            older = {store: self._files(store) for store in STORES}
            if self._lags:
                await cluster.stop(3)
            await self._write(client, LINES)
            for store in STORES:
                older[store] |= self._files(store)
            await self._write(client, LAST_LINES)
        await self._stop()
        hits = [self._harm(store, older[store]) for store in victims(self._cell.scope, STORES)]
        if not any(hits):
            return Seen(Outcome.NOT_HIT)
        async with cluster.client() as client:
            seen = await self._observe(client)
        await cluster.stop()
        return seen

    async def _write(self, client: AsyncRaftClient, count: int) -> None:
        for _ in range(count // 10):
            lines = [
                b"line %d %s" % (number, _PADDING)
                for number in range(len(self._proposed), len(self._proposed) + 10)
            ]
            self._proposed.update(lines)
            await asyncio.gather(
                *(client.propose(GROUP, line, timeout_ms=30_000) for line in lines)
            )
            self._acked += lines

    def _files(self, store: int) -> dict[str, bytes]:
        return saved(self._cluster.machines[store].disk.file_system, STORE)

    async def _stop(self) -> None:
        if self._lags:
            await self._cluster.stop(1, 2)
        else:
            await asyncio.sleep(self._random.random() * 2)
            for store in STORES:
                self._cluster.machines[store].kill()

    def _harm(self, store: int, older: dict[str, bytes]) -> bool:
        file_system = self._cluster.machines[store].disk.file_system
        return harm_one_of(
            file_system, STORE, FILES[self._cell.file], self._cell.damage, older, self._random
        )

    async def _observe(self, client: AsyncRaftClient) -> Seen:
        cluster = self._cluster
        cluster.start(1, 3)
        for timeout_s, others in ((_ALONE_S, (2,)), (_SERVED_S, ())):
            lines = await self._served(client, timeout_s)
            if lines is not None and (bad := judged(lines, self._acked, self._proposed)):
                return bad
            cluster.start(*others)
        if lines is None:
            return Seen(Outcome.OPERATOR, self._halts())
        try:
            await cluster.until(self._are_whole, timeout_s=_WHOLE_S)
        except TimeoutError:
            return Seen(Outcome.REFUSED, self._halts())
        if cluster.halts:
            return Seen(Outcome.REFUSED, self._halts())
        lines = await cluster.agree(*STORES)
        if bad := judged(lines, self._acked, self._proposed):
            return bad
        states = [cluster.hosts[store]._replicas[GROUP].storage.state for store in STORES]
        has_repaired = any(state.votes_from for state in states)
        return Seen(Outcome.REPAIRED if has_repaired else Outcome.UNHARMED)

    async def _served(self, client: AsyncRaftClient, timeout_s: float) -> list[bytes] | None:
        """What clients are given now; None where nobody serves them."""
        line = b"probe %d" % len(self._proposed)
        self._proposed.add(line)
        timeout_ms = int(timeout_s * 1000)
        try:
            await client.propose(GROUP, line, timeout_ms=timeout_ms)
            self._acked.append(line)
            found = await client.read(GROUP, b"all", timeout_ms=timeout_ms)
        except RaftwoodError:
            return None
        return msgspec.msgpack.decode(found, type=list[bytes])

    def _are_whole(self) -> bool:
        cluster = self._cluster
        return all(store in cluster.halts or is_whole(cluster, store) for store in STORES)

    def _halts(self) -> str:
        return "; ".join(f"store {store}: {why}" for store, why in self._cluster.halts.items())
