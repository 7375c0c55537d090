"""The server's end of one connection: handshake, dispatch, limits and back-pressure.

A request beyond the limits waits in a backlog, and reading pauses until it had its turn; reading
also pauses while the peer does not take its responses. At the limits, but not beyond them, reading
goes on: a client that keeps to them must still be heard when it cancels, grants credit or pings.
One-way messages are over when their handler returns, so they count against no limit and never wait.

Requests also wait in the backlog where they are more than a turn of the loop has room for (see
`turns`). One-way messages do not: leases and elections hang on them. They take of that room,
though, so that clients' requests give way to them.

Nor do requests of urgent methods wait behind others. They have a short backlog of their own, a few
of them pass the limits on requests, and what is more waits for its share of a turn.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, assert_never

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
from raftwood.net.admission import DISPLACED, address_of
from raftwood.net.calls import Call, StreamCall
from raftwood.net.connection import FramedConnection
from raftwood.net.deadlines import NEVER, DeadlineSweep
from raftwood.net.frames import HEADER_BYTES, Frame, Kind, Payload, gathered, size_of
from raftwood.net.handshake import PeerLimits, ServerHandshake
from raftwood.net.identity import Identity
from raftwood.net.limits import URGENT_BYTES_MAX, URGENT_REQUESTS_MAX, ServerLimits
from raftwood.net.methods import Entry, Mode
from raftwood.net.wire_errors import encode_error

if TYPE_CHECKING:
    from raftwood.net.server import Server

_log = get_logger("net")
_CRASHED = "the server failed on this request: its log says why"
_REQUEST = int(Kind.REQUEST)
_RESPONSE = int(Kind.RESPONSE)
_ONE_WAY = int(Kind.ONE_WAY)


class Session(FramedConnection):
    """One client of a server."""

    def __init__(self, server: "Server", limits: ServerLimits) -> None:
        super().__init__(limits)
        self._server = server
        self._bounds = limits
        self._handshake: ServerHandshake | None = None
        self._handshake_timer: asyncio.TimerHandle | None = None
        self._peer: Identity | None = None
        self._peer_frame_bytes_max = 0
        self._entries: dict[int, Entry] = {}
        self._calls: dict[int, Call] = {}
        """Requests under way, streams among them."""
        self._stream_count = 0
        self._bytes_in_flight = 0
        self._backlog: deque[tuple[Frame, float]] = deque()
        self._urgent: deque[tuple[Frame, float]] = deque()
        """What of the backlog is urgent, apart."""
        self._urgent_count = 0
        """Urgent requests under way."""
        self._is_full = False
        self._resume_is_due = False
        self._is_draining = False
        self._request_at = self._received_at
        self._sweep = DeadlineSweep(self._loop, self._expire)

    # Beginning and end.

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
        """A newcomer displaces it."""
        self._close_because(Overloaded(DISPLACED))

    def _stop_handshake_timer(self) -> None:
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
            self._handshake_timer = None

    def drain(self) -> None:
        """Ask the client to go elsewhere; what it has under way is finished."""
        if self._peer is None:
            self._close_because(ShuttingDown("the server shuts down"))
        elif not self._is_draining:
            self._is_draining = True
            self._send(Kind.GOAWAY, 0, 0, 0, b"")

    def cut(self) -> None:
        """Close now, whatever is under way."""
        for call in list(self._calls.values()):
            # Not `ShuttingDown`, after which whoever asks may take it for not done.
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
            # The client closes; only one that does not is closed when this comes round again.
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
            elif backlog and frame[0] == Kind.CREDIT and frame[2] not in self._calls:
                # Of a stream that is not begun: it comes behind its request.
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
            and entry.mode is not Mode.DENIED
            and len(frame[4]) <= URGENT_BYTES_MAX
        )

    def _take(self, number: int, payload: Payload) -> None:
        """Hand on a one-way message; nobody waits for an answer, so what is wrong closes."""
        assert self._peer is not None
        self._request_at = self._received_at
        if self._is_draining:
            return
        entry = self._entries.get(number)
        if entry is None or entry.mode is not Mode.ONE_WAY:
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
        if entry is None or entry.mode is not Mode.FAST or self._is_draining:
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

    def _keep(self, call: Call, entry: Entry) -> None:
        """Count a call that was not answered at once against deadline and limits."""
        if entry.method.is_urgent:
            call.is_urgent = True
            self._urgent_count += 1
        if call.deadline < self._sweep.due:
            self._sweep.move(call.deadline)
        self._is_full = not self._has_room()

    def _begin_other(
        self, entry: Entry | None, number: int, request_id: int, deadline: float, payload: Payload
    ) -> None:
        """Requests for a task or a stream, and those that are refused."""
        assert self._peer is not None
        is_stream = entry is not None and entry.mode is Mode.STREAM
        size = len(payload)
        call = (StreamCall if is_stream else Call)(self, self._peer, request_id, deadline, size)
        if request_id in self._calls:
            raise ProtocolError(f"request id {request_id} is already under way")
        accepted = self._entry_or_refusal(entry, number, size)
        if isinstance(accepted, RaftwoodError):
            self._send(Kind.ERROR, 0, request_id, 0, encode_error(accepted))
            return
        self._calls[request_id] = call
        self._stream_count += is_stream
        self._bytes_in_flight += size
        call.task = self._server.run(self._run(accepted, call, payload))
        self._keep(call, accepted)

    def _entry_or_refusal(
        self, entry: Entry | None, number: int, size: int
    ) -> Entry | RaftwoodError:
        if entry is None:
            return NotFound(f"the server has no method {number}: is it older than the client?")
        if self._is_draining:
            return ShuttingDown("the server shuts down: use another")
        match entry.mode:
            case Mode.DENIED:
                assert self._peer is not None
                return PermissionDenied(f"role {self._peer.role} may not call {entry.method.name}")
            case Mode.STREAM if (
                self._stream_count >= self._bounds.streams_max
                or self._bytes_in_flight + size > self._bounds.bytes_in_flight_max
            ):
                # Refused and never held back: streams need reading to go on, for their credit.
                return Overloaded("this connection has too many streams: close some first")
            case Mode.TASK | Mode.STREAM:
                if self._server.has_room_for_a_task(is_urgent=entry.method.is_urgent):
                    return entry
                return Overloaded("the server has too many requests under way")
            case Mode.ONE_WAY:
                return InvalidInput(f"{entry.method.name} is never answered: send, do not call")
            case Mode.FAST:
                return entry
            case _:
                assert_never(entry.mode)

    async def _run(self, entry: Entry, call: Call, payload: Payload) -> None:
        """The task of one request: whatever its handler does, the connection survives."""
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
        if kind == Kind.CANCEL:
            self._cancel(request_id)
        elif kind == Kind.CREDIT:
            stream = self._calls.get(request_id)
            if isinstance(stream, StreamCall):
                stream.credit += argument
                stream.wake()
        elif kind == Kind.PING:
            self._send(Kind.PONG, 0, 0, 0, b"")
        elif kind != Kind.PONG:
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
        """Send a call's response, or the end of its stream."""
        self._release(call)
        if call.is_stream:
            self._send(Kind.STREAM_END, 0, call.request_id, 0, b"")
            return
        whole: Buffer | list[Buffer]
        if type(payload) is bytes:
            whole, size = payload, len(payload)
        else:
            whole, size = gathered(payload)
        if size > self._peer_frame_bytes_max:
            self._send(Kind.ERROR, 0, call.request_id, 0, encode_error(self._too_large(size)))
        else:
            self._send(_RESPONSE, 0, call.request_id, 0, whole)

    def refuse(self, call: Call, error: RaftwoodError) -> None:
        self._release(call)
        self._send(Kind.ERROR, 0, call.request_id, 0, encode_error(error))

    def send_item(self, call: StreamCall, item: Buffer) -> int:
        if size_of(item) > self._peer_frame_bytes_max:
            raise self._too_large(size_of(item))
        return self._send(Kind.STREAM_ITEM, 0, call.request_id, 0, item) - HEADER_BYTES

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
        """Whether the peer does not take what was written."""
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
        """A slice of a turn: take up the backlog as far as there is room; at its end, read on."""
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
        """An urgent slice of a turn."""
        if self._transport is None or self._is_closing:
            return
        try:
            self._begin_urgent()
        except ProtocolError as error:
            self._close_because(error)
            return
        self._read_on()

    def _begin_urgent(self) -> None:
        """Take up what is urgent, as far as there is room for it."""
        turns = self._server.turns
        while self._urgent and self._has_urgent_room():
            if not turns.take_urgent():
                turns.queue(self._resume_urgent, urgent=True)
                return
            self._begin_in_time(*self._urgent.popleft())

    def _has_urgent_room(self) -> bool:
        """A call that ends makes some, and so does a peer that takes its answers."""
        return not self._write_is_paused and self._urgent_count < URGENT_REQUESTS_MAX

    def _begin_in_time(self, frame: Frame, arrived: float) -> None:
        if frame[3] and arrived + frame[3] / 1000 <= self._loop.time():
            late = DeadlineExceeded("the deadline passed before the server had room")
            self._send(Kind.ERROR, 0, frame[2], 0, encode_error(late))
        else:
            self._begin(frame, arrived)

    def _read_on(self) -> None:
        has_backlog = self._backlog or self._urgent or self._write_is_paused
        if self._reading_is_paused and not has_backlog and self._transport is not None:
            self._reading_is_paused = False
            self._received_at = self._loop.time()
            self._transport.resume_reading()
