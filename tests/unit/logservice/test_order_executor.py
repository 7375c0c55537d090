"""Orders to a store: each shard's one after the other, and none that HAKeeper has dropped."""

import asyncio
from typing import Any, cast

from raftwood.logservice.hakeeper.messages import Order, OrderKind, Orders
from raftwood.logservice.server.heartbeats import OrderExecutor
from raftwood.raft.node_host import NodeHost


class _SlowHost:
    """Stopping takes until it is let go."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.running = [7]
        self.done: list[str] = []

    def groups(self) -> list[int]:
        return self.running

    def halted(self) -> dict[int, str]:
        return {}

    async def stop_group(self, group: int) -> None:
        await self.go_on.wait()
        self.running.remove(group)
        self.done.append("stopped")

    async def start_group(self, group: int, _: Any) -> None:
        self.running.append(group)
        self.done.append("started")


STOP = Order(1, OrderKind.STOP_REPLICA, 1, shard=7)
START = Order(2, OrderKind.START_REPLICA, 1, shard=7)


def _run(*, is_kept: bool) -> list[str]:
    async def scenario() -> list[str]:
        host = _SlowHost()
        executor = OrderExecutor(cast("NodeHost", host), lambda _: cast("Any", None))
        executor.take(Orders(1, 1, (STOP, START)), ())
        await asyncio.sleep(0)
        told = executor.finished()
        assert told == ()
        executor.take(Orders(1, 2, (STOP, START) if is_kept else (STOP,)), told)
        host.go_on.set()
        for _ in range(10):
            await asyncio.sleep(0)
        acknowledged = [each.order for each in executor.finished()]
        assert acknowledged == ([1, 2] if is_kept else [1])
        await executor.close()
        return host.done

    return asyncio.run(scenario())


def test_an_order_that_waited_is_carried_out_while_it_is_wanted() -> None:
    assert _run(is_kept=True) == ["stopped", "started"]


def test_an_order_that_comes_no_more_is_not_begun() -> None:
    assert _run(is_kept=False) == ["stopped"]
