"""What callers write to and read from the log."""

from typing import TypeAlias

import msgspec

from raftwood.base.files import Buffer


class Run(msgspec.Struct, frozen=True):
    """Consecutive entries of one group and term, to follow the group's last one."""

    group: int
    term: int
    first_index: int
    count: int
    payload: Buffer


class State(msgspec.Struct, frozen=True):
    """A group's small state, in place of the one before."""

    group: int
    data: bytes


class TruncateHead(msgspec.Struct, frozen=True):
    """Forget a group's entries up to and with an index; beyond the end, start anew after it.

    One that comes late, below the group's head, changes nothing.
    """

    group: int
    up_to: int


class TruncateTail(msgspec.Struct, frozen=True):
    """Forget a group's entries from an index on; it must begin a run.

    A group that is left with nothing, no state and no truncated head, is gone.
    """

    group: int
    from_index: int


class DropGroup(msgspec.Struct, frozen=True):
    """Forget a group and all it had."""

    group: int


Record: TypeAlias = Run | State | TruncateHead | TruncateTail | DropGroup


class StoredRun(msgspec.Struct, frozen=True):
    """A run as it stands in the log; header and payload together are its bytes on wire and disk."""

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
    """Sizes and counts for people and metrics."""

    segments: int
    disk_bytes: int
    live_bytes: int
    pending_bytes: int
    flushes: int
    groups: int
    runs: int
    is_full: bool
