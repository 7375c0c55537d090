"""A consumer as an iterator: what was asked behind is dealt with, and nothing else is."""

import asyncio

from raftwood.loghub.consumer.iterating import Consumer
from raftwood.loghub.consumer.stores.memory import MemoryLeaseStore
from raftwood.loghub.consumer.worker import WorkerConfig
from raftwood.simulation.runner import Simulation, simulate
from tests.unit.loghub.consumer.worker_kit import TIMES, FakeSource


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
