"""Removes expired keys of masters in the background, so that they do not take room for ever.

A removal is a record like any other, so replicas stay equal, whatever their clocks say.
"""

import asyncio
from typing import Final

from raftwood.base.environment import Clock
from raftwood.base.errors import RaftwoodError
from raftwood.base.logs import get_logger
from raftwood.zeppelin.node.view import NodeView, PartitionCopy
from raftwood.zeppelin.records import KeyWrite

PAUSE_S: Final = 0.1
KEYS_MAX: Final = 500
"""Keys read in one turn of the loop, which takes some milliseconds."""
BUSY_TURNS_MAX: Final = 20
"""Turns of one partition with many expired keys, before the next partition's."""
_BUSY_KEYS: Final = KEYS_MAX // 4
_log = get_logger("zeppelin")


class ExpirySweep:
    """Goes through the partitions that this node leads, again and again; removes expired keys."""

    def __init__(self, view: NodeView, clock: Clock) -> None:
        self._view = view
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self.removed_count = 0

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="expiry sweep")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(PAUSE_S)
            for table, copy in self._due(self._clock.wall_ns() // 1_000_000):
                await self._sweep(table, copy)

    def _due(self, now_ms: int) -> list[tuple[str, PartitionCopy]]:
        """Returns the served partitions with keys that may have expired: usually none, and then the
        sweep does nothing else.
        """
        due = [
            (table, copy)
            for table in self._view.topology.tables
            for copy in self._view.copies(table)
            if copy is not None and copy.store.next_ending_ms <= now_ms and copy.is_serving
        ]
        return list(dict.fromkeys(due))

    async def _sweep(self, table: str, copy: PartitionCopy) -> None:
        for _ in range(BUSY_TURNS_MAX):
            await asyncio.sleep(0)
            if copy not in self._view.copies(table) or not copy.is_serving:
                return
            try:
                removed = self._remove(copy)
            except RaftwoodError as error:
                _log.info("expired keys stay for now", table=table, reason=error.message)
                return
            self.removed_count += removed
            if removed < _BUSY_KEYS:
                return

    def _remove(self, copy: PartitionCopy) -> int:
        now_ms = self._clock.wall_ns() // 1_000_000
        keys = copy.store.expired(now_ms=now_ms, keys_max=KEYS_MAX)
        if keys:
            copy.commit(tuple(KeyWrite(key, None) for key in keys))
        return len(keys)
