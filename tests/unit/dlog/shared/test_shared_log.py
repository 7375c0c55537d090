"""A DLOG as the `Log` and `Logs` seams: the suites that every log passes, on several processes."""

from raftwood.base.seams import Log, Logs
from tests.dlog_kit.shared_world import SharedWorld, run_shared
from tests.unit.seams import logs_suite
from tests.unit.seams.log_suite import LogSuite, Scenario
from tests.unit.seams.logs_suite import LogsSuite


class _LogKit:
    """Each client is a process of its own, any of which may be the owner."""

    def __init__(self, world: SharedWorld) -> None:
        self._world = world
        self._opened = 0

    async def open(self) -> Log:
        self._opened += 1
        logs = await self._world.start(f"g{self._opened}")
        await logs.create("log")
        return await logs.open("log")

    async def fail_over(self) -> None:
        """The owner stops as if it was stopped: its writer is gone at once, its record stays."""
        owner = self._world.owner("log")
        self._world.logs[owner].seats._tenure._end()


class TestSharedLog(LogSuite):
    def run(self, scenario: Scenario) -> None:
        async def whole(world: SharedWorld) -> None:
            await scenario(_LogKit(world))

        run_shared(whole)


class _LogsKit:
    def __init__(self, world: SharedWorld) -> None:
        self._world = world
        self._opened = 0

    async def open(self) -> Logs:
        self._opened += 1
        return await self._world.start(f"g{self._opened}")


class TestSharedLogs(LogsSuite):
    def run(self, scenario: logs_suite.Scenario) -> None:
        async def whole(world: SharedWorld) -> None:
            await scenario(_LogsKit(world))

        run_shared(whole)
