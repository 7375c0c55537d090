"""`DatagramShipper`: fire and forget. Lines go out as datagrams, without acks.

    async with await DatagramShipper.start(environment, source, secret=secret) as shipper:
        shipper.send("app.log", [b"a line"])

For callers that prefer losing lines to waiting, holding or spooling them. The choice of servers is
the same as with `AsyncShipper`; pings and pongs are datagrams as well, each with an HMAC that
requires the secret. A server receives datagrams on the port that the ring's configuration names
(`clogs.udp_listen` there).
"""

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final, Self, cast

import msgspec

from raftwood.base.compression import Codec
from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidConfiguration, RaftwoodError
from raftwood.base.logs import get_logger
from raftwood.clogs.client.batch_builder import BatchEncoding, LineDelivery, MaskLines, PendingLines
from raftwood.clogs.configuration import LogServer, VersionedConfiguration, checked_file_name
from raftwood.clogs.frames import ClogsMessage, MessageType
from raftwood.clogs.health import Action, Health, Ping
from raftwood.clogs.ring import Routing
from raftwood.clogs.seams import ConfigurationSource
from raftwood.clogs.wire import decode_datagram, encode_datagram

LINES_BYTES_MAX: Final = 8 << 10
"""Limit of one datagram: a larger one travels in fragments, and is lost with any of them."""
SECRET_BYTES_MIN: Final = 16
_LIFE_BYTES: Final = 16
_PING_ID_BITS: Final = 62

_log = get_logger("clogs")


class DatagramCounters(msgspec.Struct):
    """Counts lines; how many of the sent ones arrived is unknown."""

    sent: int = 0
    dropped: int = 0
    """No server was known, or the system accepted no more."""
    cut: int = 0


class _Endpoint(asyncio.DatagramProtocol):
    """The socket to one server."""

    def __init__(self, server: LogServer, shipper: "DatagramShipper") -> None:
        self.server = server
        self._shipper = shipper
        self.transport: asyncio.DatagramTransport | None = None
        self.is_lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.DatagramTransport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.is_lost.set()

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        del addr
        self._shipper.received(self.server.ring_name, data)

    def error_received(self, exc: Exception) -> None:
        """Ignores that no server listens: its pings go unanswered, which has the same effect."""

    async def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()
            await self.is_lost.wait()


