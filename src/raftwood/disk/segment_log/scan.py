"""Decodes segments into whole flushes, records, and the index that results. No I/O.

Distinguishes a torn tail from damage by one rule: every flush names the position below which all
was synced when it was written; bad data below the highest such position was durable once, and is
damage.

`IndexBuilder` rebuilds the index from records in log order. Compaction copies records forward, so a
run may come after later ones of its group: rows are taken in any order and put right at the end,
where a missing entry shows as a gap.
"""

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest as checksum_of

from raftwood.base.errors import StoreDamaged
from raftwood.base.files import Buffer
from raftwood.disk.segment_log.format import (
    FLUSH,
    FLUSH_CHECKED,
    FLUSH_HEADER_BYTES,
    FLUSH_MAGIC,
    KIND_DROP,
    KIND_HEAD,
    KIND_RUN,
    KIND_STATE,
    KIND_TAIL,
    MARK_COUNT,
    RECORD,
    RECORD_HEADER_BYTES,
    FlushHeader,
    decode_flush_header,
    offset_of,
    position_of,
    record_is_intact,
)
from raftwood.disk.segment_log.index import GroupIndex, LiveBytes

_PIECE_BYTES: Final = 1 << 20
_MAGIC: Final = re.compile(re.escape(FLUSH_MAGIC))


class ScannedRecord(msgspec.Struct, frozen=True):
    """One intact record; the payload is a view of the segment's bytes."""

    position: int
    kind: int
    flags: int
    group: int
    term: int
    index: int
    count: int
    payload: Buffer


class BadFlush(msgspec.Struct, frozen=True):
    """The reason why the bytes at an offset are not a whole flush."""

    reason: str


def flush_at(
    data: Buffer, position: int, *, log_seed: int, previous_end: int | None
) -> FlushHeader | BadFlush:
    """Returns the flush header at a position that continues the flush before it."""
    offset = offset_of(position)
    header = decode_flush_header(data, offset, log_seed=log_seed)
    if header is None:
        return BadFlush("no valid flush header")
    if header.position != position:
        return BadFlush("a flush header that belongs elsewhere")
    if previous_end is not None and header.previous_end != previous_end:
        return BadFlush("the flush before it is missing")
    if offset + FLUSH_HEADER_BYTES + header.body_bytes > len(data):
        return BadFlush("the flush goes on beyond the end of the file")
    return header


def records_of(data: Buffer, header: FlushHeader) -> list[ScannedRecord] | BadFlush:
    """Returns all records of a flush, each verified: a flush counts as a whole or not at all.

    A write is all or nothing: half a flush could be new entries of a group without the truncation
    of the old ones. Planted bugs: "an unchecked checksum", "an accepted torn tail"
    """
    records: list[ScannedRecord] = []
    if header.record_count == MARK_COUNT:
        return records
    offset = offset_of(header.position) + FLUSH_HEADER_BYTES
    end = offset + header.body_bytes
    base = header.position - offset_of(header.position)
    while offset < end:
        if offset + RECORD_HEADER_BYTES > end:
            return BadFlush(f"a record at offset {offset} is cut off")
        fields = RECORD.unpack_from(data, offset)
        _, kind, flags, _, payload_bytes, group, term, index, count = fields
        payload_end = offset + RECORD_HEADER_BYTES + payload_bytes
        if payload_end > end or not record_is_intact(data, offset, payload_bytes):
            return BadFlush(f"the record at offset {offset} does not match its checksum")
        if not KIND_RUN <= kind <= KIND_DROP:
            return BadFlush(f"the record at offset {offset} is of unknown kind {kind}")
        payload = data[offset + RECORD_HEADER_BYTES : payload_end]
        records.append(
            ScannedRecord(base + offset, kind, flags, group, term, index, count, payload)
        )
        offset = payload_end
    if len(records) != header.record_count:
        return BadFlush(f"{len(records)} records where the header counts {header.record_count}")
    return records


Fields = tuple[int, int, int, int, int, int, int, Buffer]
"""The fields of a `ScannedRecord`."""


class WholeFlushes(msgspec.Struct):
    """Flushes that follow one another, each verified."""

    end: int
    """Where the last one ends."""
    flush_count: int = 0
    body_bytes: int = 0
    oldest_segment: int = 0
    """The value in the last flush."""


