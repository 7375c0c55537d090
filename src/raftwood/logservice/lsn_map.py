"""LSNs of a shard that was restored from a backup: they are not the raft log's indexes.

In a shard that began empty an entry's LSN is its index, and the map has no spans. In a restored one
each span says which entries have which LSNs, both without a gap. The entries between spans, such
as those of an election while records were restored, have no LSN, and no reader sees them. The last
span has no end once the restoring is done: from there on every entry has an LSN again.
"""

from bisect import bisect_right

import msgspec


class Span(msgspec.Struct, array_like=True, gc=False):
    """Entries `index` to `index + count - 1` have the LSNs from `lsn` on; 0 for without end."""

    index: int
    lsn: int
    count: int

    def has_index(self, index: int) -> bool:
        return index >= self.index and (not self.count or index < self.index + self.count)

    def has_lsn(self, lsn: int) -> bool:
        return lsn >= self.lsn and (not self.count or lsn < self.lsn + self.count)


class LsnMap:
    """Indexes to LSNs and back; without spans both are the same."""

    def __init__(self, spans: list[Span] | None = None) -> None:
        self.spans = spans or []

    def lsn_of(self, index: int) -> int | None:
        """An entry's LSN; None where it has none."""
        if not self.spans:
            return index
        position = bisect_right(self.spans, index, key=_index) - 1
        if position < 0 or not self.spans[position].has_index(index):
            return None
        span = self.spans[position]
        return span.lsn + index - span.index

    def lsn_from(self, index: int) -> int:
        """The LSN of the first entry at an index or after it that has one, or will have."""
        if not self.spans:
            return index
        position = bisect_right(self.spans, index, key=_index) - 1
        if position >= 0 and self.spans[position].has_index(index):
            return self.spans[position].lsn + index - self.spans[position].index
        if position + 1 < len(self.spans):
            return self.spans[position + 1].lsn
        return self.spans[-1].lsn + self.spans[-1].count

    def index_from(self, lsn: int) -> int:
        """The index of the first entry that has an LSN or a later one, or will have."""
        if not self.spans:
            return lsn
        position = bisect_right(self.spans, lsn, key=_lsn) - 1
        if position >= 0 and self.spans[position].has_lsn(lsn):
            return self.spans[position].index + lsn - self.spans[position].lsn
        if position + 1 < len(self.spans):
            return self.spans[position + 1].index
        return self.spans[-1].index + self.spans[-1].count

    def add(self, index: int, lsn: int) -> None:
        """The next entry that has an LSN, above all others."""
        if self.spans:
            last = self.spans[-1]
            if last.index + last.count == index and last.lsn + last.count == lsn:
                last.count += 1
                return
        self.spans.append(Span(index, lsn, 1))

    def go_on(self, index: int, lsn: int) -> None:
        """From an entry on, each has the next LSN."""
        self.spans.append(Span(index, lsn, 0))

    def forget_below(self, lsn: int) -> None:
        """Drop what is known of LSNs that nobody reads any more."""
        del self.spans[: max(0, bisect_right(self.spans, lsn, key=_lsn) - 1)]


def _index(span: Span) -> int:
    return span.index


def _lsn(span: Span) -> int:
    return span.lsn
