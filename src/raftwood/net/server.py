"""The server's end: each connection's requests and back-pressure, and the server that accepts them.

`ServerConnection` runs the handshake, hands requests to their handlers and bounds what is under way
for one peer. `Server` listens, runs the handlers' tasks and drains at its end.
"""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Self, assert_never

from raftwood.base.errors import (
    Cancelled,
    ConnectionLost,
    DeadlineExceeded,
    InternalError,
    InvalidInput,
    NotFound,
    Overloaded,
    PermissionDenied,
    ProtocolError,
    RaftwoodError,
    ShuttingDown,
    TooLarge,
    Unauthenticated,
)
from raftwood.base.files import Buffer
from raftwood.base.logs import get_logger
from raftwood.net.connection import NEVER, DeadlineSweep, FramedConnection
from raftwood.net.frames import (
    HEADER_BYTES,
    Frame,
    FrameKind,
    HttpReceived,
    Payload,
    gathered,
    size_of,
)
from raftwood.net.handshake import PeerLimits, ServerCredentials, ServerHandshake
from raftwood.net.identity import Identity
from raftwood.net.limits import (
    URGENT_BYTES_MAX,
    URGENT_REQUESTS_MAX,
    URGENT_TASKS_MAX,
    ServerLimits,
)
from raftwood.net.listeners import (
    DISPLACED,
    ConnectionAdmission,
    FairScheduler,
    TurnLimits,
    address_of,
    stop_accepting,
)
from raftwood.net.methods import Call, HandlerEntry, HandlerMode, Service, StreamCall
from raftwood.net.tls import ServerTls
from raftwood.net.tls_acceptor import PendingHandshake, TlsAcceptor
from raftwood.net.wire_errors import encode_error

_log = get_logger("net")
_CRASHED = "the server failed on this request: its log says why"
_HTTP_REFUSAL = (
    "This is a native port of Raftwood ({}); it does not speak HTTP.\n"
    "A gateway serves HTTP at gateway.http_listen, for SLS, OTLP, Loki, Elasticsearch and JSON.\n"
    "Health and metrics are at http.listen. Native clients use this port: `raftwood`, and\n"
    "`import raftwood` in Python.\n"
)
_REQUEST = int(FrameKind.REQUEST)
_RESPONSE = int(FrameKind.RESPONSE)
_ONE_WAY = int(FrameKind.ONE_WAY)


