"""Datagrams at a receiver: pings are answered, batches are stored, and nobody is told.

A batch may get lost on its way, or be dropped where there are too many; that is counted. One that
comes twice is stored once, wherever its file went meanwhile: it is looked for as a resumed batch.
"""

import asyncio
from collections import deque
from typing import Any, Final, cast

from msgspec.structs import replace

from raftwood.base.errors import RaftwoodError
from raftwood.base.logs import get_logger
from raftwood.clogs.datagrams import decode_datagram, encode_datagram
from raftwood.clogs.frames import Message, MessageType
from raftwood.clogs.receiver.receiver import Receiver

WAITING_MAX: Final = 10_000
"""Batches that wait to be stored; more are dropped."""
WAITING_BYTES_MAX: Final = 64 << 20
FILES_AT_ONCE_MAX: Final = 64
CLOSE_S_MAX: Final = 2.0
_log = get_logger("clogs")


class DatagramListener(asyncio.DatagramProtocol):
    """Use `listen`, and `close` when done; the receiver is its owner's."""

    def __init__(self, receiver: Receiver, *, secret: bytes, key: str) -> None:
        """`key` is the access key by whose rights batches are stored."""
        self._receiver = receiver
        self._secret = secret
        self._key = key
        self._transport: asyncio.DatagramTransport | None = None
        self._is_lost = asyncio.Event()
        self._waiting: dict[str, deque[Message]] = {}
        """By file: one of each is under way at a time, so that a file's batches keep their order
        as far as they came in order."""
        self._count = 0
        self._bytes = 0
        self._task: asyncio.Task[None] | None = None

    async def listen(self, host: str, port: int) -> int:
        """Answers the port, which the system chooses where it was 0."""
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: self, local_addr=(host, port)
        )
        return int(transport.get_extra_info("sockname")[1])

    async def close(self) -> None:
        """What has come is stored, within a moment."""
        if self._transport is not None:
            self._transport.abort()
            await self._is_lost.wait()
        if self._task is not None:
            _, late = await asyncio.wait([self._task], timeout=CLOSE_S_MAX)
            for task in late:
                task.cancel()
                await asyncio.wait(late)

    # Called by the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._is_lost.set()

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        figures = self._receiver.figures
        figures.frames += 1
        try:
            message = decode_datagram(data, self._secret)
            if message.type is MessageType.PING:
                pong = encode_datagram(self._receiver.pong(message), self._secret)
                assert self._transport is not None
                self._transport.sendto(pong, addr)
                return
        except RaftwoodError as error:
            self._drop(error)
            return
        size = len(message.body)
        if self._count >= WAITING_MAX or self._bytes + size > WAITING_BYTES_MAX:
            figures.dropped_datagrams += 1
            return
        self._count += 1
        self._bytes += size
        self._waiting.setdefault(message.name, deque()).append(message)
        if self._task is None:
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._store_all(), name="datagrams of clogs")
            self._task.add_done_callback(self._ended)

    def error_received(self, exc: Exception) -> None:
        """A pong found nobody: that is all that comes here."""

    # Storing

    async def _store_all(self) -> None:
        while self._waiting:
            names = list(self._waiting)[:FILES_AT_ONCE_MAX]
            await asyncio.gather(*(self._store(self._take(name)) for name in names))

    def _take(self, name: str) -> Message:
        queue = self._waiting.pop(name)
        message = queue.popleft()
        if queue:
            self._waiting[name] = queue  # behind all others
        return message

    async def _store(self, message: Message) -> None:
        try:
            await self._receiver.store(self._key, replace(message, place="", is_resumed=True))
        except RaftwoodError as error:
            self._drop(error)
        finally:
            self._count -= 1
            self._bytes -= len(message.body)

    def _drop(self, error: RaftwoodError) -> None:
        self._receiver.figures.dropped_datagrams += 1
        self._receiver.figures.refuse(error)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("datagrams could not be stored", exc_info=error)
