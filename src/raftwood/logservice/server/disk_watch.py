"""Watches how full the disk is: alarms in time, and refuses appends when too little is free."""

import asyncio
from typing import Final

from raftwood.base.environment import Environment
from raftwood.base.errors import DiskFull
from raftwood.base.files import DiskSpace, perform
from raftwood.base.logs import get_logger
from raftwood.logservice.settings import LogServiceSettings

LOOK_S: Final = 1.0
NEAR_LOOK_S: Final = 0.05
"""The pause near a limit: a fast log must not fill the disk between two looks."""

_log = get_logger("disk")


class DiskWatch:
    """Looks at the free space once a second, and more often near a limit."""

    def __init__(self, environment: Environment, folder: str, settings: LogServiceSettings) -> None:
        self._environment = environment
        self._folder = folder
        self._settings = settings
        self.disk_bytes = 0
        self.free_bytes = 0
        self.refused = 0
        self._is_looked_at = False

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(NEAR_LOOK_S if self._is_near else LOOK_S)

    async def look(self) -> None:
        try:
            ((total, free),) = await perform(self._environment.files, DiskSpace(self._folder))
        except OSError as error:
            _log.warning("free space not known", reason=str(error))
            return
        self.disk_bytes, self.free_bytes = total, free
        self._is_looked_at = True

    @property
    def _is_near(self) -> bool:
        limit = max(self._settings.disk_alarm_bytes, self._settings.disk_refuse_bytes)
        return self._is_looked_at and self.free_bytes < 2 * limit

    @property
    def is_short(self) -> bool:
        """Whether too little is free to take appends."""
        return self._is_looked_at and self.free_bytes < self._settings.disk_refuse_bytes

    def check_room(self) -> None:
        """Raises `DiskFull` if too little is free to take appends."""
        if self.is_short:
            least = self._settings.disk_refuse_bytes
            self.refused += 1
            raise DiskFull(
                f"{self.free_bytes} bytes are free on the disk of {self._folder}, and appends are "
                f"taken above {least} only: truncate logs, or free space; it goes on by itself"
            )

    def alarms(self) -> list[str]:
        least = self._settings.disk_alarm_bytes
        if self._is_looked_at and self.free_bytes < least:
            return [
                f"disk-short: {self.free_bytes} of {self.disk_bytes} bytes are free, below {least}"
            ]
        return []
