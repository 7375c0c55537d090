"""A client's view of a cluster's stores: discovery, connections, leaders.

`discover` starts from addresses alone: each server that answers sends its store number and the
other stores it knows. A server proves that it knows the clients' secret. It could not prove its
number, as all stores share the secret; with TLS the host's name is checked as well.
`Stores.ask_until_answered` follows a group's leader with one request.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias, TypeVar

import msgspec

from raftwood.base.backoff import Backoff
from raftwood.base.environment import Environment
from raftwood.base.errors import (
    DeadlineExceeded,
    DiskFull,
    InvalidInput,
    NotFound,
    NotLeader,
    Overloaded,
    ProtocolError,
    RaftwoodError,
    Unauthenticated,
    Unavailable,
)
from raftwood.net import (
    Channel,
    ClientCredentials,
    ClientLimits,
    ClientTls,
    Connection,
    Identity,
    Secret,
    connect,
)
from raftwood.net.channel import Connector
from raftwood.net.identity import CLIENT_ROLE, split_address, store_identity, store_of

ATTEMPT_MS: Final = 2_000
"""After this long without an answer another store is asked, and twice as long each time after that:
an attempt has to outlast a slow commit."""
ATTEMPT_MS_MAX: Final = 32_000
_BACKOFF: Final = Backoff(first_ms=20, longest_ms=500)
_RETRY_BACKOFF: Final = Backoff(first_ms=6, longest_ms=200)
"""The pauses between two attempts of one request."""
_Answer = TypeVar("_Answer")


def attempt_ms(silences: int) -> int:
    """The time of the next attempt after `silences` unanswered ones in a row."""
    return min(ATTEMPT_MS_MAX, ATTEMPT_MS << min(silences, 10))


def silence(what: str, reason: RaftwoodError | None = None) -> DeadlineExceeded:
    """The error of a timeout; `reason` is how the last attempt failed."""
    said = f" ({reason.message})" if reason is not None else ""
    return DeadlineExceeded(
        f"{what} did not answer in time{said}: see that a majority of its stores runs"
    )


class ClientNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """How a client authenticates to the stores of a cluster."""

    cluster: str
    secret: Secret
    name: str = "client"
    role: str = CLIENT_ROLE
    """The role of a client or of an operator, with that role's secret."""
    tls: ClientTls | None = None
    limits: ClientLimits = ClientLimits(
        connect_timeout_ms=2_000, ping_interval_ms=2_000, ping_timeout_ms=2_000
    )

    def connector(
        self, environment: Environment, address: str, server: Identity | None = None
    ) -> Connector:
        """Returns a function that tries to connect once; a named server must prove its name."""
        host, port = split_address(address)
        credentials = ClientCredentials(
            cluster_id=self.cluster,
            identity=Identity(role=self.role, node_id=self.name),
            secret=self.secret,
            server=server,
        )
        return partial(
            connect, host, port, credentials, environment.random, limits=self.limits, tls=self.tls
        )


