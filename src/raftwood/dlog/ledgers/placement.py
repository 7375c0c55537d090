"""Placement of entries on bookies: spread over racks, at random, bookies that failed lately last.

At random, so that the ledgers of a thousand logs do not all choose the same three bookies. Bookies
that failed lately come last and are not excluded: with few bookies a doubtful one is better than a
ledger that cannot be made.
"""

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from raftwood.base.environment import Clock
from raftwood.dlog.errors import NotEnoughBookies
from raftwood.dlog.ledgers.metadata import BookieId, BookieInfo

_KEPT_MAX = 1_000


class Quarantine:
    """Bookies that failed lately; shared by all writers and readers of a client.

    Each of a hundred ledgers would otherwise wait for its own timeout at the same dead bookie. The
    quarantine ends by itself, since no message says that a bookie is well again
    (`test_a_quarantine_ends_by_itself_and_begins_anew_with_each_failure`).
    """

    def __init__(self, clock: Clock, *, quarantine_ms: int) -> None:
        self._clock = clock
        self._quarantine_ns = quarantine_ms * 1_000_000
        self._until_ns: dict[BookieId, int] = {}

    def add(self, bookie: BookieId) -> None:
        """Notes that a bookie has failed just now."""
        self._until_ns.pop(bookie, None)
        if len(self._until_ns) >= _KEPT_MAX:
            del self._until_ns[next(iter(self._until_ns))]
        self._until_ns[bookie] = self._clock.monotonic_ns() + self._quarantine_ns

    def holds(self, bookie: BookieId) -> bool:
        if not self._until_ns:
            return False
        until_ns = self._until_ns.get(bookie)
        if until_ns is None:
            return False
        if self._clock.monotonic_ns() < until_ns:
            return True
        del self._until_ns[bookie]
        return False


def choose_ensemble(
    bookies: Sequence[BookieInfo],
    *,
    count: int,
    chance: random.Random,
    is_avoided: Callable[[BookieId], bool],
) -> tuple[BookieId, ...]:
    """Chooses the ensemble of a new ledger; `NotEnoughBookies` if too few bookies take writes."""
    chosen = _choose(bookies, count, chance=chance, is_avoided=is_avoided, beside=(), exclude=())
    if len(chosen) < count:
        raise NotEnoughBookies(
            f"a ledger needs {count} bookies that take writes, and there are {len(chosen)}: start "
            "more, or ask for a smaller ensemble"
        )
    return _interleaved(chosen, bookies)


def choose_replacements(
    bookies: Sequence[BookieInfo],
    *,
    ensemble: Sequence[BookieId],
    places: Sequence[int],
    may_return: bool,
    chance: random.Random,
    is_avoided: Callable[[BookieId], bool],
) -> dict[int, BookieId]:
    """Chooses a bookie for each place; leaves out places for which there is none.

    With `may_return` a bookie that failed may have its own place again, where no other is left: in
    a cluster of three a restart would otherwise leave every open ledger with a copy less, for ever
    (`test_where_nobody_else_is_left_a_bookie_may_have_its_place_again`).
    """
    staying = [bookie for place, bookie in enumerate(ensemble) if place not in places]
    chosen = _choose(
        bookies,
        len(places),
        chance=chance,
        is_avoided=is_avoided,
        beside=staying,
        exclude=ensemble,
    )
    replaced = dict(zip(places, chosen, strict=False))
    if may_return:
        writable = {each.id for each in bookies if not each.is_read_only}
        for place in places:
            if place not in replaced and ensemble[place] in writable:
                replaced[place] = ensemble[place]
    return replaced


def _choose(
    bookies: Iterable[BookieInfo],
    count: int,
    *,
    chance: random.Random,
    is_avoided: Callable[[BookieId], bool],
    beside: Sequence[BookieId],
    exclude: Collection[BookieId],
) -> list[BookieId]:
    racks = {each.id: each.rack for each in bookies}
    used = Counter(racks[each] for each in beside if racks.get(each))
    free = [each for each in bookies if not each.is_read_only and each.id not in exclude]
    chance.shuffle(free)
    free.sort(key=lambda each: is_avoided(each.id))
    chosen: list[BookieId] = []
    while free and len(chosen) < count:
        # Racks come before quarantine only among those that are as good: a bookie that fails
        # protects nothing. Unknown racks count as one each.
        best = min(free, key=lambda each: (is_avoided(each.id), used[each.rack]))
        free.remove(best)
        chosen.append(best.id)
        if best.rack:
            used[best.rack] += 1
    return chosen


def _interleaved(chosen: Sequence[BookieId], bookies: Sequence[BookieInfo]) -> tuple[BookieId, ...]:
    """The bookies in an order in which neighbours are in different racks.

    Entry n goes to neighbours from place n on. Racks that are different in the ensemble, and not
    between neighbours, leave entries with all copies in one rack
    (`test_neighbours_of_a_striped_ensemble_are_in_different_racks`).
    """
    racks = {each.id: each.rack for each in bookies}
    left = list(chosen)
    ordered = [left.pop(0)]
    while left:
        following = next((each for each in left if racks[each] != racks[ordered[-1]]), left[0])
        left.remove(following)
        ordered.append(following)
    return tuple(ordered)
