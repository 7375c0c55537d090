"""What operators may tell HAKeeper, and what is for its own leader to say."""

import pytest

from raftwood.base.errors import InvalidInput
from raftwood.logservice.hakeeper.commands import (
    AddGuests,
    HearStore,
    KeeperCommand,
    KeeperTick,
    Schedule,
    SetInitialCluster,
)
from raftwood.logservice.hakeeper.messages import GUESTS_FIRST, StoreHeartbeat
from tests.kits.logservice.log_cluster import LogCluster, run_log_cluster

INNER: list[KeeperCommand] = [
    KeeperTick(1, 1),
    Schedule((1 << 63) - 1, 5, ()),
    HearStore(StoreHeartbeat(1, "elsewhere:1", "", "another", "0")),
    SetInitialCluster(1, 0, 1, 1, {9: "s9:1"}),
    AddGuests({GUESTS_FIRST: "guest"}),
]


def test_an_operator_can_neither_plan_nor_tick_nor_speak_for_a_store() -> None:
    async def scenario(cluster: LogCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader(1)
        operator = cluster.operator()
        await operator.describe()
        for command in INNER:
            with pytest.raises(InvalidInput, match="no operator's word"):
                await operator.command(command)
        # The planning goes on.
        assert await operator.describe()
        await operator.close()

    run_log_cluster(scenario)
