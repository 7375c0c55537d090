"""`Evening`: a table's replicas and masters, spread over the nodes that may have them."""

from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

import msgspec

from raftwood.base.errors import Unavailable
from raftwood.zeppelin.meta.plans.layout import Layout
from raftwood.zeppelin.meta.plans.masters import choose_masters
from raftwood.zeppelin.meta.plans.quotas import Looks, Pool, pools, quotas_of
from raftwood.zeppelin.meta.plans.spread import Spread
from raftwood.zeppelin.model import Table


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Who has a table's partitions in the end, by the numbers of nodes."""

    table: Table
    before: list[list[int]]
    after: list[set[int]]
    masters_before: list[int | None]
    masters_after: list[int | None]
    moves_min: int
    uneven: list[str]


class Evening:
    """Tables one after the other: what one has too much somewhere, the next has there less of."""

    def __init__(
        self, layout: Layout, *, is_balanced: bool, receivers: Sequence[int] | None = None
    ) -> None:
        """Nodes that stay give what they have too much of where it `is_balanced`; `receivers`, if
        given, are all that get something.
        """
        self._layout = layout
        self._is_balanced = is_balanced
        self._receivers = receivers
        self._looks = Looks()
        self._replicas = [0] * len(layout.ids)
        self._masters = [0] * len(layout.ids)

    def of(self, table: Table) -> Outcome:
        layout = self._layout
        items = layout.items(table)
        present = [
            None if each.preferred is None else layout.numbers.get(each.preferred)
            for each in table.partitions
        ]
        if layout.leaving:
            layout.check_room(table, items)
        spread = Spread(
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
        return Outcome(
            table=table,
            before=items,
            after=spread.now,
            masters_before=present,
            masters_after=masters,
            moves_min=max(fewer, apart),
            uneven=self._uneven(table, after, masters, shares),
        )

    def _spread(
        self, spread: Spread, items: list[list[int]], present: list[int | None]
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

    def _check_empty(self, spread: Spread, table: Table) -> None:
        for node in self._layout.leaving:
            if spread.load(node):
                raise Unavailable(
                    f"{spread.load(node)} replicas of table {table.name!r} on node "
                    f"{self._layout.ids[node]!r} have nowhere to go: start nodes in other failure "
                    "domains, or ask for fewer domains"
                )

    def _led(self, after: list[set[int]], present: list[int | None]) -> list[int | None]:
        """Where masters are to be; those of nodes that are down stay theirs."""
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
        """Then they are that again; else what need not change does not."""
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
    """Quotas where of these nodes only some get something: the others give them that, those with
    most first.
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
