"""Who should hold which lease: all workers work out the same plan, and each takes its own part.

Quotas are sticky: who holds most keeps the larger ones. So a lease moves only from a worker that
has at least two more than the one that gets it, the moves are as few as can be, and once no two
workers differ by more than one there are none.

A lease that is free while a live worker is shown as its consumer is one that this worker cannot get
rid of, in a call that hangs: another gets it, if there is one, even above its quota.

A worker that has just joined cannot know yet that a lease has expired. Such a one goes to the
others, even above their quotas, or it would wait for longer than after a death alone; what is above
the quota is stolen from there at once.

By weight, what counts is the sum of the recent bytes of a worker's shards. A lease moves only where
that evens things out by more than noise would.
"""

import heapq
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import TypeAlias

import msgspec

from raftwood.loghub.consumer.leases import NOBODY, ShardLease, Take

TOLERANCE = 0.1
"""By weight, a worker gives nothing away that is above the average by a smaller share."""
WEIGHT_MIN = 1.0
"""Of a shard that nothing is known of, so that idle shards are spread as well."""


class Situation(msgspec.Struct, frozen=True):
    """What a plan is made from."""

    leases: Mapping[str, ShardLease]
    live: Mapping[str, str]
    """Instance by process, in the order in which all workers count them."""
    free: Collection[str]
    """Shards that nobody can be at work on."""
    newcomers: Collection[str] = ()
    """Live processes that cannot know yet which leases have expired."""


class LeaseMove(msgspec.Struct, frozen=True):
    """A lease that changes hands; from `NOBODY` where it is free."""

    shard: str
    source: str
    target: str


Planner: TypeAlias = Callable[[Situation], list[LeaseMove]]


def is_ready(lease: ShardLease, leases: Mapping[str, ShardLease]) -> bool:
    """It is not over, and its parents are; one without a lease was read to its end long ago."""
    return not lease.is_ended and all(
        parent not in leases or leases[parent].is_ended for parent in lease.parents
    )


def plan_by_count(situation: Situation) -> list[LeaseMove]:
    """Moves after which no two workers differ by more than one."""
    held, free, count = _held(situation)
    if not held:
        return []
    floor, larger = divmod(count, len(held))
    wanted = _readoptable(situation, free)
    by_size = sorted(held, key=lambda process: (-len(held[process]), -len(wanted.get(process, ()))))
    quotas = {process: floor + (rank < larger) for rank, process in enumerate(by_size)}
    rooms = {process: max(0, quotas[process] - len(held[process])) for process in held}

    def sits_down(process: str, _: str) -> bool:
        has_room = rooms[process] > 0
        rooms[process] -= has_room
        return has_room

    moves = _readopt(wanted, sits_down)
    for shard, processes in _stuck(situation, free, moves).items():
        target = max(processes, key=lambda process: rooms[process])
        rooms[target] = max(0, rooms[target] - 1)
        moves.append(LeaseMove(shard, NOBODY, target))
    seats = [process for process in held for _ in range(rooms[process])]
    taken = {move.shard for move in moves}
    offers = [(shard, NOBODY) for shard in free if shard not in taken]
    for process in by_size:
        spare = len(held[process]) - quotas[process]
        if spare > 0:
            offers += [(shard, process) for shard in _cheapest(held[process])[:spare]]
    # There may be more seats than offers: what the dead hold is counted, and is not free yet.
    moves += [
        LeaseMove(shard, source, target)
        for (shard, source), target in zip(offers, seats, strict=False)
    ]
    sizes = {process: float(len(mine)) for process, mine in held.items()}
    for move in moves:
        sizes[move.target] += 1
    return _without_waiting(situation, moves, sizes, lambda _: 1.0)


def own_part(
    moves: Sequence[LeaseMove], leases: Mapping[str, ShardLease], me: str, fresh: Container[str]
) -> tuple[list[Take], list[str]]:
    """What to take of a plan; and the processes whose leases must be looked at before, for ids."""
    takes: list[Take] = []
    unknown: dict[str, None] = {}
    for move in moves:
        lease = leases[move.shard]
        if move.target != me:
            continue
        if lease.shard in fresh or lease.lease_process == NOBODY:
            is_free = move.source == NOBODY
            takes.append(Take(move.shard, lease.lease_id, sets_consumer=is_free))
        else:
            unknown[lease.lease_process] = None
    return takes, list(unknown)


