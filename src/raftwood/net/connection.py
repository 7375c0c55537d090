"""The common part of both ends of a connection: deadlines, receiving, coalesced writing,
keep-alive, closing.

All frames of one loop turn leave in one write: small ones joined, large payloads as they are.

Deadlines of many requests go through one timer, which is set to the earliest one known. Requests of
one kind have rising deadlines, so a new one hardly ever moves the timer, and most are answered long
before it fires: the cost per request is one comparison.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, cast

from raftwood.base.errors import ConnectionLost, ProtocolError, RaftwoodError
from raftwood.base.files import Buffer
from raftwood.net.frames import (
    HEADER_BYTES,
    JOINED_BYTES_MAX,
    TAIL_BYTES,
    Frame,
    FrameDecoder,
    FrameKind,
    append_frame,
    joined,
)
from raftwood.net.limits import HANDSHAKE_BYTES_MAX, ConnectionLimits
from raftwood.net.wire_errors import encode_error

SWEEP_INTERVAL_S = 0.005
"""The shortest time between two sweeps, so that many deadlines close together share one."""
NEVER = float("inf")


class DeadlineSweep:
    """Calls `expire(now)` when a deadline has passed; it answers the earliest deadline left."""

    __slots__ = ("_expire", "_loop", "_timer", "due")

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[float], float]) -> None:
        self._loop = loop
        self._expire = expire
        self._timer: asyncio.TimerHandle | None = None
        self.due = NEVER
        """When the next sweep comes; the owner calls `move` with an earlier deadline."""

    def move(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.due = due
        self._timer = None if due == NEVER else self._loop.call_at(due, self._fire)

    def _fire(self) -> None:
        self._timer = None
        # A timer may fire a moment early by the loop's clock resolution.
        now = max(self._loop.time(), self.due)
        self.due = NEVER
        earliest = self._expire(now)
        if earliest < self.due:
            self.move(max(earliest, now + SWEEP_INTERVAL_S))

    def stop(self) -> None:
        self.move(NEVER)


CLOSE_TIMEOUT_S = 1.0
"""How long a closing connection may take to hand over its last bytes."""

UNSENT_BYTES_MAX = 4 << 20


class FramedConnection(asyncio.BufferedProtocol):
    """Base of the client's Connection and the server's Session."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        self._decoder = FrameDecoder(
            payload_bytes_max=HANDSHAKE_BYTES_MAX, receive_bytes=TAIL_BYTES
        )
        self._transport: asyncio.Transport | None = None
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._out_has_large = False
        self._gathered_bytes_max = UNSENT_BYTES_MAX // 2
        self._flush_is_due = False
        self._write_is_paused = False
        self._reading_is_paused = False
        self._is_closing = False
        self._end_reason = ""
        self._end_error: RaftwoodError | None = None
        """The peer's reason to close."""
        self._received_at = self._frame_at = self._loop.time()
        self._written_bytes = 0
        self._taken_bytes = 0
        self._taken_at = 0.0
        self._had_unsent = False
        self._watch_timer: asyncio.TimerHandle | None = None
        self._watch_due = 0.0
        self._abort_timer: asyncio.TimerHandle | None = None

    # Differences between the two ends.

    def _dispatch(self, frames: list[Frame]) -> None:
        raise NotImplementedError

    def _ended(self, error: RaftwoodError, /) -> None:
        """Called once, when the connection is gone."""
        raise NotImplementedError

    def _congestion_changed(self) -> None:
        """Called when the peer stops or resumes taking written bytes."""

    # The asyncio protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport but not its type.
        self._transport = cast("asyncio.Transport", transport)
        self._set_unsent_bytes_max(UNSENT_BYTES_MAX)

    def get_buffer(self, _size_hint: int) -> memoryview:
        return self._decoder.get_buffer()

    def buffer_updated(self, count: int) -> None:
        if self._is_closing:
            # Bytes from a refused peer are overwritten unread.
            return
        self._received_at = self._loop.time()
        try:
            frames = self._decoder.received(count)
            if frames:
                self._frame_at = self._received_at
                # Answers written meanwhile wait for the flush below: one write for all of them.
                self._flush_is_due = True
                self._dispatch(frames)
                self._flush()
        except ProtocolError as error:
            self._close_because(error)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._is_closing = True
        for timer in (self._watch_timer, self._abort_timer):
            if timer is not None:
                timer.cancel()
        self._watch_timer = self._abort_timer = None
        self._out = []
        self._out_bytes = 0
        self._transport = None
        reason = f": {error or self._end_reason}" if error or self._end_reason else ""
        lost = ConnectionLost(f"the connection ended{reason}")
        lost.__cause__ = self._end_error
        self._ended(lost)

    def pause_writing(self) -> None:
        self._write_is_paused = True
        self._congestion_changed()

    def resume_writing(self) -> None:
        self._write_is_paused = False
        self._congestion_changed()

    # Writing.

    def _send(
        self,
        kind: int,
        method: int,
        request_id: int,
        argument: int,
        payload: Buffer | list[Buffer],
    ) -> int:
        size = append_frame(self._out, kind, method, request_id, argument, payload)
        self._out_bytes += size
        if size > HEADER_BYTES + JOINED_BYTES_MAX:
            self._out_has_large = True
        if self._out_bytes > self._gathered_bytes_max:
            # Written out early, so that the transport can report congestion.
            self._write_out()
        elif not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)
        return size

    def _send_encoded(self, frame: bytes) -> None:
        self._out.append(frame)
        self._out_bytes += len(frame)
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        if self._out:
            self._write_out()

    def _write_out(self) -> None:
        out, self._out = self._out, []
        count, self._out_bytes = self._out_bytes, 0
        transport = self._transport
        if transport is None or self._is_closing:
            return
        self._written_bytes += count
        if not self._out_has_large:
            transport.write(b"".join(out))
            return
        self._out_has_large = False
        transport.writelines(joined(out))

    def _set_unsent_bytes_max(self, unsent_bytes_max: int) -> None:
        """Bounds the bytes waiting here and in the transport, plus the frame that exceeds it."""
        self._gathered_bytes_max = unsent_bytes_max // 2
        if self._transport is not None:
            self._transport.set_write_buffer_limits(unsent_bytes_max // 2, unsent_bytes_max // 4)

    # Keep-alive.

    def _start_watch(self) -> None:
        self._watch_at(self._loop.time() + self._limits.ping_interval_ms / 1000)

    def _watch_at(self, due: float) -> None:
        if self._watch_timer is not None:
            self._watch_timer.cancel()
        self._watch_due = due
        self._watch_timer = self._loop.call_at(due, self._watch)

    def _watch(self) -> None:
        """Sends a silent peer a PING, and gives up one that does not answer."""
        limits = self._limits
        now = self._loop.time()
        interval, patience = limits.ping_interval_ms / 1000, limits.ping_timeout_ms / 1000
        if now - self._watch_due > patience / 2:
            # This process itself was stopped: the peer's bytes of that time are not read yet.
            self._received_at = max(self._received_at, now - interval)
        self._see_taken(now)
        silence = now - self._received_at
        again = interval - silence
        if silence >= interval / 2:
            self._decoder.own_buffers.clear()
        if self._reading_is_paused or self._write_is_paused:
            # The peer's PONG could not be read; that it takes bytes is a sign of life as well.
            again = patience
            if self._is_stalled(now, patience):
                return self._abort("the peer takes no bytes")
        elif silence >= interval + patience:
            return self._abort(f"the peer was silent for {silence:.1f} s")
        elif silence >= interval:
            self._send(FrameKind.PING, 0, 0, 0, b"")
            again = interval + patience - silence
        elif not self._decoder.is_between_frames:
            if now - self._frame_at >= limits.frame_timeout_ms / 1000:
                return self._abort("a frame took too long to arrive")
            again = min(again, limits.frame_timeout_ms / 1000)
        # Some clocks fire a timer a moment early.
        self._watch_at(now + max(again, 0.001))
        return None

    def _see_taken(self, now: float) -> None:
        """Takes it as a sign of life if bytes that waited at the last look are taken by now: on a
        slow link a PING behind them is not answered before.
        """
        if self._transport is None:
            return
        unsent = self._transport.get_write_buffer_size()
        # Not the growth of the unsent bytes: those also grow while a dead peer is written to. Nor
        # bytes taken while none waited: the system takes those for a dead peer as well.
        taken = self._written_bytes - unsent
        if self._had_unsent and taken > self._taken_bytes:
            self._received_at = now
        if not self._had_unsent or taken > self._taken_bytes:
            self._taken_at = now
        self._taken_bytes, self._had_unsent = taken, unsent > 0

    def _is_stalled(self, now: float, patience: float) -> bool:
        return self._write_is_paused and now - self._taken_at >= patience

    # Closing.

    def _close_because(self, error: RaftwoodError) -> None:
        """Sends the peer the reason, then closes."""
        if not self._is_closing:
            self._end_reason = error.message
            self._send(FrameKind.ERROR, 0, 0, 0, encode_error(error))
            self._close()

    def _close(self) -> None:
        self._flush()
        self._is_closing = True
        if self._transport is not None and self._abort_timer is None:
            self._abort_timer = self._loop.call_later(CLOSE_TIMEOUT_S, self._transport.abort)
            self._transport.close()

    def _abort(self, reason: str) -> None:
        self._is_closing = True
        self._end_reason = reason
        if self._transport is not None:
            self._transport.abort()

    def _certificate(self) -> Mapping[str, Any] | None:
        """The peer's certificate, if TLS verified one."""
        assert self._transport is not None
        certificate: Mapping[str, Any] | None = self._transport.get_extra_info("peercert")
        return certificate
