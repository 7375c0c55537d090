"""The addresses that a client's settings name, and whether each of them answers.

`raftwood status` asks gateways and receivers so, `raftwood doctor` all addresses with all
credentials. Every attempt has a deadline, and all are made at the same time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from raftwood.base.configuration import DEFAULT_ORIGIN, Configuration
from raftwood.base.environment import Environment
from raftwood.base.errors import RaftwoodError, Unauthenticated
from raftwood.clogs.client.shipper import access_of
from raftwood.clogs.configuration import LogServer
from raftwood.net import Connection
from raftwood.net.identity import split_address
from raftwood.net.stores import ClientNetwork
from raftwood.server.clients import hub_access, kv_client, shipper_settings
from raftwood.server.cluster import client_network, operator_network, reader_network
from raftwood.server.settings import Settings

LOG_SERVICE: Final = "log service"
LOGHUB: Final = "LogHub"
ZEPPELIN: Final = "Zeppelin"
BOOKIES: Final = "bookies"
CLOGS: Final = "clogs"
ATTEMPT_S: Final = 4.0
_NAMED_BY: Final = {
    LOG_SERVICE: ("cluster.members",),
    LOGHUB: ("loghub_client.gateways", "loghub_client.access_key"),
    ZEPPELIN: ("zeppelin_client.addresses", "zeppelin_client.password"),
    CLOGS: ("clogs_client.servers", "clogs_client.access_key"),
}
"""A part is named by the settings if one of these is not the default."""


_NETWORKS: Final[Mapping[str, Callable[[Settings], ClientNetwork]]] = {
    "client": client_network,
    "reader": reader_network,
    "operator": operator_network,
}
"""By role, whose secret is `secrets.` and the plural of it."""


class AddressCheck(msgspec.Struct, frozen=True):
    """What came of one attempt to connect to an address."""

    part: str
    address: str
    role: str
    """The credentials that were shown: the name of a role, an access key, a user."""
    error: str = ""
    """Empty if the server answered and took the credentials."""
    is_refused: bool = False
    """Whether the server answered, and did not take the credentials."""
    clock_ahead_s: float | None = None
    """Of the server's clock, where it says the time."""


class Address(msgspec.Struct, frozen=True):
    """One address and the credentials to come with."""

    part: str
    address: str
    role: str
    attempt: Callable[[], Awaitable[float | None]]
    """Connects and disconnects; answers how far the server's clock is ahead, if it says so."""


def is_named(configuration: Configuration[Settings], part: str) -> bool:
    """Whether the settings say where a part is, or how to log in there."""
    return any(configuration.origin(each) != DEFAULT_ORIGIN for each in _NAMED_BY[part])


async def reached(addresses: Sequence[Address]) -> list[AddressCheck]:
    """Try all of them at the same time."""
    return await asyncio.gather(*map(_reach, addresses))


async def _reach(given: Address) -> AddressCheck:
    part, address, role = given.part, given.address, given.role
    try:
        async with asyncio.timeout(ATTEMPT_S):
            ahead_s = await given.attempt()
    except TimeoutError:
        return AddressCheck(part, address, role, f"no answer within {ATTEMPT_S:g} s")
    except RaftwoodError as error:
        is_refused = isinstance(error, Unauthenticated)
        return AddressCheck(part, address, role, error.message, is_refused)
    return AddressCheck(part, address, role, clock_ahead_s=ahead_s)


def store_addresses(
    environment: Environment, settings: Settings, roles: Collection[str] = tuple(_NETWORKS)
) -> Iterator[Address]:
    """Each store in each of the roles whose secret is known."""
    for role in roles:
        if getattr(settings.secrets, f"{role}s"):
            network = _NETWORKS[role](settings)
            for address in settings.cluster.addresses().values():
                connector = network.connector(environment, address)
                yield Address(LOG_SERVICE, address, role, _opening(connector))


def gateway_addresses(environment: Environment, settings: Settings) -> Iterator[Address]:
    """Each gateway, with the access key."""
    access = hub_access(settings)
    for address in access.addresses:
        connector = access.connector(environment, address)
        yield Address(LOGHUB, address, access.access_key, _opening(connector))


def receiver_addresses(
    environment: Environment, settings: Settings, addresses: Sequence[str] | None = None
) -> Iterator[Address]:
    """Each receiver, with a shipper's access key; those of the settings if none are given."""
    shipper = shipper_settings(settings)
    access = access_of(shipper)
    for address in shipper.servers if addresses is None else addresses:
        yield Address(
            CLOGS,
            address,
            access.key_id,
            _opening(partial(access.dial, environment, _log_server(address))),
        )


def node_addresses(environment: Environment, settings: Settings) -> Iterator[Address]:
    """Each node of Zeppelin, as the user of a table; a node says the time, too."""
    client = settings.zeppelin_client
    brief = replace(client, timeout_ms=int(ATTEMPT_S * 1000))
    for address in client.addresses:
        yield Address(
            ZEPPELIN,
            address,
            client.user,
            partial(_ask_time, environment, replace(settings, zeppelin_client=brief), address),
        )


async def _ask_time(environment: Environment, settings: Settings, address: str) -> float:
    async with await kv_client(environment, settings, addresses=address) as kv:
        before_ns = environment.clock.wall_ns()
        server_us = await kv.time_us()
        middle_ns = (before_ns + environment.clock.wall_ns()) // 2
    return (server_us * 1000 - middle_ns) / 1e9


def _log_server(address: str) -> LogServer:
    host, port = split_address(address)
    return LogServer(host=host, port=port)


def _opening(connector: Callable[[], Awaitable[Connection]]) -> Callable[[], Awaitable[None]]:
    async def attempt() -> None:
        async with await connector():
            pass

    return attempt
