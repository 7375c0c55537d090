"""Which entries of a ledger a bookie has, and in which order they arrived: 16 bytes an entry."""

from array import array
from bisect import bisect_left
from collections.abc import Sequence


class EntryIndex:
    """Entry → its arrival, counted from 1: the index under which the log keeps it.

    Entries come nearly in order, with gaps where the ledger is striped: two sorted columns, to
    whose end nearly all are added.
    """

    __slots__ = ("_arrivals", "_entries", "next_arrival")

    def __init__(self) -> None:
        self._entries = array("q")
        self._arrivals = array("q")
        self.next_arrival = 1

    @classmethod
    def of_arrivals(cls, entries: Sequence[int]) -> "EntryIndex":
        """From the entries in the order in which they arrived."""
        index = cls()
        order = sorted(range(len(entries)), key=entries.__getitem__)
        index._entries.extend(entries[each] for each in order)
        index._arrivals.extend(each + 1 for each in order)
        index.next_arrival = len(entries) + 1
        return index

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def highest(self) -> int:
        """The entry with the highest number; −1 where there is none."""
        return self._entries[-1] if self._entries else -1

    def add(self, entry: int) -> None:
        """The next to arrive; it must not be there."""
        entries = self._entries
        if not entries or entry > entries[-1]:
            entries.append(entry)
            self._arrivals.append(self.next_arrival)
        else:
            place = bisect_left(entries, entry)
            entries.insert(place, entry)
            self._arrivals.insert(place, self.next_arrival)
        self.next_arrival += 1

    def arrival_of(self, entry: int) -> int:
        """0 where the entry is not there."""
        entries = self._entries
        if not entries or entry > entries[-1]:
            return 0
        place = bisect_left(entries, entry)
        return self._arrivals[place] if entries[place] == entry else 0
