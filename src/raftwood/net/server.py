"""A listening server: admission, the tasks of its handlers, and an orderly end."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, Self

from raftwood.base.errors import Overloaded, RaftwoodError, ShuttingDown
from raftwood.base.logs import get_logger
from raftwood.net.admission import Admission
from raftwood.net.handshake import ServerCredentials
from raftwood.net.limits import URGENT_TASKS_MAX, ServerLimits
from raftwood.net.listeners import stop_accepting
from raftwood.net.methods import Service
from raftwood.net.session import Session
from raftwood.net.tls import ServerTls
from raftwood.net.tls_door import InTheDoor, TlsDoor
from raftwood.net.turns import TurnLimits, Turns

DRAIN_TIMEOUT_MS = 10_000
CANCEL_TIMEOUT_S = 5.0
"""How long cancelled handlers may take to end before `close` goes on without them."""

_TURN = TurnLimits(pieces_max=512, slice_pieces_max=128)
"""A piece is a frame."""
_log = get_logger("net")


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
        self.turns = Turns(_TURN)
        self.admission: Admission[Session | InTheDoor] = Admission(
            self.limits.connections_max, self.limits.connections
        )
        self.is_draining = False
        self._listeners: list[asyncio.Server] = []
        self._doors: list[TlsDoor] = []
        self._sessions: dict[Session, None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    async def listen(
        self, host: str = "127.0.0.1", port: int = 0, *, tls: ServerTls | None = None
    ) -> int:
        """Accept connections; answers the port, which the system chooses where it was 0."""
        loop = asyncio.get_running_loop()
        make: Callable[[], asyncio.BaseProtocol] = self._session
        if tls is not None:
            handshake_s = self.limits.handshake_timeout_ms / 1000
            door = TlsDoor(tls.context, self.admission, handshake_s=handshake_s)
            self._doors.append(door)
            make = door.before(make)
        listener = await loop.create_server(make, host, port)
        self._listeners.append(listener)
        sockets = listener.sockets
        return int(sockets[0].getsockname()[1]) if sockets else port

    def _session(self) -> Session:
        return Session(self, self.limits)

    @property
    def connection_count(self) -> int:
        return len(self._sessions)

    @property
    def task_count(self) -> int:
        return len(self._tasks)

    def has_room_for_a_task(self, *, is_urgent: bool = False) -> bool:
        reserve = URGENT_TASKS_MAX if is_urgent else 0
        return len(self._tasks) < self.limits.handler_tasks_max + reserve

    # For sessions.

    def admit(self, session: Session, address: str) -> RaftwoodError | None:
        """Take note of a new connection, which `close` waits for, and say whether it may stay."""
        self._sessions[session] = None
        self._is_empty.clear()
        if self.is_draining:
            return ShuttingDown("the server shuts down: use another")
        entered = self.admission.enter(session, address)
        if entered.displaced is not None:
            entered.displaced.make_room()
        return Overloaded(entered.refusal) if entered.refusal else None

    def forget(self, session: Session) -> None:
        self._sessions.pop(session, None)
        self.admission.leave(session)
        if not self._sessions:
            self._is_empty.set()

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a handler's task; it is cancelled and awaited at the latest by `close`."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._forget_task)
        return task

    def _forget_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)

    # The end.

    async def close(self, drain_timeout_ms: int = DRAIN_TIMEOUT_MS) -> None:
        """Stop accepting, tell clients to go, finish what is under way in time, then close."""
        self.is_draining = True
        await stop_accepting(self._listeners)
        for door in self._doors:
            await door.close()
        for session in list(self._sessions):
            session.drain()
        # Not asyncio.timeout: before Python 3.11.3 it ends this early where the task that closes
        # was itself cancelled, which is how most servers end.
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
