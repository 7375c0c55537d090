"""Bookies of the model: what is delivered to one is stored at once."""

from collections.abc import Callable

from raftwood.base.errors import RaftwoodError
from raftwood.dlog.bookie.ledger_descriptor import Limbo
from raftwood.dlog.errors import BadDigest, BookieUnavailable, Fenced, NoSuchEntry
from raftwood.dlog.ledgers.metadata import BookieId

LEDGER = 0
DOWN = BookieUnavailable("down")
FENCED = Fenced("fenced")
MISSING = NoSuchEntry("missing")
DAMAGED = BadDigest("damaged")

Stored = tuple[bytes, int]
"""Data, and the last confirmed entry of its head."""
Reply = Callable[[RaftwoodError | None], None]


class ModelBookie:
    """One bookie and one ledger."""

    __slots__ = (
        "damaged",
        "entries",
        "from_writer",
        "is_down",
        "is_fenced",
        "is_wiped",
        "limbo",
        "published",
    )

    def __init__(self) -> None:
        self.entries: dict[int, Stored] = {}
        self.from_writer: set[int] = set()
        self.damaged: set[int] = set()
        self.is_fenced = False
        self.is_down = False
        self.published = -1
        self.is_wiped = False
        self.limbo = Limbo(BookieId("model"))

    def begin_anew(self) -> None:
        """All is gone, the fence as well, and it knows that."""
        self.entries.clear()
        self.from_writer.clear()
        self.damaged.clear()
        self.is_fenced = False
        self.published = -1
        self.is_wiped = True
        self.limbo = Limbo(self.limbo.bookie, LEDGER + 1, LEDGER + 1)

    def add(self, entry: int, stored: Stored, *, is_recovery: bool) -> RaftwoodError | None:
        if self.is_down:
            return DOWN
        refusal = self.limbo.refusal_of_add(LEDGER, is_recovery=is_recovery)
        if refusal is not None:
            return refusal
        if self.is_fenced and not is_recovery:
            return FENCED
        self.entries[entry] = stored
        self.damaged.discard(entry)
        if not is_recovery:
            self.from_writer.add(entry)
        return None

    def read(self, entry: int, *, fences: bool) -> tuple[int, Stored] | RaftwoodError:
        if self.is_down:
            return DOWN
        if fences:
            self.is_fenced = True
        if entry not in self.entries and (doubt := self.limbo.doubt(LEDGER, entry)) is not None:
            return doubt
        if entry < 0:
            entry = max(self.entries, default=-1)
        if entry in self.damaged:
            return DAMAGED
        stored = self.entries.get(entry)
        return MISSING if stored is None else (entry, stored)

    def publish(self, last_confirmed: int) -> RaftwoodError | None:
        if self.is_down:
            return DOWN
        self.published = max(self.published, last_confirmed)
        return None

    @property
    def last_confirmed(self) -> int:
        """As readers hear it: what was published, and what the head of the last entry says."""
        highest = max(self.entries, default=-1)
        carried = -1 if highest < 0 or highest in self.damaged else self.entries[highest][1]
        return max(self.published, carried)
