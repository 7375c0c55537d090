"""Who of a consumer group has which shard: what each heartbeat leads to. No I/O, no clock.

A shard has a holder, who may be at work on it, and an heir, who is to have it. They are the same
while all is well. A shard moves in two steps: first it gets another heir, so that the holder is not
told of it any more; only when the holder stops listing it, or is dead, the heir becomes holder. So
nobody is ever told of a shard that another may still be at work on.

A shard that only can be read, and was read to its end, is over: it gets no heir. In an ordered
group a shard that nobody has waits for every older shard that holds some of its keys; what was
begun goes on. Older ones are found by their ranges and not by their parents' numbers, for a parent
may be deleted while its own parent is still to be read.
"""

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

import msgspec

from raftwood.loghub.model import Logstore, ShardStatus

NOBODY = ""
DIFFERENCE = 2
"""A shard moves only from who has so many more than who gets it; else moves would never end."""


class ShardTenure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Who has a shard, and who is to have it."""

    holder: str
    heir: str
    """`NOBODY` where the shard is over or deleted, and its holder has not let go yet."""


Tenures = Mapping[int, ShardTenure]
"""By shard; a shard that nobody has is not in it."""


class ShardFacts(msgspec.Struct, frozen=True, gc=False):
    """What counts of a shard that consumers see."""

    id: int
    begin: str
    end: str
    is_over: bool


class GroupFacts(msgspec.Struct, frozen=True):
    """What is known of the world as a heartbeat is looked at; not all of it may be the latest."""

    shards: Mapping[int, ShardFacts]
    gone: Collection[int]
    """Shards that were deleted. A shard in neither is one that is not known of yet."""
    alive: Collection[str]
    """All consumers that have not timed out."""
    is_ordered: bool


def facts_of(
    logstore: Logstore,
    tenures: Tenures,
    *,
    over: Collection[int],
    alive: Collection[str],
    is_ordered: bool,
) -> GroupFacts:
    """`over` are the shards that the group has read to their ends."""
    shards = {
        each.id: ShardFacts(each.id, each.begin, each.end, each.id in over)
        for each in logstore.visible()
    }
    hidden = {each.id for each in logstore.shards if each.status is ShardStatus.CREATING}
    gone = frozenset(
        shard
        for shard in tenures
        if shard not in shards and shard not in hidden and shard < logstore.next_shard
    )
    return GroupFacts(shards, gone, alive, is_ordered)


class GroupShardState(StrEnum):
    """How far a shard is in its group."""

    WAIT = "wait"
    NOT_ALLOC = "not_alloc"
    ALREADY_ALLOC = "already_alloc"
    TRANSFER = "transfer"
    OVER = "over"


def after_heartbeat(
    tenures: Tenures, *, consumer: str, held: Collection[int], facts: GroupFacts
) -> dict[int, ShardTenure]:
    """What holds once a consumer said all that it holds, with all that it is still ending."""
    after = {
        shard: settled
        for shard, tenure in tenures.items()
        if (settled := _settled(shard, tenure, facts)) is not None
    }
    free = _free_shards(after, facts)
    for shard in free:
        if shard in held:
            # It may be at work there, since before others thought it dead.
            after[shard] = ShardTenure(consumer, consumer)
    _share_out(after, [shard for shard in free if shard not in after], facts)
    return _released(after, consumer, held)


def told(tenures: Tenures, consumer: str) -> list[int]:
    """The answer to a heartbeat: what the consumer has, and is to keep."""
    return sorted(
        shard for shard, tenure in tenures.items() if tenure.holder == tenure.heir == consumer
    )


def shard_state(tenures: Tenures, shard: ShardFacts, facts: GroupFacts) -> GroupShardState:
    tenure = tenures.get(shard.id)
    if shard.is_over:
        return GroupShardState.OVER
    if tenure is not None:
        is_settled = tenure.holder == tenure.heir
        return GroupShardState.ALREADY_ALLOC if is_settled else GroupShardState.TRANSFER
    return GroupShardState.WAIT if _is_waiting(shard, facts) else GroupShardState.NOT_ALLOC


def _settled(shard: int, tenure: ShardTenure, facts: GroupFacts) -> ShardTenure | None:
    """Without the dead, and without an heir of what is over; None where nobody is left."""
    known, heir = facts.shards.get(shard), tenure.heir
    if shard in facts.gone or (known is not None and known.is_over):
        heir = NOBODY
    elif known is None:
        return tenure
    elif heir not in facts.alive:
        heir = tenure.holder
    holder = tenure.holder if tenure.holder in facts.alive else heir
    return ShardTenure(holder, heir) if holder in facts.alive else None


def _free_shards(tenures: Tenures, facts: GroupFacts) -> list[int]:
    """Those that somebody could have, and nobody has."""
    return [
        shard.id
        for shard in sorted(facts.shards.values(), key=_id)
        if shard.id not in tenures and not shard.is_over and not _is_waiting(shard, facts)
    ]


def _id(shard: ShardFacts) -> int:
    return shard.id


def _is_waiting(shard: ShardFacts, facts: GroupFacts) -> bool:
    return facts.is_ordered and any(_is_before(each, shard) for each in facts.shards.values())


def _is_before(older: ShardFacts, shard: ShardFacts) -> bool:
    """Whether some key has to be read there first. At any time each key belongs to one shard, so
    that of two with a key in common the older one is an ancestor.
    """
    return (
        not older.is_over
        and older.id < shard.id
        and older.begin < shard.end
        and shard.begin < older.end
    )


def _share_out(tenures: dict[int, ShardTenure], free: Iterable[int], facts: GroupFacts) -> None:
    """Give what is free to who has least; then even out, with as few moves as can be."""
    owned: dict[str, list[int]] = {consumer: [] for consumer in sorted(facts.alive)}
    for shard in sorted(tenures):
        if tenures[shard].heir in owned:
            owned[tenures[shard].heir].append(shard)
    for shard in free:
        least = min(owned, key=lambda each: len(owned[each]))
        tenures[shard] = ShardTenure(least, least)
        owned[least].append(shard)
    while True:
        least = min(owned, key=lambda each: len(owned[each]))
        most = max(owned, key=lambda each: len(owned[each]))
        if len(owned[most]) - len(owned[least]) < DIFFERENCE:
            return
        shard = _cheapest(tenures, owned[most], giver=most, taker=least)
        owned[most].remove(shard)
        owned[least].append(shard)
        tenures[shard] = ShardTenure(tenures[shard].holder, least)


def _cheapest(tenures: Tenures, shards: Iterable[int], *, giver: str, taker: str) -> int:
    """First what the taker still has, then what the giver does not have yet, then the youngest."""
    return max(
        shards,
        key=lambda shard: (
            tenures[shard].holder == taker,
            tenures[shard].holder != giver,
            shard,
        ),
    )


def _released(
    tenures: Mapping[int, ShardTenure], consumer: str, held: Collection[int]
) -> dict[int, ShardTenure]:
    """What the consumer was to let go of, and lists no longer, goes to its heir."""
    released: dict[int, ShardTenure] = {}
    for shard, tenure in tenures.items():
        if tenure.holder != consumer or tenure.heir == consumer or shard in held:
            released[shard] = tenure
        elif tenure.heir != NOBODY:
            released[shard] = ShardTenure(tenure.heir, tenure.heir)
    return released
