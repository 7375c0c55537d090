"""The protocol of ledgers as state machines without I/O, clock or randomness.

Quorum arithmetic, then what a writer may ack, which replica a reader asks, where a recovery ends a
ledger whose writer is gone, and which entries a repair copies. Changes of the metadata are in
`metadata`.

The protocol is Apache BookKeeper's. One promise rests on all of it: an entry that was acked is in
the ledger for ever, and an entry that any reader saw as well. Where our rules are stricter than
BookKeeper's, the comment says so. The planted bugs that comments name are in
`tests/kits/dlog/ledger_model/mutants.py` (these rules against all orders of messages) and in
`tests/kits/dlog/ledgers/mutants.py` (the whole client against faults).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from raftwood.base.errors import Conflict, InvariantViolated, RaftwoodError
from raftwood.dlog.errors import BadDigest, BookieUnavailable, NoSuchEntry, NoSuchLedger
from raftwood.dlog.ledgers.digests import UnpackedEntry
from raftwood.dlog.ledgers.metadata import BookieId, LedgerConfig, LedgerMetadata, Segment
from raftwood.dlog.ledgers.seams import AddRequest


def write_sets(config: LedgerConfig) -> tuple[int, ...]:
    """For each entry modulo the ensemble's size: the bit set of places that it goes to."""
    return tuple(
        sum(1 << place for place in config.places(start)) for start in range(config.ensemble)
    )


def is_covered(config: LedgerConfig, places: int) -> bool:
    """Whether no entry can be acked without one of the places.

    Fencing these is enough, and nothing that was acked is unknown to all of them. Ensembles may be
    larger than write quorums, so counting bookies would not do: of five, with two copies of each
    entry, three fenced ones may miss both copies of an entry. A recovery that takes one fenced
    bookie for enough leaves the old writer with a quorum, and acks go on behind the end that it
    finds (planted bug "one fenced bookie is enough").
    """
    return all(
        (members & ~places).bit_count() < config.ack_quorum for members in write_sets(config)
    )


def is_enough(config: LedgerConfig, places: int) -> bool:
    """Whether every entry can be acked by the places alone."""
    return all(
        (members & places).bit_count() >= config.ack_quorum for members in write_sets(config)
    )


def misses_needed(config: LedgerConfig) -> int:
    """How many bookies must lack an entry before it is certain that it was not acked.

    With W=3 and A=2 one miss says nothing: the other two may have acked it. Two leave one bookie,
    which is no ack quorum (planted bug "an entry is absent after one miss").
    """
    return config.write_quorum - config.ack_quorum + 1


# What a writer may ack, and which bookies it must replace.
#
# The driver sends what the rules ask for, and reports what came of it:
#
#     targets = writing.append(pending)          → send to each
#     if writing.stored(entry, bookie):          a bookie has it
#         while pending := writing.next_acked()  → ack, in order
#     if writing.fail(bookie):                   → writing.begin_change(), choose, compare-and-set,
#                                                  then writing.changed(…) and send what it returns
#     writing.hanging(now_ms)                    from time to time: each is one to `fail`
#
# While the ensemble changes nothing is acked: the new segment begins behind the last confirmed
# entry, as it was when the change began. An entry that the old bookies ack meanwhile would belong
# to the new segment, and readers would look for it on bookies that never got it (planted bug "acks
# go on while the ensemble changes").


class PendingAdd:
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
        """The sum of all entries' data up to this one."""
        self.size = size
        self.request = request
        self.waiter = waiter
        self.carried = carried
        """The last confirmed entry named in the entry's head."""
        self.acks = 0
        """The places that have it, as a bit set."""


