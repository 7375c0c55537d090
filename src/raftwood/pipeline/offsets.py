"""Offsets of a query, what it has read and reads next, and the rules of planning. No I/O.

An offset has a position for every known shard, behind what was read of it. A shard is read after
all of its parents were read to their ends, so records of one key come in order from one micro-batch
to the next. Each position is read once, because a micro-batch reads what lies between two offsets.
A shard that is new since the last offset is only recorded in the next one, and read from there on.

`RowAdmission` limits a micro-batch to a number of rows, which the shards share.

    admission = RowAdmission(ranges, rows_max)
    while (wanted := admission.wanted()) is not None:
        admission.found(wanted.shard, steps, following)
    admission.ends()

Batches are taken whole. The very first one is taken however large it is, or there would be no
progress.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Self

import msgspec

from raftwood.base.errors import InvalidInput
from raftwood.base.position import Position, parse_position
from raftwood.loghub.errors import RecordsFreed


class ShardExtent(msgspec.Struct, frozen=True, kw_only=True):
    """A shard in the planning."""

    id: int
    parents: tuple[int, ...] = ()
    first: Position
    """The first position that can be read."""
    next: Position
    """The position behind the last."""
    is_ended: bool = False
    """It was split or merged: nothing comes behind `next`."""
    parent_ends: tuple[Position, ...] = ()
    """Where its parents ended, in their order; empty if that is unknown."""


def ends_of_parents(shards: Iterable[ShardExtent]) -> dict[int, Position]:
    """Returns the ends of shards that may be gone, as recorded in their children."""
    return {
        parent: end
        for each in shards
        for parent, end in zip(each.parents, each.parent_ends, strict=False)
    }


class ShardRange(msgspec.Struct, frozen=True):
    """The work of one task: a shard's positions from `begin` on, below `end`."""

    shard: int
    begin: Position
    end: Position


