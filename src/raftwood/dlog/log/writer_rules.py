"""The one writer of a log: take-over, rotation, giving up, the end. A state machine without I/O.

`WriterRules.step` takes one of the events, and returns actions; `writer_driver` carries them out.
The protocol is that of DLOG's text, section "Architecture and implementation": its table of two
writers that meet is the reason for each order of steps below. Planted bugs are in
`tests/kits/dlog/log_model/mutants.py` (these rules in any order of events) and in
`tests/kits/dlog/simulation/mutants.py` (whole logs with real ledgers below).
"""

from enum import Enum, auto

import msgspec
from msgspec.structs import replace

from raftwood.base.errors import InvariantViolated
from raftwood.dlog.log.meta import LEDGERS_MAX, DlogState, LedgerInfo, LogMeta


class WriterStarted(msgspec.Struct, frozen=True):
    """A caller opened the writer."""


class MetaRead(msgspec.Struct, frozen=True):
    """The meta record was read; None if there is no such log."""

    meta: LogMeta | None
    version: int


class MetaSet(msgspec.Struct, frozen=True):
    """The compare-and-set was carried out."""

    version: int


class MetaNotSet(msgspec.Struct, frozen=True):
    """The compare-and-set was refused, or its answer was lost: the record must be read."""


class LedgerRecovered(msgspec.Struct, frozen=True):
    """A ledger is fenced and closed, with what it holds."""

    info: LedgerInfo


class RecoveryFailed(msgspec.Struct, frozen=True):
    """Too few bookies answer to tell what the ledger holds."""

    ledger: int


class LedgerCreated(msgspec.Struct, frozen=True):
    """A new ledger, which is in no list yet."""

    ledger: int
    now_ms: int


class CreationFailed(msgspec.Struct, frozen=True):
    """There are too few bookies for a ledger, or the metastore does not answer."""


class ProducersRebuilt(msgspec.Struct, frozen=True):
    """The last sequence of every producer is known, as that attempt found the log."""

    attempt: int


class RotationAsked(msgspec.Struct, frozen=True):
    """The ledger is full or old, or a caller wants the next one."""


class LedgerEnded(msgspec.Struct, frozen=True):
    """All of the ledger's appends were acked, and it has ended."""

    info: LedgerInfo


class LedgerFailed(msgspec.Struct, frozen=True):
    """The ledger takes nothing more, and how much of it is stored is unknown."""

    ledger: int


class LedgerFenced(msgspec.Struct, frozen=True):
    """Another writer has taken over."""

    ledger: int


class PauseEnded(msgspec.Struct, frozen=True):
    """The pause that `PauseWriter` asked for is over."""


class ValidityEnded(msgspec.Struct, frozen=True):
    """The last look at the record is too long ago: it must be read again."""


class EndAsked(msgspec.Struct, frozen=True):
    """This writer appends no more; with `terminates`, nor will any other."""

    terminates: bool


Event = (
    WriterStarted
    | MetaRead
    | MetaSet
    | MetaNotSet
    | LedgerRecovered
    | RecoveryFailed
    | LedgerCreated
    | CreationFailed
    | ProducersRebuilt
    | RotationAsked
    | LedgerEnded
    | LedgerFailed
    | LedgerFenced
    | PauseEnded
    | ValidityEnded
    | EndAsked
)


class ReadMeta(msgspec.Struct, frozen=True):
    """Read the meta record; answered by `MetaRead`."""


class SetMeta(msgspec.Struct, frozen=True):
    """Change the meta record; answered by `MetaSet` or `MetaNotSet`."""

    meta: LogMeta
    version: int


class RecoverLedger(msgspec.Struct, frozen=True):
    """Fence and close the ledger; answered by `LedgerRecovered` or `RecoveryFailed`."""

    ledger: int


class RebuildProducers(msgspec.Struct, frozen=True):
    """Read the producers' sequences from these closed ledgers; answered by `ProducersRebuilt`.

    A producer whose append was not answered sends it again to the next writer. One that does not
    know the sequence stores it twice (planted bug "forgets the producers").
    """

    ledgers: tuple[LedgerInfo, ...]
    attempt: int


