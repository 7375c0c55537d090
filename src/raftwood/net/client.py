"""The client's end of one connection: pipelined calls, streams and one-way messages.

A call costs no task and no timer of its own. It is sent at most once: after a lost connection the
caller, who knows whether the request may be repeated, decides.
"""

import asyncio
import random
import ssl
from collections.abc import Sequence
from typing import Self, TypeVar

from raftwood.base.errors import (
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
from raftwood.net.connection import UNSENT_BYTES_MAX
from raftwood.net.deadlines import NEVER
from raftwood.net.frames import ARGUMENT_MAX, Frame, Kind, Payload, gathered, size_of
from raftwood.net.handshake import ClientCredentials, ClientHandshake, Welcome
from raftwood.net.identity import Identity
from raftwood.net.limits import ClientLimits
from raftwood.net.methods import Method, TypedMethod
from raftwood.net.outstanding import OutstandingRequests
from raftwood.net.streams import Stream
from raftwood.net.wire_errors import decode_error

Request = TypeVar("Request")
Response = TypeVar("Response")

_REQUEST = int(Kind.REQUEST)
_RESPONSE = int(Kind.RESPONSE)
_ONE_WAY = int(Kind.ONE_WAY)


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

    # For callers.

    @property
    def server(self) -> Identity:
        """Who answered; proved by the handshake."""
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
        """Send a request; the future gives the response. Cancelling it cancels on the server.

        Buffers above 8 kB are not copied and must not change before the answer. Raises at once what
        can be known at once: Overloaded, ShuttingDown, ConnectionLost, TooLarge.
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
        # It is taken off before a result is set, so it runs for cancelled futures only.
        future.add_done_callback(self._on_cancelled)
        if deadline < self._sweep.due:
            self._sweep.move(deadline)
        return future

    async def ask(
        self, method: TypedMethod[Request, Response], request: Request, timeout_ms: int
    ) -> Response:
        """A call from struct to struct."""
        return method.decode_response(await self.call(method, method.encode(request), timeout_ms))

    def stream(
        self, method: Method, payload: Buffer = b"", *, timeout_ms: int | None = None
    ) -> Stream:
        """Send a request with a streamed response; a deadline, if any, is for the whole stream."""
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
        self._send(Kind.CREDIT, 0, request_id, window, b"")
        if deadline < self._sweep.due:
            self._sweep.move(deadline)
        return stream

    def send(self, method: Method, payload: Buffer | Sequence[Buffer]) -> bool:
        """Send a message that is not answered; False where it was not sent and counts as lost.

        So it is while the connection is not usable, or has too many bytes that the server did not
        take. True promises nothing: the connection may be lost before the message arrives. Buffers
        above 8 kB are neither copied nor joined, and must not change any more.
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
        # At once: who sends one-way gathers what there is to say into one message.
        self._flush_is_due = True
        self._send(_ONE_WAY, method.number, 0, 0, whole)
        self._flush()
        return True

    def _has_too_much_unsent(self) -> bool:
        assert self._transport is not None
        unsent = self._transport.get_write_buffer_size() + self._out_bytes
        return unsent >= self._bounds.unsent_bytes_max

    async def close(self) -> None:
        """Close; calls under way fail with ConnectionLost."""
        self._refuse_from_now_on(ConnectionLost("the connection was closed"))
        self._close()
        await self.wait_closed()

    async def wait_unusable(self) -> None:
        """Wait until no new call can be made: the server shuts down or the connection ended."""
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

    # Beginning and end.

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
            # TLS 1.3 lets a client begin before the server has judged its certificate.
            fail(
                self._ready,
                Unauthenticated(f"the server refuses this TLS certificate: {error.reason}"),
            )
        super().connection_lost(error)

    async def finish_handshake(self) -> None:
        await self._ready

    def abandon(self) -> None:
        """Close without waiting: the handshake failed."""
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
                # Cancelled or expired meanwhile, or never sent.
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
        elif kind == Kind.STREAM_ITEM:
            open_stream = self._streams.get(request_id)
            if open_stream is None:
                self._check_known(request_id)
            else:
                open_stream[0].push(payload)
        elif kind == Kind.STREAM_END:
            self._finish(request_id, None)
        elif kind == Kind.ERROR:
            self._received_error(request_id, decode_error(payload))
        elif kind == Kind.PING:
            self._send(Kind.PONG, 0, 0, 0, b"")
        elif kind == Kind.GOAWAY:
            self._refuse_from_now_on(ShuttingDown("the server shuts down: use another"))
        elif kind != Kind.PONG:
            raise ProtocolError(f"a server does not send frames of kind {kind}")

    def _received_error(self, request_id: int, error: RaftwoodError) -> None:
        if request_id == 0:
            # The server says why it is about to close; the end itself follows.
            self._end_reason, self._end_error = error.message, error
            return
        self._finish(request_id, error)
