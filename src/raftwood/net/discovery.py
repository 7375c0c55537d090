"""From addresses alone to the stores behind them: whoever answers is asked who it is.

A server proves that it knows the clients' secret. That it is one certain store it could not prove
either way, as the secret is the same for all of them; with TLS the host's name is checked as well.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidInput, NotFound, RaftwoodError, Unauthenticated, Unavailable
from raftwood.net import ClientCredentials, Connection, Identity, connect
from raftwood.net.store_names import split_address, store_of
from raftwood.net.stores import ClientNetwork

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
    """The stores that answer, and those that they tell of, by number.

    An address that was given counts more than one that a store tells.
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
    host, port = split_address(address)
    credentials = ClientCredentials(
        cluster_id=network.cluster,
        identity=Identity(role=network.role, node_id=network.name),
        secret=network.secret,
    )
    try:
        connection = await connect(
            host, port, credentials, environment.random, limits=network.limits, tls=network.tls
        )
        async with connection:
            own = {store_of(connection.server): address}
            try:
                return own, await ask_members(connection, timeout_ms)
            except NotFound:
                return own, {}  # it knows of none, or not yet
    except RaftwoodError as error:
        return error


def _reason(errors: Sequence[RaftwoodError]) -> RaftwoodError:
    for error in errors:
        if isinstance(error, Unauthenticated):
            return error
    reasons = "; ".join(error.message for error in errors)
    return Unavailable(f"no store answers: {reasons}. Is one started?")
