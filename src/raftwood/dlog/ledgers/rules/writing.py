"""Who has which entry, what may be acked, and who must be replaced.

The driver sends what it is told to and says what became of it:

    targets = writing.append(pending)          → send to each
    if writing.stored(entry, bookie):          a bookie has it
        while pending := writing.next_acked()  → ack, in order
    if writing.fail(bookie):                   → writing.begin_change(), choose, compare-and-set,
                                                 then writing.changed(…) and send what it returns
    writing.hanging(now_ms)                    from time to time: each is one to `fail`

While the ensemble changes nothing is acked: the new segment begins behind the last confirmed entry,
and what a bookie had that is no longer in it must not count.
"""

import asyncio
from collections.abc import Mapping

from raftwood.base.errors import InvariantViolated
from raftwood.dlog.ledgers.model import BookieId, LedgerConfig
from raftwood.dlog.ledgers.rules.quorums import is_enough, write_sets
from raftwood.dlog.ledgers.seams import AddRequest


class Pending:
    """An entry that is not acked yet; request and waiter are the driver's."""

    __slots__ = ("acks", "carried", "entry", "length_bytes", "request", "size", "waiter")

    def __init__(
        self,
        entry: int,
        length_bytes: int,
        size: int,
        request: AddRequest,
        waiter: "asyncio.Future[int] | None",
        *,
        carried: int = -1,
    ) -> None:
        self.entry = entry
        self.length_bytes = length_bytes
        """Of all entries' data up to this one."""
        self.size = size
        self.request = request
        self.waiter = waiter
        self.carried = carried
        """The last confirmed entry that its head names."""
        self.acks = 0
        """The places that have it."""