def plan_by_bytes(situation: Situation) -> list[LeaseMove]:
    """Moves after which no worker has much more to read than another, as far as shards allow."""
    held, free, _ = _held(situation)
    if not held:
        return []
    leases = situation.leases
    loads = {process: sum(map(_weight, mine)) for process, mine in held.items()}
    ranks = {process: rank for rank, process in enumerate(held)}
    average = (sum(loads.values()) + sum(_weight(leases[shard]) for shard in free)) / len(held)

    def sits_down(process: str, shard: str) -> bool:
        load = loads[process] + _weight(leases[shard])
        has_room = load <= average * (1 + TOLERANCE)
        loads[process] = load if has_room else loads[process]
        return has_room

    moves = _readopt(_readoptable(situation, free), sits_down)
    for shard, processes in _stuck(situation, free, moves).items():
        target = min(processes, key=lambda process: loads[process])
        loads[target] += _weight(leases[shard])
        moves.append(LeaseMove(shard, NOBODY, target))
    taken = {move.shard for move in moves}
    lightest = [(load, ranks[process], process) for process, load in loads.items()]
    heapq.heapify(lightest)
    for shard in sorted(free, key=lambda each: (-_weight(leases[each]), each)):
        if shard not in taken:
            load, rank, process = heapq.heappop(lightest)
            moves.append(LeaseMove(shard, NOBODY, process))
            heapq.heappush(lightest, (load + _weight(leases[shard]), rank, process))
    loads = {process: load for load, _, process in lightest}
    moves += _evened(held, loads, ranks, average)
    return _without_waiting(situation, moves, loads, _weight)


def _evened(
    held: Mapping[str, list[ShardLease]],
    loads: dict[str, float],
    ranks: Mapping[str, int],
    average: float,
) -> list[LeaseMove]:
    """From the heaviest to the lightest, the largest that does not turn them round."""
    lightest = [(load, ranks[process], process) for process, load in loads.items()]
    heapq.heapify(lightest)
    moves = []
    for source in sorted(loads, key=lambda process: -loads[process]):
        for lease in sorted(held[source], key=lambda each: (-_weight(each), each.shard)):
            if loads[source] <= average * (1 + TOLERANCE):
                break
            load, rank, target = lightest[0]
            if target != source and _weight(lease) * 2 <= loads[source] - load:
                heapq.heapreplace(lightest, (load + _weight(lease), rank, target))
                loads[target] += _weight(lease)
                loads[source] -= _weight(lease)
                moves.append(LeaseMove(lease.shard, source, target))
    return moves


def _held(situation: Situation) -> tuple[dict[str, list[ShardLease]], list[str], int]:
    """By live process, in order; what is free; and how many there are in all."""
    held: dict[str, list[ShardLease]] = {process: [] for process in situation.live}
    free = []
    count = 0
    for shard in sorted(situation.leases):
        lease = situation.leases[shard]
        if is_ready(lease, situation.leases):
            count += 1
            if shard in situation.free:
                free.append(shard)
            elif lease.lease_process in held:
                held[lease.lease_process].append(lease)
    return held, free, count


def _readoptable(situation: Situation, free: list[str]) -> dict[str, list[str]]:
    """What a process of the same name had, by the one that took its place."""
    processes = {instance: process for process, instance in situation.live.items()}
    wanted: dict[str, list[str]] = {}
    for shard in free:
        process = processes.get(situation.leases[shard].lease_owner)
        if process is not None:
            wanted.setdefault(process, []).append(shard)
    return wanted


def _readopt(
    wanted: Mapping[str, list[str]], sits_down: Callable[[str, str], bool]
) -> list[LeaseMove]:
    """As much of it as there is room for."""
    return [
        LeaseMove(shard, NOBODY, process)
        for process, shards in wanted.items()
        for shard in shards
        if sits_down(process, shard)
    ]


def _stuck(
    situation: Situation, free: list[str], moves: Collection[LeaseMove]
) -> dict[str, list[str]]:
    """Free shards inside whose consumers a live process hangs, with all the others."""
    taken = {move.shard for move in moves}
    found: dict[str, list[str]] = {}
    for shard in free:
        consumer = situation.leases[shard].consumer_process
        if consumer in situation.live and shard not in taken:
            others = [process for process in situation.live if process != consumer]
            if others:
                found[shard] = others
    return found


def _without_waiting(
    situation: Situation,
    moves: list[LeaseMove],
    loads: dict[str, float],
    weigh: Callable[[ShardLease], float],
) -> list[LeaseMove]:
    """What a newcomer is to have, and cannot take yet, goes to others; it steals it from them.

    `loads` are as the moves leave them.
    """
    late = frozenset(situation.newcomers)
    others = [process for process in situation.live if process not in late]
    changed = []
    for move in moves:
        lease = situation.leases[move.shard]
        is_known = move.source != NOBODY or lease.lease_id == 0 or lease.is_vacant
        target = move.target
        if target in late and not is_known:
            able = [process for process in others if process != lease.consumer_process]
            target = min(able, key=lambda process: loads[process], default=target)
            loads[target] += weigh(lease)
        changed.append(LeaseMove(move.shard, move.source, target))
    return changed


def _cheapest(leases: list[ShardLease]) -> list[str]:
    """To steal: not what is changing hands already, if there is something else."""
    return [
        lease.shard for lease in sorted(leases, key=lambda each: (each.is_handing_over, each.shard))
    ]


def _weight(lease: ShardLease) -> float:
    return max(WEIGHT_MIN, lease.bytes_per_s)
