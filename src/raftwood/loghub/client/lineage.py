"""Which shards a reader begins with next: children follow all of their parents."""

from collections.abc import Collection, Iterable

from raftwood.loghub.model import Shard


def startable(
    shards: Iterable[Shard], *, started: Collection[int], done: Collection[int]
) -> list[Shard]:
    """Those whose parents were read to the end, or are gone; in order of their ids."""
    known = {each.id: each for each in shards}
    return [
        known[number]
        for number in sorted(known)
        if number not in started
        and all(parent in done or parent not in known for parent in known[number].parents)
    ]