class ServerConnection(FramedConnection):
    """One client of a server.

    A request above the limits waits in a backlog, and reading pauses until it was begun. Reading
    also pauses while the peer does not take its responses. At the limits, but not above them,
    reading goes on: a client that keeps to them must be able to cancel, grant credit or ping.
    Requests also wait in the backlog if they are more than a turn of the loop has room for (see
    `listeners`).

    One-way messages never wait, for raft's leases and elections hang on them. They end when their
    handler returns, so they count against no limit on requests. They use up room in the turn, so
    that clients' requests give way to them.

    Urgent requests do not wait behind others either. They have a short backlog of their own; a few
    of them pass the limits on requests, and the rest wait for their share of a turn.
    """

    def __init__(self, server: "Server", limits: ServerLimits) -> None:
        super().__init__(limits)
        self._server = server
        self._bounds = limits
        self._handshake: ServerHandshake | None = None
        self._handshake_timer: asyncio.TimerHandle | None = None
        self._peer: Identity | None = None
        self._peer_frame_bytes_max = 0
        self._entries: dict[int, HandlerEntry] = {}
        self._calls: dict[int, Call] = {}
        """Requests under way, including streams."""
        self._stream_count = 0
        self._bytes_in_flight = 0
        self._backlog: deque[tuple[Frame, float]] = deque()
        self._urgent: deque[tuple[Frame, float]] = deque()
        """The backlog of urgent requests."""
        self._urgent_count = 0
        """Urgent requests under way."""
        self._is_full = False
        self._resume_is_due = False
        self._is_draining = False
        self._request_at = self._received_at
        self._sweep = DeadlineSweep(self._loop, self._expire)

    # Start and end.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        refusal = self._server.admit(self, address_of(transport))
        if refusal is not None:
            self._close_because(refusal)
            return
        bounds = self._bounds
        self._set_unsent_bytes_max(bounds.unsent_bytes_max)
        self._handshake = ServerHandshake(
            self._server.credentials,
            self._server.random_source,
            PeerLimits(
                frame_bytes_max=bounds.frame_bytes_max,
                requests_in_flight_max=bounds.requests_in_flight_max,
                bytes_in_flight_max=bounds.bytes_in_flight_max,
                streams_max=bounds.streams_max,
            ),
            self._certificate(),
        )
        self._handshake_timer = self._loop.call_later(
            bounds.handshake_timeout_ms / 1000,
            self._close_because,
            Unauthenticated("the handshake took too long"),
        )

    def _shake_hands(self, frame: Frame) -> None:
        assert self._handshake is not None
        try:
            answer = self._handshake.received(frame)
        except ProtocolError:
            raise
        except RaftwoodError as refusal:
            _log.info("refused a connection", reason=refusal.message)
            self._close_because(refusal)
            return
        self._send_encoded(answer)
        peer = self._handshake.peer
        if peer is None:
            return
        self._peer = peer
        self._server.admission.authenticated(self)
        self._peer_frame_bytes_max = self._handshake.frame_bytes_max
        self._entries = dict(self._server.service.entries_for(peer.role))
        self._handshake = None
        self._stop_handshake_timer()
        self._decoder.widen(payload_bytes_max=self._bounds.frame_bytes_max)
        self._start_watch()
        if self._server.is_draining:
            self.drain()

    def make_room(self) -> None:
        """Closes this connection: a newcomer displaces it."""
        self._close_because(Overloaded(DISPLACED))

    def _close_because(self, error: RaftwoodError) -> None:
        if isinstance(error, HttpReceived) and self._peer is None and not self._is_closing:
            # A browser, or a client of one of the protocols over HTTP: answer as it expects.
            text = _HTTP_REFUSAL.format(self._server.credentials.identity).encode()
            self._end_reason = error.message
            self._send_encoded(
                b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n"
                b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(text), text)
            )
            self._close()
            return
        super()._close_because(error)

    def _stop_handshake_timer(self) -> None:
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
            self._handshake_timer = None

    def drain(self) -> None:
        """Asks the client to go elsewhere; its requests under way are finished."""
        if self._peer is None:
            self._close_because(ShuttingDown("the server shuts down"))
        elif not self._is_draining:
            self._is_draining = True
            self._send(FrameKind.GOAWAY, 0, 0, 0, b"")

    def cut(self) -> None:
        """Closes now, whatever is under way."""
        for call in list(self._calls.values()):
            # Not `ShuttingDown`: the client would take that for a request that was not carried out.
            call.fail(ConnectionLost("the server shut down before this was finished"))
            call.close()
        self._close()

    def _ended(self, _error: RaftwoodError, /) -> None:
        self._stop_handshake_timer()
        self._sweep.stop()
        self._server.turns.forget(self._resume)
        self._server.turns.forget(self._resume_urgent)
        self._backlog.clear()
        self._urgent.clear()
        calls = list(self._calls.values())
        self._calls.clear()
        for call in calls:
            call.close()
        self._server.forget(self)

    def _watch(self) -> None:
        idle_s = self._bounds.idle_timeout_ms / 1000
        now = self._loop.time()
        is_idle = bool(idle_s) and not self._calls
        if not is_idle:
            self._request_at = now
        elif now - self._request_at >= idle_s:
            if self._is_draining:
                self._close()
                return
            # The client closes; a client that does not is closed when this comes round again.
            self.drain()
        super()._watch()
        if is_idle and self._watch_timer is not None and not self._is_draining:
            due = max(self._request_at + idle_s, now + 0.001)
            if due < self._watch_due:
                self._watch_at(due)

    # Receiving.

    def _dispatch(self, frames: list[Frame]) -> None:
        arrived, turns, backlog = self._received_at, self._server.turns, self._backlog
        has_turn = turns.begin()
        for frame in frames:
            if self._is_closing:
                return
            if self._peer is None:
                self._shake_hands(frame)
            elif frame[0] == _REQUEST:
                if not (self._is_full or backlog) and has_turn and turns.take():
                    self._begin(frame, arrived)
                elif self._is_urgent(frame):
                    self._urgent.append((frame, arrived))
                else:
                    backlog.append((frame, arrived))
            elif frame[0] == _ONE_WAY:
                turns.take()
                self._take(frame[1], frame[4])
            elif backlog and frame[0] == FrameKind.CREDIT and frame[2] not in self._calls:
                # It belongs to a stream that is not begun: it is queued behind its request.
                backlog.append((frame, arrived))
            else:
                self._control(frame)
        if self._urgent:
            turns.begin_urgent()
            self._begin_urgent()
        if backlog or self._urgent:
            self._pause_reading()
        if backlog and not self._is_full:
            turns.queue(self._resume)

    def _is_urgent(self, frame: Frame) -> bool:
        entry = self._entries.get(frame[1])
        return (
            entry is not None
            and entry.method.is_urgent
            and entry.mode is not HandlerMode.DENIED
            and len(frame[4]) <= URGENT_BYTES_MAX
        )

    def _take(self, number: int, payload: Payload) -> None:
        """Handles a one-way message; it has no answer, so an error closes the connection."""
        assert self._peer is not None
        self._request_at = self._received_at
        if self._is_draining:
            return
        entry = self._entries.get(number)
        if entry is None or entry.mode is not HandlerMode.ONE_WAY:
            raise ProtocolError(
                f"method {number} takes no one-way messages from {self._peer}: "
                "its number, its role or the version of one side is wrong"
            )
        try:
            entry.handler(self._peer, payload)
        except RaftwoodError as error:
            _log.warning("refused a message", method=entry.method.name, reason=error.message)
            self._close_because(error)
        except Exception:
            _log.exception("handler failed", method=entry.method.name)
            self._close_because(InternalError(_CRASHED))

    def _begin(self, frame: Frame, arrived: float) -> None:
        _, number, request_id, argument, payload = frame
        assert self._peer is not None
        self._request_at = arrived
        deadline = arrived + argument / 1000 if argument else NEVER
        entry = self._entries.get(number)
        if entry is None or entry.mode is not HandlerMode.FAST or self._is_draining:
            self._begin_other(entry, number, request_id, deadline, payload)
            return
        size = len(payload)
        call = Call(self, self._peer, request_id, deadline, size)
        if request_id in self._calls:
            raise ProtocolError(f"request id {request_id} is already under way")
        self._calls[request_id] = call
        self._bytes_in_flight += size
        try:
            entry.handler(call, payload)
        except RaftwoodError as error:
            call.fail(error)
        except Exception:
            _log.exception("handler failed", method=entry.method.name)
            call.fail(InternalError(_CRASHED))
        if call.is_open:
            self._keep(call, entry)

    def _keep(self, call: Call, entry: HandlerEntry) -> None:
        """Counts an unanswered call against deadline and limits."""
        if entry.method.is_urgent:
            call.is_urgent = True
            self._urgent_count += 1
        if call.deadline < self._sweep.due:
            self._sweep.move(call.deadline)
        self._is_full = not self._has_room()

    def _begin_other(
        self,
        entry: HandlerEntry | None,
        number: int,
        request_id: int,
        deadline: float,
        payload: Payload,
    ) -> None:
        """Begins requests that need a task or a stream, and refuses bad ones."""
        assert self._peer is not None
        is_stream = entry is not None and entry.mode is HandlerMode.STREAM
        size = len(payload)
        call = (StreamCall if is_stream else Call)(self, self._peer, request_id, deadline, size)
        if request_id in self._calls:
            raise ProtocolError(f"request id {request_id} is already under way")
        accepted = self._entry_or_refusal(entry, number, size)
        if isinstance(accepted, RaftwoodError):
            self._send(FrameKind.ERROR, 0, request_id, 0, encode_error(accepted))
            return
        self._calls[request_id] = call
        self._stream_count += is_stream
        self._bytes_in_flight += size
        call.task = self._server.run(self._run(accepted, call, payload))
        self._keep(call, accepted)

    def _entry_or_refusal(
        self, entry: HandlerEntry | None, number: int, size: int
    ) -> HandlerEntry | RaftwoodError:
        if entry is None:
            return NotFound(f"the server has no method {number}: is it older than the client?")
        if self._is_draining:
            return ShuttingDown("the server shuts down: use another")
        match entry.mode:
            case HandlerMode.DENIED:
                assert self._peer is not None
                return PermissionDenied(f"role {self._peer.role} may not call {entry.method.name}")
            case HandlerMode.STREAM if (
                self._stream_count >= self._bounds.streams_max
                or self._bytes_in_flight + size > self._bounds.bytes_in_flight_max
            ):
                # Refused and never held back: streams need reading to go on, for their credit.
                return Overloaded("this connection has too many streams: close some first")
            case HandlerMode.TASK | HandlerMode.STREAM:
                if self._server.has_room_for_a_task(is_urgent=entry.method.is_urgent):
                    return entry
                return Overloaded("the server has too many requests under way")
            case HandlerMode.ONE_WAY:
                return InvalidInput(f"{entry.method.name} is never answered: send, do not call")
            case HandlerMode.FAST:
                return entry
            case _:
                assert_never(entry.mode)

    async def _run(self, entry: HandlerEntry, call: Call, payload: Payload) -> None:
        """Runs one request's task: the connection survives whatever the handler does."""
        try:
            if isinstance(call, StreamCall):
                async with contextlib.aclosing(entry.handler(call, payload)) as items:
                    async for item in items:
                        await call.send(item)
                call.reply()
            else:
                call.reply(await entry.handler(call, payload))
        except asyncio.CancelledError:
            call.fail(Cancelled("the server gave the request up"))
            raise
        except RaftwoodError as error:
            call.fail(error)
        except Exception:
            _log.exception("handler failed", method=entry.method.name)
            call.fail(InternalError(_CRASHED))

    def _control(self, frame: Frame) -> None:
        kind, _, request_id, argument, _ = frame
        if kind == FrameKind.CANCEL:
            self._cancel(request_id)
        elif kind == FrameKind.CREDIT:
            stream = self._calls.get(request_id)
            if isinstance(stream, StreamCall):
                stream.credit += argument
                stream.wake()
        elif kind == FrameKind.PING:
            self._send(FrameKind.PONG, 0, 0, 0, b"")
        elif kind != FrameKind.PONG:
            raise ProtocolError(f"a client does not send frames of kind {kind}")

    def _cancel(self, request_id: int) -> None:
        call = self._calls.get(request_id)
        if call is not None:
            self._release(call)
            call.close()
            return
        for backlog in (self._backlog, self._urgent):
            for waiting in backlog:
                if waiting[0][2] == request_id:
                    backlog.remove(waiting)
                    return

    def _expire(self, now: float) -> float:
        earliest = NEVER
        for call in list(self._calls.values()):
            if call.deadline <= now:
                call.fail(DeadlineExceeded("the deadline passed on the server"))
                call.close()
            elif call.deadline < earliest:
                earliest = call.deadline
        return earliest

    # Answering.

    def answer(self, call: Call, payload: Buffer | Sequence[Buffer]) -> None:
        """Sends a call's response, or the end of its stream."""
        self._release(call)
        if call.is_stream:
            self._send(FrameKind.STREAM_END, 0, call.request_id, 0, b"")
            return
        whole: Buffer | list[Buffer]
        if type(payload) is bytes:
            whole, size = payload, len(payload)
        else:
            whole, size = gathered(payload)
        if size > self._peer_frame_bytes_max:
            self._send(FrameKind.ERROR, 0, call.request_id, 0, encode_error(self._too_large(size)))
        else:
            self._send(_RESPONSE, 0, call.request_id, 0, whole)

    def refuse(self, call: Call, error: RaftwoodError) -> None:
        self._release(call)
        self._send(FrameKind.ERROR, 0, call.request_id, 0, encode_error(error))

    def send_item(self, call: StreamCall, item: Buffer) -> int:
        if size_of(item) > self._peer_frame_bytes_max:
            raise self._too_large(size_of(item))
        return self._send(FrameKind.STREAM_ITEM, 0, call.request_id, 0, item) - HEADER_BYTES

    def _too_large(self, size: int) -> TooLarge:
        return TooLarge(
            f"the answer has {size} bytes, the client reads "
            f"{self._peer_frame_bytes_max}: ask for less at a time"
        )

    def _release(self, call: Call) -> None:
        if self._calls.pop(call.request_id, None) is None:
            return
        self._stream_count -= call.is_stream
        self._bytes_in_flight -= call.size
        if call.is_urgent:
            self._urgent_count -= 1
            if self._urgent:
                self._server.turns.queue(self._resume_urgent, urgent=True)
        if self._is_full and not self._resume_is_due:
            self._resume_is_due = True
            self._server.turns.queue(self._resume)

    # Back-pressure.

    @property
    def is_congested(self) -> bool:
        """Whether the peer does not take written bytes."""
        return self._write_is_paused

    def _congestion_changed(self) -> None:
        if self._write_is_paused:
            self._is_full = True
            self._pause_reading()
        else:
            self._server.turns.queue(self._resume)
            if self._urgent:
                self._server.turns.queue(self._resume_urgent, urgent=True)
            for call in list(self._calls.values()):
                if isinstance(call, StreamCall):
                    call.wake()

    def _pause_reading(self) -> None:
        if not self._reading_is_paused and self._transport is not None:
            self._reading_is_paused = True
            self._transport.pause_reading()

    def _has_room(self) -> bool:
        bounds = self._bounds
        return (
            not self._write_is_paused
            and len(self._calls) - self._stream_count < bounds.requests_in_flight_max
            and self._bytes_in_flight <= bounds.bytes_in_flight_max
        )

    def _resume(self) -> None:
        """Takes up the backlog as far as there is room, in a slice of a turn; then reads on."""
        self._resume_is_due = False
        if self._transport is None or self._is_closing:
            return
        turns = self._server.turns
        try:
            while self._backlog and self._has_room() and turns.take():
                frame, arrived = self._backlog.popleft()
                if frame[0] == _REQUEST:
                    self._begin_in_time(frame, arrived)
                else:
                    self._control(frame)
        except ProtocolError as error:
            self._close_because(error)
            return
        self._is_full = not self._has_room()
        if self._backlog and not self._is_full:
            turns.queue(self._resume)
        self._read_on()

    def _resume_urgent(self) -> None:
        """Takes up urgent requests in a slice of a turn."""
        if self._transport is None or self._is_closing:
            return
        try:
            self._begin_urgent()
        except ProtocolError as error:
            self._close_because(error)
            return
        self._read_on()

    def _begin_urgent(self) -> None:
        """Begins waiting urgent requests, as far as there is room for them."""
        turns = self._server.turns
        while self._urgent and self._has_urgent_room():
            if not turns.take_urgent():
                turns.queue(self._resume_urgent, urgent=True)
                return
            self._begin_in_time(*self._urgent.popleft())

    def _has_urgent_room(self) -> bool:
        """Whether an urgent request may begin; ended calls and taken answers make room."""
        return not self._write_is_paused and self._urgent_count < URGENT_REQUESTS_MAX

    def _begin_in_time(self, frame: Frame, arrived: float) -> None:
        if frame[3] and arrived + frame[3] / 1000 <= self._loop.time():
            late = DeadlineExceeded("the deadline passed before the server had room")
            self._send(FrameKind.ERROR, 0, frame[2], 0, encode_error(late))
        else:
            self._begin(frame, arrived)

    def _read_on(self) -> None:
        has_backlog = self._backlog or self._urgent or self._write_is_paused
        if self._reading_is_paused and not has_backlog and self._transport is not None:
            self._reading_is_paused = False
            self._received_at = self._loop.time()
            self._transport.resume_reading()


