"""Records that callers write to and read from the log, and the check that records fit it.

The check comes before any record is applied: a write is all or nothing. A record that does not fit
would be durable before anybody notices, and the next start would refuse the log. Test:
test_segment_log::test_a_write_that_does_not_fit_changes_nothing
"""

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from raftwood.base.errors import InvalidInput, NotFound, TooLarge
from raftwood.base.files import Buffer
from raftwood.base.names import STATE_BYTES_MAX
from raftwood.disk.segment_log.index import GroupIndex


class Run(msgspec.Struct, frozen=True):
    """Consecutive entries of one group and term, to follow the group's last one."""

    group: int
    term: int
    first_index: int
    count: int
    payload: Buffer


class SetState(msgspec.Struct, frozen=True):
    """A group's small state, which replaces the one before."""

    group: int
    data: bytes


class TruncateHead(msgspec.Struct, frozen=True):
    """Drop a group's entries up to and including an index; beyond the end, begin anew after it.

    If the index is below the group's head, this changes nothing.
    """

    group: int
    up_to: int


class TruncateTail(msgspec.Struct, frozen=True):
    """Drop a group's entries from an index on; the index must begin a run.

    A group without entries, state and truncated head is gone.
    """

    group: int
    from_index: int


class DropGroup(msgspec.Struct, frozen=True):
    """Drop a group and all it had."""

    group: int


Record: TypeAlias = Run | SetState | TruncateHead | TruncateTail | DropGroup


class StoredRun(msgspec.Struct, frozen=True):
    """A run in the log; header and payload together are its bytes on wire and disk."""

    first_index: int
    count: int
    term: int
    header: memoryview
    payload: memoryview


class GroupBounds(msgspec.Struct, frozen=True):
    """A group's readable entries: head ≤ index < next_index."""

    head: int
    next_index: int


class LogStatistics(msgspec.Struct, frozen=True):
    """Sizes and counts for operators and metrics."""

    segments: int
    disk_bytes: int
    live_bytes: int
    pending_bytes: int
    flushes: int
    groups: int
    runs: int
    is_full: bool


NUMBER_MAX: Final = (1 << 63) - 1
COUNT_MAX: Final = (1 << 32) - 1


class _Group(msgspec.Struct):
    """A group's bounds after the records checked so far."""

    index: GroupIndex | None
    head: int
    next_index: int
    has_new_run: bool = False


def check_records(records: Sequence[Record], groups: Mapping[int, GroupIndex]) -> int:
    """Raises `InvalidInput` for the first record that does not fit; returns the number of runs."""
    seen: dict[int, _Group | None] = {}
    run_count = 0
    for record in records:
        number = record.group
        run_count += type(record) is Run
        if not 0 <= number <= NUMBER_MAX:
            raise InvalidInput(f"group {number} is not a number of 63 bits")
        if number not in seen:
            index = groups.get(number)
            seen[number] = _Group(index, index.head, index.next_index) if index else None
        group = seen[number]
        if isinstance(record, DropGroup):
            if group is None:
                raise NotFound(f"there is no group {number} to drop")
            seen[number] = None
            continue
        if group is None:
            group = seen[number] = _Group(None, 1, 1)
        if type(record) is Run:
            _check_run(record, group)
            group.next_index = record.first_index + record.count
            group.has_new_run = True
        else:
            _check(record, group)
    return run_count


def _check(record: Record, group: _Group) -> None:
    match record:
        case SetState(number, data):
            if len(data) > STATE_BYTES_MAX:
                raise TooLarge(
                    f"the state of group {number} has {len(data)} bytes; {STATE_BYTES_MAX} at most"
                )
        case TruncateHead(number, up_to):
            if not 0 <= up_to < NUMBER_MAX:
                raise InvalidInput(f"group {number} cannot be truncated up to index {up_to}")
            group.head = max(group.head, up_to + 1)
            group.next_index = max(group.next_index, group.head)
        case TruncateTail(number, from_index):
            begins_run = from_index == group.next_index or (
                group.index is not None and group.index.begins_run(from_index)
            )
            in_range = group.head <= from_index <= group.next_index
            if group.has_new_run or not begins_run or not in_range:
                raise InvalidInput(
                    f"group {number} cannot be cut from index {from_index} on: it must begin a run "
                    f"between {group.head} and {group.next_index}, written before"
                )
            group.next_index = from_index


def _check_run(run: Run, group: _Group) -> None:
    if run.first_index != group.next_index:
        raise InvalidInput(
            f"group {run.group} goes on at index {group.next_index}, not {run.first_index}: write "
            "its entries in order, or truncate its tail first"
        )
    if not 1 <= run.count <= COUNT_MAX:
        raise InvalidInput(f"a run holds 1 to 2^32-1 entries, not {run.count}")
    if not (0 <= run.term <= NUMBER_MAX and run.first_index + run.count <= NUMBER_MAX):
        raise InvalidInput(f"term {run.term} or index {run.first_index} is above 63 bits")