class Writing:
    """One writer's, or one recovery's, view of its ledger."""

    def __init__(
        self,
        config: LedgerConfig,
        ensemble: tuple[BookieId, ...],
        *,
        last_confirmed: int = -1,
        add_timeout_ms: float,
        lag_bytes_max: int,
    ) -> None:
        self.ensemble = ensemble
        self.last_confirmed = last_confirmed
        self.confirmed_bytes = 0
        self.next_entry = last_confirmed + 1
        self.pending: dict[int, Pending] = {}
        self.is_changing = False
        self.failed = 0
        """Places that get nothing until they are replaced."""
        self._tried = 0
        self._tolerated = 0
        """Those of them for which there is nobody now."""
        self._config = config
        self._size = config.ensemble
        self._ack_quorum = config.ack_quorum
        self._write_sets = write_sets(config)
        self._bits = [
            [1 << place & members for place in range(config.ensemble)]
            for members in self._write_sets
        ]
        self._add_timeout_ms = add_timeout_ms
        self._lag_bytes_max = lag_bytes_max
        self._answered = [last_confirmed] * config.ensemble
        self._watched_head = last_confirmed
        self._watched_head_ms = 0.0
        self._watched = [(last_confirmed, 0.0)] * config.ensemble
        self._place_of: dict[BookieId, int] = {}
        self._targets: list[tuple[BookieId, ...]] = []
        self._know_ensemble()

    def _know_ensemble(self) -> None:
        self._place_of = {bookie: place for place, bookie in enumerate(self.ensemble)}
        self._targets = [
            tuple(
                self.ensemble[place]
                for place in self._config.places(start)
                if not self.failed >> place & 1
            )
            for start in range(self._size)
        ]

    def append(self, pending: Pending) -> tuple[BookieId, ...]:
        """It is the next entry: to whom it goes."""
        entry = pending.entry
        if entry != self.next_entry:
            raise InvariantViolated(f"entry {entry} is appended, and {self.next_entry} is next")
        self.next_entry = entry + 1
        self.pending[entry] = pending
        return self._targets[entry % self._size]

    def stored(self, entry: int, bookie: BookieId) -> bool:
        """A bookie has an entry: whether something can be acked now."""
        place = self._place_of.get(bookie)
        if place is None:
            return False  # Replaced: readers of the new segment would not look there.
        self._answered[place] = max(self._answered[place], entry)
        pending = self.pending.get(entry)
        if pending is None:
            return False
        pending.acks |= self._bits[entry % self._size][place]
        return (
            entry == self.last_confirmed + 1
            and pending.acks.bit_count() >= self._ack_quorum
            and not self.is_changing
        )

    def next_acked(self) -> Pending | None:
        """The next entry in order, if it may be acked: it is from then on confirmed."""
        entry = self.last_confirmed + 1
        pending = self.pending.get(entry)
        if pending is None or pending.acks.bit_count() < self._ack_quorum or self.is_changing:
            return None
        del self.pending[entry]
        self.last_confirmed = entry
        self.confirmed_bytes = pending.length_bytes
        return pending

    def expects(self, entry: int, bookie: BookieId) -> Pending | None:
        """The entry, if the bookie should have it and it is not acked yet."""
        place = self._place_of.get(bookie)
        if place is None or self.failed >> place & 1:
            return None
        return self.pending.get(entry)

    # Changes of the ensemble.

    def fail(self, bookie: BookieId) -> bool:
        """A bookie does not do its work: whether the ensemble is to be changed now."""
        place = self._place_of.get(bookie)
        if place is not None and not self.failed >> place & 1:
            self.failed |= 1 << place
            self._know_ensemble()
        return self.wants_change

    @property
    def wants_change(self) -> bool:
        """A failure after the last ack is borne until there is something to write again."""
        return bool(self.failed & ~self._tolerated and self.pending) and not self.is_changing

    def begin_change(self) -> tuple[int, tuple[int, ...]]:
        """The first entry of the new segment, and the places to fill."""
        self.is_changing = True
        self._tried = self.failed
        places = tuple(place for place in range(self._size) if self.failed >> place & 1)
        return self.last_confirmed + 1, places

    def changed(
        self, replaced: Mapping[int, BookieId], *, now_ms: float
    ) -> list[tuple[Pending, BookieId]]:
        """The metadata say so now: what is to be sent to whom.

        A bookie may take its own place again: then it keeps what it has.
        """
        ensemble = list(self.ensemble)
        sends = []
        for place, bookie in sorted(replaced.items()):
            bit = 1 << place
            for pending in self.pending.values():
                if bookie != ensemble[place]:
                    pending.acks &= ~bit
                if bit & self._write_sets[pending.entry % self._size] & ~pending.acks:
                    sends.append((pending, bookie))
            ensemble[place] = bookie
            self.failed &= ~bit
            self._tried &= ~bit
            self._answered[place] = self.last_confirmed
            self._watched[place] = (self.last_confirmed, now_ms)
        self.ensemble = tuple(ensemble)
        self._know_ensemble()
        return sends

    def end_change(self) -> None:
        """Acks go on; places for which nobody was found stay failed until `reconsider`."""
        self.is_changing = False
        self._tolerated = self.failed & self._tried

    def reconsider(self) -> None:
        """There may be bookies now for places that had to be left failed."""
        self._tolerated = 0

    @property
    def is_enough(self) -> bool:
        """Whether entries can be acked without the places that failed."""
        return is_enough(self._config, ~self.failed)

    def give_up(self) -> list[Pending]:
        """Nothing is acked any more: all that was not, in order."""
        pending, self.pending = self.pending, {}
        self.is_changing = True
        return list(pending.values())

    # Bookies that hang.

    def rest_until(self, now_ms: float) -> None:
        """Nothing was awaited until now."""
        self._watched_head_ms = now_ms
        self._watched = [(answered, now_ms) for answered in self._answered]

    def hanging(self, now_ms: float) -> list[BookieId]:
        """Those that keep the oldest entry from being acked, have not answered, or lag."""
        found = 0
        for place in range(self._size):
            answered, since_ms = self._watched[place]
            lag = self._last_sent(place) - self._answered[place]
            if lag <= 0 or self._answered[place] != answered:
                self._watched[place] = (self._answered[place], now_ms)
            elif now_ms - since_ms >= self._add_timeout_ms:
                found |= 1 << place
            if lag > 0 and self._is_too_far_behind(lag):
                found |= 1 << place
        head = self.last_confirmed + 1
        if self.is_changing or head not in self.pending or head != self._watched_head:
            self._watched_head, self._watched_head_ms = head, now_ms
        elif now_ms - self._watched_head_ms >= self._add_timeout_ms:
            found |= self._write_sets[head % self._size] & ~self.pending[head].acks
        found &= ~self.failed
        return [self.ensemble[place] for place in range(self._size) if found >> place & 1]

    @property
    def is_at_rest(self) -> bool:
        """Whether no bookie owes an answer."""
        return not self.pending and all(
            self.failed >> place & 1 or self._last_sent(place) <= self._answered[place]
            for place in range(self._size)
        )

    def _last_sent(self, place: int) -> int:
        """The newest entry whose write quorum the place is in."""
        newest = self.next_entry - 1
        ahead = (place - newest) % self._size
        return newest if ahead < self._config.write_quorum else newest - self._size + ahead

    def _is_too_far_behind(self, lag: int) -> bool:
        newest = self.pending.get(self.next_entry - 1)
        length_bytes = self.confirmed_bytes if newest is None else newest.length_bytes
        return lag * (length_bytes // self.next_entry) > self._lag_bytes_max
