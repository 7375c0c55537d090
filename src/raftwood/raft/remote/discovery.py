"""From addresses alone to the stores behind them: whoever answers is asked who it is.

A server proves that it knows the clients' secret. That it is one certain store it could not prove
either way, as the secret is the same for all of them; with TLS the host's name is checked as well.
"""

import asyncio
from collections.abc import Sequence

from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidInput, NotFound, RaftwoodError, Unauthenticated, Unavailable
from raftwood.net import ClientCredentials, Identity, connect
from raftwood.net.store_names import split_address, store_of
from raftwood.net.stores import ClientNetwork
from raftwood.raft.remote.admin import STATUS

ADDRESSES_MAX = 64
_Found = tuple[dict[int, str], dict[int, str]]


async def discover(
    environment: Environment,
    network: ClientNetwork,
    addresses: Sequence[str],
    *,
    group: int,
    timeout_ms: int = 5_000,
) -> dict[int, str]:
    """The stores that answer, and those that they know as members of a group, by number.

    An address that was given counts more than one that a store tells.
    """
    if not 0 < len(addresses) <= ADDRESSES_MAX:
        raise InvalidInput(f"give 1 to {ADDRESSES_MAX} addresses of stores, not {len(addresses)}")
    answers = await asyncio.gather(
        *(_ask(environment, network, address, group, timeout_ms) for address in addresses)
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
    environment: Environment, network: ClientNetwork, address: str, group: int, timeout_ms: int
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
                status = await connection.ask(STATUS, group, timeout_ms)
            except NotFound:
                # It has no part in the group, or not yet.
                return own, {}
            return own, status.addresses
    except RaftwoodError as error:
        return error


def _reason(errors: Sequence[RaftwoodError]) -> RaftwoodError:
    for error in errors:
        if isinstance(error, Unauthenticated):
            return error
    reasons = "; ".join(error.message for error in errors)
    return Unavailable(f"no store answers: {reasons}. Is one started with `raftwood serve`?")
