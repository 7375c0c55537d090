"""Reads runs: from the flushes in memory where they still are, else from disk, verified.

The caller gets a view of the buffer that was written, or of the one that was read; records are
never copied one by one. Runs that lie close together are read with one call. Each read from disk is
checked against its checksum, because bits flip on disks after a start as well: unchecked, a leader
would send them to its followers as its own. Test:
test_segment_log::test_damage_found_while_reading_names_file_and_entries
"""

import errno
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final

from raftwood.base import files as seam
from raftwood.base.errors import StoreDamaged, StoreError
from raftwood.base.files import Files, perform
from raftwood.disk.segment_log.committer import Committer
from raftwood.disk.segment_log.format import (
    RECORD_HEADER_BYTES,
    offset_of,
    record_is_intact,
    segment_of,
)
from raftwood.disk.segment_log.index import GroupIndex, RunLocation
from raftwood.disk.segment_log.records import StoredRun
from raftwood.disk.segment_log.recovery import REMEDY

_GAP_BYTES_MAX: Final = 4 << 10
"""A page. Runs of one group among many lie far apart, and a read keeps the bytes between them too.

Test: test_log_memory::test_a_read_of_scattered_runs_does_not_take_what_lies_between
"""
_MOVED_RETRIES: Final = 4


def plan(index: GroupIndex, first_index: int, bytes_max: int) -> list[tuple[RunLocation, int]]:
    """Chooses the runs of a read, each with the index after it: at least one, up to the bound."""
    chosen: list[tuple[RunLocation, int]] = []
    total = 0
    for row in index.rows_from(first_index):
        location = index.location(row)
        total += location.record_bytes
        if chosen and total > bytes_max:
            break
        chosen.append((location, index.end_of_row(row)))
    return chosen


def from_memory(
    committer: Committer, chosen: Sequence[tuple[RunLocation, int]]
) -> list[StoredRun | None]:
    """Returns each run that is still in memory, None for the others."""
    runs: list[StoredRun | None] = []
    for location, end_index in chosen:
        flush = committer.find(location.position)
        if flush is None:
            runs.append(None)
        else:
            header, payload = flush.record(location.position, location.payload_bytes)
            runs.append(_stored(location, end_index, header, payload))
    return runs


async def read_runs(
    files: Files,
    committer: Committer,
    path_of: Callable[[int], str],
    find: Callable[[], Sequence[tuple[RunLocation, int]]],
) -> list[StoredRun]:
    """Reads the runs that `find` returns; calls it again if compaction moved them meanwhile."""
    for _ in range(_MOVED_RETRIES):
        chosen = find()
        # Runs that are not durable yet may not be on disk at all, so memory comes first.
        runs = from_memory(committer, chosen)
        missing = [each for each, run in zip(chosen, runs, strict=True) if run is None]
        spans = _spans([location for location, _ in missing])
        reads = [
            seam.Read(path_of(segment_of(first)), offset_of(first), end - first)
            for first, end in spans
        ]
        try:
            views = await perform(files, *reads) if reads else []
        except FileNotFoundError:
            # Compaction has moved the runs and removed their segment while the read was under way.
            continue
        except OSError as error:
            raise unreadable(path_of(segment_of(spans[0][0])), error) from error
        from_disk = iter(_cut_out(missing, spans, views, path_of))
        return [run or next(from_disk) for run in runs]
    raise StoreDamaged(f"a segment that the index names is missing below {path_of(0)}; {REMEDY}")


def unreadable(path: str, error: OSError) -> StoreError:
    """The error of a failed read: damage if the disk says so, else one that may pass."""
    if error.errno in (errno.EIO, errno.EBADMSG, errno.EUCLEAN):
        return StoreDamaged(f"{path} cannot be read: {error}; {REMEDY}")
    return StoreError(f"{path} cannot be read: {error}; try again, or check the system")


def _spans(locations: Sequence[RunLocation]) -> list[tuple[int, int]]:
    """Returns position ranges that cover the runs, joined if the gap between two is small."""
    spans: list[tuple[int, int]] = []
    for location in sorted(locations, key=lambda location: location.position):
        start, end = location.position, location.position + location.record_bytes
        if spans and start - spans[-1][1] <= _GAP_BYTES_MAX:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return spans


def _cut_out(
    chosen: Sequence[tuple[RunLocation, int]],
    spans: Sequence[tuple[int, int]],
    views: Sequence[memoryview],
    path_of: Callable[[int], str],
) -> list[StoredRun]:
    runs: list[StoredRun] = []
    for location, end_index in chosen:
        span = bisect_right(spans, location.position, key=lambda span: span[0]) - 1
        offset, view = location.position - spans[span][0], views[span]
        whole = offset + location.record_bytes <= len(view)
        if not whole or not record_is_intact(view, offset, location.payload_bytes):
            raise StoreDamaged(
                f"{path_of(segment_of(location.position))} at offset "
                f"{offset_of(location.position)}: the entries from index "
                f"{location.first_index} on do not match their checksum; {REMEDY}"
            )
        header_end = offset + RECORD_HEADER_BYTES
        payload = view[header_end : header_end + location.payload_bytes]
        runs.append(_stored(location, end_index, view[offset:header_end], payload))
    return runs


def _stored(
    location: RunLocation, end_index: int, header: memoryview, payload: memoryview
) -> StoredRun:
    count = end_index - location.first_index
    return StoredRun(location.first_index, count, location.term, header, payload)
