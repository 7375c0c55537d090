"""When a writer may ack: an entry is stored by an ack quorum, and every reader can see that it is.

A reader of an open ledger asks so many bookies that no ack quorum is left without one of them
(`quorums.is_covered`), and believes the highest last confirmed entry (LAC) that it hears of. So
once an ack quorum of some write quorum durably has a LAC, every reader that asks from then on sees
it, whether the writer lives or not. There are three ways to get there:

- a later entry, whose head carries the LAC, is stored by its own ack quorum;
- the LAC is published to bookies apart from entries;
- the metadata name a new segment: all before it is confirmed.

A LAC names only what an ack quorum has stored, so no recovery takes back what readers saw. That an
entry is *on* an ack quorum is no substitute: until the writer counts it, a change of the ensemble
may put bookies in the place of those that have it (docs/decisions/0031).
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

from raftwood.dlog.ledgers.model import BookieId
from raftwood.dlog.ledgers.rules.writing import Pending, Writing


class PublishedWriting(Writing):
    """A writer's view of its ledger; `next_acked` waits for what readers see."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.seen = self.last_confirmed
        """Every reader that asks from now on sees entries up to this one."""
        self.unseen: deque[Pending] = deque()
        """Confirmed, and not acked yet."""
        self._heard = [self.last_confirmed] * self._size
        """By place, the LAC that was published there."""

    def next_acked(self) -> Pending | None:
        while (confirmed := super().next_acked()) is not None:
            self.unseen.append(confirmed)
            # An ack quorum has its head as well.
            self.seen = max(self.seen, confirmed.carried)
        if self.unseen and self.unseen[0].entry <= self.seen:
            return self.unseen.popleft()
        return None

    def heard(self, bookie: BookieId, last_confirmed: int) -> bool:
        """A bookie durably has a published LAC: whether something can be acked now."""
        place = self._place_of.get(bookie)
        if place is None:
            return False  # Replaced: readers of the new segment do not ask it.
        self._heard[place] = max(self._heard[place], last_confirmed)
        for members in self._write_sets:
            heard = sorted(
                (self._heard[place] for place in range(self._size) if members >> place & 1),
                reverse=True,
            )
            self.seen = max(self.seen, heard[self._ack_quorum - 1])
        return bool(self.unseen) and self.unseen[0].entry <= self.seen

    @property
    def is_to_publish(self) -> bool:
        """Whether entries wait for readers, and no entry under way carries that they are confirmed.

        One that is under way makes them seen as soon as a publication would.
        """
        newest = self.pending.get(self.next_entry - 1)
        return bool(self.unseen) and (newest is None or newest.carried < self.last_confirmed)

    @property
    def wants_change(self) -> bool:
        """Bookies that cannot be told are replaced as well, if acks wait for them."""
        waits = self.pending or (self.unseen and not self.is_enough)
        return bool(self.failed & ~self._tolerated and waits) and not self.is_changing

    def changed(
        self, replaced: Mapping[int, BookieId], *, now_ms: float
    ) -> list[tuple[Pending, BookieId]]:
        others = [place for place, bookie in replaced.items() if bookie != self.ensemble[place]]
        for place in others:
            self._heard[place] = -1
        if others:
            # The metadata have a segment that begins behind all that is confirmed.
            self.seen = max(self.seen, self.last_confirmed)
        return super().changed(replaced, now_ms=now_ms)

    def closed(self) -> list[Pending]:
        """The metadata say where the ledger ends: readers see all that is confirmed."""
        unseen, self.unseen = self.unseen, deque()
        return list(unseen)

    def give_up(self) -> list[Pending]:
        return [*self.closed(), *super().give_up()]

    @property
    def is_at_rest(self) -> bool:
        return not self.unseen and super().is_at_rest