class CreateLedger(msgspec.Struct, frozen=True):
    """Create a ledger; answered by `LedgerCreated` or `CreationFailed`."""


class CloseLedger(msgspec.Struct, frozen=True):
    """Close a ledger once its appends are acked; answered by `LedgerClosed` and the like."""

    ledger: int


class DeleteLedger(msgspec.Struct, frozen=True):
    """Delete a ledger that is in no list. Not answered: if it fails, the ledger is an orphan that
    `retention.orphans` finds later."""

    ledger: int


class WriteToLedger(msgspec.Struct, frozen=True):
    """Append to this ledger from now on, once all that went to the one before is acked.

    Acks have to come in the order of positions across a rotation. If entries of the new ledger were
    acked while the old one's last entries are under way, a crash would lose those, and the log
    would have a hole between two acked messages (planted bug "writes to the next ledger at once").
    """

    ledger: int


class PauseWriter(msgspec.Struct, frozen=True):
    """Wait for a while; answered by `PauseEnded`."""

    is_contended: bool = False
    """Another writer was faster, and nothing failed. The pause stays short: one that grew with each
    lost round would lose all following rounds too
    (`test_none_of_five_that_contend_for_a_log_waits_for_long`)."""


class GiveUp(msgspec.Struct, frozen=True):
    """Never ack anything again."""

    reason: str
    is_missing: bool = False
    """The log no longer exists."""


class EndWriter(msgspec.Struct, frozen=True):
    """The ledger is closed, or the log terminated; known sequences can still be answered."""


Action = (
    ReadMeta
    | SetMeta
    | RecoverLedger
    | RebuildProducers
    | CreateLedger
    | CloseLedger
    | DeleteLedger
    | WriteToLedger
    | PauseWriter
    | GiveUp
    | EndWriter
)


# The one writer of a log: take-over, rotation, giving up, the end. A state machine without I/O.
#
# **Take-over**: read the meta, recover (and so fence) the last two ledgers, create a new one, set
# the meta; only then write. Where another was faster, delete the new ledger and begin again. Each
# step is in the way of one failure:
# - Fence before the meta is set. What the old writer stores between the two would be unknown to the
#   new one, which has read the log's end and its producers already (planted bug "sets before it
#   fences").
# - Fence two, not one. In the middle of a rotation the old writer appends to the ledger before the
#   last one (the text's first case). If only the last were fenced, it would go on there, and be
#   acked for messages in front of the new writer's (planted bug "fences one ledger in place of
#   two").
# - Set the meta before the first append. No reader reads a ledger that is in no list, and it is
# deleted as an orphan, with all that was acked in it (planted bug "writes before it is in the
# record").
#
# **Rotation**: create the next ledger, set the meta, write to it once all that went to the old one
# is acked. The old one is written until then, so that a rotation does not stop appends. So the
# ledgers' contents follow upon one another without a hole, no matter which process crashes when;
# and since the next rotation waits until the old ledger is closed, only the last two of the list
# are ever open. A third one would be open to a writer that a take-over does not fence (planted bug
# "opens a third ledger").
#
# **Giving up** is for ever: upon a fenced ledger, or a meta record with another writer in it. A
# writer that came back by itself would fence its successor, which would fence it again, and for
# long no writer would append (planted bug "goes on after another writer"). Shrinking and the like
# change the record too, and leave the writer in it: the writer adopts such a change and repeats the
# compare-and-set.
#
# Whether a compare-and-set was carried out is always read from the record itself, since an answer
# may be lost. Until it is known to have failed, the ledger that it names is not deleted: the record
# would name a ledger that is gone, and the log could never be opened again (planted bug "believes
# that a lost answer is a no").

ATTEMPTS_MAX = 64
"""The attempts of a take-over, each lost to another writer."""
FENCED = 2
"""How many ledgers at the end of the list may be open."""


class WriterPhase(Enum):
    """The phases of a writer's life, in order."""

    READING = auto()
    FENCING = auto()
    CREATING = auto()
    CLAIMING = auto()
    WRITING = auto()
    ENDED = auto()
    GIVEN_UP = auto()


