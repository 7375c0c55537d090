"""`LogShardState`: the state machine of a log shard. No I/O, no clock.

Logservice's text (section "RSM") asks of a state machine that equal input gives equal output. So
only the entries count here, in their order. Planted bugs are in
`tests/kits/logservice/simulation/mutants.py`.

Only metadata is kept: the records stay in the raft log (the text's section "Truncation"). Which
entries are records that a reader may see is decided here, once, when they are applied: an entry
that was refused, for the lease or as a repetition, stands in the log as well, and is a hole for
every reader. A store that decides when the entry is proposed does not know what was committed
before it: a writer that lost the lease a moment ago, and an append that is sent again to the next
leader, would both get through (docs/decisions/0009; planted bug "checks the lease when proposed").

**Producers** (`ShardProducers`): the last sequences of each, so that a retry writes nothing twice.
A producer numbers its records. For its last `WINDOW` sequences it is known where each was written.
An ordered producer's sequences begin with 1 and come without a gap; another's may come in any
order within the window. What is kept depends on the entries alone, not on how they were cut into
batches: two replicas may apply the same entries in different batches, and must agree
(`test_all_answers_are_the_naive_ones_however_entries_are_cut_into_batches`).

**LSNs** (`LsnMap`). In a shard that began empty an entry's LSN is its index, and the map has no
spans. In one that was restored from a backup each span says which entries have which LSNs, both
without a gap. The entries between spans, such as those of an election while records were restored,
have no LSN, and no reader sees them. The last span has no end once the restoring is done: from
there on every entry has an LSN again. A user's checkpoint names an LSN: if a restore gave records
new ones, each user would go on reading at the wrong place (docs/decisions/0011).
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import msgspec

from raftwood.base.errors import Conflict, InvalidInput, RaftwoodError, SequenceForgotten
from raftwood.logservice.errors import (
    LeaseTooOld,
    LsnPastEnd,
    LsnTruncated,
    NotLeaseholder,
    SequenceGap,
)
from raftwood.logservice.records import (
    HEAD,
    HEAD_BYTES,
    NO_PRODUCER,
    NUMBER_MAX,
    ORDERED,
    PRODUCER_BYTES,
    RESTORED,
    SEALED,
    VERSION,
    RecordKind,
    RestoreState,
    UpdateKind,
    decode_begin,
    decode_finish,
    number_of,
)


class Span(msgspec.Struct, array_like=True, gc=False):
    """Entries `index` to `index + count - 1` have the LSNs from `lsn` on; 0 for without end."""

    index: int
    lsn: int
    count: int

    def has_index(self, index: int) -> bool:
        return index >= self.index and (not self.count or index < self.index + self.count)

    def has_lsn(self, lsn: int) -> bool:
        return lsn >= self.lsn and (not self.count or lsn < self.lsn + self.count)


class LsnMap:
    """Indexes to LSNs and back; without spans both are the same."""

    def __init__(self, spans: list[Span] | None = None) -> None:
        self.spans = spans or []

    def lsn_of(self, index: int) -> int | None:
        """An entry's LSN; None if it has none."""
        if not self.spans:
            return index
        position = bisect_right(self.spans, index, key=_index_of_span) - 1
        if position < 0 or not self.spans[position].has_index(index):
            return None
        span = self.spans[position]
        return span.lsn + index - span.index

    def lsn_from(self, index: int) -> int:
        """The LSN of the first entry at an index or after it that has one, or will have."""
        if not self.spans:
            return index
        position = bisect_right(self.spans, index, key=_index_of_span) - 1
        if position >= 0 and self.spans[position].has_index(index):
            return self.spans[position].lsn + index - self.spans[position].index
        if position + 1 < len(self.spans):
            return self.spans[position + 1].lsn
        return self.spans[-1].lsn + self.spans[-1].count

    def index_from(self, lsn: int) -> int:
        """The index of the first entry that has an LSN or a later one, or will have."""
        if not self.spans:
            return lsn
        position = bisect_right(self.spans, lsn, key=_lsn_of_span) - 1
        if position >= 0 and self.spans[position].has_lsn(lsn):
            return self.spans[position].index + lsn - self.spans[position].lsn
        if position + 1 < len(self.spans):
            return self.spans[position + 1].index
        return self.spans[-1].index + self.spans[-1].count

    def add(self, index: int, lsn: int) -> None:
        """Adds the next entry that has an LSN, above all others."""
        if self.spans:
            last = self.spans[-1]
            if last.index + last.count == index and last.lsn + last.count == lsn:
                last.count += 1
                return
        self.spans.append(Span(index, lsn, 1))

    def go_on(self, index: int, lsn: int) -> None:
        """Gives each entry the next LSN, from an index on."""
        self.spans.append(Span(index, lsn, 0))

    def forget_below(self, lsn: int) -> None:
        """Drops spans of LSNs below the first that can be read."""
        del self.spans[: max(0, bisect_right(self.spans, lsn, key=_lsn_of_span) - 1)]


