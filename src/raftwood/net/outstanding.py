"""The requests of one client connection that have no answer yet.

Up to the server's limits they are in flight; beyond them they wait their turn, up to the client's
own limits. Each ends in one of five ways: answered, failed, expired, cancelled, or disconnected.
"""

import asyncio
from typing import TypeAlias

from raftwood.base.errors import (
    ConnectionLost,
    DeadlineExceeded,
    Overloaded,
    ProtocolError,
    RaftwoodError,
    ShuttingDown,
)
from raftwood.base.files import Buffer
from raftwood.base.futures import fail
from raftwood.net.connection import FramedConnection
from raftwood.net.deadlines import NEVER, DeadlineSweep
from raftwood.net.frames import Kind, Payload
from raftwood.net.limits import URGENT_BYTES_MAX, URGENT_REQUESTS_MAX, ClientLimits
from raftwood.net.streams import Stream

_REQUEST = int(Kind.REQUEST)


_Waiting: TypeAlias = tuple["asyncio.Future[Payload]", float, int, Buffer | list[Buffer], int]
"""Not sent yet: future, deadline, method, payload, size."""


class OutstandingRequests(FramedConnection):
    """The part of a client's connection that keeps count; `Connection` is the whole."""

    def __init__(self, limits: ClientLimits) -> None:
        super().__init__(limits)
        self._bounds = limits
        self._refusal: RaftwoodError | None = None
        self._requests_max = limits.requests_in_flight_max
        self._bytes_max = limits.bytes_in_flight_max
        self._streams_max = limits.streams_max
        self._next_id = 1
        self._pending: dict[int, tuple[asyncio.Future[Payload], float, int]] = {}
        """In flight: future, deadline, size."""
        self._pending_bytes = 0
        self._waiting: dict[int, _Waiting] = {}
        self._waiting_bytes = 0
        self._streams: dict[int, tuple[Stream, float]] = {}
        self._sweep = DeadlineSweep(self._loop, self._expire)
        # One bound method for all calls: it is compared when it is taken off a future again.
        self._on_cancelled = self._cancelled

    @property
    def requests_under_way(self) -> int:
        return len(self._pending) + len(self._waiting) + len(self._streams)

    def _finish(self, request_id: int, error: RaftwoodError | None) -> None:
        entry = self._pending.pop(request_id, None)
        if entry is not None:
            self._pending_bytes -= entry[2]
            self._fail(
                entry[0], error or ProtocolError("a call was answered as if it were a stream")
            )
            return
        open_stream = self._streams.pop(request_id, None)
        if open_stream is not None:
            open_stream[0].finish(error)
        else:
            self._check_known(request_id)

    def _check_known(self, request_id: int) -> None:
        if not 0 < request_id < self._next_id:
            raise ProtocolError(f"the server answers request {request_id}, which was never sent")

    def _fail(self, future: "asyncio.Future[Payload]", error: RaftwoodError) -> None:
        if not future.done():
            future.remove_done_callback(self._on_cancelled)
            fail(future, error)

    def _fail_all(self, error: RaftwoodError) -> None:
        """The connection ended: nobody will answer."""
        self._sweep.stop()
        futures = [entry[0] for entry in self._pending.values()]
        futures += [entry[0] for entry in self._waiting.values()]
        streams = [entry[0] for entry in self._streams.values()]
        self._pending.clear()
        self._waiting.clear()
        self._streams.clear()
        self._pending_bytes = self._waiting_bytes = 0
        for future in futures:
            self._fail(future, ConnectionLost(error.message))
        for stream in streams:
            stream.finish(ConnectionLost(error.message))

    def _passes_others(self, size: int) -> bool:
        """Whether an urgent request need not wait: the server takes a few above its limits."""
        requests_max = self._requests_max + URGENT_REQUESTS_MAX
        return len(self._pending) < requests_max and size <= URGENT_BYTES_MAX

    def _wait(
        self,
        request_id: int,
        future: "asyncio.Future[Payload]",
        deadline: float,
        number: int,
        payload: Buffer | list[Buffer],
        size: int,
    ) -> None:
        bounds = self._bounds
        if (
            len(self._waiting) >= bounds.requests_waiting_max
            or self._waiting_bytes + size > bounds.bytes_waiting_max
        ):
            raise Overloaded(
                f"{len(self._pending)} requests are under way and {len(self._waiting)} wait: "
                "send fewer at a time"
            )
        self._waiting[request_id] = (future, deadline, number, payload, size)
        self._waiting_bytes += size

    def _admit_waiting(self) -> None:
        now = self._loop.time()
        while self._waiting and len(self._pending) < self._requests_max:
            request_id = next(iter(self._waiting))
            future, deadline, number, payload, size = self._waiting[request_id]
            if self._pending and self._pending_bytes + size > self._bytes_max:
                return
            del self._waiting[request_id]
            self._waiting_bytes -= size
            if future.done():
                continue
            remaining_ms = int((deadline - now) * 1000)
            if remaining_ms <= 0:
                late = DeadlineExceeded("the deadline passed before the request could be sent")
                self._fail(future, late)
                continue
            self._pending[request_id] = (future, deadline, size)
            self._pending_bytes += size
            self._send(_REQUEST, number, request_id, remaining_ms, payload)

    def _expire(self, now: float) -> float:
        earliest = NEVER
        for request_id, (future, deadline, size) in list(self._pending.items()):
            if deadline <= now:
                del self._pending[request_id]
                self._pending_bytes -= size
                self._send(Kind.CANCEL, 0, request_id, 0, b"")
                late = DeadlineExceeded("no answer came before the deadline")
                self._fail(future, late)
            elif deadline < earliest:
                earliest = deadline
        for request_id, (future, deadline, _, _, size) in list(self._waiting.items()):
            if deadline <= now:
                del self._waiting[request_id]
                self._waiting_bytes -= size
                late = DeadlineExceeded("the deadline passed before the request could be sent")
                self._fail(future, late)
            elif deadline < earliest:
                earliest = deadline
        for request_id, (stream, deadline) in list(self._streams.items()):
            if deadline <= now:
                self._cancel_stream(request_id)
                stream.finish(DeadlineExceeded("the stream did not end before its deadline"))
            elif deadline < earliest:
                earliest = deadline
        self._made_room()
        return earliest

    def _cancelled(self, future: "asyncio.Future[Payload]") -> None:
        """A caller gave up: tell the server. Rare, so the future is looked for."""
        for request_id, entry in self._pending.items():
            if entry[0] is future:
                del self._pending[request_id]
                self._pending_bytes -= entry[2]
                self._send(Kind.CANCEL, 0, request_id, 0, b"")
                break
        else:
            for request_id, waiting in self._waiting.items():
                if waiting[0] is future:
                    del self._waiting[request_id]
                    self._waiting_bytes -= waiting[4]
                    break
        self._made_room()

    def _made_room(self) -> None:
        if self._waiting:
            self._admit_waiting()
        if self._refusal is not None:
            self._close_when_drained()

    def _close_when_drained(self) -> None:
        """After GOAWAY the client closes, since only it knows that it has sent its last request."""
        if isinstance(self._refusal, ShuttingDown) and not self.requests_under_way:
            self._close()

    def _grant(self, request_id: int, count: int) -> None:
        if request_id in self._streams:
            self._send(Kind.CREDIT, 0, request_id, count, b"")

    def _cancel_stream(self, request_id: int) -> None:
        if self._streams.pop(request_id, None) is not None:
            self._send(Kind.CANCEL, 0, request_id, 0, b"")
            self._made_room()
