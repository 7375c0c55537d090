"""Connections to the servers of a ring: one each, kept for as long as the server is in the ring."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import RaftwoodError, Unavailable
from raftwood.base.files import Buffer
from raftwood.clogs.model import LogServer
from raftwood.clogs.wire import CLUSTER, KEY_ROLE
from raftwood.net import (
    Backoff,
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


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """The access key that a shipper shows, and whom it trusts."""

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


class Links:
    """By ring name; `lost` hears of each connection that ends."""

    def __init__(
        self, environment: Environment, access: Access, lost: Callable[[str], None]
    ) -> None:
        self._environment = environment
        self._access = access
        self._lost = lost
        self._servers: dict[str, LogServer] = {}
        self._channels: dict[str, Channel] = {}
        self._connected = asyncio.Event()
        self._closing: set[asyncio.Task[None]] = set()

    def update(self, servers: Iterable[LogServer]) -> None:
        """Connect to new servers, and to those that moved; leave those that are gone."""
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
        """Raises at once what can be known at once."""
        channel = self._channels.get(server)
        if channel is None:
            raise Unavailable(f"server {server} is not in the ring any more")
        return channel.call(method, payload, timeout_ms)

    async def any_channel(self, timeout_s: float) -> Channel:
        """One that is connected, each time another one if there are several; `Unavailable` where
        none is for so long.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    for name, channel in self._channels.items():
                        if channel.is_connected:
                            # One that is connected may hang, or know nothing: the next is tried.
                            self._channels[name] = self._channels.pop(name)
                            return channel
                    self._connected.clear()
                    await self._connected.wait()
        except TimeoutError:
            raise Unavailable("no server of the ring can be reached") from None

    def error_of(self, server: str) -> RaftwoodError | None:
        """Why there is no connection; None where there is one, or nobody knows yet."""
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
