"""A streamed response as the client reads it: bounded by credit, so a slow reader slows the server.

The client grants a window of bytes and renews it as items are consumed. The server sends while it
has credit, so at most the window and one item are ever under way.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Self

from raftwood.base.errors import Cancelled, ProtocolError, RaftwoodError
from raftwood.net.frames import HEADER_BYTES, Payload


class Stream:
    """Items of one streamed response: `async with connection.stream(...) as items: async for ...`.

    Leaving the block, or `close()`, cancels what the server still does for it.
    """

    def __init__(
        self, window_bytes: int, grant: Callable[[int], None], cancel: Callable[[], None]
    ) -> None:
        self._window_bytes = window_bytes
        self._grant = grant
        self._cancel = cancel
        self._items: deque[Payload] = deque()
        self._credit = window_bytes
        self._consumed = 0
        self._waiter: asyncio.Future[None] | None = None
        self._is_finished = False
        self._error: RaftwoodError | None = None

    @property
    def buffered_bytes(self) -> int:
        return sum(HEADER_BYTES + len(item) for item in self._items)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Payload:
        while not self._items:
            if self._error is not None:
                raise self._error
            if self._is_finished:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        item = self._items.popleft()
        self._consumed += HEADER_BYTES + len(item)
        # Renewed by halves: a frame per item would cost as much as the item.
        if self._consumed * 2 >= self._window_bytes and not self._is_finished:
            self._credit += self._consumed
            self._grant(self._consumed)
            self._consumed = 0
        return item

    def close(self) -> None:
        """Want no more: items not read yet are dropped and the server is told to stop."""
        self._items.clear()
        if not self._is_finished:
            self._cancel()
            self.finish(Cancelled("the stream was closed by its reader"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    # For the connection.

    def push(self, item: Payload) -> None:
        if self._credit <= 0:
            raise ProtocolError("the server sent more on a stream than it had credit for")
        self._credit -= HEADER_BYTES + len(item)
        self._items.append(item)
        self._wake()

    def finish(self, error: RaftwoodError | None = None) -> None:
        """The end; items received before it can still be read."""
        self._is_finished = True
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
