"""What the rules of health ask their driver to do, and what they tell of a server."""

from enum import StrEnum
from typing import TypeAlias

import msgspec


class Ping(msgspec.Struct, frozen=True, gc=False):
    """Send a ping with this id on the server's data connection; it may get lost."""

    server: str
    ping_id: int


class Isolate(msgspec.Struct, frozen=True, gc=False):
    """The server leaves the ring: build it anew from `live()`, and route its batches again."""

    server: str


class Recover(msgspec.Struct, frozen=True, gc=False):
    """The server is back in the ring: build it anew from `live()`."""

    server: str


Action: TypeAlias = Ping | Isolate | Recover


class CheckState(StrEnum):
    """Where a server's check stands."""

    PING = "ping"
    """A ping is under way."""
    PONG = "pong"
    """The last ping was answered, or none was sent yet."""


class ServerHealth(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one server, for people and figures. Times are of the driver's clock."""

    server: str
    state: CheckState
    invalid_checks: int
    """In a row, up to now."""
    isolated_since: float | None = None
    isolated_until: float | None = None
    """It stays isolated until then at the least."""
    repeats: int = 0
    """Times that it was isolated and that a healthy time has not made up for."""
    round_trip_s: float | None = None
    """Of the last valid pong."""

    @property
    def is_isolated(self) -> bool:
        return self.isolated_since is not None
