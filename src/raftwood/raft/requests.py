"""Proposals and linearizable reads of one group, from the caller to the result.

A batch of commands is one proposal. Its entries are adjacent in the log. It ends when its last
entry was applied, or when entries of another leader replaced it: then it is certain that none of
its commands was carried out.

Many reads share one round of confirmation (ReadIndex). A read that arrives during a round waits for
the next one: the round's index was taken before the read began, and might miss changes acknowledged
in between.
"""

import asyncio
from bisect import insort
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Sized
from functools import partial
from typing import Any, Final

from raftwood.base.errors import ConnectionLost, RaftwoodError, Unavailable
from raftwood.base.futures import fail
from raftwood.raft.core import UNLIMITED, Entry, EntryKind
from raftwood.raft.core.log import RaftLog

ProposalDone = Callable[[list[Any] | None, RaftwoodError | None], None]
"""Called once: with a result per command, or with the reason why there are none."""


class ProposalBatch:
    """Commands proposed together, and their place in the log once they have one."""

    __slots__ = ("done", "entries", "first_index", "results", "size_bytes", "term")

    def __init__(self, entries: list[Entry], size_bytes: int, done: ProposalDone) -> None:
        self.entries = entries
        self.size_bytes = size_bytes
        self.done = done
        self.term = 0
        self.first_index = 0
        self.results: list[Any] = []


def split_batch(entries: list[Entry], bytes_max: int, done: ProposalDone) -> list[ProposalBatch]:
    """Splits a batch that is too large for one message into several that end as one.

    If only some commands were carried out, each of the others gets the reason as its result. A
    session's batch then has no results: it is sent again as a whole, and no command is repeated.
    """
    parts: list[list[Entry]] = [[]]
    size = 0
    for entry in entries:
        if parts[-1] and size + len(entry.payload) > bytes_max:
            parts.append([])
            size = 0
        parts[-1].append(entry)
        size += len(entry.payload)
    return batches_of(parts, done)


def batches_of(parts: list[list[Entry]], done: ProposalDone) -> list[ProposalBatch]:
    """Makes a batch for each part of a proposal; they end as one."""
    is_session = parts[0][0].kind is EntryKind.CONTROL
    results: dict[int, list[Any]] = {}
    errors: list[RaftwoodError] = []

    def part_done(position: int, found: list[Any] | None, error: RaftwoodError | None) -> None:
        if found is None:
            reason = error or Unavailable("the proposal was dropped")
            errors.append(reason)
            found = [reason] * len(parts[position])
        results[position] = found
        if len(results) < len(parts):
            return
        if len(errors) == len(parts) or (errors and is_session):
            # If one part may have been done, the whole must not be proposed again.
            unknown = [reason for reason in errors if isinstance(reason, OutcomeUnknown)]
            done(None, (unknown or errors)[0])
        else:
            done([each for place in range(len(parts)) for each in results[place]], None)

    return [
        ProposalBatch(part, sum(len(entry.payload) for entry in part), partial(part_done, position))
        for position, part in enumerate(parts)
    ]


LogPlace = tuple[int, int]
"""The index and term of an entry in the log."""
NameOf = Callable[[Entry], bytes | None]
"""The name of a command, the same at each repetition; None for a command without a name."""
IsRefused = Callable[[Entry, Mapping[bytes, LogPlace]], bool]
"""Whether a command will be refused, because a command before it is neither applied nor pending."""


class PendingNames:
    """The places of a leader's pending commands in its log, by their names.

    Filled on demand, and each entry once: commands that are not repeated cost nothing.
    """

    __slots__ = ("_looked_at", "_places", "_term")

    def __init__(self) -> None:
        self._places: dict[bytes, LogPlace] = {}
        self._term = 0
        self._looked_at = 0
        """The index of the last entry that was looked at."""

    def find(
        self,
        names: Sequence[bytes | None],
        log: RaftLog,
        term: int,
        name_of: NameOf,
        is_refused: IsRefused,
    ) -> "LogPlaces":
        """Returns the place of each name, None for a name that the log does not hold.

        In one term a leader only adds to its log. Of two entries with one name the later one
        counts: its answer holds for the earlier one, too. An entry that came before the one due in
        front of it does not count: it will be refused, and has to be sent again.
        """
        applied = log.applied
        if term != self._term or applied >= self._looked_at:
            self._places.clear()
            self._term, self._looked_at = term, applied
        places = self._places
        if self._looked_at < log.last_index:
            for entry in log.entries(self._looked_at + 1, UNLIMITED):  # in memory: not applied
                name = name_of(entry)
                if name is not None and not is_refused(entry, places):
                    places[name] = (entry.index, entry.term)
            self._looked_at = log.last_index
        if len(places) > 2 * (log.last_index - applied):
            self._places = places = {
                name: place for name, place in places.items() if place[0] > applied
            }
        found = (None if name is None else places.get(name) for name in names)
        return [place if place is not None and place[0] > applied else None for place in found]


LogPlaces = list[LogPlace | None]


