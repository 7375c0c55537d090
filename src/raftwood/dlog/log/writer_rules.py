"""The one writer of a log: take-over, rotation, giving up, the end. A state machine without I/O.

`WriterRules.step` takes one of the events, and returns actions; `writer_driver` carries them out.
"""

from enum import Enum, auto

import msgspec
from msgspec.structs import replace

from raftwood.base.errors import InvariantViolated
from raftwood.dlog.log.meta import LEDGERS_MAX, DlogState, LedgerInfo, LogMeta


class WriterStarted(msgspec.Struct, frozen=True):
    """Somebody wants to write."""


class MetaRead(msgspec.Struct, frozen=True):
    """The meta record as it is; None where there is no such log."""

    meta: LogMeta | None
    version: int


class MetaSet(msgspec.Struct, frozen=True):
    """The compare-and-set was carried out."""

    version: int


class MetaNotSet(msgspec.Struct, frozen=True):
    """Another was faster, or nobody knows: the answer may be lost."""


class LedgerRecovered(msgspec.Struct, frozen=True):
    """A ledger is fenced and closed, with what it holds."""

    info: LedgerInfo


class RecoveryFailed(msgspec.Struct, frozen=True):
    """It cannot be told now what the ledger holds."""

    ledger: int


class LedgerCreated(msgspec.Struct, frozen=True):
    """A new ledger, which is in no list yet."""

    ledger: int
    now_ms: int


class CreationFailed(msgspec.Struct, frozen=True):
    """Too few bookies, or nobody answers."""


class ProducersRebuilt(msgspec.Struct, frozen=True):
    """It is known what every producer has written, as that attempt found the log."""

    attempt: int


class RotationAsked(msgspec.Struct, frozen=True):
    """The ledger is full or old, or somebody wants the next one."""


class LedgerEnded(msgspec.Struct, frozen=True):
    """All of the ledger's appends were acked, and it has ended."""

    info: LedgerInfo


class LedgerFailed(msgspec.Struct, frozen=True):
    """The ledger takes nothing more, and it is not known how much of it is stored."""

    ledger: int


class LedgerFenced(msgspec.Struct, frozen=True):
    """Another writer has taken over."""

    ledger: int


class PauseEnded(msgspec.Struct, frozen=True):
    """Time to try again."""


class ValidityEnded(msgspec.Struct, frozen=True):
    """It is long ago that the record was seen with this writer in it."""


class EndAsked(msgspec.Struct, frozen=True):
    """No more will be appended; with `terminates`, by nobody ever."""

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
    """Answered by `MetaRead`."""


class SetMeta(msgspec.Struct, frozen=True):
    """Answered by `MetaSet` or `MetaNotSet`."""

    meta: LogMeta
    version: int


class RecoverLedger(msgspec.Struct, frozen=True):
    """Fence and close it; answered by `LedgerRecovered` or `RecoveryFailed`."""

    ledger: int


class RebuildProducers(msgspec.Struct, frozen=True):
    """From these ledgers, which are closed; answered by `ProducersRebuilt`."""

    ledgers: tuple[LedgerInfo, ...]
    attempt: int


class CreateLedger(msgspec.Struct, frozen=True):
    """Answered by `LedgerCreated` or `CreationFailed`."""


class CloseLedger(msgspec.Struct, frozen=True):
    """Once its appends are acked; answered by `LedgerClosed`, `LedgerFailed` or `LedgerFenced`."""

    ledger: int


class DeleteLedger(msgspec.Struct, frozen=True):
    """Nobody needs it; not answered, and where it fails it is an orphan that is found later."""

    ledger: int


class WriteToLedger(msgspec.Struct, frozen=True):
    """From here on append to this ledger, once all that went to the one before is acked."""

    ledger: int


class PauseWriter(msgspec.Struct, frozen=True):
    """Answered by `PauseEnded` after a while."""

    is_contended: bool = False
    """Another writer was faster, and nothing failed: a longer pause would lose to it again."""


class GiveUp(msgspec.Struct, frozen=True):
    """Never ack anything again."""

    reason: str
    is_missing: bool = False
    """There is no such log any more."""


