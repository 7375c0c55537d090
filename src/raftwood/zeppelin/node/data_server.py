"""The listener for clients of Redis Cluster.

    async with DataServer(view, environment) as server:
        port = await server.listen("127.0.0.1", 0)

Everyone logs in as a user of a table, and sees that table alone. See `data_connection` for what
happens to a request.
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
    """Of all clients of a node, since somebody looked last."""

    __slots__ = ("_count", "_waited_s", "is_asked")

    def __init__(self) -> None:
        self.is_asked = False
        """Somebody has sent something."""
        self._waited_s = 0.0
        self._count = 0

    def waited(self, duration_s: float) -> None:
        """What one turn answered was held for so long; that of others went out at once."""
        self._waited_s += duration_s
        self._count += 1

    def take_ms(self) -> float | None:
        """The mean of answers that were held; 0 where none were, None where nobody asked."""
        if not self.is_asked and not self._count:
            return None
        mean_ms = 1_000 * self._waited_s / max(1, self._count)
        self.is_asked, self._waited_s, self._count = False, 0.0, 0
        return mean_ms


CONNECTIONS_MAX: Final = 10_000
_BACKLOG: Final = 511
_HANDSHAKE_S_MAX: Final = 10.0
_HALF_AGAIN_S: Final = 5.0
"""A client that could not send the rest of its request, as it was not read from, has so long."""


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
        """While the node's disk `is_behind`, less is taken of what clients offer."""
        self.view = view
        self.environment = environment
        self.checkpoints = checkpoints
        self.latency = latency or ClientLatency()
        self.parking = ParkedRequests()
        self.cursors = ScanCursors(environment.random.randrange(1, 1 << 48))
        self.started_ms = environment.clock.wall_ns() // 1_000_000
        self.command_count = 0
        self.connection_count = 0
        """So many there have been."""
        self.port = 0
        self.turns = FairScheduler(is_behind=is_behind)
        self.receive_buffer = memoryview(bytearray(RECEIVE_BYTES))
        self.admission: ConnectionAdmission[DataConnection | PendingHandshake] = (
            ConnectionAdmission(connections_max, connections)
        )
        self._connections: dict[DataConnection, None] = {}
        self._holding: dict[DataConnection, None] = {}
        """Those with answers that wait, in the order in which they began to."""
        self._amid_request: dict[DataConnection, float] = {}
        """Those that have sent a part of a request, and until when the rest has to come."""
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
        """Accept connections; answers the port, which the system chooses where it was 0."""
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

    # For connections.

    def _connection(self) -> DataConnection:
        self.connection_count += 1
        return DataConnection(self, self.connection_count)

    def admit(self, connection: DataConnection, address: str) -> bool:
        """Take note of a new connection, and say whether it may stay."""
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
        """Start a command that has to wait; each connection has one at most."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def expect(self, connection: DataConnection, deadline: float) -> None:
        """It holds answers until a deadline at most."""
        self._holding[connection] = None
        if deadline < self._sweep.due:
            self._sweep.move(deadline)

    def expect_rest(self, connection: DataConnection, deadline: float) -> None:
        """It has begun a request, which has to be whole by then."""
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
        """Let nobody in any more, and end all connections."""
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