ALREADY_APPLIED: Final[LogPlace] = (0, 0)
"""In place of a place: the command was applied, and its result is known."""


def parts_of(
    entries: list[Entry], places: LogPlaces, *, bytes_max: int
) -> tuple[list[list[Entry]], LogPlaces]:
    """Splits entries into parts with one place each: adjacent in the log, not in it yet (None), or
    `ALREADY_APPLIED`.
    """
    parts: list[list[Entry]] = []
    begins: LogPlaces = []
    due: LogPlace | None = None
    size = 0
    for entry, place in zip(entries, places, strict=True):
        size += len(entry.payload)
        if parts and place == due and (place is not None or size <= bytes_max):
            parts[-1].append(entry)
        else:
            parts.append([entry])
            begins.append(place)
            size = len(entry.payload)
        due = (place[0] + 1, place[1]) if place is not None and place != ALREADY_APPLIED else place
    return parts, begins


def waiter(loop: asyncio.AbstractEventLoop) -> tuple["asyncio.Future[Any]", ProposalDone]:
    """Returns a future for the result of a single command, and the callback that ends it."""
    future: asyncio.Future[Any] = loop.create_future()

    def done(results: list[Any] | None, error: RaftwoodError | None) -> None:
        if future.done():
            return
        if results is None:
            fail(future, error or Unavailable("the proposal was dropped"))
        elif isinstance(results[0], RaftwoodError):
            fail(future, results[0])
        else:
            future.set_result(results[0])

    return future, done


class ProposalMemory:
    """The size of waiting commands in all groups of a host, which share its memory."""

    __slots__ = ("running", "size_bytes")

    def __init__(self, running: Sized = ()) -> None:
        self.running = running
        """The groups that share the memory."""
        self.size_bytes = 0


class Proposals:
    """Batches that wait to enter the log, and batches that wait to be applied."""

    __slots__ = ("_applied_term", "_host", "in_log", "queue", "size_bytes")

    def __init__(self, host: ProposalMemory | None = None) -> None:
        self._host = host or ProposalMemory()
        self.queue: list[ProposalBatch] = []
        self.in_log: deque[ProposalBatch] = deque()
        self._applied_term = 0
        self.size_bytes = 0
        """The size of all waiting batches of both kinds."""

    def __len__(self) -> int:
        return len(self.queue) + len(self.in_log)

    def add(self, batch: ProposalBatch) -> None:
        self.queue.append(batch)
        self.size_bytes += batch.size_bytes
        self._host.size_bytes += batch.size_bytes

    def take_queue(self, bytes_max: int) -> list[ProposalBatch]:
        """Takes the first batches of the queue, at least one."""
        size = 0
        for position, batch in enumerate(self.queue):
            size += batch.size_bytes
            if size > bytes_max and position:
                taken, self.queue = self.queue[:position], self.queue[position:]
                return taken
        taken, self.queue = self.queue, []
        return taken

    def refuse_queue(self, error: RaftwoodError) -> None:
        queue, self.queue = self.queue, []
        self.refuse(queue, error)

    def entered_log(self, batches: Sequence[ProposalBatch]) -> None:
        """Notes the places that the core has given to batches."""
        in_log = self.in_log
        is_ordered = not in_log or in_log[-1].first_index < batches[0].first_index
        if is_ordered:
            in_log.extend(batches)
            return
        # Batches of an earlier leadership, whose entries are gone from this log: another replica
        # may bring them back until an entry of a later term was applied. Or batches that were sent
        # again.
        for batch in batches:
            insort(in_log, batch, key=_first_index)

    def joined(self, batch: ProposalBatch, place: LogPlace) -> None:
        """Attaches a repeated batch to entries that the log holds already."""
        batch.first_index, batch.term = place
        self.size_bytes += batch.size_bytes
        self._host.size_bytes += batch.size_bytes
        self.entered_log([batch])

    def refuse(self, batches: Sequence[ProposalBatch], error: RaftwoodError) -> None:
        for batch in batches:
            self._end(batch, None, error)

    def refuse_all(self, error: RaftwoodError) -> None:
        """Ends all batches with the replica: others may still carry out the entries in the log."""
        self.refuse_queue(error)
        in_log, self.in_log = self.in_log, deque()
        self.refuse(in_log, OutcomeUnknown(f"{error.message}; {_LEFT_BEHIND}"))

    def applied(self, entries: list[Entry], results: Sequence[Any]) -> None:
        """Passes the results of applied entries to the batches that wait for them."""
        last = entries[-1].index
        in_log = self.in_log
        unfinished = []
        while in_log and in_log[0].first_index <= last:
            batch = in_log.popleft()
            if self._is_unfinished(batch, entries, results):
                unfinished.append(batch)
        in_log.extendleft(reversed(unfinished))
        if entries[-1].term > self._applied_term:
            self._applied_term = entries[-1].term
            self._end_older()

    def _end_older(self) -> None:
        """Ends batches of older terms: terms never fall along a log, so none will be committed."""
        older = [batch for batch in self.in_log if batch.term < self._applied_term]
        if older:
            self.in_log = deque(batch for batch in self.in_log if batch.term >= self._applied_term)
            for batch in older:
                self._replaced(batch)

    def _is_unfinished(
        self, batch: ProposalBatch, entries: list[Entry], results: Sequence[Any]
    ) -> bool:
        """Takes a batch's part of the results; returns whether the batch waits for more."""
        start = batch.first_index + len(batch.results) - entries[0].index
        stop = min(len(entries), start + len(batch.entries) - len(batch.results))
        is_replaced = False
        while stop > start and entries[stop - 1].term != batch.term:
            # Terms never fall along a log, so only the end of a batch can be replaced.
            stop -= 1
            is_replaced = True
        batch.results += results[start:stop]
        if is_replaced:
            self._replaced(batch)
        elif len(batch.results) < len(batch.entries):
            return True
        else:
            self._end(batch, batch.results, None)
        return False

    def _replaced(self, batch: ProposalBatch) -> None:
        error = Unavailable(_REPLACED)
        if batch.results and batch.entries[0].kind is not EntryKind.CONTROL:
            # The first commands made it into the log of the next leader.
            missing = len(batch.entries) - len(batch.results)
            self._end(batch, batch.results + [error] * missing, None)
        else:
            self._end(batch, None, error)

    def overtaken(self, index: int) -> None:
        """Ends batches up to an index that a snapshot replaced: their results are unknown."""
        in_log = self.in_log
        while in_log and in_log[0].first_index <= index:
            self._end(in_log.popleft(), None, OutcomeUnknown(_OVERTAKEN))

    def _end(
        self, batch: ProposalBatch, results: list[Any] | None, error: RaftwoodError | None
    ) -> None:
        self.size_bytes -= batch.size_bytes
        self._host.size_bytes -= batch.size_bytes
        batch.done(results, error)


