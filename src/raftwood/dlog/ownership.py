"""Ownership of a log's writer, as one process sees it: events in, actions out. No I/O.

The owner is a record in the metastore, under a lease of the owning process: it goes away with a
dead one. A process with appends for a log without an owner claims it by compare-and-set, then opens
the writer, which fences all before it. So the record only says which process to ask; fencing alone
guarantees that there is one writer in the world (docs/decisions/0017). Nothing acked is lost if two
processes both believe to be the owner: one of them is fenced, and the cost is a take-over. These
rules prevent that they take the log from each other again and again, and that a log has an owner
that does not serve it.

A record's version is its claim: it goes up with each owner, and identifies late answers. Planted
bugs are in `tests/kits/dlog/ownership_model.py`.
"""

from enum import Enum, auto

import msgspec


class LogOwner(msgspec.Struct, frozen=True):
    """The process that owns a log, and its address."""

    name: str
    address: str
    lease: int
    """Part of the owner: after a lost lease the same process is another owner, since others may
    have owned the log in between.
    """


class OwnershipPhase(Enum):
    """This process's part in the log."""

    AWAY = auto()
    """Not the owner; another process may be."""
    CLAIMING = auto()
    OPENING = auto()
    """The record is ours, the writer is being opened."""
    OWNING = auto()
    LEAVING = auto()
    """The writer is being closed, then the record removed."""
    RESTING = auto()
    """A claim or the writer failed: no claim for a moment, or a log that cannot be opened would be
    claimed thousands of times a second."""


# Events


class LeaseBegan(msgspec.Struct, frozen=True):
    """The process has a lease, and can be an owner."""

    me: LogOwner


class LeaseEnded(msgspec.Struct, frozen=True):
    """The lease was not renewed in time, by this process's own clock or the metastore's answer."""


class OwnerWanted(msgspec.Struct, frozen=True):
    """A caller here has something to append, and no owner is known."""


class OwnerSeen(msgspec.Struct, frozen=True):
    """The record and its version, or that there is none, as of a version of the metastore."""

    owner: LogOwner | None
    version: int
    as_of: int


class OwnerGone(msgspec.Struct, frozen=True):
    """A connection to the owner was refused: its process has ended.

    The lease alone would have everybody wait for it; where the guess is wrong, fencing settles it
    (docs/decisions/0017).
    """

    owner: LogOwner


class ClaimAnswered(msgspec.Struct, frozen=True):
    """The record's version; None where another process was faster."""

    version: int | None


class ClaimUnknown(msgspec.Struct, frozen=True):
    """The metastore did not answer: the claim may yet be found done."""


class WriterOpened(msgspec.Struct, frozen=True):
    """The writer of a claim is open."""

    claim: int


class WriterFailed(msgspec.Struct, frozen=True):
    """The writer of a claim was fenced, broke, or could not be opened."""

    claim: int


class GiveBack(msgspec.Struct, frozen=True):
    """There was no append for long, or the process is to end."""


class WriterClosed(msgspec.Struct, frozen=True):
    """The writer of a claim is closed, in order or not: nothing is under way any more."""

    claim: int


class RecordLeft(msgspec.Struct, frozen=True):
    """Our record is removed, as of a version; None if it was no longer ours."""

    claim: int
    as_of: int | None


class Rested(msgspec.Struct, frozen=True):
    """The moment that `Rest` asked for is over."""


Event = (
    LeaseBegan
    | LeaseEnded
    | OwnerWanted
    | OwnerSeen
    | OwnerGone
    | ClaimAnswered
    | ClaimUnknown
    | WriterOpened
    | WriterFailed
    | GiveBack
    | WriterClosed
    | RecordLeft
    | Rested
)


# Actions


class Claim(msgspec.Struct, frozen=True):
    """Set the record under our lease, if its version is this; 0: if there is none."""

    me: LogOwner
    version: int


class ReadOwner(msgspec.Struct, frozen=True):
    """Read the record; answered by `OwnerSeen`."""


class OpenWriter(msgspec.Struct, frozen=True):
    """Open the writer, which fences all before it; answered by `WriterOpened`."""

    claim: int


class StopWriter(msgspec.Struct, frozen=True):
    """Stop the writer at once: it must ack nothing from here on."""

    claim: int


class CloseWriter(msgspec.Struct, frozen=True):
    """Wait for what is under way and close the writer; answered by `WriterClosed`."""

    claim: int


class RemoveRecord(msgspec.Struct, frozen=True):
    """Remove the record if its version is still this; tried until it is certain."""

    claim: int


class Rest(msgspec.Struct, frozen=True):
    """Wait for a moment; answered by `Rested`."""


Action = Claim | ReadOwner | OpenWriter | StopWriter | CloseWriter | RemoveRecord | Rest


