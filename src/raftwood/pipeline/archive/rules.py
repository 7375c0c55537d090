"""Rules of the archive: what to archive next, and how far to truncate the log. No I/O.

`unite` combines history and tail.
"""

from collections.abc import Iterable, Mapping

import msgspec

from raftwood.base.errors import OutOfRange
from raftwood.base.position import Position
from raftwood.pipeline.archive.manifest import ArchivedRange, ArchivedShard
from raftwood.pipeline.offsets import ShardExtent, ends_of_parents


def plan(
    archived: Mapping[int, ArchivedShard], shards: Iterable[ShardExtent], *, skips_freed: bool
) -> list[ArchivedRange]:
    """Returns all that is in the logs and not in the archive, one range for each shard that has
    some.

    `OutOfRange` if records were freed before they were archived, unless they may be skipped: then
    the range begins where the log does, and the archive has a gap that its next range names.
    """
    known = {each.id: each for each in shards}
    ends = ends_of_parents(known.values())
    planned = []
    for number in sorted({*archived, *known}):
        found, history = known.get(number), archived.get(number)
        if found is None:
            if history is not None and not history.is_ended:
                is_whole = number in ends and history.end >= ends[number]
                planned.append(_gone(number, history, is_known=is_whole or skips_freed))
            continue
        first = found.first if history is None else history.end
        if first < found.first:
            if not skips_freed:
                raise OutOfRange(
                    f"shard {found.id} was archived up to {first}, and its log begins at "
                    f"{found.first}: what was between is gone; let it be skipped, or begin a new "
                    "archive"
                )
            first = found.first
        # The end of a shard is recorded as well, even without another record: for its children's
        # readers, and for the time when it is gone.
        is_news = found.is_ended and (history is None or not history.is_ended)
        if first < found.next or is_news:
            planned.append(
                ArchivedRange(
                    shard=found.id,
                    first=str(first),
                    end=str(max(first, found.next)),
                    parents=found.parents,
                    is_last=found.is_ended,
                )
            )
    return planned


def _gone(shard: int, history: ArchivedShard, *, is_known: bool) -> ArchivedRange:
    """Returns an empty range that records the end of a shard deleted before that was recorded."""
    if not is_known:
        raise OutOfRange(
            f"shard {shard} was archived up to {history.end}, and it was deleted since: what came "
            "behind is gone; let it be skipped, or begin a new archive"
        )
    end = str(history.end)
    return ArchivedRange(shard=shard, first=end, end=end, parents=history.parents, is_last=True)


def truncatable(
    archived: Mapping[int, Position],
    shards: Iterable[ShardExtent],
    required: Mapping[int, Position],
) -> dict[int, Position]:
    """Returns the positions before which to truncate the logs: what is archived, and what no
    registered reader or running query still needs. Leaves out shards of which nothing can be freed.
    """
    found = {}
    for shard in shards:
        end = archived.get(shard.id, shard.first)
        before = min(end, required.get(shard.id, end))
        if before > shard.first:
            found[shard.id] = before
    return found


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """A shard in two parts: history first ≤ position < tail, then the log from `tail` to `end`."""

    shard: int
    first: Position
    tail: Position
    end: Position
    parents: tuple[int, ...] = ()
    parent_ends: tuple[Position, ...] = ()
    is_ended: bool = False

    def view(self) -> ShardExtent:
        """Returns both parts as one shard."""
        return ShardExtent(
            id=self.shard,
            parents=self.parents,
            parent_ends=self.parent_ends,
            first=self.first,
            next=self.end,
            is_ended=self.is_ended,
        )


def unite(archived: Mapping[int, ArchivedShard], shards: Iterable[ShardExtent]) -> list[Cut] | None:
    """Returns for each shard where the archive ends and the log begins. Returns None if a log
    begins above what this look at the archive shows, or is gone and has not ended: one of the two
    has changed, so look again.

    The caller must look at the logs before the archive, or a shard might be in neither.
    """
    cuts = []
    logs = {each.id: each for each in shards}
    ends = ends_of_parents(logs.values())
    for shard in sorted({*archived, *logs}):
        history, log = archived.get(shard), logs.get(shard)
        if log is None:
            # The shard is gone from the stream; its records are in the archive.
            assert history is not None
            if not history.is_ended and not (shard in ends and history.end >= ends[shard]):
                return None
            cuts.append(
                Cut(
                    shard=shard,
                    first=history.first,
                    tail=history.end,
                    end=history.end,
                    parents=history.parents,
                    is_ended=True,
                )
            )
            continue
        tail = log.first if history is None else history.end
        if tail < log.first:
            return None
        cuts.append(
            Cut(
                shard=shard,
                first=tail if history is None else history.first,
                tail=tail,
                end=max(tail, log.next),
                parents=log.parents,
                parent_ends=log.parent_ends,
                is_ended=log.is_ended,
            )
        )
    return cuts
