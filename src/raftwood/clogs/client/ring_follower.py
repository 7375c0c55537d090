"""The ring as a client sees it: its configuration as it changes, who is live, who takes a file."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from raftwood.base.environment import Environment
from raftwood.base.errors import RaftwoodError
from raftwood.base.logs import get_logger
from raftwood.clogs.client.links import Access, Links
from raftwood.clogs.frames import Message, MessageType, decode_message, encode_message
from raftwood.clogs.ha.actions import Action, Ping
from raftwood.clogs.ha.rules import Health
from raftwood.clogs.model import VersionedConfiguration
from raftwood.clogs.ring.routing import Routing
from raftwood.clogs.seams import ConfigurationSource
from raftwood.clogs.wire import PING
from raftwood.net import Payload

_PING_ID_BITS: Final = 62

_log = get_logger("clogs")


class RingFollower:
    """Use `start`, and `close` when done; the source is closed with it."""

    def __init__(
        self,
        environment: Environment,
        access: Access,
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
        self.links = Links(environment, access, self._link_lost)
        self.configuration: VersionedConfiguration | None = None
        self.health: Health | None = None
        self.on_servers: Callable[[Sequence[str]], None] = _ignore
        """Hears the ring names that are used now, whenever that changes."""
        self.on_event: Callable[[], None] = _nothing
        """Called when `due` may be another one."""

    def start(self) -> None:
        self._following = self._loop.create_task(self._follow(), name="clogs configuration")

    async def close(self) -> None:
        self._is_closed = True
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        await self._source.close()
        await self.links.close()

    # For who sends

    def route(self, name: str) -> str | None:
        """The ring name of a file's server; None before a configuration has come."""
        return None if self._routing is None else self._routing.ring_name_of(name)

    @property
    def due(self) -> float:
        """When `tick` has something to do."""
        return float("inf") if self.health is None else self.health.due

    def tick(self, now: float) -> None:
        if self.health is not None:
            self._perform(self.health.tick(now))

    def sent(self, server: str, now: float) -> None:
        """Something was sent to a server, which may be checked on the occasion."""
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
        message = Message(type=MessageType.PING, system=self._system, sequence=action.ping_id)
        # Two gaps: a check that was put off waits for longer than one.
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
    """Nobody listens."""


def _nothing() -> None:
    """Nobody listens."""