class WriteRules:
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
        self.pending: dict[int, PendingAdd] = {}
        self.is_changing = False
        self.failed = 0
        """Places that get nothing until they are replaced."""
        self._tried = 0
        self._tolerated = 0
        """Failed places for which there is no other bookie now."""
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

    def append(self, pending: PendingAdd) -> tuple[BookieId, ...]:
        """Takes the next entry; returns the bookies to send it to."""
        entry = pending.entry
        if entry != self.next_entry:
            raise InvariantViolated(f"entry {entry} is appended, and {self.next_entry} is next")
        self.next_entry = entry + 1
        self.pending[entry] = pending
        return self._targets[entry % self._size]

    def stored(self, entry: int, bookie: BookieId) -> bool:
        """Notes that a bookie has an entry; returns whether something can be acked now."""
        place = self._place_of.get(bookie)
        if place is None:
            # Replaced: readers and recoveries of the new segment do not ask this bookie, so that
            # its copy does not count.
            return False
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

    def next_acked(self) -> PendingAdd | None:
        """The next entry in order, if it may be acked: it is from then on confirmed.

        In order, since a recovery ends the ledger at the first entry that it cannot find. If entry
        6 were acked while 5 is on one bookie only, a crash of the writer and of that bookie would
        take 6 back as well (planted bug "acks are out of order").
        """
        entry = self.last_confirmed + 1
        pending = self.pending.get(entry)
        if pending is None or pending.acks.bit_count() < self._ack_quorum or self.is_changing:
            return None
        del self.pending[entry]
        self.last_confirmed = entry
        self.confirmed_bytes = pending.length_bytes
        return pending

    def expects(self, entry: int, bookie: BookieId) -> PendingAdd | None:
        """The entry, if the bookie should have it and it is not acked yet."""
        place = self._place_of.get(bookie)
        if place is None or self.failed >> place & 1:
            return None
        return self.pending.get(entry)

    # Changes of the ensemble.

    def fail(self, bookie: BookieId) -> bool:
        """Notes that a bookie failed; returns whether the ensemble is to be changed now."""
        place = self._place_of.get(bookie)
        if place is not None and not self.failed >> place & 1:
            self.failed |= 1 << place
            self._know_ensemble()
        return self.wants_change

    @property
    def wants_change(self) -> bool:
        """Whether a failed bookie has to be replaced now.

        A failure after the last ack is borne until there is something to write again: all that was
        acked is on an ack quorum, and an idle ledger whose bookies restart one after the other
        would get a segment for each.
        """
        return bool(self.failed & ~self._tolerated and self.pending) and not self.is_changing

    def begin_change(self) -> tuple[int, tuple[int, ...]]:
        """The first entry of the new segment, and the places to fill."""
        self.is_changing = True
        self._tried = self.failed
        places = tuple(place for place in range(self._size) if self.failed >> place & 1)
        return self.last_confirmed + 1, places

    def changed(
        self, replaced: Mapping[int, BookieId], *, now_ms: float
    ) -> list[tuple[PendingAdd, BookieId]]:
        """Takes over an ensemble that the metadata have now; returns what to send to whom.

        The acks of a bookie that was replaced are taken back for all entries of the new segment:
        they would count as copies where no reader looks (planted bug "acks of replaced bookies
        count"). A bookie may take its own place again: then it keeps what it has.
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
        """Lets acks go on; places for which no bookie was found stay failed until `reconsider`.

        As long as an ack quorum is left, a cluster without a spare bookie keeps taking entries
        (`test_without_a_replacement_the_ack_quorum_goes_on`): DLOG's text promises appends with one
        bookie away ("Availability").
        """
        self.is_changing = False
        self._tolerated = self.failed & self._tried

    def reconsider(self) -> None:
        """Asks again for bookies for places that had to be left failed."""
        self._tolerated = 0

    @property
    def is_enough(self) -> bool:
        """Whether entries can be acked without the places that failed."""
        return is_enough(self._config, ~self.failed)

    def give_up(self) -> list[PendingAdd]:
        """Acks nothing any more; returns all that was not acked, in order."""
        pending, self.pending = self.pending, {}
        self.is_changing = True
        return list(pending.values())

    # Bookies that hang.

    def rest_until(self, now_ms: float) -> None:
        """Starts the watch of bookies now. Until now nothing was awaited, so that the time before
        must not be held against them."""
        self._watched_head_ms = now_ms
        self._watched = [(answered, now_ms) for answered in self._answered]

    def hanging(self, now_ms: float) -> list[BookieId]:
        """The bookies that keep the oldest entry from being acked, have not answered, or lag.

        An error is not needed to lose a bookie: one whose disk hangs keeps its connection and
        answers nothing. If only the ack quorum counted, such a bookie would never be replaced, and
        entries would have a copy less than asked for without anybody noticing
        (`test_a_bookie_that_fails_is_replaced`).
        """
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
        """The newest entry that the place has to store."""
        newest = self.next_entry - 1
        ahead = (place - newest) % self._size
        return newest if ahead < self._config.write_quorum else newest - self._size + ahead

    def _is_too_far_behind(self, lag: int) -> bool:
        newest = self.pending.get(self.next_entry - 1)
        length_bytes = self.confirmed_bytes if newest is None else newest.length_bytes
        return lag * (length_bytes // self.next_entry) > self._lag_bytes_max


# When a writer may ack: an entry is stored by an ack quorum, and every reader can see that it is.
#
# DLOG's text promises that what was written is readable at once, and that what was not acked is not
# (its "design goals"). BookKeeper acks first and lets readers hear of it later: a reader that opens
# the ledger right after an ack then misses the entry, and if the writer dies, until the next
# take-over (planted bug "an ack does not wait for readers").
#
# A reader of an open ledger asks so many bookies that no ack quorum is left without one of them
# (`is_covered`), and believes the highest last confirmed entry (LAC) that a bookie reports. So once
# an ack quorum of some write quorum durably has a LAC, every reader that asks from then on sees it,
# whether the writer lives or not. There are three ways to get there:
#
# - a later entry, whose head carries the LAC, is stored by its own ack quorum;
# - the LAC is published to bookies apart from entries;
# - the metadata name a new segment: all before it is confirmed.
#
# A LAC names only what an ack quorum has stored, so no recovery takes back what readers saw. That
# an entry is *on* an ack quorum is no substitute: until the writer counts it, a change of the
# ensemble may put bookies in the place of those that have it (docs/decisions/0031; planted bug
# "readers believe in copies that the writer has not counted").


class PublishedWriteRules(WriteRules):
    """A writer's view of its ledger; `next_acked` waits for what readers see."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.seen = self.last_confirmed
        """Every reader that asks from now on sees entries up to this one."""
        self.unseen: deque[PendingAdd] = deque()
        """Entries that are confirmed, and not acked yet."""
        self._heard = [self.last_confirmed] * self._size
        """The LAC that was published at each place."""

    def next_acked(self) -> PendingAdd | None:
        while (confirmed := super().next_acked()) is not None:
            self.unseen.append(confirmed)
            # An ack quorum has stored the entry, and so its head with the LAC in it.
            self.seen = max(self.seen, confirmed.carried)
        if self.unseen and self.unseen[0].entry <= self.seen:
            return self.unseen.popleft()
        return None

    def heard(self, bookie: BookieId, last_confirmed: int) -> bool:
        """Notes that a bookie durably has a published LAC; returns whether something can be acked.

        An ack quorum has to have it. If one bookie were enough, a reader that meets the other two
        would not see what was acked (planted bug "one bookie that was told is enough").
        """
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
        """Like `WriteRules`; also if bookies take no publication while acks wait for them.

        Without that, the last entry of a writer that falls silent would wait for ever.
        """
        waits = self.pending or (self.unseen and not self.is_enough)
        return bool(self.failed & ~self._tolerated and waits) and not self.is_changing

    def changed(
        self, replaced: Mapping[int, BookieId], *, now_ms: float
    ) -> list[tuple[PendingAdd, BookieId]]:
        others = [place for place, bookie in replaced.items() if bookie != self.ensemble[place]]
        for place in others:
            self._heard[place] = -1  # A new bookie has received no LAC.
        if others:
            # The metadata have a segment that begins behind all that is confirmed.
            self.seen = max(self.seen, self.last_confirmed)
        return super().changed(replaced, now_ms=now_ms)

    def closed(self) -> list[PendingAdd]:
        """Notes that the metadata say where the ledger ends: readers see all that is confirmed."""
        unseen, self.unseen = self.unseen, deque()
        return list(unseen)

    def give_up(self) -> list[PendingAdd]:
        return [*self.closed(), *super().give_up()]

    @property
    def is_at_rest(self) -> bool:
        return not self.unseen and super().is_at_rest


