"""`Spread`: replicas are moved from nodes that have too many to those that have too few.

One move from each node that has too many to one that has too few is the least that is needed; where
a replica may not go there, others make way for it by the shortest chain.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from raftwood.zeppelin.meta.plans.quotas import Looks, Pool

_PASSES_MAX: Final = 16

_Step = tuple[int, int, int]
"""An item, from where, to where."""


class Spread:
    """Items are partitions and nodes are numbers; those that are `able` may get something, and
    those that are `leaving` are to have nothing. The others keep what they have.
    """

    def __init__(
        self,
        items: Sequence[Sequence[int]],
        *,
        able: Sequence[int],
        leaving: Sequence[int],
        domains: Sequence[int],
        looks: Looks,
    ) -> None:
        self.before = [frozenset(nodes) for nodes in items]
        self.now = [set(nodes) for nodes in items]
        self._able = able
        self._leaving = leaving
        self._domains = domains
        self._domain_count = len({domains[node] for node in able})
        self._held: list[dict[int, None]] = [{} for _ in domains]
        for item, nodes in enumerate(items):
            for node in nodes:
                self._held[node][item] = None
        self._moved = [0] * len(items)
        self._quotas: Sequence[int] = ()
        self._open: dict[int, deque[int]] = {}
        self._turns: deque[int] = deque()
        self._looks = looks

    def load(self, node: int) -> int:
        return len(self._held[node])

    def loads(self) -> list[int]:
        return [len(held) for held in self._held]

    def move_apart(self) -> int:
        """Where replicas share a failure domain that need not, one goes to another; so many did."""
        moved = 0
        may_give = {*self._able, *self._leaving}
        for item, nodes in enumerate(self.now):
            while self._distinct(nodes) < min(len(nodes), self._domain_count):
                taken = {self._domains[node] for node in nodes}
                shared = [node for node in sorted(may_give & nodes) if self._is_shared(nodes, node)]
                free = [node for node in self._able if self._domains[node] not in taken]
                if not shared or not free:
                    break
                source = max(
                    shared, key=lambda node: (node in self._leaving, self.load(node), -node)
                )
                self._move((item, source, min(free, key=lambda node: (self.load(node), node))))
                moved += 1
        return moved

    def even(
        self, quotas: Sequence[int], leads: Sequence[int | None], leads_first: Sequence[int]
    ) -> None:
        """Until no node has more than its quota, or nothing can be done.

        From a node that leads items, so many of these go first as `leads_first` says; the other
        ones that it leads go last.
        """
        self._quotas = quotas
        over = [node for node in range(len(quotas)) if self.load(node) > quotas[node]]
        over.sort(key=lambda node: (quotas[node] > 0, quotas[node] - self.load(node)))
        self._find_open()
        for source in over:
            for item in self._candidates(source, leads, leads_first[source]):
                if self.load(source) <= quotas[source]:
                    break
                target = self._target(item, source)
                if target is not None:
                    self._move((item, source, target))
        for source in over:
            self._empty(source, lambda node: self.load(node) < quotas[node])

    def empty(self, source: int, pool: Pool) -> None:
        """What is left is taken by any node of a pool that has not one more than others yet."""
        self._quotas = [0] * len(self._held)
        self._empty(source, lambda node: self.load(node) <= pool.base)
        self._empty(source, lambda _: True)

    def _empty(self, source: int, is_end: Callable[[int], bool]) -> None:
        while self.load(source) > self._quotas[source]:
            if not self._follow(self._path(source, is_end)):
                break

    def level(self, pool: Pool, elsewhere: Sequence[int]) -> None:
        """Until nodes of a pool differ by one at the most, and then in all tables together."""
        for _ in range(_PASSES_MAX):
            order = sorted((self.load(node), elsewhere[node], node) for node in pool.nodes)
            is_better = False
            for (low, low_else, target), (high, high_else, source) in zip(
                order, reversed(order), strict=True
            ):
                difference = high - low
                is_worth = difference == 1 and high_else + high - low_else - low >= 2
                if difference < 2 and not is_worth:
                    break
                is_better |= self._level(source, target, is_needed=difference > 1)
            if not is_better:
                break

    def _level(self, source: int, target: int, *, is_needed: bool) -> bool:
        domain = self._domains[target]
        for item in self._held[source]:
            if target not in self.now[item] and self._may_go(item, source, domain):
                self._move((item, source, target))
                return True
        # All tables together are evened where it is easy.
        return is_needed and self._follow(self._path(source, lambda node: node == target))

    def _candidates(self, source: int, leads: Sequence[int | None], leads_first: int) -> list[int]:
        # One replica of a partition if possible: they wait for one another.
        items = sorted(self._held[source], key=lambda item: self._moved[item])
        led = [item for item in items if leads[item] == source]
        others = [item for item in items if leads[item] != source]
        return led[:leads_first] + others + led[leads_first:]

    def _move(self, step: _Step) -> None:
        item, source, target = step
        self.now[item].remove(source)
        self.now[item].add(target)
        del self._held[source][item]
        self._held[target][item] = None
        self._moved[item] += 1

    # Failure domains

    def _distinct(self, nodes: set[int]) -> int:
        return len({self._domains[node] for node in nodes})

    def _is_shared(self, nodes: set[int], node: int) -> bool:
        domain = self._domains[node]
        return sum(self._domains[each] == domain for each in nodes) > 1

    def _may_go(self, item: int, source: int, domain: int) -> bool:
        """Whether the replicas are in as many domains after that as before, or as can be."""
        if self._domain_count == 1 or domain == self._domains[source]:
            return True
        nodes = self.now[item]
        after = len({self._domains[node] for node in nodes if node != source} | {domain})
        return after >= min(len(nodes), self._domain_count) or after >= self._distinct(nodes)

    # Nodes that have too few

    def _find_open(self) -> None:
        self._open = {}
        missing = [node for node in self._able if self.load(node) < self._quotas[node]]
        for node in sorted(missing, key=lambda node: self.load(node) - self._quotas[node]):
            self._open.setdefault(self._domains[node], deque()).append(node)
        self._turns = deque(self._open)

    def _target(self, item: int, source: int) -> int | None:
        """The next in turn that has too few, and may have this."""
        for _ in range(len(self._turns)):
            domain = self._turns[0]
            nodes = self._open[domain]
            while nodes and self.load(nodes[0]) >= self._quotas[nodes[0]]:
                nodes.popleft()
            if not nodes:
                self._turns.popleft()
                continue
            self._turns.rotate(-1)
            if self._may_go(item, source, domain):
                for _ in range(len(nodes)):
                    node = nodes[0]
                    nodes.rotate(-1)
                    if node not in self.now[item] and self.load(node) < self._quotas[node]:
                        return node
        return None

    # Chains

    def _path(self, start: int, is_end: Callable[[int], bool]) -> list[_Step]:
        """The chain from a node to one at which it may end that costs the fewest moves: what has
        moved already goes elsewhere for nothing.
        """
        costs = {start: 0}
        reached: dict[int, _Step] = {}
        queue = deque([start])
        settled: set[int] = set()
        while queue and self._looks.left > 0:
            source = queue.popleft()
            if source in settled:
                continue
            settled.add(source)
            if source != start and is_end(source):
                return _steps(reached, source)
            left = [node for node in self._able if node not in settled]
            self._looks.left -= len(left)
            for item in self._held[source]:
                self._looks.left -= len(left)
                was_here = source in self.before[item]
                for node in left:
                    is_move = was_here and node not in self.before[item]
                    cost = costs[source] + is_move
                    if cost >= costs.get(node, 1 << 30) or node in self.now[item]:
                        continue
                    if self._may_go(item, source, self._domains[node]):
                        costs[node] = cost
                        reached[node] = (item, source, node)
                        (queue.append if is_move else queue.appendleft)(node)
        return []

    def _follow(self, path: list[_Step]) -> bool:
        """Go along a chain as far as it holds: one item may be in it twice."""
        for number, (item, source, target) in enumerate(path):
            nodes = self.now[item]
            if (
                source not in nodes
                or target in nodes
                or not self._may_go(item, source, self._domains[target])
            ):
                return number > 0
            self._move((item, source, target))
        return bool(path)


def _steps(reached: dict[int, _Step], node: int) -> list[_Step]:
    steps: list[_Step] = []
    while node in reached:
        steps.append(reached[node])
        node = reached[node][1]
    return steps[::-1]