class EndWriter(msgspec.Struct, frozen=True):
    """All is done that was asked for; a log that has ended still answers what is known."""


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
# the meta; only then write. Where another was faster, delete the new ledger and begin again.
#
# **Rotation**: create the next ledger, set the meta, write to it once all that went to the old one
# is
# acked. The old one is written until then. So the ledgers' contents follow upon one another without
# a hole, whoever crashes when; and since the next rotation waits until the old ledger is closed,
# only the last two of the list are ever open.
#
# **Giving up** is for ever: upon a fenced ledger, or a meta record with another writer in it.
# Shrinking and the like change the record too, and leave the writer in it: such a change is taken
# over and the compare-and-set repeated.
#
# Whether a compare-and-set was carried out is always read from the record itself, since an answer
# may be lost; until it is known to have failed, the ledger that it names is not deleted.

ATTEMPTS_MAX = 64
"""Of a take-over, each lost to another writer."""
FENCED = 2
"""Ledgers at the end of the list that may be open."""


class WriterPhase(Enum):
    """Where a writer is in its life."""

    READING = auto()
    FENCING = auto()
    CREATING = auto()
    CLAIMING = auto()
    WRITING = auto()
    ENDED = auto()
    GIVEN_UP = auto()


class WriterRules:
    """`actions = rules.step(event)`; `writer` is a token that nobody else has."""

    def __init__(self, writer: bytes, *, preallocates: bool = False) -> None:
        self.writer = writer
        self.phase = WriterPhase.READING
        self.meta: LogMeta | None = None
        """As it was last seen or set."""
        self.current: int | None = None
        """The ledger that is written."""
        self.retiring: int | None = None
        """The one before, until it is closed."""
        self.spare: int | None = None
        """The next one, in no list yet."""
        self._spare_ms = 0
        self._preallocates = preallocates
        self._version = 0
        self.attempts = 0
        self._recovering: dict[int, LedgerInfo | None] = {}
        self._fenced_now: tuple[int, ...] = ()
        """What this take-over has closed; others that are closed were so by their own writer, or
        for long."""
        self._unrecovered: list[int] = []
        """To be tried again after the pause."""
        self._is_rebuilt = False
        self._is_creating = False
        self._is_pausing = False
        self._proposed: LogMeta | None = None
        """What is being set."""
        self._is_checking = False
        self._is_verifying = False
        self._dropped: tuple[int, ...] = ()
        """Empty ledgers that a take-over leaves out of the list."""
        self._rotates = False
        self._has_failed = False
        """The current ledger takes nothing more; its recovery is under way, or done."""
        self._closed: dict[int, LedgerInfo] = {}
        """Not in the record yet."""
        self._ends: EndAsked | None = None
        self._is_closing = False

    def step(self, event: Event) -> list[Action]:
        """What to do now; nothing once the writer has given up, but to clean up behind it."""
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
                self.phase = WriterPhase.READING  # The list itself may be another one by now.
                return self._pause()
            case PauseEnded():
                self._is_pausing = False
                return self._try_again()
            case ProducersRebuilt():
                # An earlier attempt's answer is of a log that others have written since.
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
                # The spare may be in the list already where its compare-and-set is under way.
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
            self.phase = WriterPhase.CLAIMING  # There is nothing to claim.
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
            return []  # Asked for twice, and the other failed.
        self._recovering[info.ledger] = info
        return self._fenced() if all(self._recovering.values()) else []

    def _fenced(self) -> list[Action]:
        """Nobody else can append to the log now, but others may be about to claim it as well."""
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
        """What was fenced is so from now on, in the record; empty ledgers go, in time."""
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
        """Whether what was proposed is in the record; the record as it is now."""
        self._is_checking = False
        proposed = self._proposed
        if proposed is None:
            raise InvariantViolated("a compare-and-set that nobody asked for was not carried out")
        if version == self._version:
            return self._set(proposed)  # Not carried out, or not yet: at most one of them will be.
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
        """A change that adds no ledger is seen by what it was for."""
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
        """Where its compare-and-set came through and another took over since, it is in the list."""
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
        """The next thing to do for one who writes; one change of the record at a time."""
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
        # A change that is under way will tell as well.
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
        """A ledger that comes too late is in no list; a change under way is left to whoever is
        next, since it may still come through.
        """
        if isinstance(event, LedgerCreated):
            return [DeleteLedger(event.ledger)]
        return []

    def _known(self) -> LogMeta:
        if self.meta is None:
            raise InvariantViolated("the meta record was not read yet")
        return self.meta