def _first_index(batch: ProposalBatch) -> int:
    return batch.first_index


class OutcomeUnknown(ConnectionLost):
    """The command may or may not have been carried out, and this replica will never know.

    As after a lost connection, a session's command is sent again, and any other is not.
    """

    code = "outcome_unknown"


_REPLACED = "another leader took over before the proposal was committed: propose it again"
_LEFT_BEHIND = "the proposal may still be carried out: read the state to see whether it was"
_OVERTAKEN = "a snapshot overtook the proposal: read the state to see whether it was carried out"


ReadDone = Callable[[RaftwoodError | None], None]
"""Called once: when the state machine may be read, or with the reason why not."""


def read_waiter(loop: asyncio.AbstractEventLoop) -> tuple["asyncio.Future[None]", ReadDone]:
    """Returns a future for the moment of a read, and the callback that ends it."""
    future: asyncio.Future[None] = loop.create_future()

    def done(error: RaftwoodError | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            fail(future, error)

    return future, done


class Reads:
    """Reads that wait for a round, in a round, or for the state machine to catch up."""

    __slots__ = ("_confirmed", "_in_round", "_prefix", "_round", "_round_ticks", "waiting")

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        """Unique to this start of this store: an answer to an older question must not fit."""
        self.waiting: list[ReadDone] = []
        self._in_round: list[ReadDone] = []
        self._confirmed: list[tuple[int, list[ReadDone]]] = []
        self._round = 0
        self._round_ticks = 0

    def __len__(self) -> int:
        confirmed = sum(len(dones) for _, dones in self._confirmed)
        return len(self.waiting) + len(self._in_round) + confirmed

    def add(self, done: ReadDone) -> None:
        self.waiting.append(done)

    def next_round(self) -> bytes | None:
        """Returns the context of a new round; None if one is under way or no read waits."""
        if self._in_round or not self.waiting:
            return None
        self._in_round, self.waiting = self.waiting, []
        self._round += 1
        self._round_ticks = 0
        return self._context()

    def _context(self) -> bytes:
        return self._prefix + self._round.to_bytes(8, "little")

    def tick(self, round_ticks_max: int) -> None:
        """Gives up an unanswered round: a message was lost, or there is no leader."""
        if not self._in_round:
            return
        self._round_ticks += 1
        if self._round_ticks > round_ticks_max:
            # The reads go to the front of the next round, with a new context.
            self.waiting = self._in_round + self.waiting
            self._in_round = []

    def confirmed(self, context: bytes, index: int) -> None:
        """Takes a round's answer: its reads may be served once `index` is applied."""
        if self._in_round and context == self._context():
            self._confirmed.append((index, self._in_round))
            self._in_round = []

    def applied(self, index: int) -> None:
        """Serves the reads that waited for the state machine to reach `index`."""
        if not self._confirmed:
            return
        ready = [dones for needed, dones in self._confirmed if needed <= index]
        self._confirmed = [each for each in self._confirmed if each[0] > index]
        for dones in ready:
            for done in dones:
                done(None)

    def refuse_all(self, error: RaftwoodError) -> None:
        dones = self.waiting + self._in_round
        for _, group in self._confirmed:
            dones += group
        self.waiting, self._in_round, self._confirmed = [], [], []
        for done in dones:
            done(error)
