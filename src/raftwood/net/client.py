"""The client's end of one connection: pipelined calls, streams, one-way messages; and `connect`.

A call costs no task and no timer of its own. It is sent at most once: after a lost connection the
caller decides whether the request may be repeated.

Up to the server's limits requests are in flight; beyond them they wait, up to the client's own
limits. Each ends in one of five ways: answered, failed, expired, cancelled, or disconnected.

A streamed response is bounded by credit, so that a slow reader slows the server. The client grants
a window of bytes and renews it as items are consumed. The server sends while it has credit, so at
most the window and one item are ever under way.
"""

import asyncio
import random
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeAlias, TypeVar

from raftwood.base.errors import (
    Cancelled,
    ConnectionLost,
    DeadlineExceeded,
    InvalidInput,
    Overloaded,
    ProtocolError,
    RaftwoodError,
    ShuttingDown,
    TooLarge,
    Unauthenticated,
    Unavailable,
)
from raftwood.base.files import Buffer
from raftwood.base.futures import fail
from raftwood.net.connection import NEVER, UNSENT_BYTES_MAX, DeadlineSweep, FramedConnection
from raftwood.net.frames import (
    ARGUMENT_MAX,
    HEADER_BYTES,
    Frame,
    FrameKind,
    HttpReceived,
    Payload,
    gathered,
    size_of,
)
from raftwood.net.handshake import ClientCredentials, ClientHandshake, Welcome
from raftwood.net.identity import Identity
from raftwood.net.limits import URGENT_BYTES_MAX, URGENT_REQUESTS_MAX, ClientLimits
from raftwood.net.methods import Method, TypedMethod
from raftwood.net.tls import ClientTls
from raftwood.net.wire_errors import decode_error


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
        """Ends the stream: drops unread items and cancels the request at the server."""
        self._items.clear()
        if not self._is_finished:
            self._cancel()
            self.finish(Cancelled("the stream was closed by its reader"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    # Called by the connection.

    def push(self, item: Payload) -> None:
        if self._credit <= 0:
            raise ProtocolError("the server sent more on a stream than it had credit for")
        self._credit -= HEADER_BYTES + len(item)
        self._items.append(item)
        self._wake()

    def finish(self, error: RaftwoodError | None = None) -> None:
        """Ends the stream; items received before can still be read."""
        self._is_finished = True
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


_REQUEST = int(FrameKind.REQUEST)


_Waiting: TypeAlias = tuple["asyncio.Future[Payload]", float, int, Buffer | list[Buffer], int]
"""Calls that were not sent yet: future, deadline, method, payload, size."""


class OutstandingRequests(FramedConnection):
    """The requests of a client's connection; `Connection` adds the rest."""

    def __init__(self, limits: ClientLimits) -> None:
        super().__init__(limits)
        self._bounds = limits
        self._refusal: RaftwoodError | None = None
        self._requests_max = limits.requests_in_flight_max
        self._bytes_max = limits.bytes_in_flight_max
        self._streams_max = limits.streams_max
        self._next_id = 1
        self._pending: dict[int, tuple[asyncio.Future[Payload], float, int]] = {}
        """Requests in flight: future, deadline, size."""
        self._pending_bytes = 0
        self._waiting: dict[int, _Waiting] = {}
        self._waiting_bytes = 0
        self._streams: dict[int, tuple[Stream, float]] = {}
        self._sweep = DeadlineSweep(self._loop, self._expire)
        # One bound method for all calls, so that removing it from a future finds it by equality.
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
        """Fails all calls: the connection ended, and no answer will come."""
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
        """Whether an urgent request may be sent now: the server takes a few above its limits."""
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
                self._send(FrameKind.CANCEL, 0, request_id, 0, b"")
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
        """Cancels at the server what a caller gave up. Rare, so it searches for the future."""
        for request_id, entry in self._pending.items():
            if entry[0] is future:
                del self._pending[request_id]
                self._pending_bytes -= entry[2]
                self._send(FrameKind.CANCEL, 0, request_id, 0, b"")
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
        """Closes after GOAWAY and the last answer: only the client knows its last request."""
        if isinstance(self._refusal, ShuttingDown) and not self.requests_under_way:
            self._close()

    def _grant(self, request_id: int, count: int) -> None:
        if request_id in self._streams:
            self._send(FrameKind.CREDIT, 0, request_id, count, b"")

    def _cancel_stream(self, request_id: int) -> None:
        if self._streams.pop(request_id, None) is not None:
            self._send(FrameKind.CANCEL, 0, request_id, 0, b"")
            self._made_room()


Request = TypeVar("Request")
Response = TypeVar("Response")

_RESPONSE = int(FrameKind.RESPONSE)
_ONE_WAY = int(FrameKind.ONE_WAY)


class Connection(OutstandingRequests):
    """An authenticated connection to one server; made by `connect`."""

    def __init__(
        self, credentials: ClientCredentials, random_source: random.Random, limits: ClientLimits
    ) -> None:
        super().__init__(limits)
        self._credentials = credentials
        self._random = random_source
        self._handshake: ClientHandshake | None = None
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._unusable: asyncio.Future[None] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._refusal = Unavailable("the handshake is not finished")
        self._server: Identity | None = None
        self._frame_bytes_max = 0

    # Called by users.

    @property
    def server(self) -> Identity:
        """The server's identity, proved by the handshake."""
        assert self._server is not None
        return self._server

    @property
    def is_usable(self) -> bool:
        """Whether a call can be made: open, and not asked to go away."""
        return self._refusal is None

    @property
    def why_unusable(self) -> RaftwoodError | None:
        return self._refusal

    @property
    def is_closed(self) -> bool:
        return self._closed.done()

    def call(
        self, method: Method, payload: Buffer | Sequence[Buffer], timeout_ms: int
    ) -> "asyncio.Future[Payload]":
        """Sends a request; returns a future of the response. Cancelling it cancels on the server.

        Buffers above 8 kB are not copied and must not change before the answer. Raises at once if
        the call is sure to fail: Overloaded, ShuttingDown, ConnectionLost, TooLarge.
        """
        whole: Buffer | list[Buffer]
        if type(payload) is bytes:
            whole, size = payload, len(payload)
        else:
            whole, size = gathered(payload)
        deadline = self._loop.time() + timeout_ms / 1000
        if (
            self._refusal is not None
            or not 0 < timeout_ms <= ARGUMENT_MAX
            or size > self._frame_bytes_max
        ):
            raise self._reason_to_refuse(timeout_ms, size)
        future: asyncio.Future[Payload] = self._loop.create_future()
        request_id = self._next_id
        if (
            self._waiting
            or (
                self._pending
                and (
                    len(self._pending) >= self._requests_max
                    or self._pending_bytes + size > self._bytes_max
                )
            )
        ) and not (method.is_urgent and self._passes_others(size)):
            self._wait(request_id, future, deadline, method.number, whole, size)
        else:
            self._pending[request_id] = (future, deadline, size)
            self._pending_bytes += size
            self._send(_REQUEST, method.number, request_id, timeout_ms, whole)
        self._next_id = request_id + 1
        # It is removed before a result is set, so it runs for cancelled futures only.
        future.add_done_callback(self._on_cancelled)
        if deadline < self._sweep.due:
            self._sweep.move(deadline)
        return future

    async def ask(
        self, method: TypedMethod[Request, Response], request: Request, timeout_ms: int
    ) -> Response:
        """Makes a call with a struct as request and response."""
        return method.decode_response(await self.call(method, method.encode(request), timeout_ms))

    def stream(
        self, method: Method, payload: Buffer = b"", *, timeout_ms: int | None = None
    ) -> Stream:
        """Sends a request with a streamed response; a deadline, if any, is for the whole stream."""
        size = size_of(payload)
        remaining_ms = ARGUMENT_MAX if timeout_ms is None else timeout_ms
        if self._refusal is not None or remaining_ms <= 0 or size > self._frame_bytes_max:
            raise self._reason_to_refuse(remaining_ms, size)
        if len(self._streams) >= self._streams_max:
            raise Overloaded(f"{len(self._streams)} streams are open: close some first")
        request_id = self._next_id
        self._next_id = request_id + 1
        window = self._bounds.stream_window_bytes
        stream = Stream(
            window,
            lambda count: self._grant(request_id, count),
            lambda: self._cancel_stream(request_id),
        )
        deadline = NEVER if timeout_ms is None else self._loop.time() + timeout_ms / 1000
        self._streams[request_id] = (stream, deadline)
        self._send(_REQUEST, method.number, request_id, timeout_ms or 0, payload)
        self._send(FrameKind.CREDIT, 0, request_id, window, b"")
        if deadline < self._sweep.due:
            self._sweep.move(deadline)
        return stream

    def send(self, method: Method, payload: Buffer | Sequence[Buffer]) -> bool:
        """Sends a message that gets no answer; returns False if it was not sent and is lost.

        That happens while the connection is not usable, or the server has not taken too many bytes.
        True promises nothing: the connection may be lost before the message arrives. Buffers above
        8 kB are neither copied nor joined, and must not change any more.
        """
        if self._refusal is not None or (self._write_is_paused and self._has_too_much_unsent()):
            return False
        whole: Buffer | list[Buffer]
        if type(payload) is bytes:
            whole, size = payload, len(payload)
        else:
            whole, size = gathered(payload)
        if size > self._frame_bytes_max:
            raise self._too_large(size)
        # Sent at once: senders of one-way messages gather their content themselves.
        self._flush_is_due = True
        self._send(_ONE_WAY, method.number, 0, 0, whole)
        self._flush()
        return True

    def _has_too_much_unsent(self) -> bool:
        assert self._transport is not None
        unsent = self._transport.get_write_buffer_size() + self._out_bytes
        return unsent >= self._bounds.unsent_bytes_max

    async def close(self) -> None:
        """Closes the connection; calls under way fail with ConnectionLost."""
        self._refuse_from_now_on(ConnectionLost("the connection was closed"))
        self._close()
        await self.wait_closed()

    async def wait_unusable(self) -> None:
        """Waits until no new call can be made: the server shuts down or the connection ended."""
        await asyncio.shield(self._unusable)

    async def wait_closed(self) -> None:
        await asyncio.shield(self._closed)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _reason_to_refuse(self, timeout_ms: int, size: int) -> RaftwoodError:
        if self._refusal is not None:
            return type(self._refusal)(self._refusal.message)
        if timeout_ms <= 0:
            return DeadlineExceeded("no time is left for this request; it was not sent")
        if timeout_ms > ARGUMENT_MAX:
            return InvalidInput(f"a timeout of {timeout_ms} ms is above {ARGUMENT_MAX}")
        return self._too_large(size)

    def _too_large(self, size: int) -> TooLarge:
        return TooLarge(
            f"the request has {size} bytes, the server reads {self._frame_bytes_max}: split it"
        )

    # Start and end.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # Congestion must show before the bound of one-way messages is reached.
        self._set_unsent_bytes_max(min(UNSENT_BYTES_MAX, self._bounds.unsent_bytes_max))
        self._handshake = ClientHandshake(
            self._credentials,
            self._random,
            frame_bytes_max=self._bounds.frame_bytes_max,
            server_certificate=self._certificate(),
        )
        self._send_encoded(self._handshake.hello())

    def connection_lost(self, error: Exception | None) -> None:
        if isinstance(error, ssl.SSLError) and not self._ready.done():
            # TLS 1.3 lets a client send before the server has checked its certificate.
            fail(
                self._ready,
                Unauthenticated(f"the server refuses this TLS certificate: {error.reason}"),
            )
        super().connection_lost(error)

    def _close_because(self, error: RaftwoodError) -> None:
        if isinstance(error, HttpReceived):
            fail(self._ready, error)
        super()._close_because(error)

    async def finish_handshake(self) -> None:
        await self._ready

    def abandon(self) -> None:
        """Closes without waiting: the handshake failed."""
        self._abort("the handshake failed")

    def _shake_hands(self, handshake: ClientHandshake, frame: Frame) -> None:
        try:
            answer = handshake.received(frame)
        except RaftwoodError as refusal:
            fail(self._ready, refusal)
            self._close()
            return
        if isinstance(answer, Welcome):
            self._welcomed(answer)
        else:
            self._send_encoded(answer)

    def _welcomed(self, welcome: Welcome) -> None:
        bounds, theirs = self._bounds, welcome.limits
        self._handshake = None
        self._server = Identity(role=welcome.role, node_id=welcome.node_id)
        self._frame_bytes_max = min(bounds.frame_bytes_max, theirs.frame_bytes_max)
        # Staying below the server's limits keeps it from having to pause this connection.
        self._requests_max = max(
            1, min(bounds.requests_in_flight_max, theirs.requests_in_flight_max)
        )
        self._bytes_max = min(bounds.bytes_in_flight_max, theirs.bytes_in_flight_max)
        self._streams_max = min(bounds.streams_max, theirs.streams_max)
        self._decoder.widen(payload_bytes_max=bounds.frame_bytes_max)
        self._refusal = None
        self._start_watch()
        if not self._ready.done():
            self._ready.set_result(None)

    def _ended(self, error: RaftwoodError, /) -> None:
        self._refuse_from_now_on(error)
        fail(self._ready, error)
        self._fail_all(error)
        if not self._closed.done():
            self._closed.set_result(None)

    def _refuse_from_now_on(self, refusal: RaftwoodError) -> None:
        self._refusal = refusal
        if not self._unusable.done():
            self._unusable.set_result(None)

    # Receiving.

    def _dispatch(self, frames: list[Frame]) -> None:
        pending = self._pending
        on_cancelled = self._on_cancelled
        for frame in frames:
            kind, _, request_id, _, payload = frame
            if kind != _RESPONSE or self._handshake is not None:
                self._other(frame)
                continue
            entry = pending.pop(request_id, None)
            if entry is None:
                # The request was cancelled or expired meanwhile, or never sent.
                self._check_known(request_id)
                continue
            future, _, size = entry
            self._pending_bytes -= size
            if not future.done():
                future.remove_done_callback(on_cancelled)
                future.set_result(payload)
        if self._waiting:
            self._admit_waiting()
        if self._refusal is not None:
            self._close_when_drained()

    def _other(self, frame: Frame) -> None:
        kind, _, request_id, _, payload = frame
        if self._handshake is not None:
            if not self._is_closing:
                self._shake_hands(self._handshake, frame)
        elif kind == FrameKind.STREAM_ITEM:
            open_stream = self._streams.get(request_id)
            if open_stream is None:
                self._check_known(request_id)
            else:
                open_stream[0].push(payload)
        elif kind == FrameKind.STREAM_END:
            self._finish(request_id, None)
        elif kind == FrameKind.ERROR:
            self._received_error(request_id, decode_error(payload))
        elif kind == FrameKind.PING:
            self._send(FrameKind.PONG, 0, 0, 0, b"")
        elif kind == FrameKind.GOAWAY:
            self._refuse_from_now_on(ShuttingDown("the server shuts down: use another"))
        elif kind != FrameKind.PONG:
            raise ProtocolError(f"a server does not send frames of kind {kind}")

    def _received_error(self, request_id: int, error: RaftwoodError) -> None:
        if request_id == 0:
            # The server says why it is about to close; the close itself follows.
            self._end_reason, self._end_error = error.message, error
            return
        self._finish(request_id, error)


async def connect(
    host: str,
    port: int,
    credentials: ClientCredentials,
    random_source: random.Random,
    *,
    limits: ClientLimits | None = None,
    tls: ClientTls | None = None,
    server_hostname: str | None = None,
) -> Connection:
    """Connects and authenticates both sides; raises Unavailable, or the server's refusal.

    An address that serves HTTP raises `ProtocolError`.
    """
    limits = limits or ClientLimits()
    loop = asyncio.get_running_loop()
    where = f"{host}:{port}"
    options: dict[str, Any] = {}
    if tls is not None:
        options = {"ssl": tls.context, "server_hostname": server_hostname or host}
    connection: Connection | None = None
    is_done = False
    try:
        async with asyncio.timeout(limits.connect_timeout_ms / 1000):
            _, connection = await loop.create_connection(
                lambda: Connection(credentials, random_source, limits), host, port, **options
            )
            await connection.finish_handshake()
        is_done = True
    except TimeoutError as error:
        raise Unavailable(f"{where} did not answer in {limits.connect_timeout_ms} ms") from error
    except HttpReceived as error:
        raise ProtocolError(
            f"{where} serves HTTP: give the address of a native port. A gateway has it at "
            "gateway.listen, a store at node.listen, a bookie at bookie.listen, a receiver at "
            "clogs.listen"
        ) from error
    except ssl.SSLError as error:
        raise Unauthenticated(f"TLS with {where} failed: {error.reason}") from error
    except OSError as error:
        raise Unavailable(f"cannot connect to {where}: {error.strerror or error}") from error
    finally:
        # Also a usable connection: a cancellation may come in the moment the handshake ends.
        if connection is not None and not is_done:
            connection.abandon()
    return connection
