"""Errors of ledgers and of the logs made of them.

Conflict
├── LogSealed
│   └── LedgerClosed      the ledger takes no more entries
└── Fenced                another writer has taken over: this one may never ack again
NotFound
├── NoSuchLedger
└── NoSuchEntry           a bookie says that it never had the entry; silence is no such answer
Unavailable
├── NotEnoughBookies      too few for an ensemble
├── BookieUnavailable     one bookie does not answer, is full, or takes no writes
│   └── BookieReadOnly
├── CannotRecover         what a ledger holds cannot be told until more of its bookies answer
├── CannotRepair          an entry cannot be copied until more of its bookies answer
└── NotOwner              another process owns the log's writer, or none does
StoreError
└── BadDigest             an entry is not what was written
    └── EntryUnknown      a bookie that began anew cannot tell whether it ever had the entry
"""

from raftwood.base.errors import Conflict, LogSealed, NotFound, StoreError, Unavailable


class Fenced(Conflict):
    """Another writer has taken over; appends without an ack may or may not be stored."""

    code = "fenced"


class LedgerClosed(LogSealed):
    """The ledger takes no more entries."""

    code = "ledger_closed"


class NoSuchLedger(NotFound):
    """There is no such ledger: it was never created, or was deleted."""

    code = "no_such_ledger"


class NoSuchEntry(NotFound):
    """A bookie answered that it does not have the entry."""

    code = "no_such_entry"


class NotEnoughBookies(Unavailable):
    """Too few bookies take writes for the ledger's configuration."""

    code = "not_enough_bookies"


class BookieUnavailable(Unavailable):
    """One bookie does not answer, or cannot carry the request out now."""

    code = "bookie_unavailable"


class BookieReadOnly(BookieUnavailable):
    """The bookie serves reads alone: its disk is full or failing."""

    code = "bookie_read_only"


class CannotRecover(Unavailable):
    """Too few bookies answer to tell what the ledger holds: try again when more do."""

    code = "cannot_recover"


class BadDigest(StoreError):
    """The bytes of an entry are not those that its writer wrote."""

    code = "bad_digest"


class EntryUnknown(BadDigest):
    """A bookie that began anew does not have the entry, but may have acked it before.

    It has no code of its own: for clients of any version it means the same as a damaged copy,
    neither an entry nor proof that there is none.
    """


class CannotRepair(Unavailable):
    """An entry has no intact copy that can be read now, or no bookie can take a copy."""

    code = "cannot_repair"


class NotOwner(Unavailable):
    """The asked process does not own the log's writer: find the owner and ask it."""

    code = "not_owner"
