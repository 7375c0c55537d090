"""Workers share a source's shards: they join, leave, crash, lose the store, follow splits."""

import asyncio
import re
from collections.abc import Sequence

import pytest
from msgspec import structs

from raftwood.base.errors import DeadlineExceeded
from raftwood.loghub.consumer.checkpoints import AsyncCheckpointTracker
from raftwood.loghub.consumer.leases import SHARD_END
from raftwood.loghub.consumer.processor import AsyncProcessor
from raftwood.loghub.consumer.source import ShardBatch, SourceShard
from raftwood.loghub.errors import LeaseLost, NameTaken
from raftwood.testing.runner import Simulation, simulate
from tests.kits.loghub.workers import TIMES, FakeShard, FakeSource, Group, Recorder


async def feed(source: FakeSource, seconds: float) -> None:
    for _ in range(int(seconds * 20)):
        source.put(1)
        await asyncio.sleep(0.05)


def test_one_worker_processes_all_and_leaves_its_checkpoints() -> None:
    async def scenario(simulation: Simulation) -> None:
        group = Group(simulation, FakeSource(3, length=10))
        group.start("a")
        await group.until_all_seen()
        await group.drain("a")
        assert sorted(group.seen.all()) == sorted(group.source.everything())
        assert sorted(group.source.left) == ["0", "1", "2"]
        assert group.ended == {"a": None}
        assert {each.checkpoint for each in group.memory.leases.values()} == {"10"}
        assert all(each.is_vacant for each in group.memory.leases.values())
        assert group.memory.workers == {}

    simulate(1, scenario)


def test_one_that_joins_takes_its_share_and_nothing_is_processed_twice() -> None:
    async def scenario(simulation: Simulation) -> None:
        group = Group(simulation, FakeSource(6))
        group.start("a")
        await group.until(lambda: group.counts() == [6])
        feeding = asyncio.create_task(feed(group.source, 6))
        await asyncio.sleep(1)
        group.start("b")
        await group.until(lambda: group.counts() == [3, 3], seconds=2)
        await feeding
        await group.until_all_seen()
        await group.drain("a", "b")
        assert sorted(group.seen.all()) == sorted(group.source.everything())
        assert group.seen.by("b")
        text = group.workers["a"].metrics.render()
        assert 'raftwood_consumer_moves_total{kind="gone_stolen"} 3.0' in text

    simulate(2, scenario)


def test_the_shards_of_one_that_dies_are_taken_over_in_time() -> None:
    async def scenario(simulation: Simulation) -> None:
        group = Group(simulation, FakeSource(4))
        machine = group.start("a")
        group.start("b")
        await group.until(lambda: group.counts() == [2, 2])
        await feed(group.source, 3)
        machine.kill()
        group.killed("a")
        await group.until(lambda: group.counts() == [4], seconds=2 * TIMES.timeout_ms / 1000)
        await feed(group.source, 1)
        await group.until_all_seen()
        await group.drain("b")
        twice = len(group.seen.all()) - len(set(group.seen.all()))
        # What came between the last flush and the end, at 20 a second and shard.
        assert twice <= 2 * 20 * 2.1

    simulate(3, scenario)


def test_children_follow_their_parent_and_it_is_forgotten() -> None:
    async def scenario(simulation: Simulation) -> None:
        group = Group(simulation, FakeSource(2, length=20))
        group.start("a", start="end")
        group.start("b", start="end")
        await group.until(lambda: group.counts() == [1, 1])
        group.source.put(10)
        group.source.split("0")
        group.source.put(10)
        await group.until(lambda: group.counts() == [1, 2] and "0" not in group.memory.leases)
        await group.until(lambda: len(group.seen.all()) == 10 + 20 + 10 + 10)
        await group.drain("a", "b")
        seen = group.seen.all()
        assert len(set(seen)) == len(seen)
        assert max(seen.index(f"0:{number}") for number in range(20, 30)) < seen.index("0a:0")
        assert "0:19" not in seen
        assert ("0", "ended") in [event[1:] for event in group.seen.events]

    simulate(4, scenario)


