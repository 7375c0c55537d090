"""What is archived next, how far the log may be truncated, and how history and tail are united.
No I/O.
"""

from collections.abc import Mapping

import msgspec

from raftwood.base.errors import OutOfRange
from raftwood.base.position import Position


class ShardBounds(msgspec.Struct, frozen=True):
    """What a shard's log holds: first ≤ any readable position < next."""

    first: Position
    next: Position


class PlannedRange(msgspec.Struct, frozen=True):
    """To be archived: first ≤ position < end."""

    shard: int
    first: Position
    end: Position


def plan(
    archived: Mapping[int, Position], bounds: Mapping[int, ShardBounds], *, skips_freed: bool
) -> list[PlannedRange]:
    """All that is in the logs and not in the archive, one range for each shard that has some.

    `OutOfRange` where something was freed before it was archived, unless that is to be skipped:
    then the range begins where the log does, and the archive has a gap that its next range names.
    """
    planned = []
    for shard in sorted(bounds):
        found = bounds[shard]
        first = archived.get(shard, found.first)
        if first < found.first:
            if not skips_freed:
                raise OutOfRange(
                    f"shard {shard} was archived up to {first}, and its log begins at "
                    f"{found.first}: what was between is gone; let it be skipped, or begin a new "
                    "archive"
                )
            first = found.first
        if first < found.next:
            planned.append(PlannedRange(shard, first, found.next))
    return planned


def truncatable(
    archived: Mapping[int, Position],
    registered: Mapping[int, Position],
    running: Mapping[int, Position],
) -> dict[int, Position]:
    """Before which position each shard's log may be cut: what is archived, and what neither a
    registered reader nor a running query still needs.
    """
    found = {}
    for shard, end in archived.items():
        needed = [each[shard] for each in (registered, running) if shard in each]
        found[shard] = min([end, *needed])
    return found


class Cut(msgspec.Struct, frozen=True):
    """A shard in two parts: history first ≤ position < tail, then the log from `tail` to `end`."""

    shard: int
    tail: Position
    end: Position


def unite(archived: Mapping[int, Position], bounds: Mapping[int, ShardBounds]) -> list[Cut] | None:
    """For each shard, where the archive ends and the log goes on; None where a log was cut above
    what this look at the archive knows of: then look at the archive again, it has more by now.
    """
    cuts = []
    for shard in sorted({*archived, *bounds}):
        found = bounds.get(shard)
        end = archived.get(shard)
        if found is None:
            # The shard is gone from the stream; what it had is in the archive.
            assert end is not None
            cuts.append(Cut(shard, end, end))
            continue
        tail = found.first if end is None else end
        if tail < found.first:
            return None
        cuts.append(Cut(shard, tail, max(tail, found.next)))
    return cuts