def _index_of_span(span: Span) -> int:
    return span.index


def _lsn_of_span(span: Span) -> int:
    return span.lsn


# Constants and no settings: two replicas with different ones would forget different producers, and
# then answer the same repetition differently.
WINDOW: Final = 1024
"""How many records a producer may have under way."""
PRODUCERS_MAX: Final = 16_384
RUNS_MAX: Final = 1 << 20
"""Runs of all producers: where many write in turns, each record is a run of its own. A new producer
takes the place of old ones; those that are there may go beyond it."""
REFUSED: Final = 0
"""In place of an LSN: the record came, and was refused for the lease. It is remembered, since its
writer may send it again under a new lease and must get the same answer
(`test_a_refused_record_stays_refused_when_it_is_repeated_under_a_new_lease`)."""


class LsnRun(msgspec.Struct, array_like=True, gc=False):
    """Consecutive sequences at consecutive LSNs, or all refused."""

    first: int
    last: int
    lsn: int

    def lsn_of(self, sequence: int) -> int:
        return self.lsn + sequence - self.first if self.lsn else REFUSED


class ShardProducer(msgspec.Struct, array_like=True):
    """One producer's last sequences."""

    top: int
    """The highest sequence that came."""
    used: int
    """The index of its last entry."""
    kept: int
    """The value of `used` when the producer was last looked at for being forgotten."""
    runs: list[LsnRun] = []
    """In order of their sequences."""

    def find(self, sequence: int) -> int | None:
        """Where a sequence was written, or `REFUSED`; None if it has not come yet."""
        position = bisect_right(self.runs, sequence, key=_first_of_run) - 1
        if position < 0:
            return None
        run = self.runs[position]
        return run.lsn_of(sequence) if sequence <= run.last else None

    def add_next(self, sequence: int, lsn: int) -> int:
        """Notes a sequence above all others; returns by how much the number of runs grew."""
        self.top = sequence
        runs = self.runs
        if runs:
            run = runs[-1]
            if run.last + 1 == sequence and lsn == (run.lsn and run.lsn + sequence - run.first):
                run.last = sequence
                return 0
        runs.append(LsnRun(sequence, sequence, lsn))
        forgotten = sequence - WINDOW
        if runs[0].last > forgotten:
            return 1
        dropped = bisect_right(runs, forgotten, key=_last_of_run)
        del runs[:dropped]
        return 1 - dropped

    def add_late(self, sequence: int, lsn: int) -> int:
        """Notes a sequence below the highest one; returns by how much the number of runs grew."""
        position = bisect_right(self.runs, sequence, key=_first_of_run)
        self.runs.insert(position, LsnRun(sequence, sequence, lsn))
        return 1


def _first_of_run(run: LsnRun) -> int:
    return run.first


def _last_of_run(run: LsnRun) -> int:
    return run.last


