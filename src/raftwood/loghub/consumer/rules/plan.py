"""Who should hold which lease: all workers work out the same plan, and each takes its own part.

Quotas are sticky: who holds most keeps the larger ones. So a lease moves only from a worker that
has at least two more than the one that gets it, the moves are as few as can be, and once no two
workers differ by more than one there are none.

A lease that is free while a live worker is shown as its consumer is one that this worker cannot get
rid of, in a call that hangs: another gets it, if there is one, even above its quota.

By weight, what counts is the sum of the recent bytes of a worker's shards. A lease moves only where
that evens things out by more than noise would.
"""

import heapq
from collections.abc import Callable, Collection, Mapping

import msgspec

from raftwood.loghub.consumer.leases import NOBODY, Lease

TOLERANCE = 0.1
"""By weight, a worker gives nothing away that is above the average by a smaller share."""
WEIGHT_MIN = 1.0
"""Of a shard that nothing is known of, so that idle shards are spread as well."""


class Situation(msgspec.Struct, frozen=True):
    """What a plan is made from."""

    leases: Mapping[str, Lease]
    live: Mapping[str, str]
    """Instance by process, in the order in which all workers count them."""
    free: Collection[str]
    """Shards that nobody can be at work on."""


class Move(msgspec.Struct, frozen=True):
    """A lease that changes hands; from `NOBODY` where it is free."""

    shard: str
    source: str
    target: str


def is_ready(lease: Lease, leases: Mapping[str, Lease]) -> bool:
    """It is not over, and its parents are; one without a lease was read to its end long ago."""
    return not lease.is_ended and all(
        parent not in leases or leases[parent].is_ended for parent in lease.parents
    )


def plan_by_count(situation: Situation) -> list[Move]:
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
        moves.append(Move(shard, NOBODY, target))
    seats = [process for process in held for _ in range(rooms[process])]
    taken = {move.shard for move in moves}
    offers = [(shard, NOBODY) for shard in free if shard not in taken]
    for process in by_size:
        spare = len(held[process]) - quotas[process]
        if spare > 0:
            offers += [(shard, process) for shard in _cheapest(held[process])[:spare]]
    # There may be more seats than offers: what the dead hold is counted, and is not free yet.
    return moves + [
        Move(shard, source, target) for (shard, source), target in zip(offers, seats, strict=False)
    ]


def plan_by_bytes(situation: Situation) -> list[Move]:
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
        moves.append(Move(shard, NOBODY, target))
    taken = {move.shard for move in moves}
    lightest = [(load, ranks[process], process) for process, load in loads.items()]
    heapq.heapify(lightest)
    for shard in sorted(free, key=lambda each: (-_weight(leases[each]), each)):
        if shard not in taken:
            load, rank, process = heapq.heappop(lightest)
            moves.append(Move(shard, NOBODY, process))
            heapq.heappush(lightest, (load + _weight(leases[shard]), rank, process))
    loads = {process: load for load, _, process in lightest}
    return moves + _evened(held, loads, ranks, average)


def _evened(
    held: Mapping[str, list[Lease]],
    loads: dict[str, float],
    ranks: Mapping[str, int],
    average: float,
) -> list[Move]:
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
                moves.append(Move(lease.shard, source, target))
    return moves


def _held(situation: Situation) -> tuple[dict[str, list[Lease]], list[str], int]:
    """By live process, in order; what is free; and how many there are in all."""
    held: dict[str, list[Lease]] = {process: [] for process in situation.live}
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


def _readopt(wanted: Mapping[str, list[str]], sits_down: Callable[[str, str], bool]) -> list[Move]:
    """As much of it as there is room for."""
    return [
        Move(shard, NOBODY, process)
        for process, shards in wanted.items()
        for shard in shards
        if sits_down(process, shard)
    ]


def _stuck(situation: Situation, free: list[str], moves: Collection[Move]) -> dict[str, list[str]]:
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


def _cheapest(leases: list[Lease]) -> list[str]:
    """To steal: not what is changing hands already, if there is something else."""
    return [
        lease.shard for lease in sorted(leases, key=lambda each: (each.is_handing_over, each.shard))
    ]


def _weight(lease: Lease) -> float:
    return max(WEIGHT_MIN, lease.bytes_per_s)
