"""Counters and status of a shipper, in lines: by server, and in all. They count every line."""

from typing import Final

import msgspec
from msgspec.structs import replace

from raftwood.clogs.client.server_pool import RingConnections
from raftwood.clogs.configuration import VersionedConfiguration
from raftwood.clogs.health import Health

NO_SERVER: Final = "-"
"""Stands for lines of the time before any server was known."""
SERVERS_MAX: Final = 4096


class ServerCounters(msgspec.Struct):
    """Lines of the files that were this server's at that moment."""

    sent: int = 0
    acked: int = 0
    retried: int = 0
    spooled: int = 0
    dropped: int = 0


class Counters(msgspec.Struct):
    """All counters of a shipper."""

    taken: int = 0
    acked: int = 0
    dropped: int = 0
    refused: int = 0
    """Lines that a receiver will never accept, as in a batch that is too large for it."""
    cut: int = 0
    """Lines that were longer than the limit, and stored up to it."""
    resumed: int = 0
    """Found in the spool at the start: they count as taken by an earlier life."""
    servers: dict[str, ServerCounters] = {}

    def copied(self) -> "Counters":
        """Returns a consistent copy for readers in other threads."""
        servers = {name: replace(each) for name, each in self.servers.items()}
        return replace(self, servers=servers)

    def server(self, name: str | None) -> ServerCounters:
        name = name or NO_SERVER
        found = self.servers.get(name)
        if found is None:
            if len(self.servers) >= SERVERS_MAX:
                name = NO_SERVER
            found = self.servers.setdefault(name, ServerCounters())
        return found


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One server, as this shipper sees it; counts are lines."""

    server: str
    address: str
    is_connected: bool
    is_isolated: bool
    isolated_for_s: float | None = None
    invalid_checks: int = 0
    round_trip_ms: float | None = None
    why: str = ""
    """Why there is no connection; empty if there is one."""
    counters: ServerCounters


class ShipperStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A shipper as a whole."""

    version: int | None = None
    """The version of the ring's configuration; None before there is one."""
    digest: str = ""
    is_panic: bool = False
    """All servers are isolated, and all are tried."""
    held_bytes: int = 0
    held_lines: int = 0
    """Lines not settled: taken and resumed lines are acked, dropped, refused, or these."""
    spool_bytes: int = 0
    files: int = 0
    in_flight: int = 0
    last_error: str = ""
    counters: Counters
    servers: list[ServerStatus] = []


def shipper_status(
    configuration: VersionedConfiguration | None,
    health: Health | None,
    links: RingConnections,
    counters: Counters,
    *,
    now: float,
    held_bytes: int,
    held_lines: int,
    spool_bytes: int,
    files: int,
    in_flight: int,
    last_error: str,
) -> ShipperStatus:
    counters = counters.copied()
    servers = []
    if configuration is not None and health is not None:
        addresses = {each.ring_name: each.address for each in configuration.configuration.servers}
        for each in health.snapshot():
            error = links.error_of(each.server)
            servers.append(
                ServerStatus(
                    server=each.server,
                    address=addresses.get(each.server, ""),
                    is_connected=links.is_connected(each.server),
                    is_isolated=each.is_isolated,
                    isolated_for_s=None
                    if each.isolated_since is None
                    else round(now - each.isolated_since, 1),
                    invalid_checks=each.invalid_checks,
                    round_trip_ms=None
                    if each.round_trip_s is None
                    else round(each.round_trip_s * 1000, 2),
                    why="" if error is None else error.message,
                    counters=counters.servers.get(each.server, ServerCounters()),
                )
            )
    return ShipperStatus(
        version=None if configuration is None else configuration.version,
        digest="" if configuration is None else configuration.digest,
        is_panic=health is not None and health.is_panic,
        held_bytes=held_bytes,
        held_lines=held_lines,
        spool_bytes=spool_bytes,
        files=files,
        in_flight=in_flight,
        last_error=last_error,
        counters=counters,
        servers=servers,
    )
