"""Keeping house: from time to time, what logs retain no longer is freed, lost ledgers go, and
closed ones are offloaded where there is a store for them.

Every process that shares logs does so, at times of its own: all of it can be done twice.
"""

import asyncio

from raftwood.base.environment import Environment
from raftwood.base.errors import NotFound, RaftwoodError
from raftwood.base.logs import get_logger
from raftwood.dlog.log.dlogs import Dlogs

_log = get_logger("dlog")


class Upkeep:
    """Use `start`, and `close` when done."""

    def __init__(self, environment: Environment, dlogs: Dlogs, *, interval_ms: int) -> None:
        self._environment = environment
        self._dlogs = dlogs
        self._interval_s = interval_ms / 1000
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="upkeep of DLOG")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s * (0.5 + self._environment.random.random()))
            try:
                await self.look()
            except RaftwoodError as error:
                _log.warning("logs are not looked after", reason=error.message)

    async def look(self) -> list[int]:
        """Once; the ledgers that were lost, and are deleted now."""
        for name in await self._dlogs.names():
            try:
                await self._dlogs.retain(name)
                if self._dlogs.can_offload:
                    await self._offload(name)
            except NotFound:
                continue  # it was removed meanwhile
        lost = await self._dlogs.remove_orphans()
        if lost:
            _log.info("lost ledgers deleted", count=len(lost))
        return lost

    async def _offload(self, name: str) -> None:
        try:
            done = await self._dlogs.offload(name)
        except NotFound:
            raise
        except RaftwoodError as error:
            # What keeps one log's ledgers where they are keeps nobody from freeing others'.
            _log.warning("ledgers are not offloaded", log=name, reason=error.message)
            return
        if done:
            _log.info("ledgers offloaded", log=name, count=len(done))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