class Ownership:
    """One log, as the process `name` sees it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.phase = OwnershipPhase.AWAY
        self.owner: LogOwner | None = None
        """The owner as last seen; it may be this process."""
        self.claim = 0
        """The version of our record, while we have one."""
        self._is_wanted = False
        self._has_failed = False
        self._me: LogOwner | None = None
        """This process as an owner under its present lease."""
        self._claiming: LogOwner | None = None
        self._as_of = 0
        self._record = 0
        """The version of the record that names `owner`; 0 if there is none."""
        self._is_gone = False
        """Whether the process of `owner` has ended."""

    @property
    def elsewhere(self) -> LogOwner | None:
        """The other process to ask; None if this process owns the log, or no live one does."""
        owner = self.owner
        return None if owner is None or self._is_gone or owner.name == self._name else owner

    def _is_me(self) -> bool:
        return self.owner is not None and self.owner == self._me

    def step(self, event: Event) -> list[Action]:
        match event:
            case LeaseBegan(me):
                self._me = me
                return self._try()
            case LeaseEnded():
                return self._lease_ended()
            case OwnerWanted():
                self._is_wanted = True
                return self._try()
            case OwnerSeen():
                return self._owner_seen(event)
            case OwnerGone(owner):
                self._is_gone = self._is_gone or owner == self.elsewhere
                return self._try()
            case ClaimAnswered() | ClaimUnknown():
                return self._claimed(event)
            case Rested() if self.phase is OwnershipPhase.RESTING:
                self.phase = OwnershipPhase.AWAY
                return self._try()
            case GiveBack() if self.phase is OwnershipPhase.OWNING:
                self.phase = OwnershipPhase.LEAVING
                return [CloseWriter(self.claim)]
            case _:
                return self._of_writer(event)

    def _try(self) -> list[Action]:
        """Opens the writer if the record names this process; claims a log without an owner.

        Never the log of a live owner: two processes with appends would take it from each other with
        each append, and each take-over makes a ledger (planted bug "takes what others own").
        """
        if self.phase is not OwnershipPhase.AWAY:
            return []
        if self._is_me():
            # A claim that was never answered was done all the same. Without this the log belongs
            # to a process that does not know it, for as long as that process lives (planted bug
            # "forgets lost answers").
            return self._open(self._record)
        if self.elsewhere is not None:
            self._is_wanted = False
        if not self._is_wanted or self._me is None:
            return []
        self.phase, self._claiming = OwnershipPhase.CLAIMING, self._me
        return [Claim(self._me, self._record)]

    def _open(self, claim: int) -> list[Action]:
        self.phase, self.claim = OwnershipPhase.OPENING, claim
        return [OpenWriter(claim)]

    def _stop(self) -> list[Action]:
        """Stops a writer that is open or about to be: the record is not this process's any more."""
        claim, self.claim, self._has_failed = self.claim, 0, False
        if self.phase is not OwnershipPhase.CLAIMING:
            self.phase = OwnershipPhase.AWAY
        return [StopWriter(claim)] if claim else []

    def _lease_ended(self) -> list[Action]:
        # The record goes with the lease, and others claim the log. A writer that stayed open would
        # be fenced with appends under way; stopped, it tells its callers to look for the new owner
        # (planted bug "keeps writer without lease").
        self._me = None
        return self._stop()

    def _owner_seen(self, event: OwnerSeen) -> list[Action]:
        if event.as_of <= self._as_of:
            # Watches and reads answer in any order: an older answer would bring back an owner that
            # has gone (planted bug "believes old news").
            return []
        self._as_of = event.as_of
        if event.version == self._record and event.owner == self.owner:
            return self._try()
        self.owner, self._record, self._is_gone = event.owner, event.version, False
        if self.phase is OwnershipPhase.CLAIMING:
            return []  # The answer to the claim is on its way, and decides.
        # Another process has claimed the log since: the writer here must stop, open or not (planted
        # bug "goes on when superseded").
        if self.claim and self.claim != event.version:
            return [*self._stop(), *self._try()]
        return self._try()

    def _claimed(self, event: ClaimAnswered | ClaimUnknown) -> list[Action]:
        if self.phase is not OwnershipPhase.CLAIMING:
            return []
        self.phase = OwnershipPhase.AWAY
        if isinstance(event, ClaimUnknown):
            self.phase = OwnershipPhase.RESTING
            return [ReadOwner(), Rest()]
        if event.version is None:
            return [ReadOwner()]
        # A smaller version: the log was taken from this process before it heard of its own claim.
        if event.version >= self._as_of:
            self._as_of = self._record = event.version
            # `_claiming` has the lease of the claim: if that has ended since, `_is_me` is false.
            self.owner, self._is_gone = self._claiming, False
        return self._try()

    def _of_writer(self, event: Event) -> list[Action]:
        match event:
            case WriterOpened(claim):
                # A take-over may last longer than the claim that it was for: its writer is not the
                # owner's any more (planted bug "takes late writer").
                if claim != self.claim or self.phase is not OwnershipPhase.OPENING:
                    return [StopWriter(claim)]
                self.phase, self._is_wanted = OwnershipPhase.OWNING, False
                return []
            case WriterFailed(claim) if (
                claim == self.claim and self.phase is not OwnershipPhase.LEAVING
            ):
                self.phase, self._has_failed = OwnershipPhase.LEAVING, True
                return [StopWriter(claim), RemoveRecord(claim)]
            case WriterClosed(claim) if claim == self.claim:
                return [RemoveRecord(claim)]
            case RecordLeft(claim, as_of) if claim == self.claim:
                return self._left(as_of)
            case _:
                return []

    def _left(self, as_of: int | None) -> list[Action]:
        self.claim = 0
        self.owner, self._record = None, 0
        has_failed, self._has_failed = self._has_failed, False
        looked: list[Action] = [ReadOwner()] if as_of is None else []
        self._as_of = max(self._as_of, as_of or 0)
        if has_failed:
            self.phase = OwnershipPhase.RESTING
            return [*looked, Rest()]
        self.phase = OwnershipPhase.AWAY
        return looked or self._try()
