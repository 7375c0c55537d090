"""TCP proxies in front of processes, in a thread of their own: links between two of them fail.

Who dials is known by the process that has the other end of the connection.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Self

import psutil

HOST = "127.0.0.2"
OUTSIDE = "outside"
"""Who dials and is none of the processes: a client."""
_PIECE_BYTES = 64 << 10


class LinkProxies:
    """Use it as a context manager; each target is reached at `HOST` and its own port."""

    def __init__(self, pids: Callable[[], Mapping[str, int]]) -> None:
        """`pids` are the processes that run, by their names."""
        self._pids = pids
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="link proxies")
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._listeners: list[asyncio.Server] = []
        self._gates: dict[tuple[str, str], asyncio.Event] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _close(self) -> None:
        for listener in self._listeners:
            listener.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    def add(self, name: str, port: int) -> None:
        """Stand in front of a port of a process."""

        async def listen() -> None:
            async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await self._accept(name, port, reader, writer)

            self._listeners.append(await asyncio.start_server(accept, HOST, port))

        self._do(listen())

    # Faults.

    def cut(self, one: str, others: Sequence[str]) -> None:
        """What they say to one another is kept back, and nobody is told."""

        async def clear() -> None:
            for other in others:
                self._gate(one, other).clear()
                self._gate(other, one).clear()

        self._do(clear())

    def heal(self) -> None:
        async def open_all() -> None:
            for gate in self._gates.values():
                gate.set()

        self._do(open_all())

    def _gate(self, source: str, target: str) -> asyncio.Event:
        if (source, target) not in self._gates:
            gate = self._gates[source, target] = asyncio.Event()
            gate.set()
        return self._gates[source, target]

    # Connections.

    async def _accept(
        self, name: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = None
        try:
            with contextlib.suppress(OSError):
                source = self._owner(writer.get_extra_info("peername")[1])
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
                try:
                    await self._join(
                        self._pump(reader, far_writer, self._gate(source, name)),
                        self._pump(far_reader, writer, self._gate(name, source)),
                    )
                finally:
                    far_writer.transport.abort()
        except asyncio.CancelledError:
            pass  # the proxy ends
        finally:
            writer.transport.abort()
            self._tasks.pop(task, None)

    async def _join(self, *pumps: Coroutine[Any, Any, None]) -> None:
        tasks = [asyncio.create_task(pump) for pump in pumps]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _owner(self, port: int) -> str:
        for name, pid in self._pids().items():
            with contextlib.suppress(psutil.Error):
                connections = psutil.Process(pid).net_connections("tcp")
                if any(each.laddr and each.laddr[1] == port for each in connections):
                    return name
        return OUTSIDE

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event
    ) -> None:
        while piece := await reader.read(_PIECE_BYTES):
            await gate.wait()
            writer.write(piece)
            await writer.drain()
