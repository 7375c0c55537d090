"""What an operator does with a group while it runs."""

import asyncio

import pytest
from msgspec import structs

from raftwood.base.errors import Conflict, DeadlineExceeded, NotFound
from raftwood.loghub.consumer.group_admin import (
    drain_workers,
    leased_shards,
    reset_group,
    show_group,
)
from raftwood.testing.runner import Simulation, simulate
from tests.kits.loghub.workers import TIMES, FakeSource, Group


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


def test_after_a_split_checkpoints_of_what_is_left_are_set() -> None:
    async def scenario(simulation: Simulation) -> None:
        group = Group(simulation, FakeSource(2, length=4))
        group.start("a")
        await group.until(lambda: group.counts() == [2])
        group.source.split("0")
        await group.until(lambda: "0" not in group.memory.leases)
        await group.drain("a")
        assert await leased_shards(group.memory, group.source) == ["1", "0a", "0b"]
        await reset_group(group.memory, dict.fromkeys(("0a", "0b", "1"), "0"))
        with pytest.raises(Conflict, match="shards 0 are over"):
            await reset_group(group.memory, {"0": "0", "1": "3"})
        assert group.memory.leases["1"].checkpoint == "0"

    simulate(5, scenario)


def test_a_group_is_shown_although_a_shard_of_it_is_gone() -> None:
    class Freed(FakeSource):
        async def next_received_ms(self, shard: str, position: str) -> int | None:
            if shard == "0":
                raise NotFound("shard 0 was freed")
            return await super().next_received_ms(shard, position)

    async def scenario(simulation: Simulation) -> None:
        source = Freed(2, length=4)
        group = Group(simulation, source)
        await leased_shards(group.memory, source)
        await reset_group(group.memory, {"0": "1", "1": "4"})
        rows = await show_group(group.memory, source, simulation.environment)
        assert [row.lag_s for row in rows] == [None, 0.0]

    simulate(7, scenario)


def test_nothing_is_set_where_a_part_cannot_be() -> None:
    async def scenario(simulation: Simulation) -> None:
        group = Group(simulation, FakeSource(2, length=4))
        group.start("a")
        await group.until_all_seen()
        group.memory.leases["0"] = structs.replace(
            group.memory.leases["0"], consumer_owner="", consumer_process=""
        )
        with pytest.raises(Conflict, match="shards 1 are being consumed"):
            await reset_group(group.memory, {"0": "1", "1": "1"})
        assert group.memory.leases["0"].checkpoint != "1"

    simulate(6, scenario)


def test_checkpoints_are_set_only_while_nobody_consumes() -> None:
    async def scenario(simulation: Simulation) -> None:
        group = Group(simulation, FakeSource(2, length=10))
        assert await leased_shards(group.memory, group.source) == ["0", "1"]
        await reset_group(group.memory, {"0": "7", "1": "10"})
        group.start("a")
        await group.until(lambda: len(group.seen.all()) == 3)
        with pytest.raises(Conflict, match="being consumed"):
            await reset_group(group.memory, {"0": "0"})
        with pytest.raises(NotFound, match="no worker x"):
            await drain_workers(group.memory, simulation.environment, ["x"], wait_s=1)
        await group.drain("a")
        await reset_group(group.memory, {"0": "9"})
        rows = await show_group(group.memory, group.source, simulation.environment)
        assert [(row.checkpoint, bool(row.lag_s)) for row in rows] == [("9", True), ("10", False)]
        assert sorted(group.seen.all()) == ["0:7", "0:8", "0:9"]

    simulate(2, scenario)
