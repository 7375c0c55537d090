"""The log in memory does what every log does: else tests above it would show nothing."""

import asyncio

from raftwood.base.seams import Log, Logs
from tests.kits.base import logs_suite
from tests.kits.base.log_suite import LogSuite, Scenario
from tests.kits.base.logs_suite import LogsSuite
from tests.kits.loghub.memory_logs import MemoryLog, MemoryLogs


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


class _LogsKit:
    def __init__(self) -> None:
        self._logs = MemoryLogs()

    async def open(self) -> Logs:
        return self._logs


class TestMemoryLogs(LogsSuite):
    def run(self, scenario: logs_suite.Scenario) -> None:
        async def whole() -> None:
            await scenario(_LogsKit())

        asyncio.run(whole())
