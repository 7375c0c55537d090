"""`Balancer`: a table's replicas and masters, spread evenly over the nodes that may have them.

`quotas_of` computes each node's share: as even as failure domains of different sizes allow.
Zeppelin's text leaves it to operators to name each move (section 2.3), and complains that masters
gather on a few nodes. Three rules keep a plan from doing harm:

- As few moves as possible: each is a whole copy of a partition
  (`test_a_cluster_in_disorder_is_balanced_with_the_fewest_moves`).
- Never fewer failure domains than before: an even cluster whose replicas share a rack loses them
  together (`test_replicas_are_in_distinct_domains_and_even_after_balance`).
- What a plan has made even, the next plan leaves alone, or replicas would wander for ever
  (`test_domains_of_any_sizes_are_kept_apart_and_a_second_plan_has_nothing_to_do`).
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

import msgspec

from raftwood.base.errors import Unavailable
from raftwood.zeppelin.model import NodeId, Table, Topology


class NodeGroup(NamedTuple):
    """Nodes that share bounds, such as those of a failure domain."""

    nodes: list[int]
    least: int
    most: int


class Pool(NamedTuple):
    """Nodes with equal shares; `extras` of them get one more."""

    nodes: list[int]
    base: int
    extras: int
    is_bounded: bool = False
    """Their shares are their bounds, above or below others'."""


def pools(total: int, groups: Sequence[NodeGroup]) -> list[Pool]:
    """Shares a number of things among all nodes. A group whose equal share would break its bounds
    gets its bound, and the others share the rest.
    """
    found: list[Pool] = []
    left = [group for group in groups if group.nodes]
    while left:
        count = sum(len(group.nodes) for group in left)
        # A group whose share is exactly its bound is taken out as well: it can take no extra.
        above = [group for group in left if total * len(group.nodes) >= group.most * count]
        below = [group for group in left if total * len(group.nodes) <= group.least * count]
        if not above and not below:
            nodes = sorted(node for group in left for node in group.nodes)
            return [*found, Pool(nodes, *divmod(total, count))]
        too_much = sum(total * len(group.nodes) - group.most * count for group in above)
        too_little = sum(group.least * count - total * len(group.nodes) for group in below)
        # Fix the greater deviation first: it remains after the other is fixed, while fixing it may
        # remove the other.
        is_above = bool(above) and (not below or too_much >= too_little)
        bounded = above if is_above else below
        for group in bounded:
            bound = group.most if is_above else group.least
            found.append(Pool(group.nodes, *divmod(bound, len(group.nodes)), True))
            total -= bound
        firsts = {group.nodes[0] for group in bounded}
        left = [group for group in left if group.nodes[0] not in firsts]
    return found


class SearchBudget:
    """How many steps one plan may search for chains of moves: a few seconds' worth. A plan that is
    not the best is better than one that never comes."""

    def __init__(self) -> None:
        self.left = 2_000_000


def quotas_of(found: Sequence[Pool], loads: Sequence[int], elsewhere: Sequence[int]) -> list[int]:
    """Returns each node's share. Extras go to nodes that have them already, which saves a move,
    then to those that have little of other tables.
    """
    quotas = [0] * len(loads)
    for pool in found:
        for node in pool.nodes:
            quotas[node] = pool.base
        order = sorted(
            (loads[node] <= pool.base, elsewhere[node], -loads[node], node) for node in pool.nodes
        )
        for *_, node in order[: pool.extras]:
            quotas[node] += 1
    return quotas


# `NodeLayout`: the nodes of a topology as numbers, and what each may get or has to give away.