def whole_flushes(
    data: Buffer,
    place: int,
    *,
    log_seed: int,
    previous_end: int | None,
    take: Callable[[list[Fields]], None],
) -> WholeFlushes:
    """Returns all flushes of a segment from a place on, up to the first that is not whole.

    Like `flush_at` and `records_of` for each, in one loop without objects: a start does this for
    every record that there is. Those two say what is wrong with the flush at which it stops.
    """
    found = WholeFlushes(place)
    view, size = memoryview(data), len(data)
    offset = offset_of(place)
    base = place - offset
    unpack_flush, unpack_record = FLUSH.unpack_from, RECORD.unpack_from
    checked_from, checked_to = FLUSH_CHECKED.start, FLUSH_CHECKED.stop
    while offset + FLUSH_HEADER_BYTES <= size:
        fields = unpack_flush(view, offset)
        magic, checksum, position, previous, _, body_bytes, record_count, oldest, _ = fields
        at = offset + FLUSH_HEADER_BYTES
        end = at + body_bytes
        if (
            magic != FLUSH_MAGIC
            or position != base + offset
            or record_count == MARK_COUNT
            or end > size
            or (previous_end is not None and previous != previous_end)
            or checksum != checksum_of(view[offset + checked_from : offset + checked_to], log_seed)
        ):
            break
        records: list[Fields] = []
        while at + RECORD_HEADER_BYTES <= end:
            checksum, kind, flags, _, length, group, term, index, count = unpack_record(view, at)
            begin = at + RECORD_HEADER_BYTES
            following = begin + length
            payload = view[begin:following]
            if (
                following > end
                or checksum != checksum_of(payload, checksum_of(view[at + 8 : begin]))
                or not KIND_RUN <= kind <= KIND_DROP
            ):
                break
            records.append((base + at, kind, flags, group, term, index, count, payload))
            at = following
        if at != end or len(records) != record_count:
            break
        take(records)
        offset = end
        found.end = previous_end = base + end
        found.flush_count += 1
        found.body_bytes += body_bytes
        found.oldest_segment = oldest
    return found


def last_header(data: Buffer, *, segment: int, log_seed: int) -> FlushHeader | None:
    """Finds the last valid flush header of a segment, whatever stands before and after it."""
    end = len(data)
    while end > 0:
        # Magics that begin in the piece; it overlaps the next one by less than a magic.
        begin = max(0, end - _PIECE_BYTES)
        piece = bytes(data[begin : end + len(FLUSH_MAGIC) - 1])
        found = piece.rfind(FLUSH_MAGIC)
        while found >= 0:
            offset = begin + found
            header = decode_flush_header(data, offset, log_seed=log_seed)
            if header is not None and header.position == position_of(segment, offset):
                return header
            found = piece.rfind(FLUSH_MAGIC, 0, found + len(FLUSH_MAGIC) - 1)
        end = begin
    return None


def headers_after(
    data: Buffer, *, segment: int, offset: int, log_seed: int
) -> Iterator[FlushHeader]:
    """Yields every valid flush header from an offset on, whatever stands between them."""
    for match in _MAGIC.finditer(data, offset):
        header = decode_flush_header(data, match.start(), log_seed=log_seed)
        if header is not None and header.position == position_of(segment, match.start()):
            yield header


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
        # By index and not by place: a run that compaction moved stands behind later ones. The
        # planted bug "a forgotten truncation" brings replaced entries back.
        if self.in_order:
            self._keep(range(bisect_left(self.first, from_index)))
        else:
            self._keep([row for row, first in enumerate(self.first) if first < from_index])

    def settle(self) -> None:
        """Sorts by index; of two copies of one run the later one counts."""
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


class IndexBuilder:
    """Takes records in log order; builds the index that results from them."""

    def __init__(self) -> None:
        self._groups: dict[int, _Rows] = {}

    def take(self, records: list[Fields]) -> None:
        """Like `apply` for each; nearly all are runs of known groups."""
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
        """Returns the index; `StoreDamaged` if a group lacks entries that it should have."""
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
    """Takes consecutive runs without gaps: their columns are taken as they are."""
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
