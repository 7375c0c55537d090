"""The position of each group's runs: columns of plain numbers, about 28 bytes a run. No I/O.

Also counts the live bytes of each segment, by which compaction finds the segments to free. One byte
too few would free a segment that is needed, so `LiveBytes.forget` checks the count.
"""

from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator

import msgspec

from raftwood.base.errors import InvariantViolated, OutOfRange
from raftwood.disk.segment_log.format import RECORD_HEADER_BYTES

_FORGET_RUNS_MIN = 1024


class RunLocation(msgspec.Struct, frozen=True):
    """One run: its entries and the position of its record."""

    first_index: int
    term: int
    position: int
    payload_bytes: int

    @property
    def record_bytes(self) -> int:
        return RECORD_HEADER_BYTES + self.payload_bytes


class GroupIndex:
    """One group: its runs from `head` to `next_index`, and its small state."""

    __slots__ = (
        "_dead",
        "_first",
        "_payload_bytes",
        "_position",
        "_term",
        "head",
        "head_position",
        "next_index",
        "state",
        "state_position",
    )

    def __init__(self) -> None:
        self.head = 1
        """The first readable index; the run that holds it may begin before it."""
        self.next_index = 1
        self.head_position: int | None = None
        self.state: bytes | None = None
        self.state_position: int | None = None
        # Parallel columns; the first `_dead` rows are truncated. They are cut off in bulk, because
        # each cut moves all rows behind it.
        self._first = array("Q")
        self._term = array("Q")
        self._position = array("Q")
        self._payload_bytes = array("I")
        self._dead = 0

    @property
    def run_count(self) -> int:
        return len(self._first) - self._dead

    @property
    def is_empty(self) -> bool:
        """Whether the group has no live record, and so counts as gone, as it will after a restart.

        Test: test_log_writes::
        test_a_group_that_is_left_with_nothing_is_gone_before_and_after_a_restart
        """
        return not self.run_count and self.state is None and self.head_position is None

    def append(
        self, first_index: int, count: int, term: int, position: int, payload_bytes: int
    ) -> None:
        self._first.append(first_index)
        self._term.append(term)
        self._position.append(position)
        self._payload_bytes.append(payload_bytes)
        self.next_index = first_index + count

    def take_columns(
        self,
        first: "array[int]",
        term: "array[int]",
        position: "array[int]",
        payload_bytes: "array[int]",
    ) -> None:
        """Takes all runs at once, in order; the caller sets `next_index`."""
        self._first, self._term = first, term
        self._position, self._payload_bytes = position, payload_bytes

    @property
    def payload_bytes(self) -> int:
        """The payload bytes of all runs."""
        return sum(self._payload_bytes[self._dead :])

    @property
    def sizes(self) -> "array[int]":
        """The payload bytes of each run, in order."""
        return self._payload_bytes[self._dead :]

    @property
    def terms(self) -> "array[int]":
        """The term of each run, in order."""
        return self._term[self._dead :]

    def row_of(self, index: int) -> int:
        """Returns the row of the run that holds an index; `OutOfRange` if none does."""
        if not self.head <= index < self.next_index:
            raise OutOfRange(
                f"index {index} is not in the log: it holds {self.head} to {self.next_index - 1}"
            )
        return bisect_right(self._first, index, self._dead) - 1

    def location(self, row: int) -> RunLocation:
        return RunLocation(
            self._first[row], self._term[row], self._position[row], self._payload_bytes[row]
        )

    def end_of_row(self, row: int) -> int:
        """Returns the index after a run's last."""
        return self._first[row + 1] if row + 1 < len(self._first) else self.next_index

    def rows_from(self, index: int) -> range:
        """Returns the rows that hold an index and all after it."""
        return range(self.row_of(index), len(self._first))

    def term_of(self, index: int) -> int:
        return self._term[self.row_of(index)]

    def run_start(self, index: int) -> int:
        return self._first[self.row_of(index)]

    def index_within(self, bytes_max: int) -> int:
        """The first index of the last runs that have at most `bytes_max` together."""
        total = 0
        for row in range(len(self._first) - 1, self._dead - 1, -1):
            total += self._payload_bytes[row]
            if total > bytes_max:
                return self.end_of_row(row)
        return self.head

    def begins_run(self, index: int) -> bool:
        """Whether a cut before the index splits no run."""
        if index == self.next_index:
            return True
        return self.head <= index < self.next_index and self._first[self.row_of(index)] == index

    def holds(self, first_index: int, *, position: int) -> bool:
        """Whether the run that begins at an index is live and has this position."""
        index = max(first_index, self.head)
        if index >= self.next_index:
            return False
        row = self.row_of(index)
        return self._first[row] == first_index and self._position[row] == position

    def move(self, first_index: int, *, position: int) -> None:
        """Notes that a run was copied elsewhere."""
        self._position[self.row_of(max(first_index, self.head))] = position

    def cut_head(self, up_to: int) -> list[RunLocation]:
        """Drops what lies at or below an index; returns the runs that are gone entirely."""
        head = up_to + 1
        self.head = head
        if head >= self.next_index:
            self.next_index = head
            gone = range(self._dead, len(self._first))
        else:
            gone = range(self._dead, self.row_of(head))
        locations = [self.location(row) for row in gone]
        self._dead = gone.stop
        if self._dead > _FORGET_RUNS_MIN and self._dead * 2 > len(self._first):
            for column in (self._first, self._term, self._position, self._payload_bytes):
                del column[: self._dead]
            self._dead = 0
        return locations

    def cut_tail(self, from_index: int) -> list[RunLocation]:
        """Drops what lies at or above an index that begins a run; returns the dropped runs."""
        if from_index == self.next_index:
            return []
        row = self.row_of(from_index)
        if self._first[row] != from_index:
            raise InvariantViolated(f"a cut at {from_index} splits the run at {self._first[row]}")
        locations = [self.location(gone) for gone in range(row, len(self._first))]
        for column in (self._first, self._term, self._position, self._payload_bytes):
            del column[row:]
        self.next_index = from_index
        return locations

    def locations(self) -> Iterator[RunLocation]:
        return (self.location(row) for row in range(self._dead, len(self._first)))


class LiveBytes:
    """How many bytes of each segment are still needed."""

    def __init__(self) -> None:
        self._by_segment: defaultdict[int, int] = defaultdict(int)
        self.total = 0

    def add(self, position: int, record_bytes: int) -> None:
        self._by_segment[position >> 32] += record_bytes
        self.total += record_bytes

    def remove(self, position: int, record_bytes: int) -> None:
        self.add(position, -record_bytes)

    def of(self, segment: int) -> int:
        return self._by_segment.get(segment, 0)

    def forget(self, segment: int) -> None:
        """Drops a removed segment; nothing of it may be live."""
        left = self._by_segment.pop(segment, 0)
        if left:
            raise InvariantViolated(f"segment {segment} was removed with {left} live bytes")