class DatagramShipper:
    """Call `start`, and `close` when done, which closes the source too."""

    def __init__(
        self,
        environment: Environment,
        source: ConfigurationSource,
        secret: bytes,
        encoding: BatchEncoding,
        system: int,
    ) -> None:
        self._environment = environment
        self._source = source
        self._secret = secret
        self._encoding = encoding
        self._system = system
        self._loop = asyncio.get_running_loop()
        self._endpoints: dict[str, _Endpoint] = {}
        self._configuration: VersionedConfiguration | None = None
        self._health: Health | None = None
        self._routing: Routing | None = None
        self._sequence = 0
        self._timer: asyncio.TimerHandle | None = None
        self._following: asyncio.Task[None] | None = None
        self.counters = DatagramCounters()

    @classmethod
    async def start(
        cls,
        environment: Environment,
        source: ConfigurationSource,
        *,
        secret: bytes,
        host: str = "",
        tags: Sequence[tuple[str, str]] = (),
        mask: MaskLines | None = None,
        system: int = 0,
    ) -> "DatagramShipper":
        """Starts a shipper; it drops and counts lines until it has a configuration."""
        if len(secret) < SECRET_BYTES_MIN:
            raise InvalidConfiguration(
                f"a secret of {len(secret)} bytes can be guessed: give {SECRET_BYTES_MIN} or more"
            )
        life = environment.random.randbytes(_LIFE_BYTES)
        encoding = BatchEncoding(life, Codec.LZ4, host, tuple(tags), mask)
        shipper = cls(environment, source, secret, encoding, system)
        shipper._following = shipper._loop.create_task(shipper._follow(), name="clogs datagrams")
        return shipper

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def live(self) -> tuple[str, ...]:
        """Returns the ring names of the servers in use."""
        return () if self._health is None else self._health.live()

    def send(self, name: str, lines: Sequence[bytes], *, time_ns: int | None = None) -> int:
        """Sends lines; returns how many went out. The others were dropped."""
        checked_file_name(name)
        if time_ns is None:
            time_ns = self._environment.clock.wall_ns()
        return sum(self._send(name, part, time_ns) for part in self._parts(lines))

    def _parts(self, lines: Sequence[bytes]) -> Iterator[list[bytes]]:
        part: list[bytes] = []
        size = 0
        for given in lines:
            line = given
            if len(line) > LINES_BYTES_MAX:
                self.counters.cut += 1
                if self._encoding.mask is not None:
                    (line,) = self._encoding.mask([line])
                line = line[:LINES_BYTES_MAX]
            if part and size + len(line) > LINES_BYTES_MAX:
                yield part
                part, size = [], 0
            part.append(line)
            size += len(line)
        if part:
            yield part

    def _send(self, name: str, lines: list[bytes], time_ns: int) -> int:
        server = None if self._routing is None else self._routing.ring_name_of(name)
        endpoint = None if server is None else self._endpoints.get(server)
        if server is None or endpoint is None or endpoint.transport is None:
            self.counters.dropped += len(lines)
            return 0
        pending = PendingLines(name)
        nobody: LineDelivery | None = None
        pending.add(lines, time_ns, nobody)
        self._sequence += 1
        batch = self._encoding.batch(pending, self._encoding.producer(name, 0), self._sequence)
        message = batch.message(system=self._system, place="")
        endpoint.transport.sendto(encode_datagram(message, self._secret))
        self.counters.sent += len(lines)
        assert self._health is not None
        self._perform(self._health.sent(server, self._loop.time()))
        return len(lines)

    # The ring

    async def _follow(self) -> None:
        async for versioned in self._source.changes():
            await self._configure(versioned)

    async def _configure(self, versioned: VersionedConfiguration) -> None:
        configuration = versioned.configuration
        wanted = {each.ring_name: each for each in configuration.servers}
        for name, endpoint in list(self._endpoints.items()):
            if wanted.get(name) != endpoint.server:
                del self._endpoints[name]
                await endpoint.close()
        for name, server in wanted.items():
            if name not in self._endpoints:
                await self._open(name, server)
        now = self._loop.time()
        actions: Sequence[Action] = ()
        if self._health is None:
            first = self._environment.random.getrandbits(_PING_ID_BITS) & ~1
            self._health = Health(configuration, now, first_ping_id=first)
        else:
            actions = self._health.configure(configuration, now)
        self._configuration = versioned
        self._routing = Routing(configuration, self._health.live())
        self._perform(actions)

    async def _open(self, name: str, server: LogServer) -> None:
        try:
            _, endpoint = await self._loop.create_datagram_endpoint(
                partial(_Endpoint, server, self), remote_addr=(server.host, server.port)
            )
        except OSError as error:
            _log.warning("no datagram can be sent to a server", server=name, why=str(error))
        else:
            self._endpoints[name] = endpoint

    def received(self, server: str, data: bytes) -> None:
        """Takes a datagram from a server's address; ignores all but a valid pong of that server."""
        try:
            message = decode_datagram(data, self._secret)
        except RaftwoodError:
            return
        if message.type is MessageType.PONG and self._health is not None:
            self._perform(self._health.pong(server, message.sequence, self._loop.time()))

    def _tick(self) -> None:
        self._timer = None
        assert self._health is not None
        self._perform(self._health.tick(self._loop.time()))

    def _perform(self, actions: Sequence[Action]) -> None:
        health, known = self._health, self._configuration
        assert health is not None
        assert known is not None
        for action in actions:
            if isinstance(action, Ping):
                self._ping(action)
            else:
                self._routing = Routing(known.configuration, health.live())
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(health.due, self._tick)

    def _ping(self, action: Ping) -> None:
        endpoint = self._endpoints.get(action.server)
        if endpoint is not None and endpoint.transport is not None:
            ping = ClogsMessage(type=MessageType.PING, system=self._system, sequence=action.ping_id)
            endpoint.transport.sendto(encode_datagram(ping, self._secret))

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        await self._source.close()
        if self._timer is not None:
            self._timer.cancel()
        for endpoint in self._endpoints.values():
            await endpoint.close()
        self._endpoints.clear()
