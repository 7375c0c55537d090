"""Finds where the former process ended, and fences that process off.

The new process reads the stream from the former process's notes to the end, puts its fence into
each partition's `lane`, and reads on through its own fences. What stands before them is all that
former processes stored; it resumes from there. An old note costs time, nothing else.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from raftwood.base.environment import Environment
from raftwood.base.errors import SequenceForgotten, Unavailable
from raftwood.base.position import Position
from raftwood.capture.events import Point, Stamp, decode_stamp, write_of
from raftwood.capture.lane import CaptureLane, HubStream, LaneOwner
from raftwood.capture.rules import RecentKeys
from raftwood.loghub.client.pulled_batches import Contents, PulledBatch, rows_of

ATTEMPTS_MAX: Final = 40
_AT_ONCE: Final = 64


class ResumePoint:
    """What the stream has of one partition."""

    def __init__(self, recent_bytes_max: int) -> None:
        self.point: Point | None = None
        self.recent = RecentKeys(bytes_max=recent_bytes_max)
        self.shard: int | None = None
        self.stored_at = Position(0)
        """Position of the last batch with a point."""
        self.tenure = 0
        self.process = ""
        """The process that put the last fence."""

    def take(self, stamp: Stamp, contents: list[Contents], batch: PulledBatch) -> None:
        self.tenure = max(self.tenure, stamp.tenure)
        if stamp.point is None:
            self.process = stamp.process
            return
        if self.point is None:
            self.recent.begin(_floor(contents, stamp.point))
        for each in contents:
            _note(self.recent, each, stamp.point)
        self.point, self.shard, self.stored_at = stamp.point, batch.shard, batch.position


def _floor(contents: list[Contents], point: Point) -> int:
    """The sequence behind which all keys are known, if reading back begins with these records."""
    first = contents[0] if contents else {}
    is_change = "cause" not in first and first.get("op") != "mark" and "sequence" in first
    if not is_change:
        return point.sequence
    # The batch before may have more of the first record.
    return int(first["sequence"])


def _note(recent: RecentKeys, contents: Contents, point: Point) -> None:
    operation = contents.get("op")
    if operation == "mark":
        if contents.get("mark") == "cut":
            recent.cut(int(contents["sequence"]))
        elif contents.get("mark") == "snapshot":
            recent.begin(point.sequence)
    elif "cause" not in contents:
        sequence = int(contents["sequence"])
        recent.add(sequence, None if operation == "flush" else write_of(contents).key)


class ReadBack:
    """Reads back the end of a stream: the batches of one capture."""

    def __init__(
        self,
        stream: HubStream,
        owner: LaneOwner,
        noted: Mapping[int, Position],
        *,
        recent_bytes_max: int,
    ) -> None:
        """Shards without a note are read from their beginning."""
        self._stream = stream
        self._owner = owner
        self._recent_bytes_max = recent_bytes_max
        self.positions = dict(noted)
        """For each shard, the next position to read."""
        self.found: dict[int, ResumePoint] = {}

    async def advance(self, lanes: Iterable[CaptureLane]) -> None:
        """Reads all shards to their ends, through these lanes' last chunks; parents first."""
        through: dict[int, Position] = {}
        for lane in lanes:
            assert lane.shard is not None
            through[lane.shard] = max(lane.stored_at, through.get(lane.shard, lane.stored_at))
        for shard in sorted(each.id for each in await self._stream.shards()):
            if shard not in self.positions:
                self.positions[shard] = await self._stream.first(shard)
            start, last = self.positions[shard], through.get(shard, Position(-1))
            async for batch in self._stream.batches(shard, start=start, through=last):
                self._take(batch)
                self.positions[shard] = batch.next

    def _take(self, batch: PulledBatch) -> None:
        rows = rows_of(batch.raw())
        stamp = decode_stamp(rows.tags)
        if stamp is None or not self._owner.is_of(stamp):
            return
        found = self.found.get(stamp.partition)
        if found is None:
            found = self.found[stamp.partition] = ResumePoint(self._recent_bytes_max)
        found.take(stamp, rows.contents, batch)

    def is_fenced(self, partition: int, tenure: int) -> bool:
        """Whether this process put the last fence."""
        found = self.found.get(partition)
        return found is not None and (found.tenure, found.process) == (tenure, self._owner.process)

    @property
    def tenure(self) -> int:
        return max((each.tenure for each in self.found.values()), default=0)


async def take_over(
    environment: Environment, back: ReadBack, lanes: dict[int, CaptureLane], owner: LaneOwner
) -> int:
    """Puts a fence into each lane, which stops all other processes, and returns the tenure."""
    await back.advance(())
    tenure = back.tenure + 1
    for attempt in range(ATTEMPTS_MAX):
        if not await _begin(lanes.values(), tenure, environment.clock.wall_ns()):
            # The log knows a larger tenure from long ago that was not read back: double the step.
            tenure += 1 << attempt
            continue
        await back.advance(lanes.values())
        # A process that came no further may have put a fence of the same tenure before ours.
        if all(back.is_fenced(each, tenure) for each in lanes):
            return tenure
        tenure = max(tenure, back.tenure) + 1
    raise Unavailable(f"others take {owner.name!r} over all the time: let one process capture")


async def _begin(lanes: Iterable[CaptureLane], tenure: int, time_ns: int) -> bool:
    """Puts the fence of a tenure into each lane; False if any of them was refused."""
    limit = asyncio.Semaphore(_AT_ONCE)

    async def begin(lane: CaptureLane) -> bool:
        async with limit:
            try:
                await lane.begin(tenure, time_ns=time_ns)
            except SequenceForgotten:
                return False
            return True

    return all(await asyncio.gather(*map(begin, lanes)))