class ShardProducers:
    """All producers of a shard, the one unused for longest forgotten when there are too many."""

    def __init__(self, known: dict[bytes, ShardProducer] | None = None) -> None:
        self._known = known or {}
        self.get = self._known.get
        self.runs = sum(len(producer.runs) for producer in self._known.values())
        """The runs of all producers together."""

    def __len__(self) -> int:
        return len(self._known)

    def items(self) -> Iterator[tuple[bytes, ShardProducer]]:
        return iter(self._known.items())

    def add(self, name: bytes, index: int) -> ShardProducer:
        while len(self._known) >= PRODUCERS_MAX or (self._known and self.runs >= RUNS_MAX):
            self._forget_one()
        producer = self._known[name] = ShardProducer(0, index, index)
        return producer

    def _forget_one(self) -> None:
        """Forgets the first producer that was not used since it was last looked at.

        By index and not by time: a clock would differ between replicas.
        """
        known = self._known
        while True:
            name, producer = next(iter(known.items()))
            del known[name]
            if producer.used == producer.kept:
                self.runs -= len(producer.runs)
                return
            producer.kept = producer.used
            known[name] = producer


TSO_COUNT_MAX: Final = 1 << 32
LEASES_KEPT: Final = 1000
RESTORED_MAX: Final = 1 << 62
"""The highest LSN of a restore: leaves room in 64 bits for all that will ever be appended."""
_USER: Final = int(UpdateKind.USER)
_unpack: Final = HEAD.unpack_from


class LogCommand(Protocol):
    """One committed entry."""

    @property
    def index(self) -> int: ...
    @property
    def payload(self) -> bytes: ...


class LeaseChange(msgspec.Struct, frozen=True, array_like=True):
    """A new leaseholder from an LSN on."""

    lsn: int
    holder: int


class Hole(msgspec.Struct, array_like=True, gc=False):
    """Entries that were refused, `first` to `last`."""

    first: int
    last: int
    kind: RecordKind


class LogShardInfo(msgspec.Struct, frozen=True):
    """A shard's figures."""

    first_lsn: int
    """The first LSN that can be read."""
    next_lsn: int
    truncated_lsn: int
    required_lsn: int
    holder: int
    tso: int
    producers: int
    holes: int
    lease_history: tuple[LeaseChange, ...] = ()
    sealed_lsn: int = 0
    """Where the log has ended, which is `next_lsn` then; 0 while it goes on."""
    appended_bytes: int = 0
    """Bytes of all records that there ever were."""


