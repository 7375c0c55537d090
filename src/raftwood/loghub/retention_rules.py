"""What of a shard is freed, and whether it is hot. No I/O, no clock."""

from collections.abc import Sequence
from typing import Final

import msgspec

MARKS_MAX: Final = 256
MARKS_PER_LIMIT: Final = 64
"""Retention by bytes is as exact as this: a mark is made each 64th of what may be kept."""


class Mark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """At this position, so many bytes had been appended to the shard."""

    position: str
    appended_bytes: int


class Marks(msgspec.Struct, frozen=True):
    """In order; kept in the metastore."""

    marks: tuple[Mark, ...] = ()


def with_mark(marks: Marks, *, position: int, appended_bytes: int, limit: int) -> Marks:
    """With one more mark if the last one is far enough behind; the oldest go."""
    last = marks.marks[-1].appended_bytes if marks.marks else -limit
    if appended_bytes - last < max(1, limit // MARKS_PER_LIMIT):
        return marks
    return Marks((*marks.marks, Mark(str(position), appended_bytes))[-MARKS_MAX:])


def without_freed(marks: Marks, first: int) -> Marks:
    """Of marks below the first position, the last one alone."""
    below = [each for each in marks.marks if int(each.position) <= first]
    if len(below) <= 1:
        return marks
    return Marks(marks.marks[len(below) - 1 :])


def position_of_bytes(marks: Marks, *, appended_bytes: int, limit: int) -> int:
    """Before this position, all can go without keeping less than the limit; 0 for nothing."""
    fitting = [
        each.position for each in marks.marks if appended_bytes - each.appended_bytes >= limit
    ]
    return int(fitting[-1]) if fitting else 0


class Freeing(msgspec.Struct, frozen=True):
    """What may go: all before a position, of which readers needed so many positions."""

    before: int
    overridden: int


def freeable(
    *,
    first: int,
    too_old_before: int,
    too_much_before: int,
    required: int | None,
    ttl_spares_readers: bool,
) -> Freeing:
    """Age frees whatever readers need, unless they are spared; size never does."""
    spared = too_much_before if required is None else min(too_much_before, required)
    old = too_old_before
    if required is not None and ttl_spares_readers:
        old = min(old, required)
    before = max(first, old, spared)
    overridden = 0 if required is None else max(0, before - max(first, required))
    return Freeing(before, overridden)


class Heat:
    """How fast a shard grows, from one round to the next."""

    def __init__(self, *, appended_bytes: int, time_ms: int) -> None:
        self._appended_bytes = appended_bytes
        self._time_ms = time_ms
        self._hot_rounds = 0

    def observe(self, *, appended_bytes: int, time_ms: int, limit_per_s: int) -> int:
        """For how many rounds in a row it was above the limit."""
        passed_ms = max(1, time_ms - self._time_ms)
        rate = (appended_bytes - self._appended_bytes) * 1000 / passed_ms
        self._appended_bytes, self._time_ms = appended_bytes, time_ms
        self._hot_rounds = self._hot_rounds + 1 if rate > limit_per_s else 0
        return self._hot_rounds


def hottest(rounds: Sequence[tuple[int, int]], *, needed: int) -> int | None:
    """Of (shard, rounds) the one to split: hot for long enough, and for longest."""
    hot = [(count, -shard) for shard, count in rounds if count >= needed]
    return -max(hot)[1] if hot else None
