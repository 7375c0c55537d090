"""How far a master's answers may run ahead of its slaves. No I/O.

Where each write is acked by its master alone, a slave that is slower falls behind without end. So
once the best slave is behind by more than half of what the table allows, and by more than a moment
ago, answers wait until it is no further behind than then: clients are given the slave's own pace,
and nothing is refused. A slave that is catching up holds nobody back, nor does one that stands
still, and no answer waits for longer than a while: what is lost to such a slave is seen by the
meta server, which does not make it master.

A target that a partition moves to, and that does not come closer by itself, is let catch up: for
each two records that it takes, one more is answered, whatever the table asks for otherwise; fewer
where there is so much to catch up with that it would not be over before writers are let go. Close
is it by what is queued for it: what the link holds is under way however slowly is written, and the
farther the two are from each other, the more that is.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final

import msgspec

from raftwood.zeppelin.model import Gap, NodeId
from raftwood.zeppelin.replication.sender_rules import Feed

LOOK_MS: Final = 250
"""Between two comparisons of how far a slave is behind."""
STALLED_MS: Final = 3_000
"""A slave that has taken nothing for so long is not waited for."""
HELD_MS_MAX: Final = 2_000
SLOWED_TO_MOST: Final = 1 / 2
"""Of the records that a target takes, so many are answered meanwhile."""
SLOWED_TO_LEAST: Final = 1 / 8
SLOWED_S: Final = 30
"""It is to be close in so long, if that is possible with so few answers: the meta server lets
writers go after twice that."""
SLOWED_KEPT_MS: Final = 250
"""What clients did not make use of is kept for so long, and less than twice that: what a far target
took comes to be known in lumps, each for all the time until the next one."""
SLOWED_CLOSE: Final = Gap(queued_bytes=64 << 10, drain_ms=100)
"""A target so close stays so: for each record that it takes one is answered. Were all answered at
once, it would not be close any more when the freeze comes that it was close for. By time as well,
since few bytes take long over a slow link. The meta server asks for less than this."""
_MARK_MS: Final = 20


class _Seen(msgspec.Struct):
    """What is known of a slave."""

    feed: Feed
    has: int
    moved_ms: int
    lag_bytes: int
    looked_ms: int
    window_bytes: int | None = None
    """It may be so far behind; None: it does not hold anybody back."""


class _Slowed(msgspec.Struct):
    """A target that is let catch up."""

    feed: Feed
    share: float
    """Of what it takes while it is not close, so much is answered."""
    end: float
    """Up to where clients may be told."""
    has: int
    moved_ms: int
    grown: float = 0.0
    """All that was added to the end; and how much that was by two moments."""
    grown_before: float = 0.0
    grown_then: float = 0.0
    then_ms: int = 0


class Pace:
    """Of one partition, on its master."""

    def __init__(self, *, lag_max_bytes: int, is_of_slaves: bool = True) -> None:
        """Without `is_of_slaves` it holds nobody back but for the sake of a target."""
        self._is_of_slaves = is_of_slaves
        self._slowed: _Slowed | None = None
        self._close_bytes = lag_max_bytes // 2
        self._leap_bytes = lag_max_bytes // 4
        """More than that is not waited for until the next comparison: a fast master would be far
        ahead by then."""
        self._seen: dict[NodeId, _Seen] = {}
        self._held: deque[tuple[int, int]] = deque()
        """Sequences that wait, and since when."""
        self._released = 0
        """All up to this sequence has waited long enough."""

    @property
    def is_holding(self) -> bool:
        return bool(self._held)

    def allowed(
        self,
        done: int,
        feeds: Mapping[NodeId, Feed],
        *,
        last: int,
        now_ms: int,
        target: NodeId | None = None,
    ) -> int:
        """Of what is done, clients may be told up to this sequence; `target` is to catch up."""
        if not done:
            # The master's epoch has just begun: from nothing, no pace can be counted.
            return done
        end = done
        if self._is_of_slaves:
            self._seen = {node: seen for node, seen in self._seen.items() if node in feeds}
            ends = [self._end_of(node, feed, last, now_ms) for node, feed in feeds.items()]
            end = max((done if each is None else each for each in ends), default=done)
        feed = None if target is None else feeds.get(target)
        end = min(end, self._slowed_end(done, feed, last, now_ms))
        if done <= end:
            self._held.clear()
            return done
        held = self._held
        if not held or now_ms - held[-1][1] >= _MARK_MS:
            held.append((done, now_ms))
        while held and now_ms - held[0][1] >= HELD_MS_MAX:
            self._released = held.popleft()[0]
        return min(done, max(end, self._released))

    def _end_of(self, node: NodeId, feed: Feed, last: int, now_ms: int) -> int | None:
        """Up to where a slave lets its master go on; None: wherever that likes."""
        lag_bytes = feed.lag_bytes(last)
        seen = self._seen.get(node)
        if seen is None or seen.feed is not feed:
            seen = self._seen[node] = _Seen(feed, feed.has, now_ms, lag_bytes, now_ms)
        if feed.has > seen.has:
            seen.has, seen.moved_ms = feed.has, now_ms
        if lag_bytes <= self._close_bytes:
            seen.window_bytes = None
        elif seen.window_bytes is not None:
            seen.window_bytes = max(self._close_bytes, min(seen.window_bytes, lag_bytes))
        has_leapt = lag_bytes > self._close_bytes and lag_bytes - seen.lag_bytes >= self._leap_bytes
        if has_leapt or now_ms - seen.looked_ms >= LOOK_MS:
            is_growing = lag_bytes > self._close_bytes and lag_bytes >= seen.lag_bytes
            if seen.window_bytes is None and is_growing:
                seen.window_bytes = lag_bytes
            seen.lag_bytes, seen.looked_ms = lag_bytes, now_ms
        if seen.window_bytes is None or now_ms - seen.moved_ms > STALLED_MS:
            return None
        return feed.has + seen.window_bytes // feed.record_bytes

    def _slowed_end(self, done: int, feed: Feed | None, last: int, now_ms: int) -> int:
        """Up to where a target that is to catch up lets its master go on."""
        if feed is None:
            self._slowed = None
            return done
        gap, slowed = feed.gap(last), self._slowed
        if slowed is None or slowed.feed is not feed:
            share = 1 - gap.drain_ms / (1_000 * SLOWED_S)
            share = min(max(share, SLOWED_TO_LEAST), SLOWED_TO_MOST)
            slowed = self._slowed = _Slowed(feed, share, done, feed.has, now_ms)
        taken = feed.has - slowed.has
        if taken:
            slowed.has, slowed.moved_ms = feed.has, now_ms
        grown = taken * (1 if gap.is_within(SLOWED_CLOSE) else slowed.share)
        slowed.end += grown
        slowed.grown += grown
        if now_ms - slowed.then_ms >= SLOWED_KEPT_MS:
            slowed.grown_before, slowed.grown_then = slowed.grown_then, slowed.grown
            slowed.then_ms = now_ms
        slowed.end = min(slowed.end, done + slowed.grown - slowed.grown_before)
        return done if now_ms - slowed.moved_ms > STALLED_MS else int(slowed.end)
