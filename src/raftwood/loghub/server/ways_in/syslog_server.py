"""Syslog over TCP and TLS (RFC 5424, RFC 5425, RFC 6587), and over UDP where it is switched on.

Nothing tells a sender of syslog that a message is stored: what it has sent when a connection or a
gateway is lost may be lost too.
"""

import asyncio
from typing import Any, Final

from raftwood.base.environment import Environment
from raftwood.base.errors import RaftwoodError, Unavailable
from raftwood.base.logs import get_logger
from raftwood.base.metrics import Metrics
from raftwood.base.sections import ConnectionSettings
from raftwood.loghub.server.ways_in.peers import Peers
from raftwood.loghub.server.ways_in.putting import Place, Putting, gathered
from raftwood.loghub.server.ways_in.records import Section, sliced
from raftwood.loghub.server.ways_in.settings import WaysInSettings
from raftwood.loghub.server.ways_in.socket_server import (
    CLOSE_S_MAX,
    Connection,
    SocketServer,
    host_and_port,
)
from raftwood.loghub.server.ways_in.syslog import FrameReader, decode_message
from raftwood.net.tls import ServerTls

DATAGRAMS_MAX: Final = 10_000
"""That wait to be stored; more are dropped."""

_log = get_logger("ways_in")


class SyslogServer(SocketServer):
    """Peers need a certificate, or an address in `ways_in.syslog_peers`."""

    way = "syslog"

    def __init__(
        self,
        environment: Environment,
        putting: Putting,
        settings: WaysInSettings,
        metrics: Metrics,
        connections: ConnectionSettings = ConnectionSettings(),  # noqa: B008
    ) -> None:
        super().__init__(
            environment,
            putting,
            settings,
            place=Place(settings.syslog_project, settings.syslog_logstore),
            peers=Peers(settings.syslog_peers),
            metrics=metrics,
            connections=connections,
        )
        self._datagrams: Datagrams | None = None

    async def start(self, *, tls: ServerTls | None = None) -> None:
        """Listen where the settings say."""
        settings = self.settings
        if settings.syslog_listen:
            await self.listen(settings.syslog_listen)
        if settings.syslog_tls_listen:
            await self.listen(settings.syslog_tls_listen, tls=tls)
        if settings.syslog_udp_listen:
            await self.listen_for_datagrams(settings.syslog_udp_listen)

    async def serve(self, connection: Connection) -> None:
        frames = FrameReader(bytes_max=self.settings.syslog_message_bytes_max)
        while data := await connection.read():
            await self._put(connection, frames.feed(data))
            connection.hold(frames.held_bytes)
        await self._put(connection, frames.end())

    async def _put(self, connection: Connection, frames: list[bytes]) -> None:
        if frames:
            connection.authenticated()
            parts = (self.section(part) for part in sliced(frames, len))
            await connection.put(await gathered(parts, records_max=len(frames)))

    def section(self, frames: list[bytes]) -> Section:
        now_ns = self.putting.now_ns()
        return Section({}, [decode_message(frame, received_ns=now_ns) for frame in frames])

    async def listen_for_datagrams(self, address: str) -> None:
        """Each datagram is a message."""
        host, port = host_and_port(address)
        try:
            transport, datagrams = await asyncio.get_running_loop().create_datagram_endpoint(
                lambda: Datagrams(self), local_addr=(host, port)
            )
        except OSError as error:
            raise Unavailable(
                f"cannot listen on {address}: {error.strerror or error}; set "
                "ways_in.syslog_udp_listen to an address of this machine that is free"
            ) from error
        self._datagrams = datagrams
        self.ports.append(int(transport.get_extra_info("sockname")[1]))

    async def close(self) -> None:
        closing = [super().close()]
        if self._datagrams is not None:
            closing.append(self._datagrams.close())
        await asyncio.gather(*closing)


class Datagrams(asyncio.DatagramProtocol):
    """Datagrams that wait, by peer, and the task that puts them."""

    def __init__(self, server: SyslogServer) -> None:
        self._server = server
        self._waiting: dict[str, list[bytes]] = {}
        self._count = 0
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        server = self._server
        frame = data.rstrip(b"\r\n\0")
        if not frame or not server.lets_in(addr[0], has_certificate=False):
            return
        if self._count >= DATAGRAMS_MAX or len(frame) > server.settings.syslog_message_bytes_max:
            server.dropped.inc()
            return
        self._count += 1
        self._waiting.setdefault(addr[0], []).append(frame)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._put_all())
            self._task.add_done_callback(self._ended)

    async def _put_all(self) -> None:
        # In the next turn there may be more: they share a put.
        await asyncio.sleep(0)
        while self._waiting:
            host = next(iter(self._waiting))
            frames = self._waiting.pop(host)
            self._count -= len(frames)
            try:
                await self._server.put([self._server.section(frames)], host)
            except RaftwoodError as error:
                _log.warning("datagrams dropped", way="syslog", peer=host, why=error.message)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("datagrams could not be put", way="syslog", exc_info=error)

    async def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        if self._task is not None:
            _, late = await asyncio.wait([self._task], timeout=CLOSE_S_MAX)
            for task in late:
                task.cancel()
                await asyncio.wait(late, timeout=CLOSE_S_MAX)
