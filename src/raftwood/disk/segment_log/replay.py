"""Rebuilding the index from records in log order. No I/O.

Compaction copies records forward, so a run may come after later ones of its group: rows are taken
in any order and put right at the end, where a missing entry shows as a gap.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

from raftwood.base.errors import StoreDamaged
from raftwood.disk.segment_log.format import (
    KIND_DROP,
    KIND_HEAD,
    KIND_RUN,
    KIND_STATE,
    KIND_TAIL,
    RECORD_HEADER_BYTES,
)
from raftwood.disk.segment_log.index import GroupIndex, LiveBytes
from raftwood.disk.segment_log.scan import Fields, ScannedRecord

_COLUMNS: Final = ("first", "count", "term", "position", "payload_bytes")


class _Rows:
    """A group's runs as they were read, in columns."""

    def __init__(self) -> None:
        self.first = array("Q")
        self.count = array("Q")
        self.term = array("Q")
        self.position = array("Q")
        self.payload_bytes = array("I")
        self.in_order = True
        self.head = 1
        self.head_position: int | None = None
        self.state: bytes | None = None
        self.state_position: int | None = None

    def add(self, index: int, count: int, term: int, position: int, payload_bytes: int) -> None:
        if self.first and index != self.first[-1] + self.count[-1]:
            self.in_order = False
        self.first.append(index)
        self.count.append(count)
        self.term.append(term)
        self.position.append(position)
        self.payload_bytes.append(payload_bytes)

    def cut_tail(self, from_index: int) -> None:
        if self.in_order:
            self._keep(range(bisect_left(self.first, from_index)))
        else:
            self._keep([row for row, first in enumerate(self.first) if first < from_index])

    def settle(self) -> None:
        """Sort by index; of two copies of one run the later one counts."""
        if self.in_order:
            return
        rows = {first: row for row, first in enumerate(self.first)}
        self._keep([rows[first] for first in sorted(rows)])

    def _keep(self, rows: Sequence[int]) -> None:
        for name in _COLUMNS:
            column = getattr(self, name)
            if isinstance(rows, range):
                del column[rows.stop :]
            else:
                setattr(self, name, array(column.typecode, [column[row] for row in rows]))


class Replay:
    """Takes records in log order; gives the index that they add up to."""

    def __init__(self) -> None:
        self._groups: dict[int, _Rows] = {}

    def take(self, records: list[Fields]) -> None:
        """As `apply` for each; nearly all are runs of groups that are known."""
        groups = self._groups
        for fields in records:
            position, kind, _, group, term, index, count, payload = fields
            rows = groups.get(group)
            if kind == KIND_RUN and rows is not None:
                rows.add(index, count, term, position, len(payload))
            else:
                self.apply(ScannedRecord(*fields))

    def apply(self, record: ScannedRecord) -> None:
        if record.kind == KIND_DROP:
            self._groups.pop(record.group, None)
            return
        rows = self._groups.get(record.group)
        if rows is None:
            rows = self._groups[record.group] = _Rows()
        if record.kind == KIND_RUN:
            rows.add(record.index, record.count, record.term, record.position, len(record.payload))
        elif record.kind == KIND_STATE:
            rows.state = bytes(record.payload)
            rows.state_position = record.position
        elif record.kind == KIND_HEAD and record.index >= rows.head - 1:
            rows.head = record.index + 1
            rows.head_position = record.position
        elif record.kind == KIND_TAIL:
            rows.cut_tail(record.index)

    def finish(self) -> tuple[dict[int, GroupIndex], LiveBytes]:
        """The index; `StoreDamaged` where a group lacks entries that it should have."""
        live = LiveBytes()
        groups = {group: _index_of(group, rows, live) for group, rows in self._groups.items()}
        return {group: index for group, index in groups.items() if not index.is_empty}, live


def _index_of(group: int, rows: _Rows, live: LiveBytes) -> GroupIndex:
    rows.settle()
    index = GroupIndex()
    index.head = index.next_index = rows.head
    index.head_position, index.state_position = rows.head_position, rows.state_position
    index.state = rows.state
    if rows.head_position is not None:
        live.add(rows.head_position, RECORD_HEADER_BYTES)
    if rows.state is not None and rows.state_position is not None:
        live.add(rows.state_position, RECORD_HEADER_BYTES + len(rows.state))
    if rows.in_order:
        _take_whole(group, index, rows, live)
        return index
    for row, first in enumerate(rows.first):
        if first + rows.count[row] <= rows.head:
            continue  # truncated
        if not (first == index.next_index or (first < rows.head and not index.run_count)):
            raise StoreDamaged(_missing(group, index.next_index, first))
        index.append(
            first,
            rows.count[row],
            rows.term[row],
            rows.position[row],
            rows.payload_bytes[row],
        )
        live.add(rows.position[row], RECORD_HEADER_BYTES + rows.payload_bytes[row])
    return index


def _take_whole(group: int, index: GroupIndex, rows: _Rows, live: LiveBytes) -> None:
    """Runs that came one behind the other: none is missing, and columns are taken as they are."""
    if not rows.first or rows.first[-1] + rows.count[-1] <= rows.head:
        return  # all are truncated
    kept = max(0, bisect_right(rows.first, rows.head) - 1)
    if rows.first[kept] > rows.head:
        raise StoreDamaged(_missing(group, rows.head, rows.first[kept]))
    columns = (rows.first, rows.term, rows.position, rows.payload_bytes)
    index.take_columns(*(column[kept:] for column in columns))
    index.next_index = rows.first[-1] + rows.count[-1]
    row, position = kept, rows.position
    while row < len(position):
        end = bisect_left(position, (position[row] >> 32) + 1 << 32, row)
        size = RECORD_HEADER_BYTES * (end - row) + sum(rows.payload_bytes[row:end])
        live.add(position[row], size)
        row = end


def _missing(group: int, first: int, found: int) -> str:
    return f"group {group}: entries {first} to {found - 1} are missing from the log"