def test_shards_are_listed_anew_where_a_list_is_from_before_a_deletion() -> None:
    async def scenario(simulation: Simulation) -> None:
        group = Group(simulation, FakeSource(1, length=5))
        group.start("a", list_ms=3_600_000)
        await group.until(lambda: group.counts() == [1])
        group.source.split("0")
        group.source.put(3)
        await group.until(lambda: "0" not in group.memory.leases)
        # The worker that reads this to its end may not have heard of the deletion yet.
        group.source.split("0a")
        group.source.put(3)
        await group.until(lambda: {"0aa", "0ab"} <= set(group.memory.leases), seconds=2)
        await group.until(lambda: "0a" not in group.memory.leases)
        await group.drain("a")
        # Nor can one that has just come, which lists before it looks.
        group.source.shards["1"] = FakeShard(length=3)
        group.start("b", list_ms=3_600_000)
        await group.until(lambda: "1" in group.memory.leases, seconds=2)
        await group.until_all_seen()
        await group.drain("b")
        assert sorted(group.seen.all()) == sorted(group.source.everything())

    simulate(4, scenario)


def test_shards_are_listed_anew_where_one_ended_during_a_listing() -> None:
    async def scenario(simulation: Simulation) -> None:
        source = FakeSource(1, length=5)
        group = Group(simulation, source)
        listed = source.list_shards

        async def slow_list() -> Sequence[SourceShard]:
            shards = await listed()
            await asyncio.sleep(1)
            return shards

        group.start("a")
        await group.until(lambda: group.counts() == [1])
        source.list_shards = slow_list  # type: ignore[method-assign]
        group.workers["a"].config = structs.replace(group.workers["a"].config, list_ms=3_600_000)
        await asyncio.sleep(2.5)  # a listing has begun
        source.split("0")
        source.put(3)
        await group.until(lambda: {"0a", "0b"} <= set(group.memory.leases), seconds=5)
        await group.drain("a")

    simulate(4, scenario)


def test_a_worker_that_loses_the_store_stops_in_time_and_comes_back() -> None:
    async def scenario(simulation: Simulation) -> None:
        group = Group(simulation, FakeSource(4))
        group.start("a")
        group.start("b")
        await group.until(lambda: group.counts() == [2, 2])
        group.stores["a"].is_away = True
        feeding = asyncio.create_task(feed(group.source, 10))
        await group.until(lambda: group.counts() == [0, 4], seconds=5)
        group.stores["a"].is_away = False
        await group.until(lambda: group.counts() == [2, 2], seconds=5)
        await feeding
        await group.until_all_seen()
        await group.drain("a", "b")

    simulate(5, scenario)


def test_a_process_that_starts_under_the_same_name_replaces_the_older_one() -> None:
    async def scenario(simulation: Simulation) -> None:
        group = Group(simulation, FakeSource(2, length=10))
        group.start("a")
        await group.until(lambda: group.counts() == [2])
        group.start("a", machine="again")
        await group.until(lambda: "a" in group.ended)
        assert isinstance(group.ended["a"], NameTaken)
        await group.until(lambda: len(group.workers["again"].shards()) == 2)
        group.source.put(5)
        await group.until_all_seen()
        await group.drain("again")
        assert sorted(group.seen.all()) == sorted(group.source.everything())

    simulate(6, scenario)


class Fails(AsyncProcessor):
    """Every third call, before anything is saved."""

    calls = 0

    def __init__(self, group: Group) -> None:
        self._group = group

    async def process(self, batches: Sequence[ShardBatch], tracker: AsyncCheckpointTracker) -> None:
        Fails.calls += 1
        if Fails.calls % 3 == 0:
            raise RuntimeError("planted")
        for batch in batches:
            self._group.seen.records += [("a", each, tracker.epoch) for each in batch.records()]
        await tracker.save_checkpoint(persistent=True)

    async def shutdown(self, tracker: AsyncCheckpointTracker) -> None:
        await tracker.save_checkpoint()


def test_a_processor_that_fails_begins_again_behind_what_it_saved() -> None:
    async def scenario(simulation: Simulation) -> None:
        group = Group(simulation, FakeSource(1, length=40))
        group.start("a", factory=lambda: Fails(group))
        await group.until_all_seen()
        await group.drain("a")
        assert sorted(group.seen.all()) == sorted(group.source.everything())
        assert len({epoch for _, _, epoch in group.seen.records}) > 2

    simulate(7, scenario)


