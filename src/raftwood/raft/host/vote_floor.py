"""What a replica may vote for after a crash that may have cost it the end of its log.

A store that was not closed cleanly cannot tell a torn write, which was never acknowledged, from a
synced one whose bytes the disk has lost since. If the last flushes are gone, the replica has
forgotten entries that it acknowledged, and votes that it gave. Raft's proof (section 5.4.3) rests
on a voter that remembers both: one that votes from a shortened log can elect a leader without
entries that were acked, and one that has forgotten its vote can elect two leaders in a term.

So the replica asks the other voters first, as protocol-aware recovery does (Alagappan et al., FAST
2018), and holds its votes to what they tell:

- While it asks, it neither votes nor stands.
- It gives no vote in a term up to the highest that it heard of: it may have voted there.
- It gives none to a candidate whose log ends before the longest log that it heard of, and does not
  stand before its own log is as long: that log may hold what only it and this replica acknowledged.

Both waits are bounded, in ticks. A store that is away must not keep the others from electing a
leader for long: that is the case where raft's own promise, a majority of whole logs, does not hold.
"""

from collections.abc import Iterable

import msgspec

LogPosition = tuple[int, int]
"""The term and the index of a log's last entry; logs compare by them as in Raft, 5.4.1."""


class LogEnd(msgspec.Struct, frozen=True, array_like=True):
    """How far one store's replica of a group has come."""

    group: int
    term: int
    last_term: int
    last_index: int
    match: int = 0
    """Of a leader: how far it believes the asking store's log to agree with its own."""


class VoteFloor:
    """One replica's, from its first start after a crash on."""

    def __init__(self, asked: Iterable[int], *, wait_ticks: int, hold_ticks: int) -> None:
        self.unanswered: dict[int, None] = dict.fromkeys(asked)
        self.term = 0
        """The highest term that was heard of."""
        self.last: LogPosition = (0, 0)
        """Where the longest log ends that was heard of."""
        self.is_taken_over = False
        """Whether the replica has spent its votes up to that term."""
        self._wait_ticks = wait_ticks
        self._hold_ticks = hold_ticks
        self._ticks = 0

    def tick(self) -> None:
        self._ticks += 1

    def answered(self, store: int, end: LogEnd | None) -> None:
        """A store told how far it is; None where it cannot tell, as releases up to 0.1.0."""
        self.unanswered.pop(store, None)
        if end is not None:
            self.term = max(self.term, end.term)
            self.last = max(self.last, (end.last_term, end.last_index))

    @property
    def is_asking(self) -> bool:
        """Whether to wait for more answers: until then the replica does not vote at all."""
        return bool(self.unanswered) and self._ticks < self._wait_ticks

    def admits(self, last: LogPosition) -> bool:
        """Whether whoever has a log that ends there may be voted for; the replica itself too."""
        if self.is_asking:
            return False
        return last >= self.last or self._ticks >= self._hold_ticks

    def is_over(self, own_last: LogPosition) -> bool:
        """Whether the replica's own log demands as much of a candidate, or the time is up.

        The time: the store with the longest log may have died for good after it answered.
        """
        return self.admits(own_last)