DRAIN_TIMEOUT_MS = 10_000
CANCEL_TIMEOUT_S = 5.0
"""How long `close` waits for cancelled handlers to end."""

_TURN = TurnLimits(pieces_max=512, slice_pieces_max=128)
"""A piece is a frame."""


class Server:
    """Serves a `Service` on any number of addresses; every peer is authenticated on each."""

    def __init__(
        self,
        service: Service,
        credentials: ServerCredentials,
        random_source: random.Random,
        limits: ServerLimits | None = None,
    ) -> None:
        self.service = service
        self.credentials = credentials
        self.random_source = random_source
        self.limits = limits or ServerLimits()
        self.turns = FairScheduler(_TURN)
        self.admission: ConnectionAdmission[ServerConnection | PendingHandshake] = (
            ConnectionAdmission(self.limits.connections_max, self.limits.connections)
        )
        self.is_draining = False
        self._listeners: list[asyncio.Server] = []
        self._acceptors: list[TlsAcceptor] = []
        self._sessions: dict[ServerConnection, None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    async def listen(
        self, host: str = "127.0.0.1", port: int = 0, *, tls: ServerTls | None = None
    ) -> int:
        """Accepts connections; returns the port, which the system chooses if 0 was given."""
        loop = asyncio.get_running_loop()
        make: Callable[[], asyncio.BaseProtocol] = self._session
        if tls is not None:
            handshake_s = self.limits.handshake_timeout_ms / 1000
            acceptor = TlsAcceptor(tls.context, self.admission, handshake_s=handshake_s)
            self._acceptors.append(acceptor)
            make = acceptor.wrap(make)
        listener = await loop.create_server(make, host, port)
        self._listeners.append(listener)
        sockets = listener.sockets
        return int(sockets[0].getsockname()[1]) if sockets else port

    def _session(self) -> ServerConnection:
        return ServerConnection(self, self.limits)

    @property
    def connection_count(self) -> int:
        return len(self._sessions)

    @property
    def task_count(self) -> int:
        return len(self._tasks)

    def has_room_for_a_task(self, *, is_urgent: bool = False) -> bool:
        reserve = URGENT_TASKS_MAX if is_urgent else 0
        return len(self._tasks) < self.limits.handler_tasks_max + reserve

    # Called by connections.

    def admit(self, session: ServerConnection, address: str) -> RaftwoodError | None:
        """Registers a new connection, which `close` waits for; returns an error to refuse it."""
        self._sessions[session] = None
        self._is_empty.clear()
        if self.is_draining:
            return ShuttingDown("the server shuts down: use another")
        entered = self.admission.enter(session, address)
        if entered.displaced is not None:
            entered.displaced.make_room()
        return Overloaded(entered.refusal) if entered.refusal else None

    def forget(self, session: ServerConnection) -> None:
        self._sessions.pop(session, None)
        self.admission.leave(session)
        if not self._sessions:
            self._is_empty.set()

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts a handler's task; `close` cancels and awaits it at the latest."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._forget_task)
        return task

    def _forget_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)

    # The end.

    async def close(self, drain_timeout_ms: int = DRAIN_TIMEOUT_MS) -> None:
        """Stops accepting, asks clients to go, finishes requests in time, then closes."""
        self.is_draining = True
        await stop_accepting(self._listeners)
        for acceptor in self._acceptors:
            await acceptor.close()
        for session in list(self._sessions):
            session.drain()
        # Not asyncio.timeout: before Python 3.11.3 it ends this early if the closing task was
        # itself cancelled, which is how most servers end.
        loop = asyncio.get_running_loop()
        cutting = loop.call_later(drain_timeout_ms / 1000, self._cut_all)
        try:
            await self._is_empty.wait()
        finally:
            cutting.cancel()
        if self._tasks:
            for task in self._tasks:
                task.cancel()
            _, stubborn = await asyncio.wait(list(self._tasks), timeout=CANCEL_TIMEOUT_S)
            if stubborn:
                _log.error("handlers do not end although cancelled", count=len(stubborn))
        self.turns.close()
        for listener in self._listeners:
            await listener.wait_closed()

    def _cut_all(self) -> None:
        for session in list(self._sessions):
            session.cut()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close(drain_timeout_ms=0)
