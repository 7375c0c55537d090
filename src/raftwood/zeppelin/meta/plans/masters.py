"""`choose_masters`: who of its replicas leads each partition, evenly, with the fewest changes."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from raftwood.zeppelin.meta.plans.quotas import Group, Looks, pools

_PASSES_MAX: Final = 16

_Reached = dict[int, "tuple[int, int] | None"]
"""By which partition and from which node a node is reached; None: there it begins."""


def choose_masters(
    replicas: Sequence[Sequence[int]],
    present: Sequence[int | None],
    able: Sequence[int],
    elsewhere: Sequence[int],
    looks: Looks,
    *,
    is_level: bool,
) -> list[int]:
    """Of each partition one of its replicas: the present one, unless that is no replica any more or
    leads too many. `able` nodes may lead; `elsewhere` is what they lead in other tables.
    """
    choice = _Choice(replicas, present, able, elsewhere, looks)
    if is_level:
        choice.level(able)
        choice.level_with_others(able)
    return choice.chosen


class _Choice:
    def __init__(
        self,
        replicas: Sequence[Sequence[int]],
        present: Sequence[int | None],
        able: Sequence[int],
        elsewhere: Sequence[int],
        looks: Looks,
    ) -> None:
        may_lead = set(able)
        self._replicas = [[node for node in nodes if node in may_lead] for nodes in replicas]
        self._elsewhere = elsewhere
        self._led: list[dict[int, None]] = [{} for _ in elsewhere]
        self._looks = looks
        self._least, self._most = self._shares(able)
        self.chosen = [-1] * len(replicas)
        for number, node in enumerate(present):
            if node is not None and node in self._replicas[number]:
                self._set(number, node)
        for number, nodes in enumerate(self._replicas):
            if self.chosen[number] < 0:
                self._set(number, min(nodes, key=self._room))

    def _shares(self, able: Sequence[int]) -> tuple[list[int], list[int]]:
        """How many each node leads at least and at the most; no more than it has replicas."""
        has = [0] * len(self._led)
        for nodes in self._replicas:
            for node in nodes:
                has[node] += 1
        least, most = [0] * len(has), [0] * len(has)
        for pool in pools(len(self._replicas), [Group([node], 0, has[node]) for node in able]):
            for node in pool.nodes:
                least[node], most[node] = pool.base, pool.base + (pool.extras > 0)
        return least, most

    def _load(self, node: int) -> int:
        return len(self._led[node])

    def _room(self, node: int) -> tuple[int, int]:
        return self._load(node) - self._least[node], node

    def _set(self, number: int, node: int) -> None:
        if self.chosen[number] >= 0:
            del self._led[self.chosen[number]][number]
        self.chosen[number] = node
        self._led[node][number] = None

    def level(self, able: Sequence[int]) -> None:
        """Until nobody leads more than its share, and then until nobody leads less."""
        for node in able:
            for number in [*self._led[node]]:
                if self._load(node) <= self._most[node]:
                    break
                best = min(self._replicas[number], key=self._room)
                if self._load(best) < self._most[best]:
                    self._set(number, best)
        while self._chains(able, from_above=self._most, to_below=self._most):
            pass
        while self._chains(able, from_above=self._least, to_below=self._least):
            pass

    def _chains(
        self, able: Sequence[int], *, from_above: Sequence[int], to_below: Sequence[int]
    ) -> bool:
        """From nodes that lead too many by way of others to nodes that lead too few, the shortest
        first; whether there was one.
        """
        if not any(self._load(node) < to_below[node] for node in able):
            return False
        reached: _Reached = dict.fromkeys(
            node for node in able if self._load(node) > from_above[node]
        )
        is_better = False
        for end in self._ends(reached, lambda node: self._load(node) < to_below[node]):
            is_better |= self._go_along(reached, end, from_above)
        return is_better

    def level_with_others(self, able: Sequence[int]) -> None:
        """Who leads one more than others in this table is one who leads fewer elsewhere."""
        for _ in range(_PASSES_MAX):
            is_better = False
            for node in able:
                for number in [*self._led[node]]:
                    best = min(
                        self._replicas[number],
                        key=lambda each: (self._load(each), self._elsewhere[each], each),
                    )
                    if (
                        self._load(node) == self._load(best) + 1
                        and self._elsewhere[node] > self._elsewhere[best]
                    ):
                        self._set(number, best)
                        is_better = True
                        break
            if not is_better:
                break

    def _ends(self, reached: _Reached, is_end: Callable[[int], bool]) -> "list[int]":
        """Those that are reached, the nearest first."""
        queue = deque(reached)
        ends = []
        while queue and self._looks.left > 0:
            node = queue.popleft()
            if is_end(node):
                ends.append(node)
                continue
            self._looks.left -= len(self._led[node])
            for number in self._led[node]:
                for other in self._replicas[number]:
                    if other not in reached:
                        reached[other] = (number, node)
                        queue.append(other)
        return ends

    def _go_along(self, reached: _Reached, end: int, from_above: Sequence[int]) -> bool:
        """Unless a part of it was used by another chain."""
        steps = []
        node = end
        while (step := reached[node]) is not None:
            number, source = step
            if self.chosen[number] != source:
                return False
            steps.append((number, node))
            node = source
        if self._load(node) <= from_above[node]:
            return False
        for number, target in steps:
            self._set(number, target)
        return True