def test_a_source_that_is_away_is_waited_for() -> None:
    async def scenario(simulation: Simulation) -> None:
        group = Group(simulation, FakeSource(2, length=5))
        group.start("a")
        await group.until_all_seen()
        group.source.is_away = True
        await asyncio.sleep(3)
        group.source.put(5)
        group.source.is_away = False
        await group.until_all_seen()
        await group.drain("a")
        assert sorted(group.seen.all()) == sorted(group.source.everything())

    simulate(8, scenario)


def test_a_call_that_takes_too_long_is_counted() -> None:
    async def scenario(simulation: Simulation) -> None:
        group = Group(simulation, FakeSource(1, length=4))
        group.start("a", factory=lambda: Recorder(group.seen, "a", seconds=6))
        await group.until(lambda: "0" in group.seen.busy)
        group.stores["a"].is_away = True
        await asyncio.sleep(4)
        group.stores["a"].is_away = False
        await group.until_all_seen()
        await group.drain("a")
        assert "raftwood_consumer_overruns_total 1.0" in group.workers["a"].metrics.render()

    simulate(9, scenario)


class Careful(AsyncProcessor):
    """Asks its tracker before each thing that it does, and notes what it did and when."""

    def __init__(self, worker: str, done: list[tuple[str, int]], refused: list[str]) -> None:
        self._worker = worker
        self._done = done
        self._refused = refused

    async def process(self, batches: Sequence[ShardBatch], tracker: AsyncCheckpointTracker) -> None:
        for batch in batches:
            await asyncio.sleep(0.5)
            try:
                await tracker.save_checkpoint(after=batch)
            except LeaseLost:
                assert tracker.is_stopping
                self._refused.append(self._worker)
                raise
            self._done.append((self._worker, tracker.epoch))


def test_a_paused_worker_does_nothing_more_once_its_lease_is_over() -> None:
    async def scenario(simulation: Simulation) -> None:
        group = Group(simulation, FakeSource(1, length=4))
        done: list[tuple[str, int]] = []
        refused: list[str] = []
        paused = group.start("a", factory=lambda: Careful("a", done, refused))
        await group.until(lambda: bool(done))
        paused.pause()
        group.start("b", factory=lambda: Careful("b", done, refused))
        await group.until(lambda: done[-1][0] == "b")
        paused.resume()
        await group.until(lambda: group.memory.leases["0"].checkpoint == "4")
        await group.drain("a", "b")
        # Its next call raised: it did nothing beside the next owner, nor was anything lost.
        assert refused == ["a"]
        assert done == sorted(done, key=lambda each: each[1])
        assert {name for name, _ in done} == {"a", "b"}
        text = group.workers["a"].metrics.render()
        assert "raftwood_consumer_overruns_total 1.0" in text
        (seconds,) = re.findall(r"(?m)^raftwood_consumer_overrun_seconds_total (\S+)", text)
        assert float(seconds) > 0

    simulate(12, scenario)


def test_an_overrun_is_counted_while_it_lasts() -> None:
    async def scenario(simulation: Simulation) -> None:
        group = Group(simulation, FakeSource(1, length=4))
        group.start("a", factory=lambda: Recorder(group.seen, "a", seconds=60))
        await group.until(lambda: "0" in group.seen.busy)
        group.stores["a"].is_away = True
        await asyncio.sleep(4)
        counted = "raftwood_consumer_overruns_total 1.0"
        assert counted in group.workers["a"].metrics.render()
        group.seen.busy.clear()
        await asyncio.sleep(70)
        assert counted in group.workers["a"].metrics.render()

    simulate(13, scenario)


def test_a_shard_that_ended_stays_so() -> None:
    async def scenario(simulation: Simulation) -> None:
        group = Group(simulation, FakeSource(1, length=4))
        group.source.shards["0"].is_sealed = True
        group.start("a")
        await group.until_all_seen()
        await asyncio.sleep(5)
        await group.drain("a")
        assert group.memory.leases["0"].checkpoint == SHARD_END
        assert group.seen.events == [("a", "0", "initialize"), ("a", "0", "ended")]

    simulate(10, scenario)


