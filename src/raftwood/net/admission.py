"""Who may hold a listener's connections: bounds on one address, and on all that did not log in.

    admission = Admission(1_024, settings.connections)
    entered = admission.enter(connection, address_of(transport))
    ...                                   # close `entered.displaced`, or refuse with `.refusal`
    admission.authenticated(connection)   # once the client has shown who it is
    admission.leave(connection)

A connection costs whoever opens it next to nothing. Without these bounds a client that opens as
many as a listener takes, and says nothing on them, keeps all others out until each of its
connections has run into a timeout. So a newcomer is let in nevertheless, and displaces the oldest
connection that has not logged in, of the address that has most of these: a client that means it
logs in at once. One that has logged in is never displaced.

Pure rules: what is displaced is closed by the listener, in the words of its protocol.
"""

import asyncio
import ipaddress
from typing import Final, Generic, TypeVar

import msgspec

from raftwood.base.metrics import Metrics
from raftwood.base.sections import ConnectionSettings

BOUND_MIN: Final = 16
"""A share of a small listener is no less: a browser alone opens six connections."""
_IPV6_NETWORK_BITS: Final = 64
"""Whoever has one address of IPv6 has as many as these leave."""

C = TypeVar("C")


class Entered(msgspec.Struct, Generic[C], frozen=True, gc=False):
    """What became of a newcomer: it is in, unless `refusal` says why not."""

    displaced: C | None = None
    """Is to be closed; it counts no more."""
    refusal: str = ""


class Admission(Generic[C]):
    """The connections of one listener, or of several that share a bound."""

    def __init__(self, connections_max: int, settings: ConnectionSettings | None = None) -> None:
        settings = settings or ConnectionSettings()
        self.connections_max = connections_max
        self.address_max = _share(connections_max, settings.address_percent)
        self.unauthenticated_max = _share(connections_max, settings.unauthenticated_percent)
        self.dropped = {"address": 0, "unauthenticated": 0, "total": 0}
        """Connections displaced or refused, by the bound that was reached."""
        self._addresses: dict[C, str] = {}
        self._counts: dict[str, int] = {}
        self._unauthenticated: dict[str, dict[C, None]] = {}
        """By address, the oldest first."""
        self._unauthenticated_count = 0

    @property
    def count(self) -> int:
        return len(self._addresses)

    @property
    def unauthenticated_count(self) -> int:
        return self._unauthenticated_count

    def enter(self, connection: C, address: str) -> Entered[C]:
        """Let a newcomer in, at another's cost where a bound is reached."""
        address = _network(address)
        is_address_full = self._counts.get(address, 0) >= self.address_max
        reason = ""
        if len(self._addresses) >= self.connections_max:
            reason = "total"
        elif is_address_full:
            reason = "address"
        elif self._unauthenticated_count >= self.unauthenticated_max:
            reason = "unauthenticated"
        displaced = None
        if reason:
            self.dropped[reason] += 1
            # An address that has all it may have pays itself.
            of_address = self._unauthenticated.get(address)
            victims = of_address if is_address_full else self._of_busiest_address()
            if not victims:
                return Entered(refusal=self._refusal(reason))
            displaced = next(iter(victims))
            self.leave(displaced)
        self._addresses[connection] = address
        self._counts[address] = self._counts.get(address, 0) + 1
        self._unauthenticated.setdefault(address, {})[connection] = None
        self._unauthenticated_count += 1
        return Entered(displaced)

    def authenticated(self, connection: C) -> None:
        """The client has shown who it is: from now on its connection is its own."""
        address = self._addresses.get(connection)
        if address is None or (of_address := self._unauthenticated.get(address)) is None:
            return
        if connection in of_address:
            del of_address[connection]
            self._unauthenticated_count -= 1
            if not of_address:
                del self._unauthenticated[address]

    def leave(self, connection: C) -> None:
        """It ended, was displaced, or never got in."""
        self.authenticated(connection)
        address = self._addresses.pop(connection, None)
        if address is not None:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]

    def count_in(self, metrics: Metrics, listener: str) -> None:
        """Show what was dropped, and how many have not logged in."""
        for reason in self.dropped:
            metrics.pull_counter(
                "connections_dropped_total",
                "Connections displaced or refused, by the bound that was reached.",
                lambda reason=reason: self.dropped[reason],  # type: ignore[misc]
                {"listener": listener, "reason": reason},
            )
        metrics.pull_gauge(
            "connections_unauthenticated",
            "Connections that have not logged in.",
            lambda: self._unauthenticated_count,
            {"listener": listener},
        )

    def _of_busiest_address(self) -> dict[C, None] | None:
        # Linear in addresses, of which there are no more than may be unauthenticated.
        return max(self._unauthenticated.values(), key=len, default=None)

    def _refusal(self, reason: str) -> str:
        if reason == "address":
            return (
                f"this address has {self.address_max} connections, all that one may: use fewer, or "
                "raise connections.address_percent"
            )
        return (
            f"the server has no room for another connection, it has {self.connections_max}: try "
            "again later, or raise its connections_max"
        )


DISPLACED: Final = (
    "the connection made room for another, for nobody has logged in on it: log in at once, or "
    "raise connections.unauthenticated_percent"
)


def address_of(transport: asyncio.BaseTransport) -> str:
    """The peer's; empty where the system tells none."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) and peer else ""


def _share(connections_max: int, percent: int) -> int:
    return min(connections_max, max(BOUND_MIN, connections_max * percent // 100))


def _network(address: str) -> str:
    """The address itself, or the network of one of IPv6."""
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed), _IPV6_NETWORK_BITS), strict=False))
