"""The log in memory does what every log does: else tests above it would show nothing."""

import asyncio

from raftwood.base.seams import Log
from tests.unit.loghub.memory_logs import MemoryLog
from tests.unit.seams.log_suite import LogSuite, Scenario


class _Kit:
    def __init__(self) -> None:
        self._log = MemoryLog()

    async def open(self) -> Log:
        return self._log

    async def fail_over(self) -> None:
        """There is nobody else."""


class TestMemoryLog(LogSuite):
    def run(self, scenario: Scenario) -> None:
        async def whole() -> None:
            await scenario(_Kit())

        asyncio.run(whole())
