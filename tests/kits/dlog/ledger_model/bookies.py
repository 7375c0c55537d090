"""Bookies of the model: what is delivered to one is stored at once."""

from collections.abc import Callable

from raftwood.base.errors import RaftwoodError
from raftwood.dlog.errors import BadDigest, BookieUnavailable, Fenced, NoSuchEntry

DOWN = BookieUnavailable("down")
FENCED = Fenced("fenced")
MISSING = NoSuchEntry("missing")
DAMAGED = BadDigest("damaged")

Stored = tuple[bytes, int]
"""Data, and the last confirmed entry of its head."""
Reply = Callable[[RaftwoodError | None], None]


class ModelBookie:
    """One bookie and one ledger."""

    __slots__ = ("damaged", "entries", "from_writer", "is_down", "is_fenced")

    def __init__(self) -> None:
        self.entries: dict[int, Stored] = {}
        self.from_writer: set[int] = set()
        self.damaged: set[int] = set()
        self.is_fenced = False
        self.is_down = False

    def add(self, entry: int, stored: Stored, *, is_recovery: bool) -> RaftwoodError | None:
        if self.is_down:
            return DOWN
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
        if entry < 0:
            entry = max(self.entries, default=-1)
        if entry in self.damaged:
            return DAMAGED
        stored = self.entries.get(entry)
        return MISSING if stored is None else (entry, stored)

    @property
    def last_confirmed(self) -> int:
        """As long polls hear it."""
        return max((stored[1] for stored in self.entries.values()), default=-1)
