"""A TCP proxy in front of every store, through which the others reach it; links fail on demand.

A link is one direction between two stores: what the first one says to the second. Whoever dials
says who it is in its first frame, which the proxy reads.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Self

import msgspec

from raftwood.net.frames import HEADER_BYTES
from raftwood.net.handshake import Hello
from raftwood.net.store_names import split_address

_LENGTH_AT = slice(16, 20)
_PIECE_BYTES = 64 << 10
_decode_hello = msgspec.msgpack.Decoder(Hello).decode

Accepter = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]
Link = tuple[int, int]
"""From and to."""


class Proxies:
    """Use it as a context manager; `addresses` are those that stores are to be told."""

    def __init__(self, targets: Mapping[int, str]) -> None:
        self._targets = targets
        self.addresses: dict[int, str] = {}
        self._listeners: list[asyncio.Server] = []
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._writers: dict[asyncio.StreamWriter, int] = {}
        """And the store that is dialled."""
        self._open: dict[Link, asyncio.Event] = {}
        self.latency_s = 0.0

    async def __aenter__(self) -> Self:
        for store in self._targets:
            listener = await asyncio.start_server(self._accepter(store), "127.0.0.1", 0)
            self._listeners.append(listener)
            port = listener.sockets[0].getsockname()[1]
            self.addresses[store] = f"127.0.0.1:{port}"
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

    # Faults

    def stall(self, source: int, target: int) -> None:
        """Nothing comes through any more, and nobody is told: as a network that loses all."""
        self._gate(source, target).clear()

    def go_on(self, source: int, target: int) -> None:
        self._gate(source, target).set()

    def isolate(self, store: int) -> None:
        for other in self._targets:
            if other != store:
                self.stall(store, other)
                self.stall(other, store)

    def heal(self) -> None:
        for gate in self._open.values():
            gate.set()

    def reset(self, store: int) -> None:
        """Break all connections to a store."""
        for writer, target in list(self._writers.items()):
            if target == store:
                writer.transport.abort()

    def _gate(self, source: int, target: int) -> asyncio.Event:
        gate = self._open.get((source, target))
        if gate is None:
            gate = self._open[source, target] = asyncio.Event()
            gate.set()
        return gate

    # Connections

    def _accepter(self, store: int) -> Accepter:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks[task] = None
            try:
                with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                    await self._serve(store, reader, writer)
            except asyncio.CancelledError:
                pass  # the proxy ends
            finally:
                writer.transport.abort()
                self._tasks.pop(task, None)

        return accept

    async def _serve(
        self, store: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        header = await reader.readexactly(HEADER_BYTES)
        payload = await reader.readexactly(int.from_bytes(header[_LENGTH_AT], "little"))
        hello = _decode_hello(payload)
        source = int(hello.node_id) if hello.role == "store" else 0
        host, port = split_address(self._targets[store])
        far_reader, far_writer = await asyncio.open_connection(host, port)
        self._writers[writer] = self._writers[far_writer] = store
        try:
            await self._gate(source, store).wait()
            far_writer.write(header + payload)
            pumps = [
                asyncio.create_task(self._pump(reader, far_writer, self._gate(source, store))),
                asyncio.create_task(self._pump(far_reader, writer, self._gate(store, source))),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
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