class Stores:
    """Connections by store, and a guess of each group's leader."""

    def __init__(
        self, environment: Environment, network: ClientNetwork, addresses: Mapping[int, str]
    ) -> None:
        if not addresses:
            raise InvalidInput("a client needs the address of one store at least")
        self._environment = environment
        self._network = network
        self._addresses: dict[int, str] = {}
        self._channels: dict[int, Channel] = {}
        self._gone: list[Channel] = []
        self._leaders: dict[int, int] = {}
        self._turn = 0
        self.learn(addresses)

    def learn(self, addresses: Mapping[int, str]) -> None:
        """Adds stores and their addresses, as reported by some store."""
        for store, address in addresses.items():
            if self._addresses.get(store) == address:
                continue
            if store in self._channels:
                self._gone.append(self._channels[store])
            self._addresses[store] = address
            connector = self._network.connector(self._environment, address, store_identity(store))
            channel = Channel(connector, self._environment.random, _BACKOFF)
            self._channels[store] = channel
            channel.start()

    def known(self) -> list[int]:
        return sorted(self._channels)

    def address(self, store: int) -> str:
        return self._addresses[store]

    async def connected(self, store: int, timeout_ms: int) -> Channel:
        """Returns the channel to one store, once it is connected."""
        if store not in self._channels:
            raise NotFound(f"the address of store {store} is not known: give it")
        await self._channels[store].connected(timeout_ms)
        return self._channels[store]

    def leader(self, group: int) -> Channel:
        """The channel to the group's leader, as far as known; else to any store."""
        return self._channels[self.guess(group)]

    def guess(self, group: int) -> int:
        """The group's leader, as far as known; else any store."""
        store = self._leaders.get(group)
        if store is None:
            store = self._leaders[group] = self._any()
        return store

    def channel(self, store: int) -> Channel:
        return self._channels[store]

    def _any(self) -> int:
        """Returns another store at each call, connected ones first."""
        stores = sorted(self._channels)
        connected = [store for store in stores if self._channels[store].is_connected]
        self._turn += 1
        choice = connected or stores
        return choice[self._turn % len(choice)]

    def heard_of_leader(self, group: int, store: int, *, asked: int) -> None:
        """Notes the leader that the asked store named; 0 if it did not know."""
        if store not in self._channels:
            self.try_another(group, asked=asked)
        elif self._leaders.get(group) == asked:
            self._leaders[group] = store

    def try_another(self, group: int, *, asked: int) -> None:
        """Guesses another leader: the asked store did not answer, or does not lead.

        Ignored if the asked store is not the present guess: many commands may have been under way
        to it, and the first failure has changed the guess already.
        """
        if self._leaders.get(group) != asked:
            return
        del self._leaders[group]
        for _ in self._channels:
            store = self._any()
            if store != asked:
                self._leaders[group] = store
                return

    def note_failure(self, group: int, error: RaftwoodError, *, asked: int) -> None:
        """Notes a failed attempt, which decides the store to ask next."""
        if isinstance(error, NotLeader):
            # For a moment other stores still name a leader that just died.
            leader = self._channels.get(error.leader)
            is_there = leader is not None and leader.is_connected
            self.heard_of_leader(group, error.leader if is_there else 0, asked=asked)
            return
        channel = self._channels.get(asked)
        # A store that refuses the connection itself, because it has too many, has not been asked.
        was_asked = channel is not None and channel.is_connected
        if not (was_asked and isinstance(error, Overloaded | DiskFull)):
            self.try_another(group, asked=asked)

    def pauses_s(self) -> Iterator[float]:
        """The pauses between the attempts of one request."""
        return _RETRY_BACKOFF.delays_s(self._environment.random)

    async def ask_until_answered(
        self,
        group: int,
        attempt: Callable[[int, int], Awaitable[_Answer]],
        failed: Callable[[RaftwoodError, int], None],
        *,
        what: str,
        deadline: float,
        wait_ms: int = 0,
    ) -> _Answer:
        """Asks the group's likely leader, and other stores after it, until one answers.

        `attempt` asks a store, with a timeout in milliseconds. `failed` receives its error, and
        raises if asking again is of no use. The server itself may wait for `wait_ms`.
        """
        loop = asyncio.get_running_loop()
        pauses_s = self.pauses_s()
        silences = 0
        reason: RaftwoodError | None = None
        while (remaining_ms := int((deadline - loop.time()) * 1000)) > 0:
            asked = self.guess(group)
            try:
                return await attempt(asked, min(remaining_ms, attempt_ms(silences) + wait_ms))
            except (Unavailable, DeadlineExceeded, NotFound) as error:
                failed(error, asked)
                silences += isinstance(error, DeadlineExceeded)
                reason = error
            await asyncio.sleep(min(next(pauses_s), max(0.0, deadline - loop.time())))
        raise silence(what, reason)

    async def close(self) -> None:
        for channel in [*self._gone, *self._channels.values()]:
            await channel.close()


ADDRESSES_MAX = 64
AskMembers: TypeAlias = Callable[[Connection, int], Awaitable[dict[int, str]]]
"""Asks a store, within some milliseconds, for the addresses of others."""
_Found = tuple[dict[int, str], dict[int, str]]


async def discover(
    environment: Environment,
    network: ClientNetwork,
    addresses: Sequence[str],
    ask_members: AskMembers,
    *,
    timeout_ms: int = 5_000,
) -> dict[int, str]:
    """Finds the stores that answer, and those that they report, by number.

    A given address takes precedence over a reported one.
    """
    if not 0 < len(addresses) <= ADDRESSES_MAX:
        raise InvalidInput(f"give 1 to {ADDRESSES_MAX} addresses of stores, not {len(addresses)}")
    answers = await asyncio.gather(
        *(_ask(environment, network, address, ask_members, timeout_ms) for address in addresses)
    )
    found = [answer for answer in answers if not isinstance(answer, RaftwoodError)]
    if not found:
        raise _reason([answer for answer in answers if isinstance(answer, RaftwoodError)])
    told: dict[int, str] = {}
    given: dict[int, str] = {}
    for own, members in found:
        given |= own
        told |= members
    return told | given


async def _ask(
    environment: Environment,
    network: ClientNetwork,
    address: str,
    ask_members: AskMembers,
    timeout_ms: int,
) -> _Found | RaftwoodError:
    connector = network.connector(environment, address)
    try:
        async with await connector() as connection:
            own = {store_of(connection.server): address}
            try:
                return own, await ask_members(connection, timeout_ms)
            except NotFound:
                return own, {}  # it knows of no other store, or not yet
    except RaftwoodError as error:
        return error


def _reason(errors: Sequence[RaftwoodError]) -> RaftwoodError:
    for error in errors:
        if isinstance(error, ProtocolError | Unauthenticated):
            return error
    reasons = "; ".join(error.message for error in errors)
    return Unavailable(f"no store answers: {reasons}. Is one started?")
