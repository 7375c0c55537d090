"""HTTP/1.1 on the same event loop as all else: an ASGI application behind bounds.

    listener = await HttpListener.start(application, "127.0.0.1:8080", HttpLimits())
    ...
    await listener.close()

uvicorn's protocol is used without its server, which would take the signals and end the process if a
port is taken. A request may have an absolute target, as for a proxy: only its path counts, and
nothing is ever forwarded.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, MutableMapping
from http import HTTPStatus
from typing import Any, Final

import msgspec
from uvicorn import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from raftwood.base.errors import Unavailable
from raftwood.base.logs import get_logger
from raftwood.base.settings import ConnectionSettings
from raftwood.net.listeners import (
    DISPLACED,
    ConnectionAdmission,
    FairScheduler,
    TurnLimits,
    address_of,
    stop_accepting,
)
from raftwood.net.tls_acceptor import PendingHandshake, TlsAcceptor

STOP_S_MAX: Final = 1.0
"""The time for answers under way at the end; then connections are cut."""
HANDSHAKE_S_MAX: Final = 10.0
"""The time for the TLS handshake."""
LINGER_S_MAX: Final = 5.0
"""The time for a refused client to read the reason; what it still sends is dropped."""
LINGERING_MAX: Final = 64
"""How many refused connections may linger at a time; more are cut."""
AUTHENTICATED: Final = "raftwood.authenticated"
"""The extension of the scope that an application calls once the client has authenticated."""

Explain = Callable[[MutableMapping[str, Any], int, str], tuple[bytes, bytes]]
"""Makes the content type and body of an error of the listener itself, in the format of the API to
which the scope's path belongs; the path may be missing."""

HEAD_PIECE_BYTES: Final = 2 << 10
"""Bytes parsed at a time: as many requests as fit in them start at once."""
BODY_PIECE_BYTES: Final = 16 << 10
_TURN: Final = TurnLimits(pieces_max=32, slice_pieces_max=4, clock_pieces=1)
_QUICK_ACK: Final = getattr(socket, "TCP_QUICKACK", None)
_log = get_logger("http")


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """A client's limits at a listener."""

    keep_alive_ms: int = 5_000
    """How long a connection without a request is kept."""
    request_ms: int = 10_000
    """How long a client may take to send a request, and as long again to read the answer."""
    connections_max: int = 64
    connections: ConnectionSettings = ConnectionSettings()
    """The shares of one address, and of unauthenticated connections."""
    url_bytes_max: int = 32 << 10
    head_bytes_max: int = 64 << 10
    """The rough limit of a request's first line and headers together."""
    request_bytes_max: int = 64 << 20
    """The limit of a whole request; an application bounds its bodies further."""


class HttpListener:
    """Serves an application. Use `start`, and `close` when done."""

    def __init__(
        self, listener: asyncio.Server, shared: "_Shared", acceptor: TlsAcceptor | None
    ) -> None:
        self._listener = listener
        self._acceptor = acceptor
        self._connections = shared.connections
        self._state = shared.state
        self.admission = shared.admission
        host, port = listener.sockets[0].getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @classmethod
    async def start(
        cls,
        application: Any,
        address: str,
        limits: HttpLimits,
        *,
        tls: ssl.SSLContext | None = None,
        setting: str = "http.listen",
        explain: Explain | None = None,
    ) -> "HttpListener":
        """Listens on host:port; errors name `setting`, the setting to change."""
        _take_over_logs()
        config = Config(
            application,
            http="httptools",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            workers=1,
        )
        config.load()
        shared = _Shared(config, limits, explain or _in_plain_text)
        acceptor: TlsAcceptor | None = None
        make: Callable[[], asyncio.BaseProtocol] = lambda: _PacedConnection(shared)  # noqa: E731
        if tls is not None:
            handshake_s = min(HANDSHAKE_S_MAX, limits.request_ms / 1000)
            acceptor = TlsAcceptor(tls, shared.admission, handshake_s=handshake_s)
            make = acceptor.wrap(make)
        name, _, port = address.rpartition(":")
        try:
            listener = await asyncio.get_running_loop().create_server(
                make, name.strip("[]"), int(port)
            )
        except OSError as error:
            raise Unavailable(
                f"cannot listen on {address}: {error.strerror or error}; set {setting} to an "
                "address of this machine that is free"
            ) from error
        return cls(listener, shared, acceptor)

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    async def close(self) -> None:
        """Accepts no more connections, and finishes answers under way within a bounded time."""
        await stop_accepting([self._listener])
        if self._acceptor is not None:
            await self._acceptor.close()
        for connection in list(self._connections):
            connection.shutdown()
        await self._wait_for_ends()
        for connection in list(self._connections):
            connection.transport.abort()
        await self._wait_for_ends()
        # A request may wait longer for something than its client would.
        for task in list(self._state.tasks):
            task.cancel()
        await self._wait_for_ends()

    async def _wait_for_ends(self) -> None:
        ends = [*(connection.closed for connection in self._connections), *self._state.tasks]
        if ends:
            await asyncio.wait(ends, timeout=STOP_S_MAX)


