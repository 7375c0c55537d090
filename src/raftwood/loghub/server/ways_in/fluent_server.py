"""Fluent Forward over TCP and TLS: events are put, and chunks acked once they are durable."""

import asyncio
from typing import Final

import msgpack

from raftwood.base.environment import Environment
from raftwood.base.errors import ProtocolError, RaftwoodError, Unauthenticated
from raftwood.base.logs import get_logger
from raftwood.base.metrics import Metrics
from raftwood.base.sections import ConnectionSettings
from raftwood.loghub.server.ways_in.fluent_handshake import Handshake
from raftwood.loghub.server.ways_in.fluent_messages import (
    MessageReader,
    decode_message,
    unpacked,
)
from raftwood.loghub.server.ways_in.peers import Peers
from raftwood.loghub.server.ways_in.putting import Place, Putting, gathered
from raftwood.loghub.server.ways_in.records import Section
from raftwood.loghub.server.ways_in.settings import WaysInSettings
from raftwood.loghub.server.ways_in.socket_server import (
    HANDSHAKE_S_MAX,
    Connection,
    Slices,
    SocketServer,
)
from raftwood.net.tls import ServerTls

_log = get_logger("ways_in")
HANDSHAKE_BYTES_MAX: Final = 4 << 10
CHUNK_RECORDS_MAX: Final = 1_000_000
"""A chunk that is refused comes again and again, so this is more than any real one has."""


class FluentServer(SocketServer):
    """Peers need an address in `ways_in.fluent_peers`, else the shared key where there is one, else
    a certificate. Those of `fluent_peers` do no handshake.
    """

    way = "fluent"

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
            place=Place(settings.fluent_project, settings.fluent_logstore),
            peers=Peers(settings.fluent_peers),
            metrics=metrics,
            connections=connections,
        )

    async def start(self, *, tls: ServerTls | None = None) -> None:
        """Listen where the settings say."""
        settings = self.settings
        if settings.fluent_listen:
            await self.listen(settings.fluent_listen)
        if settings.fluent_tls_listen:
            await self.listen(settings.fluent_tls_listen, tls=tls)

    def lets_in(self, host: str, *, has_certificate: bool) -> bool:
        has_key = bool(self.settings.fluent_shared_key)
        return has_key or super().lets_in(host, has_certificate=has_certificate)

    async def serve(self, connection: Connection) -> None:
        messages = MessageReader(bytes_max=HANDSHAKE_BYTES_MAX)
        waiting: list[bytes] | None = []
        if self.settings.fluent_shared_key and connection.host not in self.peers:
            waiting = await self._shake_hands(connection, messages)
            if waiting is None:
                return
        messages.bytes_max = self.settings.fluent_message_bytes_max
        while True:
            if waiting:
                connection.authenticated()
                connection.hold(messages.held_bytes + sum(map(len, waiting)))
                await self._take(connection, waiting)
            connection.hold(messages.held_bytes)
            if not (data := await connection.read()):
                return
            waiting = await self._fed(messages, data)

    async def _fed(self, messages: MessageReader, data: bytes) -> list[bytes]:
        """The messages that are whole now; others have their turn between two slices of them."""
        found: list[bytes] = []
        for number, part in enumerate(messages.feed_in_slices(data)):
            if number:
                await self.turns.pause()
            found += part
        return found

    async def _shake_hands(
        self, connection: Connection, messages: MessageReader
    ) -> list[bytes] | None:
        """Answers the messages that came right behind; None where the peer only looked whether
        somebody is there, as Fluentd does all the time.
        """
        handshake = Handshake(self.settings.fluent_shared_key, self.environment.random)
        found: list[bytes] = []
        deadline = asyncio.get_running_loop().call_later(HANDSHAKE_S_MAX, connection.abort)
        try:
            await connection.write(handshake.helo())
            while not found:
                if not (data := await connection.read()):
                    if not messages.held_bytes:
                        return None
                    raise ProtocolError("a Fluent peer ended during the handshake")
                found = await self._fed(messages, data)
        finally:
            deadline.cancel()
        try:
            await connection.write(handshake.received(unpacked(found[0])))
        except Unauthenticated:
            await connection.write(handshake.refusal())
            raise
        connection.authenticated()
        return found[1:]

    async def _take(self, connection: Connection, messages: list[bytes]) -> None:
        now_ns = self.putting.now_ns()
        bytes_max = self.settings.fluent_message_bytes_max
        slices = Slices(self.turns)
        sections: list[Section] = []
        chunks: list[bytes] = []
        try:
            for message in messages:
                await slices.wait(message)
                found = decode_message(
                    message,
                    received_ns=now_ns,
                    bytes_max=bytes_max,
                    bounds=self.settings.bounds,
                )
                sections += await gathered(
                    found.sections, self.putting.turns, records_max=CHUNK_RECORDS_MAX
                )
                if found.too_large:
                    self.dropped.inc(found.too_large)
                    _log.warning("events too large", peer=connection.host, count=found.too_large)
                if found.chunk is not None:
                    chunks.append(found.chunk)
        except RaftwoodError:
            # What came before a message that cannot be read is kept.
            await self._put(connection, sections, chunks)
            raise
        await self._put(connection, sections, chunks)

    async def _put(
        self, connection: Connection, sections: list[Section], chunks: list[bytes]
    ) -> None:
        await connection.put(sections)
        # As texts, which is what a chunk's name was.
        acks = [msgpack.packb({b"ack": chunk}, use_bin_type=False) for chunk in chunks]
        if acks:
            await connection.write(b"".join(acks))
