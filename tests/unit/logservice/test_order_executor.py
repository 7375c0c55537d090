"""A store kills a zombie, and refuses to kill a replica that it knows to be a member."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from raftwood.logservice.hakeeper.orders import EPOCH_OF_REMOVED, Order, OrderKind, Orders
from raftwood.logservice.server.order_executor import OrderExecutor
from raftwood.raft.host.host import Host
from tests.running import run


class HostStub:
    """Has one replica, of shard 7, on store 4."""

    def __init__(self, epoch: int, voters: tuple[int, ...]) -> None:
        self._status = SimpleNamespace(store=4, epoch=epoch, voters=voters, learners=())
        self.removed: list[int] = []

    def groups(self) -> list[int]:
        return [7]

    def halted(self) -> dict[int, str]:
        return {}

    def status(self, shard: int) -> SimpleNamespace:
        assert shard == 7
        return self._status

    async def remove_replica(self, shard: int) -> None:
        self.removed.append(shard)


@pytest.mark.parametrize(
    ("epoch", "voters", "ordered_at", "is_killed"),
    [
        (5, (1, 2, 4), 9, True),
        (9, (1, 2, 3), 9, True),
        (9, (1, 2, 4), 9, False),
        (12, (1, 2, 4), 9, False),
        (12, (1, 2, 4), EPOCH_OF_REMOVED, True),
    ],
    ids=["below the epoch", "knows that it is out", "member", "member by now", "removed shard"],
)
def test_a_member_is_not_killed_as_a_zombie(
    *, epoch: int, voters: tuple[int, ...], ordered_at: int, is_killed: bool
) -> None:
    host = HostStub(epoch, voters)

    async def main() -> str:
        executor = OrderExecutor(cast("Host", host), lambda shard: pytest.fail(str(shard)))
        order = Order(1, OrderKind.KILL_ZOMBIE, to_store=4, shard=7, epoch=ordered_at)
        executor.take(Orders(1, 1, (order,)), ())
        for _ in range(10):
            await asyncio.sleep(0)
        return executor.finished()[0].error

    error = run(main())
    assert bool(error) is not is_killed
    assert host.removed == ([7] if is_killed else [])
