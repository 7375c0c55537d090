"""Finds shards, and forwards requests to stores that lead them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from raftwood.base.environment import Environment
from raftwood.base.errors import NotFound, NotLeader, RaftwoodError
from raftwood.logservice.errors import LogShardNotFound
from raftwood.logservice.wire import ORDERS_WAIT, Location
from raftwood.net import Method, Payload
from raftwood.net.stores import ClientNetwork, Stores
from raftwood.raft.node_host import NodeHost

FRESH_S: Final = 1.0
"""How long HAKeeper's answer about a shard's place is reused."""
LOCATIONS_MAX: Final = 10_000

TELL_MS: Final = 1_000

LookUp = Callable[[int | str], Awaitable[Location]]
"""Asks HAKeeper where a shard is."""


class Forwarder:
    """Finds the stores of shards, and sends requests to their leaders."""

    def __init__(
        self, environment: Environment, host: NodeHost, network: ClientNetwork, own_address: str
    ) -> None:
        self._host = host
        self._stores = Stores(environment, network, {host.id: own_address})
        self._loop = asyncio.get_running_loop()
        self._found: dict[int | str, tuple[float, Location]] = {}
        self.look_up: LookUp | None = None

    @property
    def stores(self) -> Stores:
        """Connections to all stores that this one knows."""
        self._stores.learn(self._host.addresses())
        return self._stores

    async def locate(self, shard: int | str) -> Location:
        """Returns where a shard is: from its replica here, or else from HAKeeper."""
        if isinstance(shard, int) and shard in self._host.groups():
            status = self._host.status(shard)
            if status.leader or shard == 0:
                return Location(shard, status.leader, status.addresses)
        fresh_after = self._loop.time() - FRESH_S
        known = self._found.get(shard)
        if known is not None and known[0] > fresh_after:
            return known[1]
        if self.look_up is None:
            raise LogShardNotFound(f"shard {shard} is not on store {self._host.id}")
        location = await self.look_up(shard)
        if len(self._found) >= LOCATIONS_MAX:
            self._found.clear()
        self._found[shard] = (self._loop.time(), location)
        return location

    async def refusal(self, shard: int) -> RaftwoodError:
        """The error that answers a request for a shard without a replica here."""
        try:
            location = await self.locate(shard)
        except NotFound:
            return LogShardNotFound(
                f"there is no shard {shard}: `raftwood cluster status` lists those that are"
            )
        except RaftwoodError as error:
            return error
        return NotLeader(
            f"shard {shard} is not on store {self._host.id}: its leader is store "
            f"{location.leader or 'unknown'}",
            location.leader,
        )

    async def ask_leader(
        self, shard: int, method: Method, payload: bytes, timeout_ms: int
    ) -> bytes:
        """Sends a request to a shard's leader, once; returns or raises the leader's answer."""
        location = await self.locate(shard)
        if location.leader in (0, self._host.id):
            raise NotLeader(f"shard {shard} has no leader that store {self._host.id} knows of")
        stores = self.stores
        stores.learn(
            {
                store: address
                for store, address in location.addresses.items()
                if store not in stores.known()
            }
        )
        channel = await stores.connected(location.leader, timeout_ms)
        return bytes(await channel.call(method, payload, timeout_ms))

    def tell_of_orders(self, store: int) -> None:
        """Notifies a store that orders wait; if this is lost, its next heartbeat brings them."""
        stores = self.stores
        if store not in stores.known():
            return
        try:
            answer = stores.channel(store).call(ORDERS_WAIT, b"", TELL_MS)
        except RaftwoodError:
            return
        answer.add_done_callback(_ignore)

    async def close(self) -> None:
        await self._stores.close()


def _ignore(answer: "asyncio.Future[Payload]") -> None:
    if not answer.cancelled():
        answer.exception()
