"""HTTP/1.1 on the loop of everything else: an ASGI application behind bounds.

    listener = await HttpListener.start(application, "127.0.0.1:8080", HttpLimits())
    ...
    await listener.close()

uvicorn's protocol is used without its server, which would take the signals and end the process
where a port is taken. It may be spoken to as a proxy: of an absolute target the path counts, and
nothing is ever forwarded.
"""

import asyncio
import logging
import socket
import ssl
from typing import Any, Final

import msgspec
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from raftwood.base.errors import Unavailable
from raftwood.base.logs import get_logger
from raftwood.net.listeners import stop_accepting
from raftwood.net.turns import TurnLimits, Turns

STOP_S_MAX: Final = 1.0
"""For answers under way; after it connections are cut."""

HEAD_PIECE_BYTES: Final = 2 << 10
"""Parsed at a time: as many requests as have room in it are begun at once."""
BODY_PIECE_BYTES: Final = 16 << 10
_TURN: Final = TurnLimits(pieces_max=32, slice_pieces_max=4, clock_pieces=1)
_QUICK_ACK: Final = getattr(socket, "TCP_QUICKACK", None)
_log = get_logger("http")


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one client may take of a listener."""

    keep_alive_ms: int = 5_000
    """How long a connection without a request is kept."""
    request_ms: int = 10_000
    """How long a client may take to send a request, and as long again to read the answer."""
    connections_max: int = 64
    head_bytes_max: int = 64 << 10
    """Of a request's first line and headers, roughly."""
    request_bytes_max: int = 64 << 20
    """Of a whole request; an application bounds its bodies further."""


class HttpListener:
    """Use `start`, and `close` when done."""

    def __init__(
        self, listener: asyncio.Server, connections: set["_Connection"], state: ServerState
    ) -> None:
        self._listener = listener
        self._connections = connections
        self._state = state
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
    ) -> "HttpListener":
        """Listen on host:port, which `setting` says to whoever has to change it."""
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
        connections: set[_Connection] = set()
        state = ServerState()
        turns = Turns(_TURN)
        name, _, port = address.rpartition(":")
        try:
            listener = await asyncio.get_running_loop().create_server(
                lambda: _PacedConnection(turns, config, state, limits, connections),
                name.strip("[]"),
                int(port),
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else limits.request_ms / 1000,
            )
        except OSError as error:
            raise Unavailable(
                f"cannot listen on {address}: {error.strerror or error}; set {setting} to an "
                "address of this machine that is free"
            ) from error
        return cls(listener, connections, state)

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    async def close(self) -> None:
        """Finish answers that are under way, within a bounded time, and let nobody in any more."""
        await stop_accepting([self._listener])
        for connection in list(self._connections):
            connection.shutdown()
        await self._wait_for_ends()
        for connection in list(self._connections):
            connection.transport.abort()
        await self._wait_for_ends()
        # A request may wait for something longer than its client would.
        for task in list(self._state.tasks):
            task.cancel()
        await self._wait_for_ends()

    async def _wait_for_ends(self) -> None:
        ends = [*(connection.closed for connection in self._connections), *self._state.tasks]
        if ends:
            await asyncio.wait(ends, timeout=STOP_S_MAX)


class _Connection(HttpToolsProtocol):
    """uvicorn's, with what it lacks: caps on connections and sizes, and a time for each request."""

    def __init__(
        self,
        config: Config,
        state: ServerState,
        limits: HttpLimits,
        connections: set["_Connection"],
    ) -> None:
        super().__init__(config, state, {}, asyncio.get_running_loop())
        self.timeout_keep_alive = limits.keep_alive_ms / 1000  # type: ignore[assignment]
        self.closed: asyncio.Future[None] = self.loop.create_future()
        self._all = connections
        self._limits = limits
        self._receiving: asyncio.TimerHandle | None = None
        self._sending: asyncio.TimerHandle | None = None
        self._is_in_head = True
        self._received_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._all.add(self)
        if len(self._all) > self._limits.connections_max:
            _log.debug("connection refused", limit="connections_max")
            transport.abort()
        self._start_receiving()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_receiving()
        self._stop_sending()
        super().connection_lost(exc)
        # It does so itself only where the client ended the connection in order.
        self._unset_keepalive_if_required()
        self._all.discard(self)
        self.closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._start_receiving()
        self._received_bytes += len(data)
        super().data_received(data)
        if not self._is_in_head:
            self._ask_for_the_rest()
        limits = self._limits
        if (
            self._is_in_head and self._received_bytes > limits.head_bytes_max
        ) or self._received_bytes > limits.request_bytes_max:
            # The parser keeps a header that has no end, and what stands between chunks.
            self._refuse_size()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        if not self.url.startswith(b"/"):
            self.url = _with_path(self.url)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_in_head = True
        self._received_bytes = 0
        self._stop_receiving()
        if self.transport.get_write_buffer_size() == 0:
            self._stop_sending()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.get_write_buffer_size() > 0:
            self._start_sending()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_sending()

    def _ask_for_the_rest(self) -> None:
        # Some clients send the body only once the head was acknowledged, which else takes 40 ms.
        if _QUICK_ACK is not None and not self.transport.is_closing():
            self.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)

    def _refuse_size(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(
                b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
                b"content-length: 0\r\nconnection: close\r\n\r\n"
            )
            self.transport.close()

    def _start_receiving(self) -> None:
        # A client that sends a byte now and then would hold its place for ever.
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


class _PacedConnection(_Connection):
    """Parses what comes a piece at a time, in its turns: see `turns`."""

    def __init__(self, turns: Turns, *shared: Any) -> None:
        super().__init__(*shared)
        self._turns = turns
        self._unread = b""

    def data_received(self, data: bytes) -> None:
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
        """A slice of a turn."""
        at, unread = 0, self._unread
        while at < len(unread) and not self.transport.is_closing() and self._turns.take():
            end = at + (HEAD_PIECE_BYTES if self._is_in_head else BODY_PIECE_BYTES)
            super().data_received(unread[at:end])
            at = end
        self._unread = b"" if self.transport.is_closing() else unread[at:]
        if self._unread:
            self._read_later()
        elif not self.flow.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def _read_later(self) -> None:
        self._turns.queue(self._read)
        if not self.transport.is_closing():
            self.transport.pause_reading()


def _with_path(target: bytes) -> bytes:
    """An absolute target may lack its path, which then is `/`."""
    scheme, found, rest = target.partition(b"://")
    if not found:
        return target
    authority, mark, query = rest.partition(b"?")
    return target if b"/" in authority else b"".join((scheme, b"://", authority, b"/", mark, query))


class _LogBridge(logging.Handler):
    """uvicorn's lines as ours; what clients do wrong is no warning to whoever runs the server."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR:
            _log.error(record.getMessage().strip(), exc_info=record.exc_info)
        else:
            _log.debug(record.getMessage().strip())


def _take_over_logs() -> None:
    logger = logging.getLogger("uvicorn.error")
    logger.handlers = [_LogBridge()]
    logger.propagate = False
