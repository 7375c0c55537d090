"""TLS for a listener that counts a connection from its acceptance, not only after the handshake.

    acceptor = TlsAcceptor(tls.context, admission, handshake_s=5.0)
    make_protocol = acceptor.wrap(make_connection)  # for the listener, which listens without TLS
    ...
    await stop_accepting([listener])
    await acceptor.close()

A connection amid its handshake has not logged in, so the oldest of these make room for others (see
`listeners`). They are cut off without a word, for before TLS a protocol has none. A newcomer that
finds no room still gets its handshake, and its protocol then refuses it in its own words. Only a
few at a time get that, for a handshake costs the listener more than the client.

The acceptor takes the socket from the transport that accepted it, and has the loop make another
transport of it, with TLS. `loop.start_tls` would not do. uvloop reads from a new connection once
its `connection_made` is over, although that has paused it, so the client's first bytes may come
before TLS is there. And it does not call the new protocol's `connection_made` before it hands it
data.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final, cast

from raftwood.base.logs import get_logger
from raftwood.net.listeners import ConnectionAdmission, address_of

REFUSED_MAX: Final = 16
"""Handshakes under way of newcomers without room; more are cut off."""

MakeConnection = Callable[[], asyncio.BaseProtocol]

_log = get_logger("net")


class TlsAcceptor:
    """The TLS handshakes of one listener."""

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
        self.refused: set[PendingHandshake] = set()
        """Newcomers without room, during their handshake."""
        self.tasks: dict[asyncio.Task[None], None] = {}
        self.is_closed = False

    def wrap(self, make_connection: MakeConnection) -> MakeConnection:
        """Wraps a protocol factory: does the handshake first, then calls `make_connection`."""
        return lambda: PendingHandshake(self, make_connection)

    async def close(self) -> None:
        """Cuts off the connections that are in their handshake."""
        self.is_closed = True
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(list(self.tasks))


class PendingHandshake(asyncio.Protocol):
    """One connection, until its handshake is done."""

    def __init__(self, acceptor: TlsAcceptor, make_connection: MakeConnection) -> None:
        self._acceptor = acceptor
        self._make_connection = make_connection
        self._plain: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        acceptor = self._acceptor
        # uvloop's transports have the methods of asyncio.Transport but not its type.
        accepted = cast("asyncio.Transport", transport)
        if not acceptor.is_closed and self._may_stay(address_of(accepted)):
            try:
                # Not the transport's own, which ends with it.
                plain = socket.socket(fileno=os.dup(accepted.get_extra_info("socket").fileno()))
            except OSError as error:
                # For example, no descriptor is left.
                _log.warning("a connection is cut off before its handshake", reason=str(error))
                self._leave()
            else:
                plain.setblocking(False)
                self._plain = plain
                self._task = task = asyncio.get_running_loop().create_task(self._shake_hands())
                acceptor.tasks[task] = None
                task.add_done_callback(self._ended)
        accepted.abort()

    def _may_stay(self, address: str) -> bool:
        acceptor = self._acceptor
        entered = acceptor.admission.enter(self, address)
        if entered.displaced is not None:
            entered.displaced.make_room()
        if entered.refusal:
            if len(acceptor.refused) >= REFUSED_MAX:
                return False
            acceptor.refused.add(self)
        return True

    def make_room(self) -> None:
        """Cuts this connection off: a newcomer displaces it."""
        if self._task is not None:
            self._task.cancel()

    async def _shake_hands(self) -> None:
        acceptor = self._acceptor
        options: dict[str, Any] = {}
        if acceptor.shutdown_s is not None:
            options["ssl_shutdown_timeout"] = acceptor.shutdown_s
        assert self._plain is not None
        plain, self._plain = self._plain, None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _HandshakeProtocol(self._finish),
                plain,
                ssl=acceptor.context,
                ssl_handshake_timeout=acceptor.handshake_s,
                **options,
            )
        except OSError as error:
            _log.debug("no TLS with a connection", reason=str(error))

    def _finish(self, transport: asyncio.Transport) -> None:
        """Ends the handshake: gives its place up and admits the connection itself in the same step,
        so that no other connection takes the place, and its age counts anew.
        """
        assert self._task is not None
        # From here on `close` does not end it.
        self._acceptor.tasks.pop(self._task, None)
        self._leave()
        connection = self._make_connection()
        transport.set_protocol(connection)
        connection.connection_made(transport)

    def _leave(self) -> None:
        self._acceptor.refused.discard(self)
        self._acceptor.admission.leave(self)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._acceptor.tasks.pop(task, None)
        self._leave()
        if self._plain is not None:
            # The task was cancelled before it began.
            self._plain.close()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a handshake failed", exc_info=error)


class _HandshakeProtocol(asyncio.Protocol):
    """The protocol during the handshake; the loop calls it once the handshake is done."""

    def __init__(self, finish: Callable[[asyncio.Transport], None]) -> None:
        self._finish = finish

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._finish(cast("asyncio.Transport", transport))
