"""What a bookie's status means, as an error; both protocols have the same, under other numbers.

An answer that says neither "done" nor "never had it" is about the bookie, and never about the
entry: an I/O error or an unknown state of the ledger must not be taken for an entry that is absent.
"""

from collections.abc import Callable
from typing import Final

from raftwood.base.errors import Overloaded, PermissionDenied, ProtocolError, RaftwoodError
from raftwood.dlog.errors import (
    BookieReadOnly,
    BookieUnavailable,
    Fenced,
    NoSuchEntry,
    NoSuchLedger,
)
from raftwood.dlog.ledgers.model import BookieId

_ERRORS: Final[tuple[tuple[int, int, Callable[[str], RaftwoodError], str], ...]] = (
    (1, 402, NoSuchLedger, "has nothing of the ledger"),
    (2, 403, NoSuchEntry, "does not have the entry"),
    (100, 404, ProtocolError, "takes the request for a bad one"),
    (101, 501, BookieUnavailable, "cannot read or write its disk: look at its log"),
    (102, 502, PermissionDenied, "refuses the password of the ledger"),
    (103, 503, ProtocolError, "does not speak this version of the protocol"),
    (104, 504, Fenced, "was told of another writer of the ledger"),
    (105, 505, BookieReadOnly, "takes no writes: make room on its disk"),
    (106, 506, Overloaded, "has too many requests: try again"),
    (107, 507, BookieUnavailable, "does not know what it has of the ledger: check its data"),
)
"""Number in v2, number in v3, error, what the bookie says by it."""

_BY_STATUS: Final = {
    number: (error, says) for in_v2, in_v3, error, says in _ERRORS for number in (in_v2, in_v3)
}


def error_of(status: int, bookie: BookieId, ledger: int, entry: int) -> RaftwoodError:
    """For a status that is not 0."""
    error, says = _BY_STATUS.get(status, (BookieUnavailable, f"answers with status {status}"))
    return error(f"bookie {bookie} {says} (ledger {ledger}, entry {entry})")
