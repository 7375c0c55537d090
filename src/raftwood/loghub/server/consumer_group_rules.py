"""The assignment of shards to a group's consumers: what each heartbeat changes. No I/O, no clock.

A shard has a holder, the consumer that may be reading it, and an heir, the consumer that gets it
next. They are the same while all is well. A shard moves in two steps. First it gets another heir,
and the answers to the holder's heartbeats no longer list it. Only when the holder stops listing it,
or is dead, the heir becomes holder. So no consumer ever receives a shard that another may still be
reading.

A readonly shard that was read to its end is over: it gets no heir. In an ordered group a free shard
waits for every older shard that shares some of its keys; a shard that has a holder goes on. Older
ones are found by their ranges and not by their parents' numbers, because a parent may be deleted
while its own parent is still to be read.
"""

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

import msgspec

from raftwood.loghub.model import Logstore, ShardStatus

NOBODY = ""
DIFFERENCE = 2
"""A shard moves only if the giver has so many more than the taker; else moves would never end."""


class ShardTenure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The present and the next consumer of a shard."""

    holder: str
    heir: str
    """`NOBODY` if the shard is over or deleted, and its holder has not let go yet."""


Tenures = Mapping[int, ShardTenure]
"""Tenures by shard; free shards are not in it."""


class ShardFacts(msgspec.Struct, frozen=True, gc=False):
    """The facts that matter here of a shard that consumers see."""

    id: int
    begin: str
    end: str
    is_over: bool


class GroupFacts(msgspec.Struct, frozen=True):
    """The state that a heartbeat is judged by; parts of it may be out of date."""

    shards: Mapping[int, ShardFacts]
    gone: Collection[int]
    """Shards that were deleted. A shard in neither collection is not known here yet."""
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
    """Collects the facts; `over` are the shards that the group has read to their ends."""
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
    """The state of a shard in its group."""

    WAIT = "wait"
    NOT_ALLOC = "not_alloc"
    ALREADY_ALLOC = "already_alloc"
    TRANSFER = "transfer"
    OVER = "over"


def after_heartbeat(
    tenures: Tenures, *, consumer: str, held: Collection[int], facts: GroupFacts
) -> dict[int, ShardTenure]:
    """Returns the tenures after a heartbeat that lists all shards the consumer holds or ends."""
    after = {
        shard: settled
        for shard, tenure in tenures.items()
        if (settled := _settled(shard, tenure, facts)) is not None
    }
    free = _free_shards(after, facts)
    for shard in free:
        if shard in held:
            # It may be reading the shard since before others thought it dead.
            after[shard] = ShardTenure(consumer, consumer)
    _share_out(after, [shard for shard in free if shard not in after], facts)
    return _released(after, consumer, held)


def told(tenures: Tenures, consumer: str) -> list[int]:
    """Returns the answer to a heartbeat: the shards that the consumer has and keeps."""
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
    """Removes dead consumers, and the heir of a shard that is over; None if no consumer is left."""
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
    """Returns the shards that have no holder and may be read."""
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
    """Whether a key of the shard has to be read in the older one first. At any time each key
    belongs to one shard, so of two shards with a key in common the older one is an ancestor.
    """
    return (
        not older.is_over
        and older.id < shard.id
        and older.begin < shard.end
        and shard.begin < older.end
    )


def _share_out(tenures: dict[int, ShardTenure], free: Iterable[int], facts: GroupFacts) -> None:
    """Gives free shards to the consumers with the fewest, then evens out by few moves."""
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
    """Prefers what the taker still holds, then what the giver lacks, then the youngest."""
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
    """Passes a shard to its heir if its holder was to let go and no longer lists it."""
    released: dict[int, ShardTenure] = {}
    for shard, tenure in tenures.items():
        if tenure.holder != consumer or tenure.heir == consumer or shard in held:
            released[shard] = tenure
        elif tenure.heir != NOBODY:
            released[shard] = ShardTenure(tenure.heir, tenure.heir)
    return released
