"""Simulated TCP as asyncio's protocols know it: transports, listening and connecting.

Kernel events (`arrived`, `break_off`, `became_writable`) happen whether or not the process runs;
asyncio's part happens as callbacks of the process, in its order.
"""

import asyncio
import contextvars
import errno
import socket
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from raftwood.base.futures import fail
from raftwood.testing.errors import ProcessEnded, refuse
from raftwood.testing.network import Direction, Network
from raftwood.testing.nodes import Process

if TYPE_CHECKING:
    from raftwood.testing.loop import SimulatedLoop
    from raftwood.testing.nodes import SimulatedNode

_READ_BYTES_MAX = 256 * 1024
_HIGH_WATER_DEFAULT = 64 * 1024


class SimulatedTransport(asyncio.Transport):
    """A connected socket of one process."""

    peer: "SimulatedTransport"
    outgoing: Direction
    incoming: Direction

    def __init__(
        self,
        network: Network,
        process: "Process",
        context: contextvars.Context,
        server: "SimulatedServer | None" = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.process = process
        self.node: SimulatedNode = process.node
        self.number = process.number
        self.gone = False
        self._loop = network.loop
        self._context = context
        self._server = server
        self._names: dict[str, Any] = {}
        self._protocol: Any = None
        self._buffered_protocol = False
        self._closing = False
        self._lost_called = False
        self._lost_because: OSError | None = None
        # Towards the peer.
        self._buffer: deque[bytes] = deque()
        self._buffer_bytes = 0
        self._write_scheduled = False
        self._eof_written = False
        self._end_sent = False
        self._protocol_paused = False
        self._high_water = _HIGH_WATER_DEFAULT
        self._low_water = _HIGH_WATER_DEFAULT // 4
        # From the peer.
        self._received: deque[bytes] = deque()
        self._received_bytes = 0
        self._eof_received = False
        self._reading_paused = False
        self._read_scheduled = False
        network.transports[self] = None
        process.resources[self] = None

    def __repr__(self) -> str:
        return f"<connection of {self.node.name} with {self.peer.node.name}>"

    @property
    def reports_leak(self) -> bool:
        return not self.gone

    def join(self, peer: "SimulatedTransport") -> None:
        """Connects two ends, before either is used."""
        self.peer, peer.peer = peer, self
        self.outgoing = peer.incoming = Direction(self.network, self, peer)
        self.incoming = peer.outgoing = Direction(self.network, peer, self)

    def name_ends(self, own: Any, other: Any) -> None:
        self._names = {
            "socket": own,
            "sockname": own.getsockname(),
            "peername": other.getsockname(),
        }

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._names.get(name, default)

    def attach(self, protocol: asyncio.BaseProtocol) -> None:
        """Passes the connection to its protocol; called in the process's own turn."""
        self.set_protocol(protocol)
        if self._server is not None:
            self._server.attach()
        if self._guarded(protocol.connection_made, self):
            self._schedule_read()
        if self._lost_called:
            # It broke before the process took it; the protocol must get both calls.
            self._lost_called = False
            self._loop.call_soon(
                self._call_connection_lost, self._lost_because, context=self._context
            )

    # The kernel's part.

    def arrived(self, data: bytes) -> None:
        if data:
            self._received.append(data)
            self._received_bytes += len(data)
        else:
            self._eof_received = True
        self._schedule_read()

    def became_writable(self) -> None:
        if not self.gone and not self._write_scheduled:
            self._write_scheduled = True
            self._loop.call_soon(self._write_ready, context=self._context)

    def break_off(self, exception: OSError | None) -> None:
        """Ends the connection: nothing more is sent or delivered."""
        if self.gone:
            return
        self._leave()
        self._loop.call_soon(self._call_connection_lost, exception, context=self._context)

    def process_ended(self, *, power_lost: bool) -> None:
        if not self.gone:
            self._leave()
            if not power_lost:
                self.outgoing.reset_target()

    def _leave(self) -> None:
        self.gone = True
        self._closing = True
        self._buffer.clear()
        self._buffer_bytes = 0
        self._received.clear()
        self._received_bytes = 0
        self.network.transports.pop(self, None)

    # Reading.

    def _schedule_read(self) -> None:
        if (
            not self._read_scheduled
            and not self._reading_paused
            and not self._closing
            and self._protocol is not None
            and (self._received or self._eof_received)
        ):
            self._read_scheduled = True
            self._loop.call_soon(self._read_ready, context=self._context)

    def _read_ready(self) -> None:
        self._read_scheduled = False
        if self._closing or self._reading_paused:
            return
        if self._received:
            if self._buffered_protocol:
                self._read_into_buffer()
            else:
                data = self._take(_READ_BYTES_MAX)
                self._guarded(self._protocol.data_received, data)
        elif self._eof_received:
            self._deliver_eof()
            return
        self._schedule_read()

    def _read_into_buffer(self) -> None:
        try:
            buffer = memoryview(self._protocol.get_buffer(-1))
            if not buffer:
                raise RuntimeError("get_buffer() returned an empty buffer")
        except (ProcessEnded, SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._fatal(error)
            return
        data = self._take(len(buffer))
        buffer[: len(data)] = data
        self._guarded(self._protocol.buffer_updated, len(data))

    def _take(self, bytes_max: int) -> bytes:
        """Reads arrived bytes: joined, cut or, by chance, short."""
        available = min(self._received_bytes, bytes_max)
        probability = self.network.profile.short_read_probability
        if available > 1 and probability and self.network.random.random() < probability:
            available = 1 + int(self.network.random.random() * (available - 1))
        received = self._received
        if len(received) == 1 and len(received[0]) == available:
            data = received.popleft()
        else:
            data = b"".join(received)
            received.clear()
            if len(data) > available:
                received.append(data[available:])
                data = data[:available]
        self._received_bytes -= available
        self.incoming.consumed(available)
        return data

    def _deliver_eof(self) -> None:
        self._eof_received = False
        try:
            keeps_open = self._protocol.eof_received()
        except (ProcessEnded, SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._fatal(error)
            return
        if not keeps_open:
            self.close()

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        self._reading_paused = False
        self._schedule_read()

    def is_reading(self) -> bool:
        return not self._closing and not self._reading_paused

    # Writing.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"data must be a bytes-like object, not {type(data).__name__}")
        if self._eof_written:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._closing or not data:
            return
        rest = bytes(data)
        if not self._buffer:
            taken = self.outgoing.offer(rest)
            if taken == len(rest):
                return
            rest = rest[taken:]
        self._buffer.append(rest)
        self._buffer_bytes += len(rest)
        self._maybe_pause_protocol()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def _write_ready(self) -> None:
        self._write_scheduled = False
        if self.gone:
            return
        buffer = self._buffer
        while buffer:
            taken = self.outgoing.offer(buffer[0])
            self._buffer_bytes -= taken
            if taken < len(buffer[0]):
                buffer[0] = buffer[0][taken:]
                break
            buffer.popleft()
        self._maybe_resume_protocol()
        if not buffer:
            if self._closing:
                self._finish_close()
            elif self._eof_written:
                self.outgoing.finish()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self._closing or self._eof_written:
            return
        self._eof_written = True
        if not self._buffer:
            self.outgoing.finish()

    def get_write_buffer_size(self) -> int:
        return self._buffer_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low_water, self._high_water

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = _HIGH_WATER_DEFAULT if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high_water, self._low_water = high, low
        self._maybe_pause_protocol()

    def _maybe_pause_protocol(self) -> None:
        if self._buffer_bytes > self._high_water and not self._protocol_paused:
            self._protocol_paused = True
            self._reported(self._protocol.pause_writing, "protocol.pause_writing() failed")

    def _maybe_resume_protocol(self) -> None:
        if self._protocol_paused and self._buffer_bytes <= self._low_water:
            self._protocol_paused = False
            self._reported(self._protocol.resume_writing, "protocol.resume_writing() failed")

    # Ending.

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if not self._buffer:
            self._finish_close()

    def _finish_close(self) -> None:
        # Apart from `_eof_written`: after close() a write is dropped, after write_eof() an error.
        if not self._eof_written and not self._end_sent:
            self._end_sent = True
            self.outgoing.finish()
        self._loop.call_soon(self._call_connection_lost, None, context=self._context)

    def abort(self) -> None:
        if self.gone:
            return
        if self.process.alive:
            self.outgoing.clear()
            self.outgoing.reset_target()
        self.break_off(None)

    def _call_connection_lost(self, exception: OSError | None) -> None:
        if self._lost_called:
            return
        self._lost_called = True
        self._lost_because = exception
        if not self.gone:
            self._leave()
        self.process.resources.pop(self, None)
        protocol, self._protocol = self._protocol, None
        try:
            if protocol is not None:
                protocol.connection_lost(exception)
        finally:
            if self._server is not None and protocol is not None:
                self._server.detach()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._buffered_protocol = isinstance(protocol, asyncio.BufferedProtocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    # Like asyncio: an error of a protocol costs its connection, not the loop.

    def _guarded(self, call: Callable[..., object], *args: object) -> bool:
        try:
            call(*args)
        except (ProcessEnded, SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._fatal(error)
            return False
        return True

    def _reported(self, call: Callable[[], object], message: str) -> None:
        try:
            call()
        except (ProcessEnded, SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._loop.call_exception_handler({"message": message, "exception": error})

    def _fatal(self, error: BaseException) -> None:
        if not isinstance(error, OSError):
            message = "Fatal error: a protocol callback failed"
            self._loop.call_exception_handler({"message": message, "exception": error})
        self.abort()


ProtocolFactory = Callable[[], asyncio.BaseProtocol]

# Options that only tune a real kernel; any other would change what is simulated.
_HARMLESS_OPTIONS = frozenset(
    {
        (socket.IPPROTO_TCP, socket.TCP_NODELAY),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        (socket.SOL_SOCKET, socket.SO_REUSEADDR),
        (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPIDLE", 4)),
        (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPINTVL", 5)),
        (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPCNT", 6)),
    }
)


class SimulatedSocket:
    """The object behind `get_extra_info("socket")` and `Server.sockets`."""

    family = socket.AF_INET
    type = socket.SOCK_STREAM
    proto = socket.IPPROTO_TCP

    def __init__(self, host: str, port: int) -> None:
        self._name = (host, port)

    def __repr__(self) -> str:
        return f"<simulated socket {self._name[0]}:{self._name[1]}>"

    def getsockname(self) -> tuple[str, int]:
        return self._name

    def fileno(self) -> int:
        raise NotImplementedError("a simulated socket has no descriptor")

    def setsockopt(self, level: int, option: int, _value: object) -> None:
        if (level, option) not in _HARMLESS_OPTIONS:
            raise NotImplementedError(f"setsockopt({level}, {option}) is not simulated")


class SimulatedServer(asyncio.AbstractServer):
    """A listener of one process.

    `wait_closed` waits for the connections too, as Python 3.12 and later do.
    """

    reports_leak = True

    def __init__(
        self,
        loop: "SimulatedLoop",
        process: Process,
        factory: ProtocolFactory,
        *,
        port: int,
        backlog: int,
    ) -> None:
        self.loop = loop
        self.process = process
        self.node = process.node
        self.port = port
        self.context = contextvars.copy_context()
        self.serving = False
        self._factory = factory
        self._backlog = backlog
        self._waiting_to_be_accepted = 0
        self._closed = False
        self._active = 0
        self._waiters: list[asyncio.Future[None]] = []
        self._forever: asyncio.Future[None] | None = None
        self._socket = SimulatedSocket(self.node.name, port)
        loop.network.listen(self)
        process.resources[self] = None

    def __repr__(self) -> str:
        return f"<server {self.node.name}:{self.port}>"

    @property
    def sockets(self) -> tuple[SimulatedSocket, ...]:
        return () if self._closed else (self._socket,)

    @property
    def has_room(self) -> bool:
        return self._waiting_to_be_accepted < self._backlog

    def accept(self, transport: SimulatedTransport) -> None:
        """Ends a handshake in the kernel; the process takes the connection in its own time."""
        self._waiting_to_be_accepted += 1
        self.loop.call_soon(self._accept, transport, context=self.context)

    def _accept(self, transport: SimulatedTransport) -> None:
        self._waiting_to_be_accepted -= 1
        if transport.gone:
            self.process.resources.pop(transport, None)
        elif self._closed:
            transport.abort()
        else:
            transport.attach(self._factory())

    def attach(self) -> None:
        self._active += 1

    def detach(self) -> None:
        self._active -= 1
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        if self._closed and self._active == 0:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def process_ended(self, *, power_lost: bool) -> None:  # noqa: ARG002
        self.serving = False
        self.loop.network.unlisten(self)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self.loop

    def is_serving(self) -> bool:
        return self.serving

    async def start_serving(self) -> None:
        self.serving = not self._closed
        await asyncio.sleep(0)

    async def serve_forever(self) -> None:
        if self._forever is not None:
            raise RuntimeError(f"server {self!r} is already being awaited on serve_forever()")
        if self._closed:
            raise RuntimeError(f"server {self!r} is closed")
        self.serving = True
        self._forever = self.loop.create_future()
        try:
            await self._forever
        except asyncio.CancelledError:
            self.close()
            await self.wait_closed()
            raise
        finally:
            self._forever = None

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.serving = False
        self.loop.network.unlisten(self)
        self.process.resources.pop(self, None)
        if self._forever is not None and not self._forever.done():
            self._forever.cancel()
        self._wake_waiters()

    async def wait_closed(self) -> None:
        if self._closed and self._active == 0:
            return
        waiter = self.loop.create_future()
        self._waiters.append(waiter)
        await waiter


async def create_server(
    loop: "SimulatedLoop",
    factory: ProtocolFactory,
    host: Any,
    port: int | None,
    *,
    backlog: int = 100,
    start_serving: bool = True,
    reuse_address: bool | None = None,  # noqa: ARG001  there is no TIME_WAIT to step over
    **unsupported: object,
) -> SimulatedServer:
    """`loop.create_server` for the running process."""
    refuse("create_server", **unsupported)
    if host is not None and not isinstance(host, str):
        raise NotImplementedError(f"create_server: host={host!r}; give one name")
    process = _living_process(loop)
    if loop.network.resolve(host, process.node) is not process.node:
        raise OSError(errno.EADDRNOTAVAIL, f"{host!r} is not an address of {process.node.name}")
    server = SimulatedServer(
        loop, process, factory, port=port or loop.network.free_port(), backlog=backlog
    )
    if start_serving:
        server.serving = True
        await asyncio.sleep(0)
    return server


async def create_connection(
    loop: "SimulatedLoop",
    factory: ProtocolFactory,
    host: str | None,
    port: int | None,
    **unsupported: object,
) -> tuple[SimulatedTransport, asyncio.BaseProtocol]:
    """`loop.create_connection` for the running process."""
    refuse("create_connection", **unsupported)
    if port is None:
        raise ValueError("create_connection: host and port are needed")
    attempt = _Attempt(loop, host, port)
    transport = await attempt.run()
    protocol = factory()
    transport.attach(protocol)
    return transport, protocol


def _living_process(loop: "SimulatedLoop") -> Process:
    """The running process; raises in clean-up code of a dead one."""
    process = loop.current_process()
    if not process.alive:
        raise ProcessEnded(process.end_reason)
    return process


class _Attempt:
    """One TCP handshake."""

    def __init__(self, loop: "SimulatedLoop", host: str | None, port: int) -> None:
        self._loop = loop
        self._network = loop.network
        self._process = _living_process(loop)
        self._context = contextvars.copy_context()
        self._source = self._process.node
        self._target = self._network.resolve(host, self._source)
        self._port = port
        self._answer: asyncio.Future[SimulatedTransport] = loop.create_future()
        self._client_end: SimulatedTransport | None = None

    async def run(self) -> SimulatedTransport:
        self._loop.kernel_later(self._delay(), self._request_arrives)
        try:
            return await self._answer
        except asyncio.CancelledError:
            # It may exist already, half-way or whole; the caller will never hold it.
            if self._client_end is not None:
                self._client_end.abort()
            raise

    def _delay(self) -> float:
        return self._network.delay(self._source, self._target)

    def _fail(self, error: OSError) -> None:
        fail(self._answer, error)

    def _request_arrives(self) -> None:
        if self._answer.done():
            return
        network, source, target = self._network, self._source, self._target
        server = network.listeners.get((target.name, self._port))
        lost = network.is_cut(source, target) or network.is_cut(target, source)
        where = f"{target.name}:{self._port}"
        if lost or (server is not None and not server.has_room):
            error: OSError = TimeoutError(errno.ETIMEDOUT, f"connecting to {where} timed out")
            delay = network.profile.connect_timeout_s
            self._loop.kernel_later(delay, lambda: self._fail(error))
            return
        if server is None or not server.serving:
            error = ConnectionRefusedError(errno.ECONNREFUSED, f"{where} refused the connection")
            self._loop.kernel_later(self._delay(), lambda: self._fail(error))
            return
        client_end = SimulatedTransport(network, self._process, self._context)
        self._client_end = client_end
        server_end = SimulatedTransport(network, server.process, server.context, server)
        client_end.join(server_end)
        client_socket = SimulatedSocket(source.name, network.free_port())
        server_socket = SimulatedSocket(target.name, self._port)
        client_end.name_ends(client_socket, server_socket)
        server_end.name_ends(server_socket, client_socket)
        self._loop.trace("connect", source.name, target.name, self._port)
        server.accept(server_end)
        self._loop.kernel_later(self._delay(), lambda: self._established(client_end))

    def _established(self, transport: SimulatedTransport) -> None:
        if not self._process.alive:
            if self._source.powered:
                transport.process_ended(power_lost=False)
        elif self._answer.done():
            transport.abort()
        else:
            self._answer.set_result(transport)
