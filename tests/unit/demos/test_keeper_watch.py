"""What HAKeeper sees is told as it changes, once, in words."""

from typing import Any

import msgspec
import pytest

from raftwood.logservice.hakeeper.commands import ClusterView, KeeperShardView, StoreView
from raftwood.logservice.hakeeper.messages import OrderKind
from raftwood.logservice.hakeeper.state import ClusterPhase, FailedOrder
from raftwood_demos.logservice import changes


def shard(number: int = 1, **other: Any) -> KeeperShardView:
    known = KeeperShardView(number, "", 3, 0, (1, 2, 3), (), {}, 1, 2, 3, {2: 0, 3: 0})
    return msgspec.structs.replace(known, **other)


def store(number: int, *, is_live: bool = True) -> StoreView:
    return StoreView(number, "", "", "1", is_live, False, 0, 1, 0, 0, 0)


def view(**other: Any) -> ClusterView:
    stores = tuple(store(number) for number in (1, 2, 3))
    known = ClusterView(ClusterPhase.RUNNING, "", 9, 1, stores, (shard(),), (), (), (), (), ())
    return msgspec.structs.replace(known, **other)


def test_the_first_view_tells_the_phase() -> None:
    assert changes(None, view()) == ["HAKeeper: running"]


def test_nothing_new_is_not_told() -> None:
    assert changes(view(), view(tick=10, shards=(shard(leader=2, term=3),))) == []


@pytest.mark.parametrize(
    ("after", "told"),
    [
        (
            {"phase": ClusterPhase.BOOTSTRAP_FAILED, "reason": "why"},
            "HAKeeper: bootstrap-failed (why)",
        ),
        ({"stores": (*view().stores, store(4))}, "HAKeeper hears of store 4"),
        ({"stores": (store(1, is_live=False),)}, "HAKeeper: store 1 is taken for lost"),
        ({"shards": (shard(learners=(4,)),)}, "shard 1: store 4 is a learner"),
        (
            {"shards": (shard(voters=(2, 3, 4)),)},
            "shard 1: store 4 votes, store 1 left; voters are 2, 3, 4",
        ),
        (
            {"failures": (FailedOrder(9, OrderKind.ADD_VOTER, "store 1", 1, "too late"),)},
            "HAKeeper: add-voter of shard 1 by store 1 failed: too late",
        ),
    ],
)
def test_a_change_is_told(after: dict[str, Any], told: str) -> None:
    assert changes(view(), view(**after)) == [told]


def test_a_learner_that_is_close_enough_to_vote_has_caught_up() -> None:
    def behind(entries: int) -> ClusterView:
        return view(shards=(shard(0, learners=(4,), lagging={4: entries}),))

    assert changes(behind(5_000), behind(2_000)) == []
    assert changes(behind(5_000), behind(20)) == [
        "HAKeeper: store 4 has caught up, 20 entries behind the leader"
    ]
    assert changes(behind(20), behind(10)) == []
