"""How far a master's answers may run ahead of its slaves. No I/O.

Where each write is acked by its master alone, a slave that is slower falls behind without end. So
once the best slave is behind by more than half of what the table allows, and by more than a moment
ago, answers wait until it is no further behind than then: clients are given the slave's own pace,
and nothing is refused. A slave that is catching up holds nobody back, nor does one that stands
still, and no answer waits for longer than a while: what is lost to such a slave is seen by the
meta server, which does not make it master.

A target that a partition moves to, and that does not come closer by itself, is let catch up: for
each two records that it takes, one more is answered, whatever the table asks for otherwise.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final

import msgspec

from raftwood.zeppelin.model import NodeId
from raftwood.zeppelin.replication.sender_rules import Feed

LOOK_MS: Final = 250
"""Between two comparisons of how far a slave is behind."""
STALLED_MS: Final = 3_000
"""A slave that has taken nothing for so long is not waited for."""
HELD_MS_MAX: Final = 2_000
SLOWED_TO: Final = 2
"""So many records a target takes while its master answers one."""
SLOWED_CLOSE_BYTES: Final = 64 << 10
"""A target so close holds nobody back: what is left is for a freeze."""
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
    """A target that is let catch up, and where both were when nobody waited last."""

    feed: Feed
    has: int
    told: int
    last_has: int
    moved_ms: int


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
        if feed is None or feed.lag_bytes(last) <= SLOWED_CLOSE_BYTES:
            self._slowed = None
            return done
        slowed = self._slowed
        if slowed is None or slowed.feed is not feed:
            slowed = self._slowed = _Slowed(feed, feed.has, done, feed.has, now_ms)
        end = slowed.told + (feed.has - slowed.has) // SLOWED_TO
        if feed.has > slowed.last_has:
            slowed.last_has, slowed.moved_ms = feed.has, now_ms
        if now_ms - slowed.moved_ms > STALLED_MS:
            return done
        if done <= end:
            # What is not asked for now is not kept for later.
            slowed.has, slowed.told = feed.has, done
        return end