def _in_plain_text(_: MutableMapping[str, Any], _status: int, message: str) -> tuple[bytes, bytes]:
    return b"text/plain; charset=utf-8", message.encode() + b"\n"


class _Shared:
    """The common state of all connections of a listener."""

    def __init__(self, config: Config, limits: HttpLimits, explain: Explain) -> None:
        self.config = config
        self.state = ServerState()
        self.limits = limits
        self.explain = explain
        self.turns = FairScheduler(_TURN)
        self.connections: set[_Connection] = set()
        self.lingering: set[_Connection] = set()
        self.admission: ConnectionAdmission[_Connection | PendingHandshake] = ConnectionAdmission(
            limits.connections_max, limits.connections
        )


class _AnswerTransport:
    """The transport as an answer uses it: its close waits for the rest of the client's bytes."""

    def __init__(self, connection: "_Connection") -> None:
        self._connection = connection
        self.write = connection.transport.write
        self.is_closing = connection.transport.is_closing

    def close(self) -> None:
        self._connection.end()


class _AboveLimit(Exception):
    """Ends the parsing of a head above the limit."""


class _Connection(HttpToolsProtocol):
    """uvicorn's protocol with additions: caps on connections and sizes, a time limit for each
    request, and a close after which the client can still read its answer.
    """

    def __init__(self, shared: _Shared) -> None:
        super().__init__(shared.config, shared.state, {}, asyncio.get_running_loop())
        limits = shared.limits
        self.timeout_keep_alive = limits.keep_alive_ms / 1000  # type: ignore[assignment]
        self.closed: asyncio.Future[None] = self.loop.create_future()
        self._shared = shared
        self._limits = limits
        self._url_bytes_max = min(limits.url_bytes_max, limits.head_bytes_max)
        self._extensions = {AUTHENTICATED: self._on_authenticated}
        self._receiving: asyncio.TimerHandle | None = None
        self._sending: asyncio.TimerHandle | None = None
        self._lingering: asyncio.TimerHandle | None = None
        self._is_in_head = True
        self._is_in_request = False
        self._received_bytes = 0
        self._header_bytes = 0
        self._refusal = (400, "")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        shared = self._shared
        shared.connections.add(self)
        self._start_receiving()
        entered = shared.admission.enter(self, address_of(transport))
        if entered.displaced is not None:
            entered.displaced.make_room()
        if entered.refusal:
            _log.debug("connection refused", reason=entered.refusal)
            self._refuse(503, entered.refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_receiving()
        self._stop_sending()
        if self._lingering is not None:
            self._lingering.cancel()
        super().connection_lost(exc)
        # uvicorn does this itself only if the client ended the connection in order.
        self._unset_keepalive_if_required()
        self._shared.admission.leave(self)
        self._shared.lingering.discard(self)
        self._shared.connections.discard(self)
        self.closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        limits = self._limits
        self._received_bytes += len(data)
        if self._lingering is not None:
            if self._received_bytes > limits.request_bytes_max:
                self.transport.abort()
            return
        self._start_receiving()
        super().data_received(data)
        if not self._is_in_head:
            self._ask_for_the_rest()
        if self._is_in_head and self._received_bytes > limits.head_bytes_max:
            # The parser keeps a header that has no end.
            self._refuse(*self._head_refusal)
        elif self._received_bytes > limits.request_bytes_max:
            # An application bounds its bodies; this bounds the bytes between chunks.
            self._refuse(
                413, f"the request has more than {limits.request_bytes_max} bytes: send it in parts"
            )

    @property
    def _url_refusal(self) -> tuple[int, str]:
        return 414, f"the URL has more than {self._url_bytes_max} bytes: make it shorter"

    @property
    def _head_refusal(self) -> tuple[int, str]:
        return 431, f"the headers have more than {self._limits.head_bytes_max} bytes: send fewer"

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_request = True
        self._header_bytes = 0
        self.scope["extensions"] = self._extensions  # type: ignore[typeddict-item]

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > self._url_bytes_max:
            self._refusal = self._url_refusal
            raise _AboveLimit

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._header_bytes += len(name) + len(value) + 4
        if self._header_bytes > self._limits.head_bytes_max:
            self._refusal = self._head_refusal
            raise _AboveLimit

    def on_headers_complete(self) -> None:
        if not self.url.startswith(b"/"):
            self.url = _with_path(self.url)
        super().on_headers_complete()
        # Only now: a request that cannot be parsed has no answer under way.
        self._is_in_head = False
        self.cycle.transport = _AnswerTransport(self)  # type: ignore[assignment]

    def on_message_complete(self) -> None:
        self._is_in_head = True
        self._is_in_request = False
        self._received_bytes = 0
        self._stop_receiving()
        if self.transport.get_write_buffer_size() == 0:
            self._stop_sending()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn if the parser failed."""
        (status, message), self._refusal = self._refusal, (400, "")
        self._refuse(status, message or msg)

    def _on_authenticated(self) -> None:
        self._shared.admission.authenticated(self)

    def make_room(self) -> None:
        """Closes this connection: a newcomer displaces it."""
        if self._is_in_request and self._lingering is None:
            self._refuse(503, DISPLACED)
        else:
            self.transport.close()

    def _refuse(self, status: int, message: str) -> None:
        """Answers instead of the application, and closes."""
        if self._lingering is not None or self.transport.is_closing():
            return
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if self._is_in_head or self.pipeline or cycle.response_started:
                # The answer to another request, or part of this one's, is already under way.
                self.transport.abort()
                return
            cycle.disconnected = True
            cycle.message_event.set()
        elif not self._is_in_head:
            # The answer came before the whole request.
            self._linger()
            return
        self._write_refusal(status, message)
        self._linger()

    def _write_refusal(self, status: int, message: str) -> None:
        scope: dict[str, Any] = {"headers": []}
        if self._is_in_request:
            path, _, query = self.url.partition(b"?")
            scope = {**self.scope, "path": path.decode("latin-1"), "query_string": query}
        kind, body = self._shared.explain(scope, status, message)
        self.transport.write(
            b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%b"
            % (status, HTTPStatus(status).phrase.encode(), kind, len(body), body)
        )

    def end(self) -> None:
        """Closes after the last answer, at once if the client has sent all of its request."""
        if self._is_in_request:
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        """Drops what the client still sends until it has read its answer, within bounds.

        A close with unread bytes would reset the connection, and lose the answer.
        """
        lingering = self._shared.lingering
        if self.transport.is_closing() or self._lingering is not None:
            return
        self._unset_keepalive_if_required()
        if len(lingering) >= LINGERING_MAX:
            self.transport.close()
            return
        lingering.add(self)
        seconds = self._limits.request_ms / 1000
        if self.transport.get_write_buffer_size() == 0:
            seconds = min(LINGER_S_MAX, seconds)
        self._lingering = self.loop.call_later(seconds, self.transport.abort)
        self._received_bytes = 0
        if self.scheme == "http":
            # TLS has no half-closed connections; there the answer's length marks its end.
            self.transport.write_eof()
        self.flow.resume_reading()
        self._stop_receiving()

    def on_response_complete(self) -> None:
        if self._lingering is not None:
            # This was the last request: those waiting behind it are not started.
            self.pipeline.clear()
        else:
            super().on_response_complete()
        if self.transport.get_write_buffer_size() > 0:
            self._start_sending()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_sending()

    def _ask_for_the_rest(self) -> None:
        # Some clients send the body only after the head is acknowledged, otherwise 40 ms later.
        if _QUICK_ACK is not None and not self.transport.is_closing():
            self.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)

    def _start_receiving(self) -> None:
        # A client that sends a byte now and then would otherwise hold its place for ever.
        if self._receiving is None:
            seconds = self._limits.request_ms / 1000
            self._receiving = self.loop.call_later(seconds, self.transport.abort)

    def _start_sending(self) -> None:
        if self._sending is None:
            seconds = self._limits.request_ms / 1000
            self._sending = self.loop.call_later(seconds, self._on_sending_too_long)

    def _stop_receiving(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            self._receiving = None

    def _stop_sending(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None

    def _on_sending_too_long(self) -> None:
        self._sending = None
        if self.transport.get_write_buffer_size() > 0:
            self.transport.abort()


class _PacedFlow(FlowControl):
    """Resumes with the bytes received already before it reads more."""

    def __init__(self, transport: asyncio.Transport, go_on: Callable[[], None]) -> None:
        super().__init__(transport)
        self._go_on = go_on

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            self._go_on()


class _PacedConnection(_Connection):
    """Parses received bytes a piece at a time, in its turns (see `listeners`). Parses and reads
    nothing while the application has not taken a body or answered the last request.
    """

    def __init__(self, shared: _Shared) -> None:
        super().__init__(shared)
        self._turns = shared.turns
        self._unread = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _PacedFlow(transport, self._go_on)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._unread += data
        if len(self._unread) == len(data) and self._turns.begin():
            self._read()
        else:
            self._read_later()

    def connection_lost(self, exc: Exception | None) -> None:
        self._turns.forget(self._read)
        self._unread = b""
        super().connection_lost(exc)

    def _read(self) -> None:
        """Parses in a slice of a turn."""
        at, unread, transport = 0, self._unread, self.transport
        while (
            at < len(unread)
            and not self.flow.read_paused
            and not transport.is_closing()
            and self._turns.take()
        ):
            end = at + (HEAD_PIECE_BYTES if self._is_in_head else BODY_PIECE_BYTES)
            super().data_received(unread[at:end])
            at = end
        self._unread = b"" if transport.is_closing() else unread[at:]
        if self.flow.read_paused:
            # The application is slow now, not the client.
            self._stop_receiving()
        elif self._unread:
            self._read_later()
        elif not transport.is_closing():
            transport.resume_reading()

    def _go_on(self) -> None:
        if self.transport.is_closing():
            return
        if self._is_in_request:
            self._start_receiving()
        self._read_later()

    def _read_later(self) -> None:
        self._turns.queue(self._read)
        if not self.transport.is_closing():
            self.transport.pause_reading()


def _with_path(target: bytes) -> bytes:
    """Completes an absolute target without a path by `/`."""
    scheme, found, rest = target.partition(b"://")
    if not found:
        return target
    authority, mark, query = rest.partition(b"?")
    return target if b"/" in authority else b"".join((scheme, b"://", authority, b"/", mark, query))


class _LogBridge(logging.Handler):
    """Passes uvicorn's log lines to ours; clients' mistakes are no warnings for the operator."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR:
            _log.error(record.getMessage().strip(), exc_info=record.exc_info)
        else:
            _log.debug(record.getMessage().strip())


def _take_over_logs() -> None:
    logger = logging.getLogger("uvicorn.error")
    logger.handlers = [_LogBridge()]
    logger.propagate = False
