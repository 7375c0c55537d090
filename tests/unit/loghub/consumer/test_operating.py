"""What an operator does with a group while it runs."""

import asyncio

import pytest

from raftwood.base.errors import Conflict, DeadlineExceeded, NotFound
from raftwood.loghub.consumer.operating import drain_workers, reset_group, show_group
from raftwood.simulation.runner import Simulation, simulate
from tests.unit.loghub.consumer.worker_kit import TIMES, FakeSource, Group


def test_a_drained_worker_hands_over_and_the_others_go_on() -> None:
    async def scenario(simulation: Simulation) -> None:
        group = Group(simulation, FakeSource(4, length=10))
        group.start("a")
        group.start("b")
        await group.until(lambda: group.counts() == [2, 2])
        environment = simulation.environment
        assert await drain_workers(group.memory, environment, ["a"], wait_s=10) == ["a"]
        await group.until(lambda: "a" in group.ended)
        assert group.ended["a"] is None
        await group.until(lambda: len(group.workers["b"].shards()) == 4)
        group.source.put(5)
        await group.until_all_seen()
        rows = await show_group(group.memory, group.source, environment)
        assert {row.owner for row in rows} == {"b"}
        assert list(group.memory.workers) == ["b"]
        await group.drain("b")
        assert sorted(group.seen.all()) == sorted(group.source.everything())

    simulate(1, scenario)


def test_a_worker_that_has_nothing_is_sent_away_too() -> None:
    async def scenario(simulation: Simulation) -> None:
        group = Group(simulation, FakeSource(1))
        group.start("a")
        await group.until(lambda: group.counts() == [1])
        group.start("b")
        await group.until(lambda: "b" in group.memory.workers)
        assert await drain_workers(group.memory, simulation.environment, ["b"], wait_s=10) == ["b"]
        await group.until(lambda: "b" in group.ended, seconds=TIMES.timeout_ms / 1000)
        assert group.ended["b"] is None
        assert list(group.memory.workers) == ["a"]
        await group.drain("a")

    simulate(3, scenario)


def test_nobody_leaves_a_share_for_one_that_was_sent_away() -> None:
    async def scenario(simulation: Simulation) -> None:
        group = Group(simulation, FakeSource(4))
        paused = group.start("a")
        group.start("b")
        await group.until(lambda: group.counts() == [2, 2])
        paused.pause()
        with pytest.raises(DeadlineExceeded, match="not handed over yet"):
            await drain_workers(group.memory, simulation.environment, ["a"], wait_s=0.1)
        again = drain_workers(group.memory, simulation.environment, ["a"], wait_s=10)
        draining = asyncio.create_task(again)
        await group.until(lambda: len(group.workers["b"].shards()) == 4, seconds=10)
        assert await draining == ["a"]
        # It was not dead: when it goes on, it sees that it was sent away.
        paused.resume()
        await group.until(lambda: "a" in group.ended, seconds=10)
        assert group.ended["a"] is None
        await group.drain("b")
        assert group.memory.workers == {}

    simulate(4, scenario)


def test_checkpoints_are_set_only_while_nobody_consumes() -> None:
    async def scenario(simulation: Simulation) -> None:
        group = Group(simulation, FakeSource(2, length=10))
        await reset_group(group.memory, group.source, {"0": "7", "1": "10"})
        group.start("a")
        await group.until(lambda: len(group.seen.all()) == 3)
        with pytest.raises(Conflict, match="being consumed"):
            await reset_group(group.memory, group.source, {"0": "0"})
        with pytest.raises(NotFound, match="no worker x"):
            await drain_workers(group.memory, simulation.environment, ["x"], wait_s=1)
        await group.drain("a")
        await reset_group(group.memory, group.source, {"0": "9"})
        rows = await show_group(group.memory, group.source, simulation.environment)
        assert [(row.checkpoint, bool(row.lag_s)) for row in rows] == [("9", True), ("10", False)]
        assert sorted(group.seen.all()) == ["0:7", "0:8", "0:9"]

    simulate(2, scenario)
