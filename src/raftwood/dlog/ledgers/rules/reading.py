"""Whom to ask for an entry, one replica after the other, and what it means if nobody has it."""

from collections.abc import Callable, Sequence

from raftwood.base.errors import RaftwoodError
from raftwood.dlog.errors import BadDigest, BookieUnavailable, NoSuchEntry, NoSuchLedger
from raftwood.dlog.ledgers.model import BookieId, LedgerMetadata


def replicas(
    metadata: LedgerMetadata, entry: int, *, is_avoided: Callable[[BookieId], bool]
) -> list[BookieId]:
    """Who has an entry, in the order in which to ask: those that failed lately come last."""
    bookies = metadata.segment_of(entry).bookies
    holders = [bookies[place] for place in metadata.config.places(entry)]
    return sorted(holders, key=is_avoided)


class EntryReading:
    """One entry on its way: the next replica is asked where one fails or takes long."""

    __slots__ = ("_errors", "_next", "_replicas", "entry", "under_way")

    def __init__(self, entry: int, holders: Sequence[BookieId]) -> None:
        self.entry = entry
        self.under_way = 0
        self._replicas = holders
        self._next = 0
        self._errors: list[RaftwoodError] = []

    def ask_next(self) -> BookieId | None:
        """One more replica, if there is one that was not asked."""
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
        """After all have failed: damage first, then doubt, and absence only if all say so."""
        for kind in (BadDigest, BookieUnavailable):
            for error in self._errors:
                if isinstance(error, kind):
                    return error
        for error in self._errors:
            if not isinstance(error, NoSuchEntry | NoSuchLedger):
                return error
        return self._errors[0]
