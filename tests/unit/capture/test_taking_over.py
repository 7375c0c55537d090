"""Processes that take over from one another: what is stored is one story, whoever tells it."""

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest

from raftwood.base.environment import Environment
from raftwood.base.errors import SequenceForgotten, Unavailable
from raftwood.base.position import Position
from raftwood.capture.events import Point, decode_stamp, encode_mark
from raftwood.capture.lane import Lane, Owner, TakenOver
from raftwood.capture.taking_over import Found, ReadBack, take_over
from raftwood.disk.real_environment import end_process
from raftwood.loghub.client.group_rows import rows_of
from raftwood.loghub.client.pulled_batches import PulledBatch
from tests.kits.capture.memory_stream import MemoryStream
from tests.kits.zeppelin.command_kit import ManualClock

PLACES = {0: "1" * 32, 1: "9" * 32, 2: "e" * 32}
"""Of three partitions."""


def _environment(chance: random.Random) -> Environment:
    return Environment(
        clock=ManualClock(),
        random=chance,
        files=None,  # type: ignore[arg-type]
        end_process=end_process,
    )


class Process:
    """Counts on in each partition, from what is stored."""

    def __init__(self, stream: MemoryStream, chance: random.Random, number: int) -> None:
        self._stream = stream
        self._chance = chance
        self.owner = Owner(name="test", process=f"process-{number}", table="t", incarnation=1)
        self.lanes = {
            number: Lane(stream, self.owner, number, place=place)
            for number, place in PLACES.items()
        }
        self.counts: dict[int, int] = {}

    async def run(self, noted: dict[int, Position], count: int) -> None:
        with suppress(TakenOver, Unavailable):
            back = ReadBack(self._stream, self.owner, noted, recent_bytes_max=1_000)
            await take_over(_environment(self._chance), back, self.lanes, self.owner)
            for number in PLACES:
                point = back.found[number].point
                self.counts[number] = 0 if point is None else point.sequence
            await asyncio.gather(*(self._count(number, count) for number in PLACES))

    async def _count(self, number: int, count: int) -> None:
        for _ in range(count):
            self.counts[number] += 1
            point = Point(epoch=1, sequence=self.counts[number])
            body = encode_mark("cut", {"sequence": str(point.sequence)}, 10**9)
            while True:
                try:
                    await self.lanes[number].put(body, 1, point)
                except Unavailable:
                    continue
                break
            for _ in range(self._chance.randrange(5)):
                await asyncio.sleep(0)


def _told(stream: MemoryStream, partition: int) -> list[int]:
    """The counts of a partition, in the order of the shards that had it."""
    found = []
    for shard in sorted(stream.stored):
        for batch in stream.stored[shard]:
            stamp = decode_stamp(rows_of(batch.raw()).tags)
            if stamp is not None and stamp.partition == partition and stamp.point is not None:
                found.append(stamp.point.sequence)
    return found


def _notes(stream: MemoryStream) -> dict[int, Position]:
    """As a process notes them: the last batch with a point of each partition, where it is."""
    last: dict[int, PulledBatch] = {}
    for shard in sorted(stream.stored):
        for batch in stream.stored[shard]:
            stamp = decode_stamp(rows_of(batch.raw()).tags)
            if stamp is not None and stamp.point is not None:
                last[stamp.partition] = batch
    found: dict[int, Position] = {}
    for batch in last.values():
        found[batch.shard] = min(batch.position, found.get(batch.shard, batch.position))
    return found


def run_story(seed: int) -> int:
    """Processes come while others are at work, and shards are split; what came of it."""
    chance = random.Random(seed)

    async def main() -> int:
        stream = MemoryStream(chance)
        noted: dict[int, Position] = {}
        async with asyncio.TaskGroup() as tasks:
            for number in range(4):
                process = Process(stream, chance, number)
                tasks.create_task(process.run(dict(noted), 12))
                for _ in range(chance.randrange(80)):
                    await asyncio.sleep(0)
                if chance.random() < 0.3:
                    noted.update(_notes(stream))
                if chance.random() < 0.6:
                    stream.split()
        stream.is_faulty = False
        # The last one finds all that the others left, and is alone.
        last = Process(stream, chance, 9)
        await last.run(noted, 3)
        count = 0
        for partition in PLACES:
            told = _told(stream, partition)
            assert told == list(range(1, len(told) + 1)), (partition, told)
            assert len(told) == last.counts[partition] >= 3
            count += len(told)
        return count

    return asyncio.run(main())


def test_what_is_stored_is_one_story() -> None:
    assert sum(map(run_story, range(60))) > 3_000


def _no_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    async def begin(self: Lane, tenure: int, *, time_ns: int) -> None:
        await real(self, tenure, time_ns=time_ns)
        self._tenure = 1

    real = Lane.begin
    monkeypatch.setattr(Lane, "begin", begin)


def _not_read_through_the_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    async def advance(self: ReadBack, lanes: Any) -> None:
        if not lanes:
            await real(self, ())
        for number in PLACES:
            self.found.setdefault(number, Found(1_000))

    real = ReadBack.advance
    monkeypatch.setattr(ReadBack, "advance", advance)
    monkeypatch.setattr(ReadBack, "is_fenced", lambda *_: True)


def _former_shards_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(self: Lane, shard: int) -> None:
        pass

    monkeypatch.setattr(Lane, "_check_former", check)


def _another_number_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async def put(self: Lane, body: bytes, count: int, point: Point) -> None:
        try:
            await real(self, body, count, point)
        except Unavailable:
            self._chunk += 1
            raise

    real = Lane.put
    monkeypatch.setattr(Lane, "put", put)


def _whoever_put_the_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReadBack, "is_fenced", lambda self, each, _: each in self.found)


MUTANTS: Mapping[Callable[[pytest.MonkeyPatch], None], int] = {
    _no_fence: 0,
    _not_read_through_the_fence: 0,
    _former_shards_are_not_looked_at: 731,
    _another_number_after_a_failure: 0,
    _whoever_put_the_fence: 0,
}
"""Each with a seed to begin with: what is rare is caught by it."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_planted_bug_is_caught(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    for seed in (MUTANTS[mutant], *range(1_500)):
        try:
            run_story(seed)
        except (AssertionError, ExceptionGroup):
            return
    pytest.fail("nobody noticed")


def test_a_tenure_that_is_not_read_back_is_found_by_trying() -> None:
    chance = random.Random(1)

    async def main() -> None:
        stream = MemoryStream(chance)
        stream.is_faulty = False
        first = Process(stream, chance, 1)
        await first.lanes[0].begin(1_000, time_ns=10**9)
        second = Process(stream, chance, 2)
        with pytest.raises(SequenceForgotten):
            await second.lanes[0].begin(3, time_ns=10**9)
        with pytest.raises(TakenOver):
            await second.lanes[0].join(3, time_ns=10**9)
        with pytest.raises(TakenOver):
            await second.lanes[0].join(1_000, time_ns=10**9)
        await second.run({0: Position(1)}, 2)
        assert all(_told(stream, partition) == [1, 2] for partition in PLACES)
        with pytest.raises(TakenOver):
            await first.lanes[0].put(b"", 1, Point())

    asyncio.run(main())
