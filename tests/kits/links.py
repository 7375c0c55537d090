"""TCP proxies in front of processes: links between two of them stall, break and are slow.

A link is one direction between two processes: what the first one says to the second.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Self

_PIECE_BYTES = 64 << 10
OUTSIDE = "outside"
"""Who dials and is none of the processes: a client."""

Dialled = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[tuple[str, bytes]]]
"""Who has dialled, and what was read to find out."""


class Links:
    """Use it as a context manager; all proxies live on the loop of whoever opened it."""

    def __init__(self) -> None:
        self._listeners: list[asyncio.Server] = []
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._writers: dict[asyncio.StreamWriter, str] = {}
        """And the process that is dialled."""
        self._gates: dict[tuple[str, str], asyncio.Event] = {}
        self.latency_s = 0.0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for listener in self._listeners:
            listener.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        for listener in self._listeners:
            await listener.wait_closed()

    async def stand_before(
        self, name: str, target: tuple[str, int], *, listen: tuple[str, int], dialled: Dialled
    ) -> int:
        """Take connections for a process; the port at which that happens."""

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks[task] = None
            try:
                with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                    source, begun = await dialled(reader, writer)
                    await self._serve((source, name), target, begun, reader, writer)
            except asyncio.CancelledError:
                pass  # the proxies end
            finally:
                writer.transport.abort()
                self._tasks.pop(task, None)

        listener = await asyncio.start_server(accept, *listen)
        self._listeners.append(listener)
        return int(listener.sockets[0].getsockname()[1])

    # Faults

    def stall(self, source: str, target: str) -> None:
        """Nothing comes through any more, and nobody is told: as a network that loses all."""
        self._gate(source, target).clear()

    def go_on(self, source: str, target: str) -> None:
        self._gate(source, target).set()

    def cut(self, one: str, others: Sequence[str]) -> None:
        """Both ways."""
        for other in others:
            self.stall(one, other)
            self.stall(other, one)

    def heal(self) -> None:
        for gate in self._gates.values():
            gate.set()

    def reset(self, name: str) -> None:
        """Break all connections to a process."""
        for writer, target in list(self._writers.items()):
            if target == name:
                writer.transport.abort()

    def _gate(self, source: str, target: str) -> asyncio.Event:
        if (source, target) not in self._gates:
            gate = self._gates[source, target] = asyncio.Event()
            gate.set()
        return self._gates[source, target]

    # Connections

    async def _serve(
        self,
        link: tuple[str, str],
        target: tuple[str, int],
        begun: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        far_reader, far_writer = await asyncio.open_connection(*target)
        self._writers[writer] = self._writers[far_writer] = link[1]
        try:
            await self._gate(*link).wait()
            far_writer.write(begun)
            await _first_of(
                self._pump(reader, far_writer, self._gate(*link)),
                self._pump(far_reader, writer, self._gate(*link[::-1])),
            )
        finally:
            far_writer.transport.abort()
            del self._writers[writer], self._writers[far_writer]

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event
    ) -> None:
        while piece := await reader.read(_PIECE_BYTES):
            if self.latency_s:
                await asyncio.sleep(self.latency_s)
            await gate.wait()
            writer.write(piece)
            await writer.drain()


async def _first_of(*pumps: Coroutine[Any, Any, None]) -> None:
    """Until one has ended; the others end with it."""
    tasks = [asyncio.create_task(pump) for pump in pumps]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
