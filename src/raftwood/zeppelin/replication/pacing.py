"""How far a master's answers may run ahead of its slaves. No I/O.

Where each write is acked by its master alone, a slave that is slower falls behind without end. So
once the best slave is behind by more than half of what the table allows, and by more than a moment
ago, answers wait until it is no further behind than then: clients are given the slave's own pace,
and nothing is refused. A slave that is catching up holds nobody back, nor does one that stands
still, and no answer waits for longer than a while: what is lost to such a slave is seen by the
meta server, which does not make it master.
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


class Pace:
    """Of one partition, on its master."""

    def __init__(self, *, lag_max_bytes: int) -> None:
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

    def allowed(self, done: int, feeds: Mapping[NodeId, Feed], *, last: int, now_ms: int) -> int:
        """Of what is done, clients may be told up to this sequence."""
        self._seen = {node: seen for node, seen in self._seen.items() if node in feeds}
        ends = [self._end_of(node, feed, last, now_ms) for node, feed in feeds.items()]
        end = max((done if each is None else each for each in ends), default=done)
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
