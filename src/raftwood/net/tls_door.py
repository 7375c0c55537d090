"""The door of a listener with TLS: a connection counts from when it is accepted, not from when its
handshake is done.

    door = TlsDoor(tls.context, admission, handshake_s=5.0)
    make_protocol = door.before(make_connection)    # for the listener, which knows of no TLS
    ...
    await stop_accepting([listener])
    await door.close()

Whoever is in the door has logged in nowhere, so the oldest there make room for others, as
`admission` says. It is cut off without a word, for before TLS there is none. A newcomer that finds
no room is let through nevertheless, to be refused behind the door in the words of its protocol; a
few at a time, for a handshake costs the listener more than it costs the client.

The door takes the socket from the transport that accepted it, and has the loop make another one of
it, with TLS. `loop.start_tls` would not do: uvloop reads from a new connection once its
`connection_made` is over, even where that has paused it, and the client's first bytes may come
before TLS is there. Nor does it tell the protocol behind of the connection before it brings data.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final, cast

from raftwood.base.logs import get_logger
from raftwood.net.listeners import ConnectionAdmission, address_of

TOLD_MAX: Final = 16
"""Newcomers without room that are in the door at a time; more are cut off."""

MakeConnection = Callable[[], asyncio.BaseProtocol]

_log = get_logger("net")


class TlsDoor:
    """Of one listener."""

    def __init__(
        self,
        context: ssl.SSLContext,
        admission: ConnectionAdmission[Any],
        *,
        handshake_s: float,
        shutdown_s: float | None = None,
    ) -> None:
        self.context = context
        self.admission = admission
        self.handshake_s = handshake_s
        self.shutdown_s = shutdown_s
        self.told: set[InTheDoor] = set()
        self.tasks: dict[asyncio.Task[None], None] = {}
        self.is_closed = False

    def before(self, make_connection: MakeConnection) -> MakeConnection:
        """What makes a listener's protocols, in place of what makes those behind the door."""
        return lambda: InTheDoor(self, make_connection)

    async def close(self) -> None:
        """Whoever is in the door is cut off."""
        self.is_closed = True
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(list(self.tasks))


class InTheDoor(asyncio.Protocol):
    """One connection, until its handshake is done."""

    def __init__(self, door: TlsDoor, make_connection: MakeConnection) -> None:
        self._door = door
        self._make_connection = make_connection
        self._plain: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        door = self._door
        # uvloop's transports have the methods of asyncio.Transport but not its type.
        accepted = cast("asyncio.Transport", transport)
        if not door.is_closed and self._may_stay(address_of(accepted)):
            # Not the transport's own, which ends with it.
            plain = socket.socket(fileno=os.dup(accepted.get_extra_info("socket").fileno()))
            plain.setblocking(False)
            self._plain = plain
            self._task = task = asyncio.get_running_loop().create_task(self._shake_hands())
            door.tasks[task] = None
            task.add_done_callback(self._ended)
        accepted.abort()

    def _may_stay(self, address: str) -> bool:
        door = self._door
        entered = door.admission.enter(self, address)
        if entered.displaced is not None:
            entered.displaced.make_room()
        if entered.refusal:
            if len(door.told) >= TOLD_MAX:
                return False
            door.told.add(self)
        return True

    def make_room(self) -> None:
        """A newcomer displaces it."""
        if self._task is not None:
            self._task.cancel()

    async def _shake_hands(self) -> None:
        door = self._door
        options: dict[str, Any] = {}
        if door.shutdown_s is not None:
            options["ssl_shutdown_timeout"] = door.shutdown_s
        assert self._plain is not None
        plain, self._plain = self._plain, None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _OnItsWayIn(self._go_in),
                plain,
                ssl=door.context,
                ssl_handshake_timeout=door.handshake_s,
                **options,
            )
        except OSError as error:
            _log.debug("no TLS with a connection", reason=str(error))

    def _go_in(self, transport: asyncio.Transport) -> None:
        """The handshake is done. The connection enters for itself, at once, so that its place is
        free for it; its age counts anew, for it has got on.
        """
        assert self._task is not None
        # Whoever closes the door does not end it any more.
        self._door.tasks.pop(self._task, None)
        self._leave()
        connection = self._make_connection()
        transport.set_protocol(connection)
        connection.connection_made(transport)

    def _leave(self) -> None:
        self._door.told.discard(self)
        self._door.admission.leave(self)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._door.tasks.pop(task, None)
        self._leave()
        if self._plain is not None:
            # It was cancelled before it began.
            self._plain.close()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a handshake failed", exc_info=error)


class _OnItsWayIn(asyncio.Protocol):
    """Hears that the handshake is done, and of nothing before it."""

    def __init__(self, go_in: Callable[[asyncio.Transport], None]) -> None:
        self._go_in = go_in

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._go_in(cast("asyncio.Transport", transport))
