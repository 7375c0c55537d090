"""How far a micro-batch goes that may have so many rows: the shards share them. No I/O.

    admission = Admission(ranges, rows_max)
    while (wanted := admission.wanted()) is not None:
        admission.found(wanted.shard, steps, following)
    admission.ends()

Batches are taken whole. The first of all is taken however large it is, or nothing would ever go on.
"""

from collections import deque
from collections.abc import Mapping, Sequence

import msgspec

from raftwood.base.position import Position
from raftwood.pipeline.offsets import ShardRange


class Step(msgspec.Struct, frozen=True):
    """One batch: where it stands, and how many rows it has."""

    position: Position
    rows: int


class _Progress(msgspec.Struct):
    """One shard's."""

    range: ShardRange
    position: Position
    """Behind what was taken."""
    asked: Position
    """Behind what is known."""
    known: deque[Step] = msgspec.field(default_factory=deque)
    is_full: bool = False
    """Its next batch has no room."""

    @property
    def is_done(self) -> bool:
        return self.is_full or (not self.known and self.asked >= self.range.end)


class Admission:
    """One micro-batch being planned."""

    def __init__(self, ranges: Mapping[int, ShardRange], rows_max: int) -> None:
        self._shards = {
            shard: _Progress(each, each.begin, each.begin) for shard, each in ranges.items()
        }
        self._left = rows_max
        self._has_any = False

    def wanted(self) -> ShardRange | None:
        """Of which shard the next batches are to be looked up; None once all is decided.

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

    def found(self, shard: int, steps: Sequence[Step], following: Position) -> None:
        """The batches of a shard from where it was asked for, and where the next ones begin."""
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
        """How far each shard is read."""
        return {shard: each.position for shard, each in self._shards.items()}