# Which replica to ask for an entry, one after the other, and what it means if none has it.


def replicas(
    metadata: LedgerMetadata, entry: int, *, is_avoided: Callable[[BookieId], bool]
) -> list[BookieId]:
    """The bookies of an entry, in the order in which to ask: those that failed lately come last."""
    bookies = metadata.segment_of(entry).bookies
    holders = [bookies[place] for place in metadata.config.places(entry)]
    return sorted(holders, key=is_avoided)


class EntryRead:
    """The read of one entry: asks the next replica if one fails or is slow."""

    __slots__ = ("_errors", "_next", "_replicas", "entry", "under_way")

    def __init__(self, entry: int, holders: Sequence[BookieId]) -> None:
        self.entry = entry
        self.under_way = 0
        self._replicas = holders
        self._next = 0
        self._errors: list[RaftwoodError] = []

    def ask_next(self) -> BookieId | None:
        """Returns another replica to ask, if there is one left."""
        if self._next == len(self._replicas):
            return None
        self._next += 1
        self.under_way += 1
        return self._replicas[self._next - 1]

    def failed(self, error: RaftwoodError) -> None:
        """A replica did not help; ask the next one."""
        self.under_way -= 1
        self._errors.append(error)

    @property
    def error(self) -> RaftwoodError:
        """The error after all have failed: damage, then doubt, and absence only if all say so.

        "No such entry" is final for a caller, who goes on behind it. One bookie that is away may
        have the entry, so that its silence must not be covered by another's "no".
        """
        for kind in (BadDigest, BookieUnavailable):
            for error in self._errors:
                if isinstance(error, kind):
                    return error
        for error in self._errors:
            if not isinstance(error, NoSuchEntry | NoSuchLedger):
                return error
        return self._errors[0]