class WriterRules:
    """`actions = rules.step(event)`; `writer` is a random token of this writer alone."""

    def __init__(self, writer: bytes, *, preallocates: bool = False) -> None:
        self.writer = writer
        self.phase = WriterPhase.READING
        self.meta: LogMeta | None = None
        """The record as it was last seen or set."""
        self.current: int | None = None
        """The ledger that is written."""
        self.retiring: int | None = None
        """The ledger before that, until it is closed."""
        self.spare: int | None = None
        """The next ledger, in no list yet."""
        self._spare_ms = 0
        self._preallocates = preallocates
        self._version = 0
        self.attempts = 0
        self._recovering: dict[int, LedgerInfo | None] = {}
        self._fenced_now: tuple[int, ...] = ()
        """The ledgers that this take-over has closed. Others were closed by their own writer, or by
        an earlier take-over."""
        self._unrecovered: list[int] = []
        """Ledgers whose recovery is to be tried again after the pause."""
        self._is_rebuilt = False
        self._is_creating = False
        self._is_pausing = False
        self._proposed: LogMeta | None = None
        """The record that is being set."""
        self._is_checking = False
        self._is_verifying = False
        self._dropped: tuple[int, ...] = ()
        """Empty ledgers that a take-over leaves out of the list."""
        self._rotates = False
        self._has_failed = False
        """The current ledger takes nothing more; its recovery is under way, or done."""
        self._closed: dict[int, LedgerInfo] = {}
        """Closed ledgers that the record does not show as closed yet."""
        self._ends: EndAsked | None = None
        self._is_closing = False

    def step(self, event: Event) -> list[Action]:
        """What to do now. Once the writer has given up, it only cleans up behind itself."""
        if self.phase in (WriterPhase.GIVEN_UP, WriterPhase.ENDED):
            return self._after_the_end(event)
        match event:
            case WriterStarted():
                return [ReadMeta()]
            case MetaRead():
                return self._meta_read(event)
            case MetaSet():
                return self._meta_set(event.version)
            case MetaNotSet():
                self._is_checking = True
                return [ReadMeta()]
            case LedgerRecovered():
                return self._recovered(event.info)
            case LedgerCreated():
                return self._created(event)
            case CreationFailed():
                self._is_creating = False
                return self._pause()
            case RecoveryFailed():
                if self.phase is WriterPhase.WRITING:
                    self._unrecovered.append(event.ledger)
                    return self._pause()
                if self.phase is not WriterPhase.FENCING or event.ledger not in self._recovering:
                    return []
                # Another writer may have taken over meanwhile: the list is read again, too.
                self.phase = WriterPhase.READING
                return self._pause()
            case PauseEnded():
                self._is_pausing = False
                return self._try_again()
            case ProducersRebuilt():
                # An earlier attempt's answer shows a log that others have written since. A
                # writer that believes it does not know the newest sequences, and stores a repeated
                # append twice (planted bug "takes any rebuild").
                self._is_rebuilt = self._is_rebuilt or event.attempt == self.attempts
                return self._write_if_ready()
            case RotationAsked():
                self._rotates = True
                return self._go_on()
            case LedgerEnded():
                return self._ledger_closed(event.info)
            case LedgerFailed():
                return self._failed(event.ledger)
            case LedgerFenced():
                # Where a compare-and-set is under way, the spare may be in the list already: it is
                # left for the next writer to find.
                dropped = self._drop_spare(self.meta) if self._proposed is None else []
                return dropped + self._give_up(
                    f"ledger {event.ledger} is fenced: another has taken the log over, or the "
                    "ledger was recovered; open the log again"
                )
            case ValidityEnded():
                return self._verify()
            case EndAsked():
                self._ends = event
                return self._go_on()

    # Take-over.

    def _meta_read(self, event: MetaRead) -> list[Action]:
        meta = event.meta
        if meta is None:
            self.phase = WriterPhase.GIVEN_UP
            return [*self._drop_spare(None), GiveUp("there is no such log", is_missing=True)]
        if self._is_checking:
            return self._checked(meta, event.version)
        if self.phase is WriterPhase.WRITING:
            return self._verified(meta, event.version)
        if self.phase is not WriterPhase.READING:
            return []
        self.meta, self._version = meta, event.version
        self._is_rebuilt = False
        if meta.is_terminated:
            # There is nothing to fence or to claim. The producers are read all the same: an append
            # that was stored before the end must be answered with its position, not refused.
            self.phase = WriterPhase.CLAIMING
            return [RebuildProducers(meta.ledgers, self.attempts)]
        self.phase = WriterPhase.FENCING
        self._recovering = {each.ledger: None for each in meta.ledgers[-FENCED:]}
        if not self._recovering:
            return self._fenced()
        return [RecoverLedger(ledger) for ledger in self._recovering]

    def _recovered(self, info: LedgerInfo) -> list[Action]:
        if info.ledger not in self._recovering:
            return []
        if self.phase is WriterPhase.WRITING:
            return self._failed_is_recovered(info)
        if self.phase is not WriterPhase.FENCING:
            return []  # The other recovery of this attempt failed, and the list is read again.
        self._recovering[info.ledger] = info
        return self._fenced() if all(self._recovering.values()) else []

    def _fenced(self) -> list[Action]:
        """No other writer can append to the log now, but others may be about to claim it as well:
        the compare-and-set decides."""
        meta = self._known()
        ledgers = tuple(self._recovering.get(each.ledger) or each for each in meta.ledgers)
        self._fenced_now = tuple(each.ledger for each in meta.ledgers if not each.is_closed)
        self.meta = replace(meta, ledgers=ledgers)
        self._recovering = {}
        self.phase = WriterPhase.CREATING
        self._is_creating = True
        return [CreateLedger(), RebuildProducers(ledgers, self.attempts)]

    def _created(self, event: LedgerCreated) -> list[Action]:
        self._is_creating = False
        # Positions begin with the ledger's number (DLOG's text, "MessageID"). A smaller number
        # would give new messages positions below the old ones, and readers would never reach them.
        if event.ledger <= self._known().last_ledger:
            return [
                DeleteLedger(event.ledger),
                *self._give_up(
                    f"the store of ledgers gave number {event.ledger}, which is not above ledger "
                    f"{self._known().last_ledger}: is it another cluster?"
                ),
            ]
        self.spare = event.ledger
        self._spare_ms = event.now_ms
        if self.phase is not WriterPhase.CREATING:
            return self._go_on()
        self.phase = WriterPhase.CLAIMING
        return self._set(self._claim(event.now_ms))

    def _claim(self, now_ms: int) -> LogMeta:
        """The record with this writer and its new ledger.

        It notes when this take-over fenced ledgers, and leaves out empty ledgers that were fenced
        long ago. Not sooner: with a ledger goes its fence. A writer that slept through the
        take-over would be acked by bookies that know nothing of the ledger any more (planted bug
        "deletes what was just fenced").
        """
        meta = self._known()
        ledgers = [
            replace(each, fenced_ms=now_ms) if each.ledger in self._fenced_now else each
            for each in meta.ledgers
        ]
        grace_ms = meta.config.grace_ms
        self._dropped = tuple(
            each.ledger
            for each in ledgers[:-1]
            if each.last_entry < 0 and each.may_go(now_ms=now_ms, grace_ms=grace_ms)
        )
        kept = [each for each in ledgers if each.ledger not in self._dropped]
        return replace(
            meta,
            writer=self.writer,
            takeovers=meta.takeovers + 1,
            ledgers=(*kept, self._spare_info()),
        )

    def _write_if_ready(self) -> list[Action]:
        if not self._is_rebuilt:
            return []
        if self._known().is_terminated:
            self.phase = WriterPhase.ENDED
            return [EndWriter()]
        if self.current is None or self.phase is not WriterPhase.CLAIMING:
            return []
        self.phase = WriterPhase.WRITING
        return [WriteToLedger(self.current), *self._go_on()]

    # Changes of the record.

    def _set(self, meta: LogMeta) -> list[Action]:
        self._proposed = meta
        return [SetMeta(meta, self._version)]

    def _checked(self, meta: LogMeta, version: int) -> list[Action]:
        """Looks in the record for what was proposed, after a compare-and-set without an answer."""
        self._is_checking = False
        proposed = self._proposed
        if proposed is None:
            raise InvariantViolated("a compare-and-set that nobody asked for was not carried out")
        if version == self._version:
            # Not carried out, or not yet. Sent again with the same version: at most one of the two
            # will be, and it is the same change.
            return self._set(proposed)
        is_ours = meta.writer == self.writer
        if is_ours and (meta.last_ledger == proposed.last_ledger) and self._is_done(meta):
            self._proposed = meta
            return self._meta_set(version)
        self._proposed = None
        if self.phase is WriterPhase.CLAIMING:
            return self._begin_again(meta)
        if not is_ours:
            return [
                *self._drop_spare(meta),
                *self._give_up("another writer has taken the log over"),
            ]
        self.meta, self._version = meta, version
        return self._go_on()

    def _is_done(self, meta: LogMeta) -> bool:
        """Whether a change that adds no ledger is in the record, seen by its effect."""
        proposed = self._proposed
        assert proposed is not None
        is_closed = {each.ledger: each.is_closed for each in meta.ledgers}
        return meta.state is proposed.state and all(
            is_closed.get(each.ledger, True) for each in proposed.ledgers if each.is_closed
        )

    def _begin_again(self, meta: LogMeta) -> list[Action]:
        dropped = self._drop_spare(meta)
        self.attempts += 1
        if self.attempts >= ATTEMPTS_MAX:
            return [*dropped, *self._give_up(f"others took the log over {ATTEMPTS_MAX} times")]
        self.phase = WriterPhase.READING
        return [*dropped, *self._pause(is_contended=True)]

    def _drop_spare(self, meta: LogMeta | None) -> list[Action]:
        """Deletes the spare ledger, unless the record has it: its compare-and-set may have come
        through before another writer took over."""
        spare, self.spare = self.spare, None
        if spare is None or (meta is not None and meta.place_of(spare) is not None):
            return []
        return [DeleteLedger(spare)]

    def _meta_set(self, version: int) -> list[Action]:
        proposed, self._proposed = self._proposed, None
        if proposed is None:
            raise InvariantViolated("a compare-and-set was carried out that nobody asked for")
        self.meta, self._version = proposed, version
        open_ones = {each.ledger for each in proposed.ledgers if not each.is_closed}
        self._closed = {each: info for each, info in self._closed.items() if each in open_ones}
        if self.phase is WriterPhase.CLAIMING:
            self.current, self.spare = self.spare, None
            dropped, self._dropped = self._dropped, ()
            return [*(DeleteLedger(each) for each in dropped), *self._write_if_ready()]
        if proposed.is_terminated:
            return self._end()
        if self.spare is not None and proposed.last_ledger == self.spare:
            return self._rotated()
        return self._go_on()

    # Writing.

    def _rotated(self) -> list[Action]:
        old, self.current, self.spare = self.current, self.spare, None
        assert old is not None
        assert self.current is not None
        self._rotates = self._is_closing = False
        actions: list[Action] = []
        if not self._has_failed:
            self.retiring = old
            actions.append(CloseLedger(old))
        elif old in self._recovering:
            self.retiring = old
        self._has_failed = False
        return [*actions, WriteToLedger(self.current), *self._go_on()]

    def _ledger_closed(self, info: LedgerInfo) -> list[Action]:
        self._closed[info.ledger] = info
        if info.ledger == self.retiring:
            self.retiring = None
        return self._go_on()

    def _failed(self, ledger: int) -> list[Action]:
        if ledger == self.current:
            if self._has_failed:
                return []
            self._has_failed = True
        elif ledger != self.retiring or ledger in self._recovering:
            return []  # Its appends failed as well as its close.
        self._recovering[ledger] = None
        return [RecoverLedger(ledger)]

    def _failed_is_recovered(self, info: LedgerInfo) -> list[Action]:
        del self._recovering[info.ledger]
        self._closed[info.ledger] = info
        if info.ledger == self.retiring:
            self.retiring = None
        else:
            self._rotates = True
        return self._go_on()

    def _go_on(self) -> list[Action]:
        """The next step while writing; one change of the record at a time.

        A rotation waits for the ledger before to be closed, and for the recovery of one that
        failed: the new ledger's first message must follow the old one's last. Where there are too
        few bookies for the next ledger, appends go on in the current one
        (`test_too_few_bookies_for_a_new_ledger_delay_the_rotation_alone`).
        """
        if self.phase is not WriterPhase.WRITING or self._proposed is not None:
            return []
        is_recovered = not (self._has_failed and self.current in self._recovering)
        can_rotate = (
            self._rotates
            and is_recovered
            and self.retiring is None
            and len(self._known().ledgers) < LEDGERS_MAX
        )
        if self._ends is not None and not self._has_failed:
            return self._go_to_the_end(self._ends)
        if can_rotate and self.spare is not None:
            return self._set(self._with_closed(self._known(), self._spare_info()))
        if self._closed:
            return self._set(self._with_closed(self._known()))
        if (can_rotate or self._preallocates) and self.spare is None:
            return self._create()
        return []

    def _go_to_the_end(self, end: EndAsked) -> list[Action]:
        current = self.current
        assert current is not None
        if self.retiring is not None:
            return []
        if not self._is_closing:
            self._is_closing = True
            return [CloseLedger(current)]
        if current in self._closed:
            meta = self._with_closed(self._known())
            if end.terminates:
                meta = replace(meta, state=DlogState.TERMINATED)
            return self._set(meta)
        place = self._known().place_of(current)
        if place is not None and self._known().ledgers[place].is_closed:
            return self._end()
        return []

    def _end(self) -> list[Action]:
        self.phase = WriterPhase.ENDED
        return [*self._drop_spare(self.meta), EndWriter()]

    def _create(self) -> list[Action]:
        if self._is_creating or self._is_pausing:
            return []
        self._is_creating = True
        return [CreateLedger()]

    def _with_closed(self, meta: LogMeta, *added: LedgerInfo) -> LogMeta:
        ledgers = tuple(self._closed.get(each.ledger, each) for each in meta.ledgers)
        return replace(meta, ledgers=(*ledgers, *added))

    def _spare_info(self) -> LedgerInfo:
        if self.spare is None:
            raise InvariantViolated("there is no ledger to go on with")
        return LedgerInfo(self.spare, self._spare_ms)

    def _verify(self) -> list[Action]:
        # A change that is under way will show as well whether this is still the writer.
        if (
            self.phase is not WriterPhase.WRITING
            or self._proposed is not None
            or self._is_verifying
        ):
            return []
        self._is_verifying = True
        return [ReadMeta()]

    def _verified(self, meta: LogMeta, version: int) -> list[Action]:
        self._is_verifying = False
        if meta.writer != self.writer:
            dropped = self._drop_spare(meta) if self._proposed is None else []
            return [*dropped, *self._give_up("another writer has taken the log over")]
        if self._proposed is None and version > self._version:
            self.meta, self._version = meta, version
        return self._go_on()

    # What went wrong.

    def _pause(self, *, is_contended: bool = False) -> list[Action]:
        if self._is_pausing:
            return []
        self._is_pausing = True
        return [PauseWriter(is_contended)]

    def _try_again(self) -> list[Action]:
        if self.phase is WriterPhase.READING:
            return [ReadMeta()]
        waiting: list[Action] = [RecoverLedger(ledger) for ledger in self._unrecovered]
        self._unrecovered.clear()
        if self.phase is WriterPhase.CREATING and not self._is_creating:
            waiting += self._create()
        return waiting + self._go_on()

    def _give_up(self, reason: str) -> list[Action]:
        self.phase = WriterPhase.GIVEN_UP
        return [GiveUp(reason)]

    def _after_the_end(self, event: Event) -> list[Action]:
        """Deletes a ledger that comes too late: it is in no list. A change of the record that is
        under way is left alone, since it may still come through: the next writer finds its ledger.
        """
        if isinstance(event, LedgerCreated):
            return [DeleteLedger(event.ledger)]
        return []

    def _known(self) -> LogMeta:
        if self.meta is None:
            raise InvariantViolated("the meta record was not read yet")
        return self.meta