class StreamOffset(msgspec.Struct, frozen=True, kw_only=True):
    """An offset in the form of a query's checkpoint in Spark."""

    positions: Mapping[int, Position]
    ended: frozenset[int] = frozenset()
    """Shards that were read to their ends, for good."""
    skipped: int = 0
    """How often records were freed before they were read."""
    partitions_min: int = 1
    """The setting with which the micro-batch before this offset was planned: a repeated run must
    cut ranges the same way, or its writes would not be recognized.
    """

    def to_json(self) -> dict[str, Any]:
        """Sorts everything: Spark compares offsets as text."""
        return {
            "shards": {str(shard): str(self.positions[shard]) for shard in sorted(self.positions)},
            "ended": sorted(self.ended),
            "skipped": self.skipped,
            **({} if self.partitions_min == 1 else {"partitions": self.partitions_min}),
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        try:
            return cls(
                positions={int(key): parse_position(text) for key, text in found["shards"].items()},
                ended=frozenset(found["ended"]),
                skipped=found["skipped"],
                partitions_min=int(found.get("partitions", 1)),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInput(
                "the checkpoint's offset was not written by this source: begin with a new "
                "checkpoint"
            ) from error

    def is_readable(self, shard: ShardExtent) -> bool:
        """Whether all records before a shard were read; does not wait for parents that were gone
        when the query began.
        """
        return all(parent in self.ended or parent not in self.positions for parent in shard.parents)


class Loss(msgspec.Struct, frozen=True):
    """Positions of a shard that can no longer be read; `end` is None if the whole shard is gone."""

    shard: int
    begin: Position
    end: Position | None

    def __str__(self) -> str:
        if self.end is None:
            return f"shard {self.shard} from position {self.begin} on"
        return f"positions {self.begin} to {self.end} of shard {self.shard}"


def initial_offset(shards: Iterable[ShardExtent], starts: Mapping[int, Position]) -> StreamOffset:
    """Returns the offset of a new query: `starts`, and the first position for shards not in it."""
    positions = {each.id: starts.get(each.id, each.first) for each in shards}
    return _with_ends(StreamOffset(positions=positions), {each.id: each for each in shards})


def losses(
    start: StreamOffset,
    shards: Iterable[ShardExtent],
    *,
    caps: Mapping[int, Position] | None = None,
) -> list[Loss]:
    """Returns what was to be read next and is gone; with `caps`, only up to these."""
    known = {each.id: each for each in shards}
    ends = ends_of_parents(known.values())
    found = []
    for shard, position in sorted(start.positions.items()):
        view = known.get(shard)
        if shard in start.ended or _is_done(shard, position, view, caps):
            continue
        if view is None:
            if shard not in ends or position < ends[shard]:
                found.append(Loss(shard, position, None))
        elif position < view.first:
            found.append(Loss(shard, position, view.first))
    newest = max(start.positions, default=-1)
    # Shards that came and went meanwhile are known only from their children.
    unseen = {
        parent
        for view in known.values()
        for parent in view.parents
        if parent > newest and parent not in known
    }
    found.extend(Loss(shard, Position(0), None) for shard in sorted(unseen))
    return found


def _is_done(
    shard: int, position: Position, view: ShardExtent | None, caps: Mapping[int, Position] | None
) -> bool:
    """Whether nothing is left to read of a shard. A shard that was gone before the caps were made
    has no cap, and its loss is reported all the same.
    """
    if caps is None:
        return False
    return position >= caps[shard] if shard in caps else view is not None


def check_losses(found: Sequence[Loss], *, fails: bool) -> None:
    if found and fails:
        raise RecordsFreed(
            f"{found[0]} can no longer be read: begin with a new checkpoint and what is there, or "
            "set failOnDataLoss=false to skip and count it"
        )


def available(
    start: StreamOffset,
    shards: Iterable[ShardExtent],
    *,
    caps: Mapping[int, Position] | None = None,
) -> dict[int, ShardRange]:
    """Returns all that the next micro-batch may read: for each readable shard, what is there.

    With `caps`, nothing behind these, and nothing of other shards.
    """
    found = {}
    for view in sorted(shards, key=_number):
        begin = start.positions.get(view.id)
        if begin is None or view.id in start.ended or not start.is_readable(view):
            continue
        end = view.next if caps is None else min(view.next, caps.get(view.id, begin))
        if end > begin:
            found[view.id] = ShardRange(view.id, begin, end)
    return found


def advanced(
    start: StreamOffset,
    shards: Iterable[ShardExtent],
    ends: Mapping[int, Position],
    *,
    caps: Mapping[int, Position] | None = None,
) -> StreamOffset:
    """Returns the offset behind a micro-batch that reads each shard up to its end."""
    known = {each.id: each for each in shards}
    positions = dict(start.positions)
    for shard, end in ends.items():
        positions[shard] = max(end, positions[shard])
    for view in known.values():
        if view.id not in positions and (caps is None or view.id in caps):
            positions[view.id] = view.first
    lost = losses(start, known.values(), caps=caps)
    gone = {each.shard for each in lost if each.end is None}
    gone.update(
        shard
        for shard, end in ends_of_parents(known.values()).items()
        if shard not in known and start.positions.get(shard, Position(-1)) >= end
    )
    for loss in lost:
        # Recorded once: from then on the shard counts as read to its end, or begins at its first
        # position.
        if loss.end is None:
            positions.setdefault(loss.shard, loss.begin)
        else:
            cap = loss.end if caps is None else min(loss.end, caps[loss.shard])
            positions[loss.shard] = max(cap, positions[loss.shard])
    after = msgspec.structs.replace(
        start,
        positions=positions,
        ended=start.ended | gone,
        skipped=start.skipped + len(lost),
    )
    return _with_ends(after, known)


def _with_ends(offset: StreamOffset, known: Mapping[int, ShardExtent]) -> StreamOffset:
    """Marks the shards that were read to their ends. Parents have smaller numbers than their
    children, so one pass finds all.

    A shard without a record must not end before its parents, or its children would begin.
    """
    for shard, position in sorted(offset.positions.items()):
        view = known.get(shard)
        if (
            view is not None
            and view.is_ended
            and position >= view.next
            and offset.is_readable(view)
        ):
            offset = msgspec.structs.replace(offset, ended=offset.ended | {shard})
    return offset


def ranges(start: StreamOffset, end: StreamOffset) -> list[ShardRange]:
    """Returns what lies between two offsets; always the same for the same two."""
    return [
        ShardRange(shard, start.positions[shard], position)
        for shard, position in sorted(end.positions.items())
        if shard in start.positions and position > start.positions[shard]
    ]


def divided(wanted: Sequence[ShardRange], count: int) -> list[ShardRange]:
    """Cuts ranges into at least `count`, if they have that many positions."""
    total = sum(each.end - each.begin for each in wanted)
    if len(wanted) >= count or not total:
        return list(wanted)
    found: list[ShardRange] = []
    for each in wanted:
        size = each.end - each.begin
        parts = min(size, max(1, -(-size * count // total)))
        cuts = [Position(each.begin + size * place // parts) for place in range(parts + 1)]
        found.extend(ShardRange(each.shard, begin, end) for begin, end in pairwise(cuts))
    return found


def _number(view: ShardExtent) -> int:
    return view.id


class AdmissionStep(msgspec.Struct, frozen=True):
    """One batch: its position, and the number of its rows."""

    position: Position
    rows: int


class _Progress(msgspec.Struct):
    """The progress of one shard."""

    range: ShardRange
    position: Position
    """The position behind what was taken."""
    asked: Position
    """The position behind the batches that were looked up."""
    known: deque[AdmissionStep] = msgspec.field(default_factory=deque)
    is_full: bool = False
    """Its next batch has no room."""

    @property
    def is_done(self) -> bool:
        return self.is_full or (not self.known and self.asked >= self.range.end)


class RowAdmission:
    """Plans one micro-batch."""

    def __init__(self, ranges: Mapping[int, ShardRange], rows_max: int) -> None:
        self._shards = {
            shard: _Progress(each, each.begin, each.begin) for shard, each in ranges.items()
        }
        self._left = rows_max
        self._has_any = False

    def wanted(self) -> ShardRange | None:
        """Returns the shard whose next batches to look up; None once all is decided.

        Shards take turns, a batch each, so that none waits for another to be read.
        """
        while True:
            moved = False
            for progress in self._shards.values():
                if progress.is_done:
                    continue
                if not progress.known:
                    return ShardRange(progress.range.shard, progress.asked, progress.range.end)
                self._take(progress)
                moved = True
            if not moved:
                return None

    def found(self, shard: int, steps: Sequence[AdmissionStep], following: Position) -> None:
        """Takes in the batches of a shard from the asked position on, and the next position."""
        progress = self._shards[shard]
        progress.known.extend(each for each in steps if each.position < progress.range.end)
        progress.asked = min(max(following, progress.asked), progress.range.end)
        if not progress.known and progress.asked >= progress.range.end:
            progress.position = progress.range.end

    def _take(self, progress: _Progress) -> None:
        step = progress.known[0]
        if step.rows > self._left and self._has_any:
            progress.is_full = True
            return
        progress.known.popleft()
        self._left = max(0, self._left - step.rows)
        self._has_any = True
        if progress.known:
            progress.position = progress.known[0].position
        else:
            progress.position = progress.asked

    def ends(self) -> dict[int, Position]:
        """Returns how far each shard is read."""
        return {shard: each.position for shard, each in self._shards.items()}
