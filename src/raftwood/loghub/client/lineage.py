"""Which shards a reader begins with next: children follow all of their parents."""

from collections.abc import Collection, Iterable

from raftwood.loghub.model import Shard


def startable(
    shards: Iterable[Shard], *, started: Collection[int], done: Collection[int]
) -> list[Shard]:
    """Those whose ancestors were read to the end, or are gone; in order of their ids.

    Ancestors are found by their ranges and not by the parents' numbers, for a parent may be deleted
    while its own parent is still to be read.
    """
    known = sorted(shards, key=lambda each: each.id)
    unread = [each for each in known if each.id not in done]
    return [
        shard
        for shard in known
        if shard.id not in started and not any(_is_before(each, shard) for each in unread)
    ]


def _is_before(older: Shard, shard: Shard) -> bool:
    """At any time each key belongs to one shard: of two with a key in common the older one is an
    ancestor.
    """
    return older.id < shard.id and older.begin < shard.end and shard.begin < older.end
