"""What every `Logs` must do: one suite, run by each implementation with a kit of its own."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import pytest

from raftwood.base.errors import NotFound
from raftwood.base.seams import Log, Logs
from tests.kits.base.log_suite import read_all


class LogsKit(Protocol):
    """One place for logs."""

    async def open(self) -> Logs:
        """Through a client that shares nothing with those before."""
        ...


Scenario = Callable[[LogsKit], Awaitable[None]]


async def until_gone(log: Log) -> None:
    """A log that was removed by another client may answer for a moment."""
    with pytest.raises(NotFound):
        async with asyncio.timeout(120):
            while True:
                await log.bounds()
                await asyncio.sleep(0.5)


class LogsSuite:
    def run(self, scenario: Scenario) -> None:
        """Run a scenario where there is no log yet."""
        raise NotImplementedError

    def test_logs_are_made_once_and_found_by_name(self) -> None:
        async def scenario(kit: LogsKit) -> None:
            logs, others = await kit.open(), await kit.open()
            with pytest.raises(NotFound):
                await logs.open("lh.a.1")
            for name in ("lh.a.2", "lh.a.1", "lh.b.1"):
                await logs.create(name)
            log = await logs.open("lh.a.1")
            position = await log.append([b"one"], producer=b"p", sequence=1)
            await others.create("lh.a.1")
            assert await read_all(await others.open("lh.a.1")) == [(position, b"one")]
            assert await read_all(await others.open("lh.a.2")) == []
            assert await others.names("lh.a.") == ["lh.a.1", "lh.a.2"]
            assert await others.names("nothing") == []

        self.run(scenario)

    def test_many_may_make_and_open_a_log_at_once(self) -> None:
        async def scenario(kit: LogsKit) -> None:
            logs, others = await kit.open(), await kit.open()
            await asyncio.gather(*(each.create("lh.a.1") for each in (logs, others, logs)))
            opened = await asyncio.gather(*(each.open("lh.a.1") for each in (logs, others, logs)))
            positions = [
                await log.append([b"same"], producer=b"p", sequence=7) for log in opened * 2
            ]
            assert len(set(positions)) == 1

        self.run(scenario)

    def test_a_removed_log_is_gone_for_all_and_its_name_begins_anew(self) -> None:
        async def scenario(kit: LogsKit) -> None:
            logs, others = await kit.open(), await kit.open()
            await logs.create("lh.a.1")
            log, same = await logs.open("lh.a.1"), await others.open("lh.a.1")
            await log.append([b"old"], producer=b"p", sequence=1)
            await logs.remove("lh.a.1")
            await logs.remove("lh.a.1")
            await others.remove("never there")
            with pytest.raises(NotFound):
                await log.append([b"late"], producer=b"p", sequence=2)
            await until_gone(same)
            for each in (logs, others):
                with pytest.raises(NotFound):
                    await each.open("lh.a.1")
            assert await others.names("") == await logs.names("")
            assert "lh.a.1" not in await logs.names("")
            await others.create("lh.a.1")
            assert await read_all(await logs.open("lh.a.1")) == []
            assert await read_all(await others.open("lh.a.1")) == []

        self.run(scenario)
