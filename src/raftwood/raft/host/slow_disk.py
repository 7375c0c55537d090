"""When a leader whose disk is far slower than the others' hands its group over. No I/O, no clock.

A leader applies only what its own disk has, so that every ack waits for it however fast the others
are. Stores tell one another with each ping how long a sync takes there (`SyncTime`); a store that
tells nothing, as one of release 0.1.0, is unknown: it is never counted as fast.

Leadership must not go to and fro, so it moves only where all of this holds:

- the own disk is slow by itself (`slow_sync_ms`), and `RATIO` times slower than the successor's.
  For the way back the two would have to differ as much the other way around;
- a quorum without this store is as fast: else an ack would wait for a slow disk as before;
- it was so for `HOLD_ELECTIONS` election timeouts. One stall is no slow disk;
- the group has had its leader for a while, which doubles with each change that comes soon after
  another, up to `REST_ELECTIONS_MAX` election timeouts.
"""

from collections.abc import Mapping
from typing import Final

RATIO: Final = 4
HOLD_ELECTIONS: Final = 1.5
REST_ELECTIONS: Final = 2
REST_ELECTIONS_MAX: Final = 32
CALM_RESTS: Final = 2
"""After so many rests without a change of the leader, the next rest is a short one again."""


def is_far_slower(own_ms: int | None, other_ms: int | None, *, slow_ms: int) -> bool:
    """Whether a disk is slow, and the other one is not; never with `slow_ms` of 0."""
    if not slow_ms or own_ms is None or other_ms is None:
        return False
    return own_ms >= max(slow_ms, RATIO * other_ms)


class SlowLeader:
    """One group's rule on one store; `now` counts ticks."""

    __slots__ = ("_changed", "_election_ticks", "_has_tried", "_held", "_rest", "_slow_ms")

    def __init__(self, *, election_ticks: int, slow_ms: int) -> None:
        self._election_ticks = election_ticks
        self._slow_ms = slow_ms
        self._rest = REST_ELECTIONS * election_ticks
        self._changed: int | None = None
        self._held = 0
        self._has_tried = False

    def tried(self, now: int) -> None:
        """A hand-over has begun. One that fails must not be tried again at once: meanwhile nothing
        is proposed.
        """
        self.leader_changed(now)
        self._has_tried = True

    def leader_changed(self, now: int) -> None:
        """Every replica sees this, so that each new leader knows of the changes before."""
        if self._has_tried:
            self._has_tried = False  # it was counted
            return
        shortest = REST_ELECTIONS * self._election_ticks
        if self._changed is not None:
            is_calm = now - self._changed > CALM_RESTS * max(self._rest, shortest)
            longest = REST_ELECTIONS_MAX * self._election_ticks
            self._rest = shortest if is_calm else min(self._rest * 2, longest)
        self._changed = now
        self._held = 0

    def tick(
        self, now: int, own_ms: int | None, others_ms: Mapping[int, int | None]
    ) -> tuple[int, ...]:
        """For a leader: the stores that may lead in its place now; mostly none.

        `others_ms` are the other voters, as they told.
        """
        fast = tuple(
            store
            for store, sync_ms in others_ms.items()
            if is_far_slower(own_ms, sync_ms, slow_ms=self._slow_ms)
        )
        quorum = (len(others_ms) + 1) // 2 + 1
        if len(fast) < quorum:
            self._held = 0
            return ()
        self._held += 1
        if self._held < HOLD_ELECTIONS * self._election_ticks:
            return ()
        has_rested = self._changed is None or now - self._changed >= self._rest
        return fast if has_rested else ()
