"""Shares are even, within the bounds of each group, and add up."""

import random

import pytest

from raftwood.zeppelin.meta.balancer import NodeGroup, pools, quotas_of


@pytest.mark.parametrize("seed", range(200))
def test_shares_add_up_within_bounds_and_are_even_where_nothing_is_in_the_way(seed: int) -> None:
    chance = random.Random(seed)
    groups: list[NodeGroup] = []
    count = 0
    for _ in range(chance.randint(1, 6)):
        size = chance.randint(1, 4)
        least = chance.choice((0, 0, 4, 8))
        groups.append(
            NodeGroup([*range(count, count + size)], least, least + chance.randint(0, 12))
        )
        count += size
    least = sum(group.least for group in groups)
    total = chance.randint(least, sum(group.most for group in groups))
    found = pools(total, groups)
    loads = [chance.randint(0, 9) for _ in range(count)]
    quotas = quotas_of(found, loads, [0] * count)
    assert sum(quotas) == total
    assert sorted(node for pool in found for node in pool.nodes) == [*range(count)]
    for pool in found:
        shares = [quotas[node] for node in pool.nodes]
        assert max(shares) - min(shares) <= 1


def test_a_group_that_needs_more_than_an_even_share_has_that_and_others_share_the_rest() -> None:
    found = pools(24, [NodeGroup([0], 8, 8), NodeGroup([1, 2], 8, 8), NodeGroup([3, 4, 5], 8, 8)])
    assert quotas_of(found, [0] * 6, [0] * 6) == [8, 4, 4, 3, 3, 2]
