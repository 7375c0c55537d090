"""What a group promises, checked with each heartbeat by means that are not the rules' own."""

from collections import Counter
from collections.abc import Collection

from raftwood.loghub.server.consumer_group_rules import GroupFacts, Tenures
from tests.kits.models import Violation


def check_spread(
    before: Tenures, after: Tenures, *, adopted: Collection[int], consumer: str, facts: GroupFacts
) -> int:
    """As even as can be, with as few moves as can be; how many there were."""
    owners: dict[int, str | None] = {}
    for shard, tenure in after.items():
        if tenure.heir in facts.alive:
            old = before.get(shard)
            candidates = [old.heir, old.holder] if old is not None else []
            if shard in adopted:
                candidates = [consumer]
            owners[shard] = next((each for each in candidates if each in facts.alive), None)
    loads = Counter(dict.fromkeys(facts.alive, 0))
    loads.update(after[shard].heir for shard in owners)
    if max(loads.values()) - min(loads.values()) > 1:
        raise Violation(f"not even: {dict(loads)}")
    moves = [shard for shard, old in owners.items() if old is not None and old != after[shard].heir]
    had = Counter(dict.fromkeys(facts.alive, 0))
    had.update(old for old in owners.values() if old is not None)
    quota, larger = divmod(len(owners), len(facts.alive))
    excess = [
        max(0, count - quota - (place < larger))
        for place, (_, count) in enumerate(had.most_common())
    ]
    if len(moves) > sum(excess):
        raise Violation(f"{len(moves)} moves, where {sum(excess)} would do: {moves}")
    return len(moves)


def check_all_are_had(
    before: Tenures, after: Tenures, *, consumer: str, held: Collection[int], facts: GroupFacts
) -> None:
    """Nobody has what is deleted or over; the dead have nothing that is known."""
    for shard, tenure in after.items():
        known, is_gone = facts.shards.get(shard), shard in facts.gone
        if known is None and not is_gone and before.get(shard) is None:
            raise Violation(f"shard {shard} is not known, and is given out")
        if (known is not None or is_gone) and tenure.holder not in facts.alive:
            raise Violation(f"shard {shard} stays with the dead: {tenure}")
        if (is_gone or (known is not None and known.is_over)) and tenure.heir:
            raise Violation(f"shard {shard} is over, and has an heir: {tenure}")
    for shard, tenure in before.items():
        is_unknown = shard not in facts.shards and shard not in facts.gone
        is_let_go = tenure.holder == consumer and shard not in held
        if is_unknown and not is_let_go and shard not in after:
            raise Violation(f"shard {shard} is not known here, and {tenure} is lost")
