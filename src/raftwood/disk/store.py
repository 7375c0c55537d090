"""`Store`: a data folder with its log open, the unit that one process runs on."""

import asyncio
from collections.abc import Awaitable, Callable

from raftwood.base.environment import Environment
from raftwood.base.errors import StoreDamaged
from raftwood.disk.explaining import explained
from raftwood.disk.folder import DataFolder, Identity
from raftwood.disk.segment_log import LogSettings, SegmentLog


class Store:
    """One locked data folder and the log in it; use `open`, and `close` when done."""

    def __init__(self, folder: DataFolder, log: SegmentLog) -> None:
        self._folder = folder
        self.log = log
        self._closing: asyncio.Task[None] | None = None

    @property
    def path(self) -> str:
        return self._folder.path

    @property
    def identity(self) -> Identity:
        return self._folder.identity

    @classmethod
    async def open(
        cls,
        environment: Environment,
        path: str,
        *,
        cluster: str,
        store: int,
        settings: LogSettings | None = None,
        replace_log: Callable[[DataFolder, StoreDamaged], Awaitable[None]] | None = None,
    ) -> "Store":
        """Lock the folder, recover its log, and note that it has one.

        `replace_log` is for an owner that can do without a damaged log: it puts another one in its
        place (`DataFolder.use_next_log`), or raises what is to be told.
        """
        folder = await DataFolder.open(environment, path, cluster=cluster, store=store)
        try:
            with explained(path):
                try:
                    log = await _open_log(environment, folder, settings)
                except StoreDamaged as error:
                    if replace_log is None:
                        raise
                    await replace_log(folder, error)
                    log = await _open_log(environment, folder, settings)
                try:
                    # Before anything is acked, so that a log which vanishes later is noticed.
                    await folder.mark_initialised()
                except BaseException:
                    await log.close()
                    raise
        except BaseException:
            await folder.close()
            raise
        return cls(folder, log)

    async def logs_aside(self) -> list[str]:
        """The folders of damaged logs that were set aside and are still there."""
        return await self._folder.logs_aside()

    async def close(self) -> None:
        """Make all durable, then give the folder back; goes on when the caller is cancelled."""
        if self._closing is None:
            loop = asyncio.get_running_loop()
            self._closing = loop.create_task(self._close(), name=f"closing of {self.path}")
        await asyncio.shield(self._closing)

    async def abandon(self) -> None:
        """Give the folder back as a crash would: what was not durable may be lost."""
        try:
            await self.log.abandon()
        finally:
            if self._closing is None:
                await self._folder.close()
            else:
                await asyncio.wait([self._closing])

    async def _close(self) -> None:
        try:
            await self.log.close()
        finally:
            await self._folder.close()


async def _open_log(
    environment: Environment, folder: DataFolder, settings: LogSettings | None
) -> SegmentLog:
    await folder.check_log()
    return await SegmentLog.open(environment, folder.log_path, settings)