# Recovery: what a ledger holds whose writer is gone. Fence, then decide entry by entry where it
# ends.
#
# `FenceRound` ends once no ack quorum can be formed without a bookie that was fenced.
# `RecoveryRound` then asks for the entries behind the last confirmed one, several at once. Each of
# these reads fences as well. A bookie that the first round did not reach could otherwise say that
# it lacks entry 7, and take it from the old writer a moment later; with one more bookie that has
# it, entry 7 is acked behind the end of the ledger (planted bug "recovery reads without fencing";
# `test_every_read_of_a_recovery_fences`).
#
# An entry is there if any bookie has it: it may have been acked with bookies that do not answer, it
# is stored again, and a second recovery finds it as well. It is absent only if so many say
# that they lack it that it cannot have been acked. Silence and damaged copies say nothing: the
# bookie that is down may be the one that acked (planted bugs "silence is a miss" and "a damaged
# entry is a missing one"). The first absent entry ends the ledger: acks are in order.


class FenceRound:
    """The first round, over the ensemble of the last segment."""

    def __init__(self, config: LedgerConfig, *, first: int) -> None:
        self._config = config
        # A segment begins behind what was confirmed when it was made. Its bookies never had the
        # entries before it: a recovery that asked them for these would hear "no such entry" from
        # all, and end the ledger in front of what was acked (planted bug "the last segment says
        # nothing of what is confirmed").
        self.last_confirmed = first - 1
        self._fenced = 0
        self._failed = 0

    def fenced(self, place: int, last_confirmed: int) -> None:
        """A bookie refuses the writer now; `last_confirmed` is from its last entry's head."""
        self._fenced |= 1 << place
        self.last_confirmed = max(self.last_confirmed, last_confirmed)

    def failed(self, place: int) -> None:
        """A bookie gave no answer: it may be fenced or not."""
        self._failed |= 1 << place

    @property
    def is_done(self) -> bool:
        return is_covered(self._config, self._fenced)

    @property
    def is_lost(self) -> bool:
        """Whether the answers that are still awaited cannot be enough."""
        everybody = (1 << self._config.ensemble) - 1
        return not is_covered(self._config, everybody & ~self._failed)


class RecoveredEntry:
    """An entry that a bookie has, as its writer packed it."""

    __slots__ = ("entry", "packed", "unpacked")

    def __init__(self, entry: int, packed: bytes, unpacked: UnpackedEntry) -> None:
        self.entry = entry
        self.packed = packed
        self.unpacked = unpacked


class _Question:
    """The answers of bookies for one entry."""

    __slots__ = ("found", "missing", "unknown")

    def __init__(self) -> None:
        self.found: RecoveredEntry | None = None
        self.missing = 0
        self.unknown = 0


