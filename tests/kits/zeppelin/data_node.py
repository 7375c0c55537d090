"""Nodes for clients of Redis in a thread of their own, so that clients that block can use them."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Any, TypeVar

import uvloop

from raftwood.disk.real_environment import real_environment
from raftwood.net import ServerTls
from raftwood.zeppelin.model import TableConfig
from raftwood.zeppelin.node.checkpoints import PartitionCheckpoints
from raftwood.zeppelin.node.data_server import DataServer
from tests.kits.zeppelin.static_view import StaticView, nodes_of_all, single_node

Result = TypeVar("Result")


class DataNode:
    """Its port, and what it has."""

    def __init__(self, view: StaticView, port: int, loop: asyncio.AbstractEventLoop) -> None:
        self.view = view
        self.port = port
        self._loop = loop

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """On the node's own loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)


@contextmanager
def data_node(
    config: TableConfig | None = None, *, tls: ServerTls | None = None
) -> Iterator[DataNode]:
    """One that is the master of everything."""
    view = single_node(config=config)
    with _serving([view], tls) as (node,):
        # The topology has the port, which is known only now.
        view.topology = single_node(node.port, config=config).topology
        yield node


@contextmanager
def data_nodes(count: int, *, partitions: int = 8) -> Iterator[list[DataNode]]:
    """Several, which are masters of some partitions and slaves of the others."""
    views = nodes_of_all([0] * count, partitions=partitions)
    with _serving(views) as nodes:
        topology = nodes_of_all([node.port for node in nodes], partitions=partitions)[0].topology
        for view in views:
            view.topology = topology
        yield nodes


@contextmanager
def _serving(views: Sequence[StaticView], tls: ServerTls | None = None) -> Iterator[list[DataNode]]:
    ready: list[DataNode] = []
    is_ready = threading.Event()
    stops: list[asyncio.Event] = []

    async def main() -> None:
        stop = asyncio.Event()
        stops.append(stop)
        async with AsyncExitStack() as stack:
            for view in views:
                environment = stack.enter_context(real_environment())
                checkpoints = PartitionCheckpoints(view, environment, view.copied)
                stack.push_async_callback(checkpoints.close)
                server = await stack.enter_async_context(
                    DataServer(view, environment, checkpoints=checkpoints)
                )
                port = await server.listen(tls=tls)
                ready.append(DataNode(view, port, asyncio.get_running_loop()))
            is_ready.set()
            await stop.wait()

    def serve() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())

    thread = threading.Thread(target=serve, name="data nodes")
    thread.start()
    assert is_ready.wait(10)
    try:
        yield ready
    finally:
        ready[0]._loop.call_soon_threadsafe(stops[0].set)
        thread.join(10)
        assert not thread.is_alive()
