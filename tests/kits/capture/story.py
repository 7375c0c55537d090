"""Processes that take over from one another: what is stored is one story, whoever tells it."""

import asyncio
import random
from contextlib import suppress
from typing import Any

from raftwood.base.environment import Environment
from raftwood.base.errors import Unavailable
from raftwood.base.position import Position
from raftwood.capture.events import Point, decode_stamp, encode_mark
from raftwood.capture.lane import CaptureLane, LaneOwner, LaneTakenOver
from raftwood.capture.takeover import ReadBack, ResumePoint, take_over
from raftwood.disk.real_environment import end_process
from raftwood.loghub.client.pulled_batches import PulledBatch, rows_of
from tests.kits.capture.memory_stream import MemoryStream
from tests.kits.models import CATCHES, Mutant, Plant, replaced
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
        self.owner = LaneOwner(name="test", process=f"process-{number}", table="t", incarnation=1)
        self.lanes = {
            number: CaptureLane(stream, self.owner, number, place=place)
            for number, place in PLACES.items()
        }
        self.counts: dict[int, int] = {}

    async def run(self, noted: dict[int, Position], count: int) -> None:
        with suppress(LaneTakenOver, Unavailable):
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


def told(stream: MemoryStream, partition: int) -> list[int]:
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
            counts = told(stream, partition)
            assert counts == list(range(1, len(counts) + 1)), (partition, counts)
            assert len(counts) == last.counts[partition] >= 3
            count += len(counts)
        return count

    return asyncio.run(main())


# Planted bugs

_begin = CaptureLane.begin
_put = CaptureLane.put
_advance = ReadBack.advance


async def _begin_without_a_fence(lane: CaptureLane, tenure: int, *, time_ns: int) -> None:
    await _begin(lane, tenure, time_ns=time_ns)
    lane._tenure = 1


async def _advance_but_for_the_fence(back: ReadBack, lanes: Any) -> None:
    if not lanes:
        await _advance(back, ())
    for number in PLACES:
        back.found.setdefault(number, ResumePoint(1_000))


async def _check_nothing(_: CaptureLane, __: int) -> None:
    return


async def _put_under_another_number(
    lane: CaptureLane, body: bytes, count: int, point: Point
) -> None:
    try:
        await _put(lane, body, count, point)
    except Unavailable:
        lane._chunk += 1
        raise


def _of(plant: Plant, first: int = 0) -> Mutant:
    return Mutant(run_story, plant, first, (*CATCHES, ExceptionGroup))


MUTANTS = {
    "no fence": _of(replaced(CaptureLane, begin=_begin_without_a_fence)),
    "not read through the fence": _of(
        replaced(ReadBack, advance=_advance_but_for_the_fence, is_fenced=lambda *_: True)
    ),
    "former shards are not looked at": _of(
        replaced(CaptureLane, _check_former=_check_nothing), 731
    ),
    "another number after a failure": _of(replaced(CaptureLane, put=_put_under_another_number)),
    "whoever put the fence": _of(
        replaced(ReadBack, is_fenced=lambda self, each, _: each in self.found)
    ),
}
