"""Plans which worker should hold which lease: all workers work out the same plan, and each takes
its own part of it.

Section 5.3.2 of the LogHub client library's text lets each worker steal until it has
ceil(shards / workers). Read literally that never ends: with 40 shards and 6 workers the two that
have 6 steal from those that have 7, round after round, and each steal stops a consumer. So quotas
are sticky here: the workers that hold most keep the larger ones. A lease moves only from a worker
that has at least two more than the one that gets it, the moves are as few as can be, and once no
two workers differ by more than one there are none
(`test_nothing_moves_once_no_two_workers_differ_by_more_than_one`; planted bug "steals at a
difference of one").

The text does not say which shards a worker picks. Two that pick for themselves pick the same ones,
and one of them loses its round. One plan for all, made from the same rows in the same order, makes
them differ (`test_two_thieves_never_pick_the_same_shard`); where their rows differ for a moment,
the compare-and-set of the store settles it.

A free lease whose row shows a live worker as its consumer is one in which that worker hangs: it has
freed the lease, and a call of its processor does not return. Another worker gets it, if there is
one, even above its quota. The quota alone would give it back to the one that hangs, which has less
than its share and cannot read it (planted bug "leaves a shard to whom it hangs in").

A worker that has just joined cannot know yet that a lease has expired: it has to watch the lease
for T itself. Such a lease goes to the others, even above their quotas; if it waited for the
newcomer, a worker that joins after a death would make the outage longer than no worker at all
(`test_what_has_expired_does_not_wait_for_a_newcomer_that_cannot_know_it`). What is above the quota
is stolen from there at once.

By weight, the sum of the recent bytes of a worker's shards counts. A lease moves only where that
evens things out by more than the figures vary by themselves, or shards would wander for ever
(`test_by_bytes_the_loads_come_close_and_then_nothing_moves`).
"""

import heapq
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import TypeAlias

import msgspec

from raftwood.loghub.consumer.leases import NOBODY, ShardLease, Take

TOLERANCE = 0.1
"""By weight, a worker whose load is above the average by a smaller share gives nothing away."""
WEIGHT_MIN = 1.0
"""The least weight of a shard. At weight 0 all idle shards could end up with one worker, which
would have the whole load once they are written to."""


class Situation(msgspec.Struct, frozen=True):
    """What a plan is made from."""

    leases: Mapping[str, ShardLease]
    live: Mapping[str, str]
    """Instance by process, sorted, so that all workers count them in one order."""
    free: Collection[str]
    """Shards that no process can be at work on."""
    newcomers: Collection[str] = ()
    """Live processes that cannot know yet which leases have expired."""


class LeaseMove(msgspec.Struct, frozen=True):
    """A change of a lease's owner; its source is `NOBODY` for a free lease."""

    shard: str
    source: str
    target: str


Planner: TypeAlias = Callable[[Situation], list[LeaseMove]]


def is_ready(lease: ShardLease, leases: Mapping[str, ShardLease]) -> bool:
    """Whether the shard may be read: it has not ended, and all its parents have.

    The text does not know splits. A child that is read beside its parent hands over newer records
    of a key before older ones (planted bug "starts a child before its parent"). A parent without a
    lease was read to its end long ago.
    """
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
    # There may be more seats than offers: what the dead hold is counted, and is not free yet. If
    # it were not counted, the living would steal from one another now, and get the dead worker's
    # shards on top a moment later
    # (`test_what_the_dead_hold_is_counted_so_that_nobody_steals_for_it`).
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
    """What to take of a plan; and the processes whose leases must be read again first.

    A renewal changes a lease's id, and scans by change do not show renewals. A steal with an id
    from an older scan is refused for certain, and would cost a round.
    """
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
    """Moves from the heaviest worker to the lightest: the largest leases that leave the heavier one
    not lighter than the other. A larger one would come back in the next round.
    """
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
    """Returns the leases of each live process, in order; the free ones; and the number to read in
    all.

    Ended shards do not count: a worker that holds two of them would look busy and get nothing
    (`test_shards_that_ended_do_not_count`).
    """
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
    """Returns, by process, free leases of a name that the new process has taken over.

    Section 5.3.1 of the text: a worker that restarts renews what its name leased. It may do so only
    once the leases are free, for the process before it may still be at work
    (`test_a_restarted_worker_has_its_leases_again_once_the_old_process_must_have_stopped`).
    """
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
    """Moves for as much of it as there is room for."""
    return [
        LeaseMove(shard, NOBODY, process)
        for process, shards in wanted.items()
        for shard in shards
        if sits_down(process, shard)
    ]


def _stuck(
    situation: Situation, free: list[str], moves: Collection[LeaseMove]
) -> dict[str, list[str]]:
    """Returns free shards whose consumer hangs in a live process, and the other live processes."""
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
    """Gives others what a newcomer cannot take yet; it steals that from them later.

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
    """Returns the order to steal in: leases that change hands already come last.

    A second thief makes the first one's wait start again, and the shard idles for both.
    """
    return [
        lease.shard for lease in sorted(leases, key=lambda each: (each.is_handing_over, each.shard))
    ]


def _weight(lease: ShardLease) -> float:
    return max(WEIGHT_MIN, lease.bytes_per_s)