class NodeLayout:
    """Which nodes may get something: those that are up, unless they are leaving or draining. Nodes
    that are neither able nor leaving keep what they have: a node that is down for an hour comes
    back with its data, and moving all of it away and back would take days.
    """

    def __init__(
        self, topology: Topology, leaving: Collection[NodeId], *, has_domains: bool = True
    ) -> None:
        self.ids = sorted(topology.nodes)
        self.numbers = {node: number for number, node in enumerate(self.ids)}
        nodes = [topology.nodes[node] for node in self.ids]
        names = {each.failure_domain: number for number, each in enumerate(nodes)}
        self.domains = [names[each.failure_domain] if has_domains else 0 for each in nodes]
        self.leaving = [self.numbers[node] for node in sorted(leaving)]
        self.able = [
            number
            for number, each in enumerate(nodes)
            if each.is_up and not each.is_draining and each.id not in leaving
        ]
        self.kept = {*range(len(nodes))} - {*self.leaving} - {*self.able}

    def items(self, table: Table) -> list[list[int]]:
        return [[self.numbers[node] for node in each.replicas] for each in table.partitions]

    def check_room(self, table: Table, items: Sequence[Sequence[int]]) -> None:
        """Raises `Unavailable` if nodes or failure domains do not suffice for all replicas."""
        domains = {self.domains[node] for node in self.able}
        for number, nodes in enumerate(items):
            kept = [node for node in nodes if node in self.kept]
            if len(self.able) + len(kept) < len(nodes):
                raise Unavailable(
                    f"partition {number} of table {table.name!r} has {len(nodes)} replicas, and "
                    f"{len(self.able)} nodes could have them: start more nodes, or remove slaves"
                )
            have = len({self.domains[node] for node in nodes})
            could = len(domains | {self.domains[node] for node in kept})
            if could < min(have, len(nodes)):
                raise Unavailable(
                    f"replicas of partition {number} of table {table.name!r} are in {have} failure "
                    f"domains, and nodes of {could} would be left: start nodes in another one, or "
                    "ask for fewer domains"
                )

    def groups(self, items: Sequence[Sequence[int]]) -> list[NodeGroup]:
        """Returns the able nodes by failure domain, with the most and the fewest replicas of each
        domain: no more of a partition than needed, and one of each if there are enough.
        """
        domains: dict[int, list[int]] = {}
        for node in self.able:
            domains.setdefault(self.domains[node], []).append(node)
        count = len(domains)
        least = dict.fromkeys(domains, 0)
        most = dict.fromkeys(domains, 0)
        for size, number in self._sizes(items).items():
            for domain, nodes in domains.items():
                least[domain] += number if size >= count else 0
                most[domain] += number * (1 if size <= count else min(len(nodes), size - count + 1))
        for replicas in items if self.kept else ():
            kept = [self.domains[node] for node in replicas if node in self.kept]
            for domain in dict.fromkeys(kept):
                if domain in domains:
                    least[domain] -= len(replicas) >= count
                    most[domain] -= len(replicas) <= count
        return [NodeGroup(nodes, least[each], most[each]) for each, nodes in domains.items()]

    @staticmethod
    def _sizes(items: Sequence[Sequence[int]]) -> dict[int, int]:
        sizes: dict[int, int] = {}
        for nodes in items:
            sizes[len(nodes)] = sizes.get(len(nodes), 0) + 1
        return sizes


# `ReplicaSpread`: moves replicas from nodes that have too many to nodes that have too few.
#
# Each surplus replica needs at least one move; if it may not go to a node that has too few, others
# make way for it by the shortest chain.

_PASSES_MAX: Final = 16

_Step = tuple[int, int, int]
"""An item, its source, its target."""


