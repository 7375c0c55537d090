"""Ways in on ports of their own: admission of peers, bounds on memory, orderly shutdown.

Each connection has one task that reads, decodes and puts in turn. What arrives during a put is put
together afterwards, and a sender that is faster than the disks has to wait. Connections take turns
in decoding, a slice each.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from raftwood.base.environment import Environment
from raftwood.base.errors import Overloaded, RaftwoodError, Unavailable
from raftwood.base.logs import get_logger
from raftwood.base.metrics import Metrics
from raftwood.base.settings import ConnectionSettings
from raftwood.loghub.server.ways_in.records import LogstoreName, RecordSection, SectionWriter
from raftwood.loghub.server.ways_in.settings import AllowedNetworks, WaysInSettings
from raftwood.loghub.shards import hash_key
from raftwood.net.listeners import ConnectionAdmission, FairScheduler, TurnLimits
from raftwood.net.tls import ServerTls
from raftwood.net.tls_acceptor import PendingHandshake, TlsAcceptor

READ_BYTES: Final = 256 << 10
SLICE_BYTES: Final = 16 << 10
"""Bytes of messages that are decoded before other connections have their turn."""
_MESSAGE_BYTES: Final = 100
"""About what a message costs besides its bytes."""
_TURN: Final = TurnLimits(pieces_max=8, slice_pieces_max=1)
HANDSHAKE_S_MAX: Final = 10.0
"""How long a peer may take to authenticate."""
CLOSE_S_MAX: Final = 2.0
"""How long batches under way may take at the end; then their tasks are cancelled."""
REFUSED_HOSTS_MAX: Final = 1_000

_log = get_logger("ways_in")


def host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


class SocketConnection:
    """The connection of one peer; `host` is its address."""

    def __init__(
        self,
        server: "SocketServer",
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        host: str,
    ) -> None:
        self._server = server
        self._reader = reader
        self._writer = writer
        self.host = host
        self.held_bytes = 0
        self.is_busy = False

    async def read(self) -> bytes:
        """Reads what has arrived; empty at the end, and if nothing arrives for too long."""
        if self._server.is_closing:
            return b""
        timer = self._cut_later(self._server.settings.idle_ms / 1000)
        self.is_busy = False
        try:
            return await self._reader.read(READ_BYTES)
        except OSError:
            return b""
        finally:
            self.is_busy = True
            timer.cancel()

    def authenticated(self) -> None:
        """The peer has logged in, or sent a message: newcomers no longer displace it."""
        self._server.authenticated(self)

    def hold(self, size: int) -> None:
        """Accounts for the held bytes of a message that is not whole yet."""
        self._server.held_bytes += size - self.held_bytes
        self.held_bytes = size
        if size and self._server.held_bytes > self._server.settings.buffers_bytes_max:
            raise Overloaded(
                "messages that are not whole take more than ways_in.buffers_bytes_max: raise it"
            )

    async def put(self, sections: list[RecordSection]) -> None:
        """Puts sections; they are durable on return."""
        await self._server.put(sections, self.host)

    async def write(self, data: bytes) -> None:
        """Writes to the peer; cuts a peer that does not read for too long."""
        timer = self._cut_later(self._server.settings.idle_ms / 1000)
        self._writer.write(data)
        try:
            await self._writer.drain()
        finally:
            timer.cancel()

    async def end(self) -> None:
        """Closes once all is sent, or after a timeout."""
        timer = self._cut_later(CLOSE_S_MAX)
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            pass  # the peer was faster
        finally:
            timer.cancel()

    def _cut_later(self, seconds: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, self.abort)

    def make_room(self) -> None:
        """Closes the connection in favour of a newcomer."""
        self.abort()

    def abort(self) -> None:
        self._writer.transport.abort()


class Slices:
    """Messages that arrived together: each slice of them waits for its turn."""

    def __init__(self, turns: FairScheduler) -> None:
        self._turns = turns
        self._left = 0

    async def wait(self, message: bytes) -> None:
        """Waits until a message may be decoded."""
        if self._left <= 0:
            await self._turns.pause()
            self._left = SLICE_BYTES
        self._left -= len(message) + _MESSAGE_BYTES


class SocketServer:
    """The base of a way in on sockets: subclasses define the task of a connection.

    Call `listen` for each address, and `close` when done.
    """

    way: str

    def __init__(
        self,
        environment: Environment,
        putting: SectionWriter,
        settings: WaysInSettings,
        *,
        place: LogstoreName,
        peers: AllowedNetworks,
        metrics: Metrics,
        connections: ConnectionSettings,
    ) -> None:
        self.environment = environment
        self.putting = putting
        self.settings = settings
        self.place = place
        self.peers = peers
        self.held_bytes = 0
        self.ports: list[int] = []
        """The ports that it listens on, in the order of the addresses."""
        self._listeners: list[asyncio.Server] = []
        self._acceptors: list[TlsAcceptor] = []
        self._connections: dict[asyncio.Task[None], SocketConnection] = {}
        self._admission: ConnectionAdmission[SocketConnection | PendingHandshake] = (
            ConnectionAdmission(settings.connections_max, connections)
        )
        self._admission.count_in(metrics, self.way)
        self._refused_hosts: set[str] = set()
        self.is_closing = False
        self.turns = FairScheduler(_TURN)
        labels = {"way": self.way}
        self._records = metrics.counter(
            "ways_in_records_total", "Records stored that came over a socket.", labels
        )
        self.dropped = metrics.counter(
            "ways_in_dropped_total",
            "Records not stored; who asked for acks sends them again.",
            labels,
        )
        self._refused = metrics.counter(
            "ways_in_refused_total", "Connections that were not let in.", labels
        )
        metrics.pull_gauge(
            "ways_in_connections", "Open connections.", lambda: len(self._connections), labels
        )

    async def serve(self, connection: SocketConnection) -> None:
        """Serves a peer until it ends; a `RaftwoodError` closes the connection."""
        raise NotImplementedError

    def lets_in(self, host: str, *, has_certificate: bool) -> bool:
        """Whether a peer is admitted, before anything is read."""
        return has_certificate or host in self.peers

    async def listen(self, address: str, *, tls: ServerTls | None = None) -> None:
        """Listens on an address; for port 0 the system chooses one."""
        make: Callable[[], asyncio.BaseProtocol] = self._streams
        if tls is not None:
            acceptor = TlsAcceptor(
                tls.context, self._admission, handshake_s=HANDSHAKE_S_MAX, shutdown_s=1.0
            )
            self._acceptors.append(acceptor)
            make = acceptor.wrap(make)
        host, port = host_and_port(address)
        try:
            listener = await asyncio.get_running_loop().create_server(make, host, port)
        except OSError as error:
            raise Unavailable(
                f"cannot listen on {address}: {error.strerror or error}; give an address of this "
                f"machine that is free for {self.way}"
            ) from error
        self._listeners.append(listener)
        self.ports.append(int(listener.sockets[0].getsockname()[1]))

    def _streams(self) -> asyncio.BaseProtocol:
        reader = asyncio.StreamReader(READ_BYTES)
        return asyncio.StreamReaderProtocol(reader, self._accept)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        host = peer[0] if peer else ""
        has_certificate = bool(writer.get_extra_info("peercert"))
        connection = SocketConnection(self, reader, writer, host)
        if (
            self.is_closing
            or not self.lets_in(host, has_certificate=has_certificate)
            or not self._has_room_for(connection)
        ):
            self._tell_of_refusal(host)
            connection.abort()
            return
        if has_certificate:
            self.authenticated(connection)
        task = asyncio.get_running_loop().create_task(self._served(connection))
        self._connections[task] = connection
        task.add_done_callback(self._forget)

    def _has_room_for(self, connection: SocketConnection) -> bool:
        entered = self._admission.enter(connection, connection.host)
        if entered.displaced is not None:
            # Neither protocol has a message for it.
            entered.displaced.make_room()
        return not entered.refusal

    def authenticated(self, connection: SocketConnection) -> None:
        self._admission.authenticated(connection)

    def _tell_of_refusal(self, host: str) -> None:
        """Logs a refusal once for each host, so that strangers do not fill the log."""
        self._refused.inc()
        if host not in self._refused_hosts and len(self._refused_hosts) < REFUSED_HOSTS_MAX:
            self._refused_hosts.add(host)
            _log.warning("connection refused", way=self.way, peer=host)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._admission.leave(self._connections.pop(task))
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a connection's task failed", way=self.way, exc_info=error)

    async def _served(self, connection: SocketConnection) -> None:
        try:
            await self.serve(connection)
        except RaftwoodError as error:
            _log.warning("connection closed", way=self.way, peer=connection.host, why=error.message)
        except OSError:
            pass  # the peer is gone
        finally:
            connection.hold(0)
            await connection.end()

    async def put(self, sections: list[RecordSection], host: str) -> None:
        """Puts one peer's sections; its records stay in order, because they have the same key."""
        count = sum(len(section.records) for section in sections)
        source = host.encode()
        try:
            dropped = await self.putting.put_patiently(
                self.place,
                sections,
                source=source,
                key=hash_key(source),
                patience_ms=self.settings.put_ms,
            )
        except RaftwoodError:
            self.dropped.inc(count)
            raise
        if dropped:
            self.dropped.inc(dropped)
            _log.warning("records too large", way=self.way, peer=host, count=dropped)
        self._records.inc(count - dropped)

    async def close(self) -> None:
        """Refuses new peers; puts what was read, within a bounded time."""
        self.is_closing = True
        for listener in self._listeners:
            listener.close()
        for acceptor in self._acceptors:
            await acceptor.close()
        for connection in self._connections.values():
            if not connection.is_busy:
                connection.abort()
        if self._connections:
            await asyncio.wait(list(self._connections), timeout=CLOSE_S_MAX)
        for task in list(self._connections):
            task.cancel()
        if self._connections:
            await asyncio.wait(list(self._connections), timeout=CLOSE_S_MAX)
        for listener in self._listeners:
            await listener.wait_closed()
