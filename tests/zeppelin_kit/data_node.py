"""A node for clients of Redis in a thread of its own, so that clients that block can use it."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import uvloop

from raftwood.disk.real_environment import real_environment
from raftwood.zeppelin.model import TableConfig
from raftwood.zeppelin.node.data_server import DataServer
from tests.zeppelin_kit.static_view import StaticView, single_node

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
def data_node(config: TableConfig | None = None) -> Iterator[DataNode]:
    """One that is the master of everything."""
    ready: list[DataNode] = []
    is_ready = threading.Event()
    stops: list[asyncio.Event] = []

    async def main() -> None:
        stop = asyncio.Event()
        stops.append(stop)
        with real_environment() as environment:
            view = single_node(0, config=config)
            async with DataServer(view, environment) as server:
                port = await server.listen()
                # The topology has the port, which is known only now.
                view.topology = single_node(port, config=config).topology
                ready.append(DataNode(view, port, asyncio.get_running_loop()))
                is_ready.set()
                await stop.wait()

    def serve() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())

    thread = threading.Thread(target=serve, name="data node")
    thread.start()
    assert is_ready.wait(10)
    try:
        yield ready[0]
    finally:
        ready[0]._loop.call_soon_threadsafe(stops[0].set)
        thread.join(10)
        assert not thread.is_alive()