def test_a_worker_that_cannot_hand_over_leaves_all_the_same() -> None:
    async def scenario(simulation: Simulation) -> None:
        group = Group(simulation, FakeSource(2, length=5))
        group.start("a")
        await group.until_all_seen()
        group.stores["a"].is_away = True
        await group.drain("a")
        assert isinstance(group.ended["a"], DeadlineExceeded)

    simulate(11, scenario)


class Hanging(Recorder):
    """Does not return from calls for shard 0 until it is let go."""

    def __init__(self, group: Group, worker: str, going: asyncio.Event) -> None:
        super().__init__(group.seen, worker)
        self._going = going

    async def process(self, batches: Sequence[ShardBatch], tracker: AsyncCheckpointTracker) -> None:
        if tracker.shard_id == "0":
            await self._going.wait()
        else:
            await super().process(batches, tracker)


def test_a_processor_that_hangs_loses_that_shard_and_no_other() -> None:
    async def scenario(simulation: Simulation) -> None:
        group = Group(simulation, FakeSource(4))
        going = asyncio.Event()
        group.start("a", factory=lambda: Hanging(group, "a", going))
        group.start("b")
        await group.until(lambda: group.counts() == [2, 2])
        assert "0" in group.workers["a"].shards()
        group.source.put(10)
        await group.until(lambda: "0" in group.workers["b"].shards(), seconds=4 * 2)
        await group.until_all_seen()
        assert len(group.seen.all()) == 40
        text = group.workers["a"].metrics.render()
        assert 'raftwood_consumer_moves_total{kind="gone_hung"} 1.0' in text
        # It does not get it back while it hangs; then it takes its share again.
        await asyncio.sleep(10)
        assert len(group.workers["b"].shards()) == 3
        assert group.memory.leases["0"].consumer_owner == "b"
        going.set()
        await group.until(lambda: group.counts() == [2, 2])
        await group.drain("a", "b")
        assert group.memory.leases["0"].checkpoint == "10"

    simulate(11, scenario)


def test_one_whose_name_was_taken_does_not_wait_for_a_processor_that_hangs() -> None:
    async def scenario(simulation: Simulation) -> None:
        group = Group(simulation, FakeSource(1, length=4))
        group.start("a", factory=lambda: Hanging(group, "a", asyncio.Event()))
        await group.until(lambda: group.counts() == [1])
        group.start("a", machine="again")
        await group.until(lambda: "a" in group.ended, seconds=5 * TIMES.timeout_ms / 1000)
        assert isinstance(group.ended["a"], DeadlineExceeded)
        del group.workers["a"]
        await group.until_all_seen()
        await group.drain("again")

    simulate(12, scenario)


@pytest.mark.parametrize("seed", range(2))
def test_whatever_happens_each_record_is_processed_by_one_worker_at_a_time(seed: int) -> None:
    async def scenario(simulation: Simulation) -> None:
        chance = simulation.environment.random
        group = Group(simulation, FakeSource(6))
        machines = {name: group.start(name) for name in ("w0", "w1", "w2")}
        feeding = asyncio.create_task(feed(group.source, 40))
        for step in range(10):
            await asyncio.sleep(chance.uniform(0.5, 4))
            name = chance.choice(list(machines))
            match chance.choice(("kill", "pause", "cut", "drain", "join", "split")):
                case "kill" if len(machines) > 1:
                    machines.pop(name).kill()
                    group.killed(name)
                case "pause":
                    machines[name].pause()
                    await asyncio.sleep(chance.uniform(0.1, 5))
                    machines[name].resume()
                case "cut":
                    group.stores[name].is_away = True
                    await asyncio.sleep(chance.uniform(0.1, 5))
                    group.stores[name].is_away = False
                case "drain" if len(machines) > 1:
                    del machines[name]
                    await group.drain(name)
                    del group.workers[name]
                case "split" if step < 8:
                    whole = [n for n, each in group.source.shards.items() if not each.is_sealed]
                    group.source.split(chance.choice(whole))
                case _:
                    machines[f"j{step}"] = group.start(f"j{step}")
        await feeding
        await group.until_all_seen()
        await group.until(lambda: group.counts()[-1] - group.counts()[0] <= 1)
        await group.drain(*machines)

    simulate(100 + seed, scenario)
