"""What happens to a writer of a log, and what it does about it."""

import msgspec

from raftwood.dlog.log.meta import LedgerInfo, LogMeta


class Started(msgspec.Struct, frozen=True):
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


class LedgerClosed(msgspec.Struct, frozen=True):
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
    Started
    | MetaRead
    | MetaSet
    | MetaNotSet
    | LedgerRecovered
    | RecoveryFailed
    | LedgerCreated
    | CreationFailed
    | ProducersRebuilt
    | RotationAsked
    | LedgerClosed
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


class Write(msgspec.Struct, frozen=True):
    """From here on append to this ledger, once all that went to the one before is acked."""

    ledger: int


class Pause(msgspec.Struct, frozen=True):
    """Answered by `PauseEnded` after a while."""

    is_contended: bool = False
    """Another writer was faster, and nothing failed: a longer pause would lose to it again."""


class GiveUp(msgspec.Struct, frozen=True):
    """Never ack anything again."""

    reason: str
    is_missing: bool = False
    """There is no such log any more."""


class End(msgspec.Struct, frozen=True):
    """All is done that was asked for; a log that has ended still answers what is known."""


Action = (
    ReadMeta
    | SetMeta
    | RecoverLedger
    | RebuildProducers
    | CreateLedger
    | CloseLedger
    | DeleteLedger
    | Write
    | Pause
    | GiveUp
    | End
)