class ReplicaSpread:
    """Moves of items (partitions) between nodes (by number). `able` nodes may get items, `leaving`
    ones end with none. The others keep theirs.
    """

    def __init__(
        self,
        items: Sequence[Sequence[int]],
        *,
        able: Sequence[int],
        leaving: Sequence[int],
        domains: Sequence[int],
        looks: SearchBudget,
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
        """Moves replicas that share a failure domain without need; returns how many."""
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
        """Moves items until no node has more than its quota, or no move is possible.

        A node first gives away `leads_first` of the items that it leads, and the rest of these
        last.
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
        """Moves the rest to nodes of a pool, first to those that have no extra yet."""
        self._quotas = [0] * len(self._held)
        self._empty(source, lambda node: self.load(node) <= pool.base)
        self._empty(source, lambda _: True)

    def _empty(self, source: int, is_end: Callable[[int], bool]) -> None:
        while self.load(source) > self._quotas[source]:
            if not self._follow(self._path(source, is_end)):
                break

    def level(self, pool: Pool, elsewhere: Sequence[int]) -> None:
        """Moves items until the nodes of a pool differ by one at the most, then also in all tables
        together.

        Table by table alone is not enough: with a thousand small tables the same node could have
        the extra one of each (`test_many_small_tables_are_even_all_together`).
        """
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
        # All tables together are evened only if one move does it.
        return is_needed and self._follow(self._path(source, lambda node: node == target))

    def _candidates(self, source: int, leads: Sequence[int | None], leads_first: int) -> list[int]:
        # Prefer other partitions: two replicas of one move one after the other.
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
        """Whether a move leaves the replicas in as many failure domains as before, or as can be."""
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
        """Returns the next node in turn that has too few and may have this item."""
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
        """Returns the cheapest chain of moves from a node to a possible end, by the number of
        copies: an item that moves already goes elsewhere for nothing.

        Needed if no direct move keeps the failure domains apart
        (`test_what_a_new_node_has_already_goes_by_way_of_another`).
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
        """Follows a chain while its moves are possible: one item may be in it twice."""
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


# `choose_masters`: chooses the master of each partition, evenly, with the fewest changes.

_Reached = dict[int, "tuple[int, int] | None"]
"""The partition and the node from which a node is reached; None: the chain begins there."""


def choose_masters(
    replicas: Sequence[Sequence[int]],
    present: Sequence[int | None],
    able: Sequence[int],
    elsewhere: Sequence[int],
    looks: SearchBudget,
    *,
    is_level: bool,
) -> list[int]:
    """Returns a replica for each partition: the present master, unless it is no longer a replica or
    leads too many. `able` nodes may lead; `elsewhere` is what they lead in other tables. A change
    of masters costs a freeze and no copy (`test_masters_are_evened_without_a_move`).
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
        looks: SearchBudget,
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
        """Returns the least and most partitions that each node leads, never above its replicas."""
        has = [0] * len(self._led)
        for nodes in self._replicas:
            for node in nodes:
                has[node] += 1
        least, most = [0] * len(has), [0] * len(has)
        for pool in pools(len(self._replicas), [NodeGroup([node], 0, has[node]) for node in able]):
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
        """Changes masters until no node leads more than its share, then until none leads less."""
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
        """Follows chains from nodes that lead too many, by way of others, to nodes that lead too
        few, the shortest first; returns whether there was one.
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
        """Gives the extra partitions of this table to nodes that lead fewer elsewhere."""
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
        """Returns the reachable ends, the nearest first."""
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
        """Follows a chain, unless another chain has used a part of it."""
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


# `Balancer`: a table's replicas and masters, spread over the nodes that may have them.


class BalancedTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table's replicas and masters before and after, by the numbers of nodes."""

    table: Table
    before: list[list[int]]
    after: list[set[int]]
    masters_before: list[int | None]
    masters_after: list[int | None]
    moves_min: int
    uneven: list[str]


class Balancer:
    """Balances tables one after the other: a node with extras of one gets fewer of the next."""

    def __init__(
        self, layout: NodeLayout, *, is_balanced: bool, receivers: Sequence[int] | None = None
    ) -> None:
        """With `is_balanced`, nodes that stay also give away their surplus; without it only leaving
        nodes give. With `receivers`, only these get something.
        """
        self._layout = layout
        self._is_balanced = is_balanced
        self._receivers = receivers
        self._looks = SearchBudget()
        self._replicas = [0] * len(layout.ids)
        self._masters = [0] * len(layout.ids)

    def of(self, table: Table) -> BalancedTable:
        layout = self._layout
        items = layout.items(table)
        present = [
            None if each.preferred is None else layout.numbers.get(each.preferred)
            for each in table.partitions
        ]
        if layout.leaving:
            layout.check_room(table, items)
        spread = ReplicaSpread(
            items,
            able=layout.able,
            leaving=layout.leaving,
            domains=layout.domains,
            looks=self._looks,
        )
        before = spread.loads()
        apart = spread.move_apart() if self._is_balanced and self._receivers is None else 0
        shares = self._spread(spread, items, present)
        self._check_empty(spread, table)
        masters = self._led(spread.now, present)
        after = spread.loads()
        for node in layout.able:
            self._replicas[node] += after[node]
        for leader in masters:
            if leader is not None:
                self._masters[leader] += 1
        fewer = sum(max(0, old - new) for old, new in zip(before, after, strict=True))
        return BalancedTable(
            table=table,
            before=items,
            after=spread.now,
            masters_before=present,
            masters_after=masters,
            moves_min=max(fewer, apart),
            uneven=self._uneven(table, after, masters, shares),
        )

    def _spread(
        self, spread: ReplicaSpread, items: list[list[int]], present: list[int | None]
    ) -> list[Pool]:
        layout, loads = self._layout, spread.loads()
        total = sum(loads[node] for node in (*layout.able, *layout.leaving))
        shares = pools(total, layout.groups(items))
        quotas = quotas_of(shares, loads, self._replicas)
        was_even = all(loads[node] <= quotas[node] for node in layout.able)
        for node in layout.kept:
            quotas[node] = loads[node]
        if not self._is_balanced:
            for node in layout.able:
                quotas[node] = max(quotas[node], loads[node])
        if self._receivers is not None:
            for pool in shares:
                quotas = _limited(quotas, loads, pool.nodes, self._receivers)
        spread.even(quotas, present, self._masters_too_many(present))
        for node in layout.leaving:
            for pool in shares:
                spread.empty(node, pool)
        if self._receivers is None and (self._is_balanced or was_even):
            elsewhere = self._replicas if self._is_balanced else [0] * len(loads)
            for pool in shares:
                spread.level(pool, elsewhere)
        return shares

    def _masters_too_many(self, present: list[int | None]) -> list[int]:
        able = self._layout.able
        led = [0] * len(self._layout.ids)
        for node in present:
            if node is not None:
                led[node] += 1
        share = -(-sum(led) // max(len(able), 1))
        return [max(0, count - share) for count in led]

    def _check_empty(self, spread: ReplicaSpread, table: Table) -> None:
        for node in self._layout.leaving:
            if spread.load(node):
                raise Unavailable(
                    f"{spread.load(node)} replicas of table {table.name!r} on node "
                    f"{self._layout.ids[node]!r} have nowhere to go: start nodes in other failure "
                    "domains, or ask for fewer domains"
                )

    def _led(self, after: list[set[int]], present: list[int | None]) -> list[int | None]:
        """Returns the preferred masters; partitions of nodes that are down keep theirs."""
        able = set(self._layout.able)
        led = list(present)
        free = [
            number
            for number, nodes in enumerate(after)
            if present[number] not in self._layout.kept and nodes & able
        ]
        chosen = choose_masters(
            [sorted(after[number]) for number in free],
            [present[number] for number in free],
            self._layout.able,
            self._masters if self._is_balanced else [0] * len(self._layout.ids),
            self._looks,
            is_level=self._is_balanced or self._were_even(present),
        )
        for number, node in zip(free, chosen, strict=True):
            led[number] = node
        return led

    def _were_even(self, present: list[int | None]) -> bool:
        """Whether masters were even before: then the plan evens them again. Else it changes no more
        than it must.
        """
        led = Counter(present)
        counts = [led[node] for node in self._layout.able]
        return max(counts, default=0) - min(counts, default=0) <= 1

    def _uneven(
        self, table: Table, after: list[int], masters: list[int | None], shares: list[Pool]
    ) -> list[str]:
        able = self._layout.able
        if not able:
            return []
        led = [0] * len(after)
        for node in masters:
            if node is not None:
                led[node] += 1
        texts = []
        for counts, what in ((after, "replicas"), (led, "masters")):
            low = min(able, key=lambda node: (counts[node], node))
            high = max(able, key=lambda node: (counts[node], -node))
            if counts[high] - counts[low] > 1:
                texts.append(
                    f"table {table.name!r}: node {self._layout.ids[high]!r} has {counts[high]} "
                    f"{what} and node {self._layout.ids[low]!r} {counts[low]}: "
                    + self._reason(shares)
                )
        return texts

    def _reason(self, shares: list[Pool]) -> str:
        if self._receivers is not None:
            return "only the nodes that were named get something"
        if not self._is_balanced:
            return "only what must is moved; see balance"
        if any(pool.is_bounded for pool in shares):
            return "failure domains have different numbers of nodes"
        return "no move keeps replicas in distinct failure domains"


def _limited(
    quotas: list[int], loads: list[int], nodes: Sequence[int], receivers: Sequence[int]
) -> list[int]:
    """Returns quotas with which only the receivers get something: other nodes give it, those with
    the largest surplus first.
    """
    may_get = {*receivers} & {*nodes}
    wanted = sum(max(0, quotas[node] - loads[node]) for node in may_get)
    limited = list(quotas)
    for node in nodes:
        limited[node] = max(quotas[node], loads[node]) if node in may_get else loads[node]
    givers = [
        (quotas[node] - loads[node], node)
        for node in nodes
        if node not in may_get and loads[node] > quotas[node]
    ]
    heapify(givers)
    while givers and wanted:
        too_much, node = heappop(givers)
        limited[node] -= 1
        wanted -= 1
        if too_much < -1:
            heappush(givers, (too_much + 1, node))
    return limited