class LogShardState:
    """The state of a shard. All of it is in the snapshot: a replica that starts from one would
    otherwise take a repetition for a new record, or show a hole as a record (planted bugs "leaves
    producers out of snapshots" and "leaves holes out of snapshots").
    """

    def __init__(self) -> None:
        self.applied = 0
        self.holder = 0
        self.truncated = 0
        self.required = 0
        self.tso = 1
        self.leases: list[LeaseChange] = []
        self.holes: list[Hole] = []
        self.producers = ShardProducers()
        self.has_records = False
        """Whether any record was ever appended."""
        self.appended_bytes = 0
        """Bytes of all records that were ever appended."""
        self.lsns = LsnMap()
        self.restore: RestoreState | None = None
        self.is_restoring = False
        self.offset = 0
        """The difference between an entry's LSN and its index; 0 while records are restored."""

    @property
    def first_lsn(self) -> int:
        """The first LSN that can be read.

        `required` holds truncation back for a user that still has to read, such as a backup
        (planted bug "ignores the required LSN").
        """
        first = self.truncated + 1
        return min(first, self.required) if self.required else first

    @property
    def sealed_lsn(self) -> int:
        """Where the log has ended for every reader; 0 while it goes on."""
        return self.leases[-1].lsn if self.holder == SEALED and self.leases else 0

    @property
    def freeable_index(self) -> int:
        """The index up to which the log need not be kept.

        The text's section "Truncation": what may be freed is what the user truncated, not what the
        state machine applied. A log that is cut at the applied index loses records that the user
        has not read yet (planted bug "cuts to the applied index").
        """
        if self.is_restoring:
            return 0
        first, sealed = self.first_lsn, self.sealed_lsn
        # Behind the end of a sealed log there are refused entries alone.
        return self.applied if 0 < sealed <= first else self.lsns.index_from(first) - 1

    def info(self, *, next_lsn: int) -> LogShardInfo:
        """The shard's figures; the raft group knows which entry comes next."""
        return LogShardInfo(
            first_lsn=self.first_lsn,
            next_lsn=self.sealed_lsn or next_lsn,
            truncated_lsn=self.truncated,
            required_lsn=self.required,
            holder=self.holder,
            tso=self.tso,
            producers=len(self.producers),
            holes=sum(hole.last - hole.first + 1 for hole in self.holes),
            lease_history=tuple(self.leases),
            sealed_lsn=self.sealed_lsn,
            appended_bytes=self.appended_bytes,
        )

    def apply_all(self, commands: Sequence[LogCommand]) -> list[int | RaftwoodError]:
        """Like `apply` for each; the usual case takes a short way.

        A record whose sequence is the next one of its producer, under the lease, is all but every
        entry there is.
        """
        results: list[int | RaftwoodError] = []
        producers = self.producers
        find, add = producers.get, results.append
        # The producer of the last record: mostly the next record is its own as well.
        producer, known = None, b""
        size = slow = 0
        for command in commands:
            index, payload = command.index, command.payload
            length = len(payload)
            if length >= HEAD_BYTES:
                version, flags, name, sequence, kind, holder = _unpack(payload)
                if (
                    kind == _USER
                    and version == VERSION
                    and not flags & RESTORED
                    and (not self.holder or holder == self.holder != SEALED)
                ):
                    if name != known:
                        producer, known = find(name), name
                    # Not a producer's first record: a shard in which a producer has a record cannot
                    # be restored any more, so that the short way needs no look at that.
                    if producer is not None and producer.top == sequence - 1 > 0:
                        lsn = index + self.offset
                        producer.used = lsn
                        run = producer.runs[-1]
                        first_lsn = run.lsn  # `REFUSED` where the run was refused
                        if (
                            first_lsn
                            and run.last == sequence - 1
                            and first_lsn + sequence - run.first == lsn
                        ):
                            run.last = producer.top = sequence
                        else:
                            producers.runs += producer.add_next(sequence, lsn)
                        size += length
                        add(lsn)
                        continue
            add(self.apply(index, payload))
            slow += 1
            # The producer may have come with this entry, or have been forgotten for another.
            known = b""
        self.appended_bytes += size - HEAD_BYTES * (len(commands) - slow)
        if commands:
            self.applied = commands[-1].index
        return results

    def apply(self, index: int, payload: bytes) -> int | RaftwoodError:
        """Applies an entry; returns a record's LSN, or the number that a command asked for.

        Nothing here raises: an entry that one replica refuses to apply would stop all of them at
        the same index, for ever. What is wrong is the entry's result.
        """
        lsn = index + self.offset
        if len(payload) < HEAD_BYTES or payload[0] != VERSION:
            return self._unknown(lsn, "this is no entry of a log shard that this program knows")
        _, flags, name, sequence, kind, holder = _unpack(payload)
        if self.is_restoring or flags & RESTORED or kind >= UpdateKind.RESTORE:
            answer = self._apply_restore(index, payload, flags, sequence, kind)
            if answer is not None:
                return answer
        if kind == _USER:
            answer = self._append(lsn, name, sequence, holder, is_ordered=bool(flags & ORDERED))
            if answer == lsn:  # Else it is a repetition, whose bytes were counted.
                self.appended_bytes += len(payload) - HEAD_BYTES
            return answer
        if len(payload) != HEAD_BYTES + 8:
            message = f"update {kind} has {len(payload)} bytes, not {HEAD_BYTES + 8}"
            return self._unknown(lsn, message)
        number = number_of(payload)
        if kind == UpdateKind.LEASEHOLDER:
            return self._take_lease(lsn, number)
        if kind == UpdateKind.TRUNCATE:
            return self._truncate(lsn, number)
        if kind == UpdateKind.TSO:
            return self._take_timestamps(number)
        if kind == UpdateKind.REQUIRED:
            return self._require(lsn, number)
        return self._unknown(lsn, f"update {kind} is none that this program knows")

    def _unknown(self, lsn: int, message: str) -> InvalidInput:
        """Makes an entry that this program does not know a hole: no reader must take it for a
        record (`test_what_is_no_entry_of_this_program_is_never_shown_as_a_record`).
        """
        if not self.is_restoring:  # During a restore it has no LSN.
            self._refuse(lsn, RecordKind.INTERNAL)
        return InvalidInput(message)

    # Records

    def _append(
        self, index: int, name: bytes, sequence: int, holder: int, *, is_ordered: bool
    ) -> int | RaftwoodError:
        producer = None
        is_known = name != NO_PRODUCER
        if is_known:
            producer = self.producers.get(name)
            if producer is None:
                producer = self.producers.add(name, index)
            producer.used = index
            # Sequences before the lease: an append that was stored under the last lease is answered
            # with its LSN even if the lease has changed since. A refusal would make its writer
            # store it once more elsewhere (docs/decisions/0012).
            if sequence != producer.top + 1:
                answer = self._repeated(index, producer, sequence, is_ordered=is_ordered)
                if answer is not None:
                    return answer
        self.has_records = True
        lsn = index
        refusal: RaftwoodError | None = None
        if self.holder and (holder != self.holder or holder == SEALED):
            refusal = self._not_holder(holder)
            self._refuse(index, RecordKind.LEASE_REJECTED)
            lsn = REFUSED
        if producer is not None:
            if sequence > producer.top:
                self.producers.runs += producer.add_next(sequence, lsn)
            else:
                self.producers.runs += producer.add_late(sequence, lsn)
        return refusal or index

    def _not_holder(self, holder: int) -> NotLeaseholder:
        if self.holder == SEALED:
            return NotLeaseholder("the log is sealed: nothing was written, nor will be", SEALED)
        return NotLeaseholder(
            f"leaseholder {self.holder} has the log, not {holder}: nothing was written; take the "
            "lease with a larger id if the holder is gone",
            self.holder,
        )

    def _repeated(
        self, index: int, producer: ShardProducer, sequence: int, *, is_ordered: bool
    ) -> int | RaftwoodError | None:
        """The answer to a sequence that is not the next one; None if it is to be written.

        A repetition gets the place of the first one, not its own (planted bugs "writes repetitions
        again" and "answers repetitions with their own place").
        """
        top = producer.top
        answer: int | RaftwoodError
        if sequence > top:
            if not is_ordered:
                return None
            # An ordered producer sends several records at once, and one in front may be lost on its
            # way to a new leader. Those behind it are refused, or they would stand in the log in
            # front of it once it is sent again (planted bug "takes sequences with gaps").
            answer = SequenceGap(f"sequence {top + 1} is due, not {sequence}", top + 1)
        elif sequence <= top - WINDOW:
            # An error and not a guess: the producer must learn that the record may be stored or
            # lost.
            answer = SequenceForgotten(
                f"sequence {sequence} is more than {WINDOW} behind {top}: whether and where it was "
                "written is not known any more"
            )
        else:
            found = producer.find(sequence)
            if found is None:
                if not is_ordered:
                    return None
                answer = SequenceForgotten(f"sequence {sequence} is below the first one")
            else:
                answer = self._not_holder(0) if found == REFUSED else found
        self._refuse(index, RecordKind.INTERNAL)
        return answer

    def answer_to(self, name: bytes) -> int | RaftwoodError | None:
        """The outcome of a record, by `records.record_name`; None if it is unknown."""
        producer = None if self.is_restoring else self.producers.get(name[:PRODUCER_BYTES])
        sequence = int.from_bytes(name[PRODUCER_BYTES:], "big")
        if producer is None or not producer.top - WINDOW < sequence <= producer.top:
            return None
        found = producer.find(sequence)
        return self._not_holder(0) if found == REFUSED else found

    def _refuse(self, index: int, kind: RecordKind) -> None:
        if self.is_restoring:
            return  # It has no LSN, and no reader sees it.
        holes = self.holes
        if holes and holes[-1].last + 1 == index and holes[-1].kind is kind:
            holes[-1].last = index
        else:
            holes.append(Hole(index, index, kind))

    def hole_at(self, lsn: int) -> RecordKind | None:
        """The kind of hole at a user's entry; None for a record."""
        holes = self.holes
        position = bisect_right(holes, lsn, key=_first_of_hole) - 1
        if position >= 0 and lsn <= holes[position].last:
            return holes[position].kind
        return None

    def has_holes(self, first: int, last: int) -> bool:
        """Whether any entry of a range was refused: readers leave those out (planted bug "reads
        refused entries")."""
        holes = self.holes
        position = bisect_right(holes, last, key=_first_of_hole) - 1
        return position >= 0 and holes[position].last >= first

    # Restoring

    def _apply_restore(
        self, index: int, payload: bytes, flags: int, sequence: int, kind: int
    ) -> int | RaftwoodError | None:
        """Applies an entry that restores; None for one that has nothing to do with a restore."""
        if kind == _USER and flags & RESTORED:
            return self._restore_at(index, sequence, records=1, size=len(payload) - HEAD_BYTES)
        if kind == UpdateKind.FILL and len(payload) == HEAD_BYTES + 8:
            return self._restore_at(index, number_of(payload), records=0, size=0)
        if kind == UpdateKind.RESTORE:
            return self._begin_restore(payload)
        if kind == UpdateKind.RESTORED:
            return self._finish_restore(index, payload)
        if self.is_restoring:
            return Conflict("the shard is being restored from a backup: wait until that is done")
        return None

    def _begin_restore(self, payload: bytes) -> int | RaftwoodError:
        begin = decode_begin(payload)
        if begin is None:
            return InvalidInput("what begins a restore cannot be read")
        known = self.restore
        if known is not None and known.backup == begin.backup and not known.is_done:
            return known.last_lsn  # The restore goes on where it broke off.
        is_empty = not self.has_records and not self.leases and not self.truncated and self.tso == 1
        if known is not None or not is_empty:
            return Conflict("only an empty shard can be restored from a backup: make a new one")
        if max(begin.truncated_lsn, begin.required_lsn, begin.tso) > RESTORED_MAX:
            return InvalidInput(f"a backup's LSNs and timestamps go up to {RESTORED_MAX}")
        self.truncated, self.required = begin.truncated_lsn, begin.required_lsn
        self.tso, self.holder = begin.tso, begin.holder
        # Their LSNs are given to restored records now: a hole that stayed would hide one
        # (`test_what_was_refused_before_a_restore_hides_no_restored_record`).
        self.holes.clear()
        self.restore = RestoreState(begin.backup, self.first_lsn - 1)
        self.is_restoring = True
        return self.restore.last_lsn

    def _restore_at(self, index: int, lsn: int, *, records: int, size: int) -> int | RaftwoodError:
        state = self.restore
        if state is None or state.is_done:
            self._refuse(index + self.offset, RecordKind.INTERNAL)
            return Conflict("the shard is not being restored: append to it")
        if lsn > NUMBER_MAX:
            return InvalidInput(f"LSN {lsn} is above {NUMBER_MAX}: no log gets there")
        if lsn > state.last_lsn:
            self.lsns.add(index, lsn)
            state.last_lsn = lsn
            state.records += records
            self.appended_bytes += size
            self.has_records = True
        return lsn

    def _finish_restore(self, index: int, payload: bytes) -> int | RaftwoodError:
        finish, state = decode_finish(payload), self.restore
        if finish is None or state is None or finish.backup != state.backup:
            return Conflict("the shard is not being restored from this backup")
        if state.is_done:
            return finish.next_lsn
        # The count is checked: a batch that was lost on the way would be an unnoticed hole
        # (`test_a_repeated_batch_changes_nothing_and_a_lost_record_is_noticed`).
        is_after = state.last_lsn < finish.next_lsn <= RESTORED_MAX
        if finish.records != state.records or not is_after:
            return Conflict(
                f"{state.records} records up to LSN {state.last_lsn} were restored, not "
                f"{finish.records} below {finish.next_lsn}: remove the shard and restore it anew"
            )
        state.is_done = True
        self.is_restoring = False
        self.offset = finish.next_lsn - (index + 1)
        self.lsns.go_on(index + 1, finish.next_lsn)
        if self.holder == SEALED:
            # The log ends where it ended before it was backed up.
            self.leases.append(LeaseChange(finish.next_lsn, SEALED))
        return finish.next_lsn

    # The rest

    def _take_lease(self, index: int, holder: int) -> int | RaftwoodError:
        if holder == self.holder:
            return holder
        if holder > SEALED:
            return InvalidInput(f"leaseholder {holder} is above {SEALED}: give a smaller id")
        # Only a larger id: two writers that take the lease from each other with old ids would both
        # believe to have it
        # (`test_only_a_larger_id_takes_the_lease_and_asking_twice_changes_nothing`).
        if holder < self.holder:
            return LeaseTooOld(
                f"leaseholder {self.holder} has the log: only a larger id takes it over, "
                f"{holder} is not",
                self.holder,
            )
        self.holder = holder
        self.leases.append(LeaseChange(index, holder))
        del self.leases[:-LEASES_KEPT]
        return holder

    def _truncate(self, index: int, lsn: int) -> int | RaftwoodError:
        # Only a number changes here; the worker of each store frees what it allows later (the
        # text's section "Truncation", step 1). It never falls: a truncation that comes late must
        # not promise what is freed already.
        end = self.sealed_lsn or index
        if lsn >= end:
            return LsnPastEnd(
                f"LSN {lsn} cannot be truncated: {self.first_lsn} to {end - 1} are written",
                self.first_lsn,
                end,
            )
        if lsn > self.truncated:
            self.truncated = lsn
            self._forget_freed()
        return self.truncated

    def _require(self, index: int, lsn: int) -> int | RaftwoodError:
        first = self.first_lsn
        if lsn and not first <= lsn <= index:
            error = LsnTruncated if lsn < first else LsnPastEnd
            message = f"LSN {lsn} cannot be required: {first} to {index - 1} can be read"
            return error(message, first, index)
        self.required = lsn
        self._forget_freed()
        return lsn

    def _take_timestamps(self, count: int) -> int | RaftwoodError:
        if not 0 < count <= TSO_COUNT_MAX:
            return InvalidInput(f"ask for 1 to {TSO_COUNT_MAX} timestamps, not {count}")
        first = self.tso
        self.tso += count
        return first

    def _forget_freed(self) -> None:
        """Drops holes, spans and leases of entries below the first that can be read."""
        first = self.first_lsn
        self.lsns.forget_below(first)
        position = bisect_right(self.holes, first - 1, key=_last_of_hole)
        del self.holes[:position]
        kept = bisect_right(self.leases, first, key=_lsn_of_change) - 1
        if kept > 0:
            del self.leases[:kept]


def _first_of_hole(hole: Hole) -> int:
    return hole.first


def _last_of_hole(hole: Hole) -> int:
    return hole.last


def _lsn_of_change(change: LeaseChange) -> int:
    return change.lsn
