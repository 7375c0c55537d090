"""The listener for clients of Redis Cluster.

    async with DataServer(view, environment) as server:
        port = await server.listen("127.0.0.1", 0)

A client logs in as a user of a table and sees only that table. See `data_connection` for how a
request runs.
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, Self

from raftwood.base.environment import Environment
from raftwood.base.settings import ConnectionSettings
from raftwood.net.connection import NEVER, DeadlineSweep
from raftwood.net.listeners import ConnectionAdmission, FairScheduler, stop_accepting
from raftwood.net.tls import ServerTls
from raftwood.net.tls_acceptor import PendingHandshake, TlsAcceptor
from raftwood.zeppelin.commands.session import KvSession, ParkedRequests, ScanCursors
from raftwood.zeppelin.model import User
from raftwood.zeppelin.node.checkpoints import PartitionCheckpoints
from raftwood.zeppelin.node.data_connection import RECEIVE_BYTES, DataConnection
from raftwood.zeppelin.node.view import NodeView
from raftwood.zeppelin.passwords import Logins


class ClientLatency:
    """Latency of a node's clients since the last `take_ms`."""

    __slots__ = ("_count", "_waited_s", "is_asked")

    def __init__(self) -> None:
        self.is_asked = False
        """Whether any client has sent something."""
        self._waited_s = 0.0
        self._count = 0

    def waited(self, duration_s: float) -> None:
        """Notes how long the answers of a turn were held; unheld answers do not count."""
        self._waited_s += duration_s
        self._count += 1

    def take_ms(self) -> float | None:
        """Returns the mean of held answers; 0 without any, None if no client sent anything."""
        if not self.is_asked and not self._count:
            return None
        mean_ms = 1_000 * self._waited_s / max(1, self._count)
        self.is_asked, self._waited_s, self._count = False, 0.0, 0
        return mean_ms


CONNECTIONS_MAX: Final = 10_000
_BACKLOG: Final = 511
_HANDSHAKE_S_MAX: Final = 10.0
_HALF_AGAIN_S: Final = 5.0
"""Grace for a client that could not send its request because the server did not read."""


class DataServer:
    """Serves the copies of a node's view on any number of addresses."""

    def __init__(
        self,
        view: NodeView,
        environment: Environment,
        *,
        connections_max: int = CONNECTIONS_MAX,
        connections: ConnectionSettings | None = None,
        checkpoints: PartitionCheckpoints | None = None,
        latency: ClientLatency | None = None,
        is_behind: Callable[[], bool] = lambda: False,
    ) -> None:
        """While the node's disk `is_behind`, takes fewer requests from clients."""
        self.view = view
        self.environment = environment
        self.checkpoints = checkpoints
        self.latency = latency or ClientLatency()
        self.parking = ParkedRequests()
        self.cursors = ScanCursors(environment.random.randrange(1, 1 << 48))
        self.started_ms = environment.clock.wall_ns() // 1_000_000
        self.command_count = 0
        self.connection_count = 0
        """Total of all connections so far."""
        self.port = 0
        self.turns = FairScheduler(is_behind=is_behind)
        self.receive_buffer = memoryview(bytearray(RECEIVE_BYTES))
        self.admission: ConnectionAdmission[DataConnection | PendingHandshake] = (
            ConnectionAdmission(connections_max, connections)
        )
        self._connections: dict[DataConnection, None] = {}
        self._holding: dict[DataConnection, None] = {}
        """Connections with waiting answers, in the order in which they began to wait."""
        self._amid_request: dict[DataConnection, float] = {}
        """Connections with part of a request, and the deadline for its rest."""
        self._logins = Logins(lambda: view.topology, environment.random)
        self._sweep = DeadlineSweep(asyncio.get_running_loop(), self._expire)
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._listeners: list[asyncio.Server] = []
        self._acceptors: list[TlsAcceptor] = []
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    async def listen(
        self, host: str = "127.0.0.1", port: int = 0, *, tls: ServerTls | None = None
    ) -> int:
        """Accepts connections; returns the port, which the system chooses if it was 0."""
        make: Callable[[], asyncio.BaseProtocol] = self._connection
        if tls is not None:
            acceptor = TlsAcceptor(tls.context, self.admission, handshake_s=_HANDSHAKE_S_MAX)
            self._acceptors.append(acceptor)
            make = acceptor.wrap(make)
        listener = await asyncio.get_running_loop().create_server(
            make, host, port, backlog=_BACKLOG
        )
        self._listeners.append(listener)
        sockets = listener.sockets
        self.port = int(sockets[0].getsockname()[1]) if sockets else port
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return self.port

    @property
    def sessions(self) -> Iterable[KvSession]:
        return [each.session for each in self._connections]

    async def verified(self, name: str, password: bytes) -> User | None:
        return await self._logins.verified(name, password)

    # Called by connections.

    def _connection(self) -> DataConnection:
        self.connection_count += 1
        return DataConnection(self, self.connection_count)

    def admit(self, connection: DataConnection, address: str) -> bool:
        """Registers a new connection; returns whether it may stay."""
        self._connections[connection] = None
        self._is_empty.clear()
        entered = self.admission.enter(connection, address)
        if entered.displaced is not None:
            entered.displaced.make_room()
        return not entered.refusal

    def forget(self, connection: DataConnection) -> None:
        self._connections.pop(connection, None)
        self.admission.leave(connection)
        self._holding.pop(connection, None)
        self._amid_request.pop(connection, None)
        if not self._connections:
            self._is_empty.set()

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts a command that has to wait; at most one for each connection."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def expect(self, connection: DataConnection, deadline: float) -> None:
        """Notes that the connection holds answers until a deadline at the latest."""
        self._holding[connection] = None
        if deadline < self._sweep.due:
            self._sweep.move(deadline)

    def expect_rest(self, connection: DataConnection, deadline: float) -> None:
        """Notes that the connection has begun a request, which must be complete by the deadline."""
        self._amid_request[connection] = deadline
        if deadline < self._sweep.due:
            self._sweep.move(deadline)

    def got_rest(self, connection: DataConnection) -> None:
        self._amid_request.pop(connection, None)

    def _expire(self, now: float) -> float:
        earliest = NEVER
        for connection in list(self._holding):
            if connection.held and connection.held.deadline <= now:
                connection.release(now)
            if connection.held:
                earliest = min(earliest, connection.held.deadline)
            else:
                self._holding.pop(connection, None)
        for connection, deadline in list(self._amid_request.items()):
            if deadline > now:
                earliest = min(earliest, deadline)
            elif connection.is_reading:
                connection.cut()
            else:
                self._amid_request[connection] = later = now + _HALF_AGAIN_S
                earliest = min(earliest, later)
        return earliest

    # The end.

    async def close(self) -> None:
        """Stops accepting, and ends all connections."""
        await stop_accepting(self._listeners)
        for acceptor in self._acceptors:
            await acceptor.close()
        for connection in list(self._connections):
            connection.cut()
        await self._is_empty.wait()
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        self._sweep.stop()
        self.turns.close()
        for listener in self._listeners:
            await listener.wait_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
