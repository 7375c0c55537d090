"""Ownership of a log's writer, as one process sees it: events in, actions out. No I/O.

The owner is a record in the metastore, under a lease of the process that owns: it goes away with a
dead one. A process that has something to append where nobody owns the log claims it by
compare-and-set, then opens the writer, which fences all before it. So the record only says whom to
ask; fencing alone guarantees that there is one writer in the world.

A record's version is its claim: it goes up with each owner, and identifies late answers.
"""

from enum import Enum, auto

import msgspec


class LogOwner(msgspec.Struct, frozen=True):
    """Who owns a log, and where it is reached."""

    name: str
    address: str
    lease: int
    """A process that has lost its lease is somebody else under the next one."""


class OwnershipPhase(Enum):
    """What this process is to the log."""

    AWAY = auto()
    """Not its owner; another one may be."""
    CLAIMING = auto()
    OPENING = auto()
    """The record is ours, the writer is being opened."""
    OWNING = auto()
    LEAVING = auto()
    """The writer is being closed, then the record removed."""
    RESTING = auto()
    """Something failed: no claim for a moment."""


# Events


class LeaseBegan(msgspec.Struct, frozen=True):
    """The process has a lease, and can be an owner."""

    me: LogOwner


class LeaseEnded(msgspec.Struct, frozen=True):
    """It was not renewed in time, by this process's own clock or the metastore's word."""


class OwnerWanted(msgspec.Struct, frozen=True):
    """Somebody here has something to append, and knows of nobody to ask."""


class OwnerSeen(msgspec.Struct, frozen=True):
    """The record and its version, or that there is none, as of a version of the metastore."""

    owner: LogOwner | None
    version: int
    as_of: int


class OwnerGone(msgspec.Struct, frozen=True):
    """Where an owner was, nobody listens any more: its process has ended."""

    owner: LogOwner


class ClaimAnswered(msgspec.Struct, frozen=True):
    """The record's version; None where somebody was faster."""

    version: int | None


class ClaimUnknown(msgspec.Struct, frozen=True):
    """The metastore did not answer: the claim may yet be found done."""


class WriterOpened(msgspec.Struct, frozen=True):
    """Under a claim."""

    claim: int


class WriterFailed(msgspec.Struct, frozen=True):
    """It was fenced, broke, or could not be opened."""

    claim: int


class GiveBack(msgspec.Struct, frozen=True):
    """Nobody has appended for long, or the process is to end."""


class WriterClosed(msgspec.Struct, frozen=True):
    """In order, or not: nothing is under way any more."""

    claim: int


class RecordLeft(msgspec.Struct, frozen=True):
    """Our record is removed, as of a version; None where it was not ours any more."""

    claim: int
    as_of: int | None


class Rested(msgspec.Struct, frozen=True):
    """The moment is over."""


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
    """Read the record, and say what is seen."""


class OpenWriter(msgspec.Struct, frozen=True):
    """Fence whoever wrote, and say when it is open."""

    claim: int


class StopWriter(msgspec.Struct, frozen=True):
    """At once: it may ack nothing from here on."""

    claim: int


class CloseWriter(msgspec.Struct, frozen=True):
    """Wait for what is under way, and say when it is closed."""

    claim: int


class RemoveRecord(msgspec.Struct, frozen=True):
    """If its version is still this; tried until it is certain."""

    claim: int


class Rest(msgspec.Struct, frozen=True):
    """Say when a moment has passed."""


Action = Claim | ReadOwner | OpenWriter | StopWriter | CloseWriter | RemoveRecord | Rest


class Ownership:
    """One log as one process, of this name, sees it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.phase = OwnershipPhase.AWAY
        self.owner: LogOwner | None = None
        """As last seen; ourselves too."""
        self.claim = 0
        """The version of our record, while we have one."""
        self._is_wanted = False
        self._has_failed = False
        self._me: LogOwner | None = None
        """Under the lease that we have now."""
        self._claiming: LogOwner | None = None
        self._as_of = 0
        self._record = 0
        """The version of the record that `owner` is of; 0 where there is none."""
        self._is_gone = False
        """Whether the process of `owner` has ended."""

    @property
    def elsewhere(self) -> LogOwner | None:
        """Whom to ask; None where it is us, or nobody that could answer."""
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
        """Open what is ours already; claim what nobody has."""
        if self.phase is not OwnershipPhase.AWAY:
            return []
        if self._is_me():
            # A claim that was never answered has been done all the same.
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
        """A writer that is open, or on its way to be; the record is not ours any more."""
        claim, self.claim, self._has_failed = self.claim, 0, False
        if self.phase is not OwnershipPhase.CLAIMING:
            self.phase = OwnershipPhase.AWAY
        return [StopWriter(claim)] if claim else []

    def _lease_ended(self) -> list[Action]:
        self._me = None
        return self._stop()

    def _owner_seen(self, event: OwnerSeen) -> list[Action]:
        if event.as_of <= self._as_of:
            return []  # it is late
        self._as_of = event.as_of
        if event.version == self._record and event.owner == self.owner:
            return self._try()
        self.owner, self._record, self._is_gone = event.owner, event.version, False
        if self.phase is OwnershipPhase.CLAIMING:
            return []  # the answer is on its way, and decides
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
        if event.version >= self._as_of:  # else it was taken from us before we heard of it
            self._as_of = self._record = event.version
            # Under a lease that has ended since, it is as good as gone.
            self.owner, self._is_gone = self._claiming, False
        return self._try()

    def _of_writer(self, event: Event) -> list[Action]:
        match event:
            case WriterOpened(claim):
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
