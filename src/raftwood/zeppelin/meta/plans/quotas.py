"""How much each node is to have: as evenly as failure domains of different sizes allow."""

from collections.abc import Sequence
from typing import NamedTuple


class Group(NamedTuple):
    """Nodes that share bounds, such as those of a failure domain."""

    nodes: list[int]
    least: int
    most: int


class Pool(NamedTuple):
    """Nodes that are to have equally much, `extras` of them one more."""

    nodes: list[int]
    base: int
    extras: int
    is_bounded: bool = False
    """They have what they must or can, be it more or less than others."""


def pools(total: int, groups: Sequence[Group]) -> list[Pool]:
    """Share a number of things among all nodes; where an equal share is beyond a group's bounds, it
    has what the bound says, and the others share the rest.
    """
    found: list[Pool] = []
    left = [group for group in groups if group.nodes]
    while left:
        count = sum(len(group.nodes) for group in left)
        # One that has exactly what a bound says shares no extras with others, either.
        above = [group for group in left if total * len(group.nodes) >= group.most * count]
        below = [group for group in left if total * len(group.nodes) <= group.least * count]
        if not above and not below:
            nodes = sorted(node for group in left for node in group.nodes)
            return [*found, Pool(nodes, *divmod(total, count))]
        too_much = sum(total * len(group.nodes) - group.most * count for group in above)
        too_little = sum(group.least * count - total * len(group.nodes) for group in below)
        # The greater of the two is there still once the other is put right.
        is_above = bool(above) and (not below or too_much >= too_little)
        bounded = above if is_above else below
        for group in bounded:
            bound = group.most if is_above else group.least
            found.append(Pool(group.nodes, *divmod(bound, len(group.nodes)), True))
            total -= bound
        firsts = {group.nodes[0] for group in bounded}
        left = [group for group in left if group.nodes[0] not in firsts]
    return found


class Looks:
    """How much may be looked at for one plan where nothing goes straight: a few seconds' worth."""

    def __init__(self) -> None:
        self.left = 2_000_000


def quotas_of(found: Sequence[Pool], loads: Sequence[int], elsewhere: Sequence[int]) -> list[int]:
    """What each node is to have; one more is for those that have it, then for those that have
    little elsewhere.
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
