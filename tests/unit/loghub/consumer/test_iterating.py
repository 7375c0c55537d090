"""A consumer as an iterator: what was asked behind is dealt with, and nothing else is."""

import asyncio

from raftwood.loghub.consumer.iterator import Consumer
from raftwood.loghub.consumer.memory_store import MemoryLeaseStore
from raftwood.loghub.consumer.worker import WorkerConfig
from raftwood.testing.runner import Simulation, simulate
from tests.kits.loghub.workers import TIMES, FakeSource


def consumer(
    simulation: Simulation, name: str, world: tuple[MemoryLeaseStore, FakeSource]
) -> Consumer:
    config = WorkerConfig(instance=name, times=TIMES)
    return Consumer(config, world[0], source=world[1], environment=simulation.environment)


def test_batches_come_in_order_and_the_one_that_was_left_comes_again() -> None:
    async def scenario(simulation: Simulation) -> None:
        world = (MemoryLeaseStore(), FakeSource(2, length=10))
        seen: list[str] = []
        async with consumer(simulation, "a", world) as first:
            async for batch in first:
                seen += batch.records()
                assert first.tracker is not None
                assert first.tracker.epoch == 1
                if len(seen) == 7:
                    break
        left = seen.pop()
        async with consumer(simulation, "b", world) as second:
            async for batch in second:
                seen += batch.records()
                if len(seen) == 20:
                    break
        assert left in seen
        assert sorted(seen) == sorted(world[1].everything())
        for shard in "01":
            numbers = [int(each[2:]) for each in seen if each[0] == shard]
            assert numbers == sorted(numbers)

    simulate(1, scenario)


def test_two_iterators_share_and_nothing_comes_twice() -> None:
    async def scenario(simulation: Simulation) -> None:
        source = FakeSource(4)
        world = (MemoryLeaseStore(), source)
        seen: dict[str, list[str]] = {"a": [], "b": []}

        async def consume(name: str) -> None:
            async with consumer(simulation, name, world) as found:
                async for batch in found:
                    seen[name] += batch.records()
                    await asyncio.sleep(0.002)

        tasks = [asyncio.create_task(consume("a"))]
        for step in range(100):
            source.put(1)
            await asyncio.sleep(0.05)
            if step == 30:
                tasks.append(asyncio.create_task(consume("b")))
        await asyncio.sleep(3)
        both = seen["a"] + seen["b"]
        assert sorted(both) == sorted(source.everything())
        assert seen["b"]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    simulate(2, scenario)


def test_a_loop_that_hangs_loses_its_shards_and_one_that_is_slow_does_not() -> None:
    async def scenario(simulation: Simulation) -> None:
        world = (MemoryLeaseStore(), FakeSource(4, length=8))
        seen: dict[str, list[str]] = {"slow": [], "next": []}

        async def consume(name: str, pause_s: float) -> None:
            async with consumer(simulation, name, world) as found:
                async for batch in found:
                    seen[name] += batch.records()
                    is_hung = name == "slow" and len(seen[name]) == 20
                    await asyncio.sleep(1_000 if is_hung else pause_s)

        slow = asyncio.create_task(consume("slow", 0.6))
        while len(seen["slow"]) < 20:  # noqa: ASYNC110 - it is virtual time that passes
            await asyncio.sleep(0.1)
        assert {each.epoch for each in world[0].leases.values()} == {1}
        following = asyncio.create_task(consume("next", 0.01))
        await asyncio.sleep(5 * TIMES.timeout_ms / 1000)
        assert {each.consumer_owner for each in world[0].leases.values()} == {"next"}
        assert set(seen["slow"]) | set(seen["next"]) == world[1].everything()
        # The batch that the loop hangs at, and those that it had not asked behind.
        assert len(set(seen["slow"]) & set(seen["next"])) == 1
        for task in (slow, following):
            task.cancel()
        await asyncio.gather(slow, following, return_exceptions=True)

    simulate(3, scenario)
