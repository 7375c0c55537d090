"""A connection to one node: sends requests together, and matches answers to them in order.

A request costs a future, which its caller awaits, and no task. A bounded number is in flight; a
caller that wants more waits for room. The connection gives up a node that owes an answer and is
silent for too long: its requests get `ConnectionEnded`.
"""

import asyncio
from collections import deque
from typing import Any, Final, TypeAlias, cast

from raftwood.base.errors import ProtocolError
from raftwood.zeppelin.client.errors import ConnectionEnded
from raftwood.zeppelin.resp import Answers

IN_FLIGHT_MAX: Final = 1_024
UNSENT_BYTES_MAX: Final = 8 << 20
SILENCE_S_MAX: Final = 7.0
"""Above the longest wait of a node: 5 s for replicas to have a write, 1.5 s for a hand-over."""

_Waiting: TypeAlias = "asyncio.Future[Any] | list[Any] | None"
"""Receiver of an answer: its caller, a list, or none."""


class NodeConnection(asyncio.Protocol):
    """One connection's callbacks; `NodePool` makes it and logs it in."""

    def __init__(self, address: str, *, silence_s_max: float) -> None:
        self.address = address
        self.is_open = False
        self._silence_s_max = silence_s_max
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._answers = Answers()
        self._pending: deque[_Waiting] = deque()
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._is_congested = False
        self._in_want_of_room: deque[asyncio.Future[None]] = deque()
        self._heard_at = 0.0
        self._silence_timer: asyncio.TimerHandle | None = None
        self._reason = ""
        self._closed = self._loop.create_future()

    # Asking.

    @property
    def is_full(self) -> bool:
        return (
            len(self._pending) >= IN_FLIGHT_MAX
            or self._is_congested
            or self._unsent_bytes > UNSENT_BYTES_MAX
        )

    def ask(
        self, encoded: bytes, *, before: int = 0, gathered: list[Any] | None = None
    ) -> "asyncio.Future[Any]":
        """Sends requests; returns the last answer. The `before` answers in front of it go to
        `gathered`, or are dropped.
        """
        answered = self._loop.create_future()
        if not self.is_open:
            answered.set_result(ConnectionEnded(self._why()))
            return answered
        pending = self._pending
        if not pending:
            self._expect()
        for _ in range(before):
            pending.append(gathered)
        pending.append(answered)
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(encoded)
        self._unsent_bytes += len(encoded)
        return answered

    async def room(self) -> None:
        """Waits until another request may be sent, or the connection is gone."""
        while self.is_open and self.is_full:
            waiter = self._loop.create_future()
            self._in_want_of_room.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                self._make_room()  # another caller may use the room that woke this one
                raise

    def _flush(self) -> None:
        unsent, self._unsent, self._unsent_bytes = self._unsent, [], 0
        if self._transport is not None and unsent:
            self._transport.write(unsent[0] if len(unsent) == 1 else b"".join(unsent))

    def _make_room(self) -> None:
        waiters = self._in_want_of_room
        for _ in range(min(len(waiters), IN_FLIGHT_MAX - len(self._pending))):
            waiter = waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)

    # The asyncio protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport but not its type.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(UNSENT_BYTES_MAX // 2, UNSENT_BYTES_MAX // 4)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        try:
            answers = self._answers.feed(data)
        except ProtocolError as error:
            self._give_up(error.message)
            return
        pending = self._pending
        if len(answers) > len(pending):
            self._give_up("it answered what nobody asked")
            return
        for answer in answers:
            waiting = pending.popleft()
            if waiting is None:
                continue
            if type(waiting) is list:
                waiting.append(answer)
            elif not waiting.done():  # type: ignore[union-attr]
                waiting.set_result(answer)  # type: ignore[union-attr]
        if self._in_want_of_room:
            self._make_room()

    def pause_writing(self) -> None:
        self._is_congested = True

    def resume_writing(self) -> None:
        self._is_congested = False
        self._make_room()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._transport = None
        self._reason = self._reason or (str(error) if error is not None else "the node ended it")
        if self._silence_timer is not None:
            self._silence_timer.cancel()
        pending, self._pending = self._pending, deque()
        lost = ConnectionEnded(self._why())
        for waiting in pending:
            if isinstance(waiting, asyncio.Future) and not waiting.done():
                waiting.set_result(lost)
        self._make_room()
        for waiter in self._in_want_of_room:
            if not waiter.done():
                waiter.set_result(None)
        self._in_want_of_room.clear()
        if not self._closed.done():
            self._closed.set_result(None)

    def _why(self) -> str:
        return f"the connection to {self.address} ended: {self._reason or 'it is closed'}"

    # Silence, and the end.

    def _expect(self) -> None:
        self._heard_at = self._loop.time()
        if self._silence_timer is None:
            self._watch(self._heard_at)

    def _watch(self, since: float) -> None:
        self._silence_timer = self._loop.call_at(since + self._silence_s_max, self._look)

    def _look(self) -> None:
        self._silence_timer = None
        if not self._pending:
            return
        # Computed like the timer's end: rounding a difference could leave it below for ever.
        if self._loop.time() < self._heard_at + self._silence_s_max:
            self._watch(self._heard_at)
        else:
            self._give_up(f"it said nothing for {self._silence_s_max:g} s")

    def _give_up(self, reason: str) -> None:
        self._reason = reason
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Closes the connection; unanswered requests are lost."""
        self._give_up("the client was closed")
        if self._transport is not None:
            await self._closed
