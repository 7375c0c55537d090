"""Rules of leadership beyond the core's: votes after a crash, and slow disks. No I/O, no clock.

**Votes after a crash** (`VoteFloor`). A store that was not closed cleanly cannot tell a torn
write, which was never acknowledged, from a synced one whose bytes the disk has lost since. If the
last flushes are gone, the replica has forgotten entries that it acknowledged, and votes that it
gave. Raft's proof (section 5.4.3) rests on a voter that remembers both: one that votes from a
shortened log can elect a leader without entries that were acked, and one that has forgotten its
vote can elect two leaders in a term.

So the replica asks the other voters first, as protocol-aware recovery does (Alagappan et al., FAST
2018), and its votes obey their answers. For each rule there is a planted bug in
`tests/kits/raft/lost_tails.py` that loses acked lines:

- While it asks, it neither votes nor stands ("votes while it asks").
- It gives no vote in a term up to the highest that it heard of: it may have voted there.
- It gives none to a candidate whose log ends before the longest log that it heard of, and does not
  stand before its own log is as long: that log may hold entries that only its store and this
  replica acknowledged ("forgets what it heard", "hears of terms alone", "compares terms of logs
  alone").

Both waits are bounded, in ticks. A store that is away must not keep the others from electing a
leader for long: that is the case where raft's own promise, a majority of whole logs, does not
hold.

**Slow disks** (`SlowLeader`). A leader applies only what its own disk has, so that every ack waits
for it however fast the others are. Stores tell one another with each ping how long a sync takes
there (`SyncTime`); a store that tells nothing, as one of release 0.1.0, is unknown: it is never
counted as fast.

Leadership must not go to and fro, so it moves only where all of this holds:

- the own disk is slow by itself (`slow_sync_ms`), and `RATIO` times slower than the successor's.
  For the way back the two would have to differ as much the other way around;
- a quorum without this store is as fast: else an ack would wait for a slow disk as before;
- it was so for `HOLD_ELECTIONS` election timeouts. One stall is no slow disk;
- the group has had its leader for a while, which doubles with each change that comes soon after
  another, up to `REST_ELECTIONS_MAX` election timeouts.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

LogPosition = tuple[int, int]
"""The term and the index of a log's last entry; logs compare by them as in Raft, 5.4.1."""


class LogEnd(msgspec.Struct, frozen=True, array_like=True):
    """Term and log end of one store's replica of a group, as other stores ask for it."""

    group: int
    term: int
    last_term: int
    last_index: int
    match: int = 0
    """At a leader: the index up to which the asking store's log is known to agree; 0 elsewhere."""


class VoteFloor:
    """The terms and log ends below which one replica does not vote, after a crash."""

    def __init__(self, asked: Iterable[int], *, wait_ticks: int, hold_ticks: int) -> None:
        self.unanswered: dict[int, None] = dict.fromkeys(asked)
        self.term = 0
        """The highest known term."""
        self.last: LogPosition = (0, 0)
        """The end of the longest known log."""
        self.is_taken_over = False
        """Whether the replica has spent its votes up to that term."""
        self._wait_ticks = wait_ticks
        self._hold_ticks = hold_ticks
        self._ticks = 0

    def tick(self) -> None:
        self._ticks += 1

    def answered(self, store: int, end: LogEnd | None) -> None:
        """Takes a store's answer; None from release 0.1.0, which does not know the question."""
        self.unanswered.pop(store, None)
        if end is not None:
            self.term = max(self.term, end.term)
            self.last = max(self.last, (end.last_term, end.last_index))

    @property
    def is_asking(self) -> bool:
        """Whether to wait for more answers: until then the replica does not vote at all."""
        return bool(self.unanswered) and self._ticks < self._wait_ticks

    def admits(self, last: LogPosition) -> bool:
        """Whether a candidate whose log ends there may have the vote; the replica itself too."""
        if self.is_asking:
            return False
        return last >= self.last or self._ticks >= self._hold_ticks

    def is_over(self, own_last: LogPosition) -> bool:
        """Whether the replica's own log demands as much of a candidate, or the time is up.

        The time: the store with the longest log may have died for good after it answered.
        """
        return self.admits(own_last)


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
    """The rule of one group on one store; `now` counts ticks."""

    __slots__ = ("_changed", "_election_ticks", "_has_tried", "_held", "_rest", "_slow_ms")

    def __init__(self, *, election_ticks: int, slow_ms: int) -> None:
        self._election_ticks = election_ticks
        self._slow_ms = slow_ms
        self._rest = REST_ELECTIONS * election_ticks
        self._changed: int | None = None
        self._held = 0
        self._has_tried = False

    def tried(self, now: int) -> None:
        """A hand-over has begun. One that fails is not tried again at once: the group takes no
        proposals meanwhile. Test:
        test_slow_disk::test_a_hand_over_that_fails_is_not_tried_again_at_once
        """
        self.leader_changed(now)
        self._has_tried = True

    def leader_changed(self, now: int) -> None:
        """Another store leads. Every replica counts this, so each new leader knows of it.

        Without growing rests, two stores whose disks are slow in turns would pass the group to and
        fro, and each change costs a pause. Test:
        test_slow_disk::
        test_a_group_rests_for_longer_after_each_change_and_for_less_when_it_was_calm
        """
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

        `others_ms` are the other voters, as they reported.
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