class RecoveryRound:
    """The second round: entries in order, read ahead by a window."""

    def __init__(self, config: LedgerConfig, *, first: int, window: int) -> None:
        self._ensemble = config.ensemble
        self._write_sets = write_sets(config)
        self._misses_needed = misses_needed(config)
        self._window = window
        self._questions: dict[int, _Question] = {}
        self._next_read = first
        self._next_found = first
        self.is_ended = False
        """The entry that would come next is absent."""
        self.undecidable: int | None = None
        """An entry that all bookies were asked for, with too few answers to decide."""

    def next_read(self) -> int | None:
        """An entry to ask all of its bookies for, unless enough is under way."""
        entry = self._next_read
        if self._is_settled or entry - self._next_found >= self._window:
            return None
        self._next_read += 1
        self._questions[entry] = _Question()
        return entry

    @property
    def _is_settled(self) -> bool:
        return self.is_ended or self.undecidable is not None

    def found(self, place: int, found: RecoveredEntry) -> None:  # noqa: ARG002
        question = self._questions.get(found.entry)
        if question is not None and question.found is None:
            question.found = found

    def missing(self, place: int, entry: int) -> None:
        """The bookie answers that it lacks the entry; the same request has fenced it."""
        if entry in self._questions:
            self._questions[entry].missing |= 1 << place

    def unknown(self, place: int, entry: int) -> None:
        """No answer, a damaged copy, or a bookie that began anew and doubts (docs/decisions/0032):
        none of these is a missing entry."""
        if entry in self._questions:
            self._questions[entry].unknown |= 1 << place

    def next_found(self) -> RecoveredEntry | None:
        """The next entry in order, if it is decided that it is there."""
        question = self._questions.get(self._next_found)
        if question is None or self._is_settled:
            return None
        if question.found is not None:
            del self._questions[self._next_found]
            self._next_found += 1
            return question.found
        if question.missing.bit_count() >= self._misses_needed:
            self.is_ended = True
        else:
            asked = self._write_sets[self._next_found % self._ensemble]
            if asked & ~(question.missing | question.unknown) == 0:
                self.undecidable = self._next_found
        return None

    def is_decided(self, entry: int) -> bool:
        """Whether further answers for an entry make no difference."""
        question = self._questions.get(entry)
        return (
            self._is_settled
            or question is None
            or question.found is not None
            or question.missing.bit_count() >= self._misses_needed
        )


# Repair: what a bookie should hold, and how its place in a ledger's metadata goes to another one.
#
# Only entries that are known to be confirmed are copied: those of a closed ledger, and those of an
# open one that are in front of its last segment (a segment begins behind what was confirmed when it
# was made). The bookies of the last segment of an open ledger are its writer's to choose: a repair
# that changed them could leave the writer with an ack quorum of bookies that recoveries no longer
# ask and fence.
#
# The metadata name the new holder only once it has every entry. A reader or a recovery that comes
# in between would ask the new holder, hear "no such entry", and count that as a miss (planted bug
# "a repair names the new holder before it has the entries").


class BookieShare(msgspec.Struct, frozen=True):
    """The entries from `first` to `last` of which a bookie has its part by its place."""

    segment: int
    place: int
    first: int
    last: int

    def entries(self, config: LedgerConfig) -> Iterator[int]:
        """The entries that go to the place, in order."""
        for entry in range(self.first, self.last + 1):
            if (self.place - entry) % config.ensemble < config.write_quorum:
                yield entry


def shares_of(metadata: LedgerMetadata, bookie: BookieId) -> list[BookieShare]:
    """What a bookie should hold of the segments that no writer or recovery can change any more."""
    segments = metadata.segments
    found: list[BookieShare] = []
    for number, segment in enumerate(segments):
        if number + 1 < len(segments):
            last = segments[number + 1].first - 1
        elif metadata.is_closed:
            last = metadata.last_entry
        else:
            break
        if bookie in segment.bookies:
            found.append(BookieShare(number, segment.bookies.index(bookie), segment.first, last))
    return found


def is_being_written(metadata: LedgerMetadata, bookie: BookieId) -> bool:
    """Whether a bookie holds a segment that is not settled."""
    return not metadata.is_closed and bookie in metadata.segments[-1].bookies


def with_holders(
    metadata: LedgerMetadata,
    *,
    found: LedgerMetadata,
    bookie: BookieId,
    holders: Mapping[int, BookieId],
) -> LedgerMetadata | None:
    """The metadata with others in the place of a bookie, by segment.

    `Conflict` where the segments are not those that were copied: a recovery or another repair was
    faster, and its holders have entries that were not copied here.
    """
    wanted = tuple(
        _with_holder(segment, bookie, holders[number]) if number in holders else segment
        for number, segment in enumerate(found.segments)
    )
    if metadata.segments == wanted:
        return None  # An answer was lost: it is done.
    if metadata.segments != found.segments:
        raise Conflict("the ledger's segments changed while entries were copied: repair it again")
    return replace(metadata, segments=wanted)


def _with_holder(segment: Segment, bookie: BookieId, holder: BookieId) -> Segment:
    bookies = tuple(holder if each == bookie else each for each in segment.bookies)
    return Segment(segment.first, bookies)
