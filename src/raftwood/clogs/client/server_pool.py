"""`RingFollower`: a client's view of the ring: configuration, live servers, and connections.

`RingConnections` has one connection to each server, as long as the server is in the ring.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import msgspec

from raftwood.base.backoff import Backoff
from raftwood.base.environment import Environment
from raftwood.base.errors import RaftwoodError, Unavailable
from raftwood.base.files import Buffer
from raftwood.base.logs import get_logger
from raftwood.clogs.configuration import LogServer, VersionedConfiguration
from raftwood.clogs.frames import ClogsMessage, MessageType, decode_message, encode_message
from raftwood.clogs.health import Action, Health, Ping
from raftwood.clogs.ring import Routing
from raftwood.clogs.seams import ConfigurationSource
from raftwood.clogs.wire import CLUSTER, KEY_ROLE, PING
from raftwood.delivery.pump import NEVER
from raftwood.net import (
    Channel,
    ClientCredentials,
    ClientLimits,
    ClientTls,
    Connection,
    Identity,
    Method,
    Payload,
    Secret,
    connect,
)

_BACKOFF: Final = Backoff(first_ms=50, longest_ms=2_000)
_LIMITS: Final = ClientLimits(connect_timeout_ms=3_000)


class ShipperCredentials(msgspec.Struct, frozen=True, kw_only=True):
    """The access key of a shipper, and the certificates that it trusts."""

    key_id: str
    secret: Secret
    tls: ClientTls | None = None

    async def dial(self, environment: Environment, server: LogServer) -> Connection:
        credentials = ClientCredentials(
            cluster_id=CLUSTER,
            identity=Identity(role=KEY_ROLE, node_id=self.key_id),
            secret=self.secret,
        )
        return await connect(
            server.host,
            server.port,
            credentials,
            environment.random,
            limits=_LIMITS,
            tls=self.tls,
        )


class RingConnections:
    """Connections by ring name; `lost` is called for each connection that ends."""

    def __init__(
        self, environment: Environment, access: ShipperCredentials, lost: Callable[[str], None]
    ) -> None:
        self._environment = environment
        self._access = access
        self._lost = lost
        self._servers: dict[str, LogServer] = {}
        self._channels: dict[str, Channel] = {}
        self._connected = asyncio.Event()
        self._closing: set[asyncio.Task[None]] = set()

    def update(self, servers: Iterable[LogServer]) -> None:
        """Connects to new and moved servers; disconnects from those that are gone."""
        wanted = {server.ring_name: server for server in servers}
        for name, known in list(self._servers.items()):
            new = wanted.get(name)
            if new is None or (new.host, new.port) != (known.host, known.port):
                del self._servers[name]
                self._close_later(self._channels.pop(name))
        for name, server in wanted.items():
            if name not in self._channels:
                channel = Channel(
                    partial(self._access.dial, self._environment, server),
                    self._environment.random,
                    _BACKOFF,
                    on_change=partial(self._changed, name),
                )
                self._channels[name] = channel
                channel.start()
            self._servers[name] = server

    def _changed(self, name: str, is_connected: bool) -> None:
        if is_connected:
            self._connected.set()
        else:
            self._lost(name)

    def call(
        self, server: str, method: Method, payload: Sequence[Buffer], timeout_ms: int
    ) -> "asyncio.Future[Payload]":
        """Calls a server; raises at once if the call cannot begin."""
        channel = self._channels.get(server)
        if channel is None:
            raise Unavailable(f"server {server} is not in the ring any more")
        return channel.call(method, payload, timeout_ms)

    async def any_channel(self, timeout_s: float) -> Channel:
        """Returns a connected channel, another one each time if there are several; `Unavailable` if
        there is none in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    for name, channel in self._channels.items():
                        if channel.is_connected:
                            # A connected server may hang, or lack the answer: the next call tries
                            # another one.
                            self._channels[name] = self._channels.pop(name)
                            return channel
                    self._connected.clear()
                    await self._connected.wait()
        except TimeoutError:
            raise Unavailable("no server of the ring can be reached") from None

    def error_of(self, server: str) -> RaftwoodError | None:
        """Returns why there is no connection; None if there is one, or no reason yet."""
        channel = self._channels.get(server)
        return None if channel is None else channel.last_error

    def is_connected(self, server: str) -> bool:
        channel = self._channels.get(server)
        return channel is not None and channel.is_connected

    def _close_later(self, channel: Channel) -> None:
        task = asyncio.get_running_loop().create_task(channel.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        for channel in self._channels.values():
            self._close_later(channel)
        self._channels.clear()
        self._servers.clear()
        if self._closing:
            await asyncio.wait(list(self._closing))


_PING_ID_BITS: Final = 62

_log = get_logger("clogs")


class RingFollower:
    """Call `start`, and `close` when done, which closes the source too."""

    def __init__(
        self,
        environment: Environment,
        access: ShipperCredentials,
        source: ConfigurationSource,
        *,
        system: int = 0,
    ) -> None:
        self._environment = environment
        self._source = source
        self._system = system
        self._loop = asyncio.get_running_loop()
        self._following: asyncio.Task[None] | None = None
        self._routing: Routing | None = None
        self._is_closed = False
        self.links = RingConnections(environment, access, self._link_lost)
        self.configuration: VersionedConfiguration | None = None
        self.health: Health | None = None
        self.on_servers: Callable[[Sequence[str]], None] = _ignore
        """Called with the ring names in use, whenever they change."""
        self.on_event: Callable[[], None] = _nothing
        """Called when `due` may have changed."""

    def start(self) -> None:
        self._following = self._loop.create_task(self._follow(), name="clogs configuration")

    async def close(self) -> None:
        self._is_closed = True
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        await self._source.close()
        await self.links.close()

    # For senders

    def route(self, name: str) -> str | None:
        """Returns the ring name of a file's server; None before there is a configuration."""
        return None if self._routing is None else self._routing.ring_name_of(name)

    @property
    def due(self) -> float:
        """Returns when `tick` has something to do."""
        return NEVER if self.health is None else self.health.due

    def tick(self, now: float) -> None:
        if self.health is not None:
            self._perform(self.health.tick(now))

    def sent(self, server: str, now: float) -> None:
        """Records a send to a server, whose check may be made on the occasion."""
        if self.health is not None:
            self._perform(self.health.sent(server, now))

    # Configuration

    async def _follow(self) -> None:
        async for versioned in self._source.changes():
            self._configure(versioned)

    def _configure(self, new: VersionedConfiguration) -> None:
        known = self.configuration
        if known is not None and (known.version, known.digest) == (new.version, new.digest):
            return
        now = self._loop.time()
        self.configuration = new
        actions: Sequence[Action] = ()
        if self.health is None:
            first = self._environment.random.getrandbits(_PING_ID_BITS) & ~1
            self.health = Health(new.configuration, now, first_ping_id=first)
        else:
            actions = self.health.configure(new.configuration, now)
        self.links.update(new.configuration.servers)
        _log.info("ring configured", version=new.version, servers=len(new.configuration.servers))
        self._route_anew()
        self._perform(actions)
        self.on_event()

    def _route_anew(self) -> None:
        assert self.configuration is not None
        assert self.health is not None
        live = self.health.live()
        self._routing = Routing(self.configuration.configuration, live)
        self.on_servers(live)

    # Pings

    def _perform(self, actions: Sequence[Action]) -> None:
        is_changed = False
        for action in actions:
            if isinstance(action, Ping):
                self._ping(action)
            else:
                is_changed = True
                _log.warning("ring changed", action=type(action).__name__, server=action.server)
        if is_changed:
            self._route_anew()
            self.on_event()

    def _ping(self, action: Ping) -> None:
        assert self.configuration is not None
        message = ClogsMessage(type=MessageType.PING, system=self._system, sequence=action.ping_id)
        # Two gaps: a check that was put off waits longer than one.
        timeout_ms = 2 * self.configuration.configuration.ha.check_gap_ms
        try:
            future = self.links.call(action.server, PING, encode_message(message), timeout_ms)
        except RaftwoodError:
            return  # there is no connection, and so there will be no pong
        future.add_done_callback(partial(self._ponged, action.server))

    def _ponged(self, server: str, future: "asyncio.Future[Payload]") -> None:
        if future.cancelled() or future.exception() is not None:
            return
        if self.health is None or self._is_closed:
            return
        try:
            message = decode_message(future.result())
        except RaftwoodError:
            return
        if message.type is MessageType.PONG:
            self._perform(self.health.pong(server, message.sequence, self._loop.time()))
            self.on_event()

    def _link_lost(self, server: str) -> None:
        if self.health is not None and not self._is_closed:
            self._perform(self.health.connection_lost(server, self._loop.time()))
            self.on_event()


def _ignore(_: Sequence[str]) -> None:
    """The default: ignores the event."""


def _nothing() -> None:
    """The default: ignores the event."""
