"""Listening and connecting: `create_server` and `create_connection` of the simulated loop."""

import asyncio
import contextvars
import errno
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raftwood.base.futures import fail
from raftwood.simulation.errors import ProcessEnded, refuse
from raftwood.simulation.nodes import Process
from raftwood.simulation.transport import SimulatedTransport

if TYPE_CHECKING:
    from raftwood.simulation.loop import SimulatedLoop

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
    """What `get_extra_info("socket")` and `Server.sockets` show."""

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
        """The kernel finished a handshake; the process takes the connection in its own time."""
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
    """The running process; clean-up code of a dead one gets no further."""
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
            # It may be there already, half-way or whole; the caller will never hold it.
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
