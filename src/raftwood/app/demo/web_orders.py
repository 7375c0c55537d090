"""What the demo and its web servers say to one another, each a line of JSON."""

import msgspec

from raftwood.clogs.client.counters import Counters


class WebServerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Which lines it makes, and where they go."""

    number: int
    seed: int
    lines: int
    """In all."""
    lines_per_minute: int
    """By the times that stand in them."""
    ring: str
    receivers: tuple[str, ...]
    access_key: str
    access_secret: str


class Ship(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Make and ship the next lines, within so many seconds at the soonest."""

    lines: int
    seconds: float
    held_back: int = 0
    """The last ones of them, which wait for `GoOn`."""


class GoOn(msgspec.Struct, frozen=True, tag=True):
    """Ship what was held back as well."""


Order = Ship | GoOn


class Given(msgspec.Struct, frozen=True, array_like=True):
    """Lines that were given to the shipper at once; times are of the clock of all processes."""

    file: str
    lines: int
    given_ns: int
    acked_ns: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """How it is."""

    version: int
    """Of the ring's configuration; 0 before it has come from a receiver."""
    isolated: tuple[str, ...]
    counters: Counters
    reached: dict[str, int] = {}
    """By file: when the newest of its lines that are acked was given."""
    shipped: int = 0
    """Orders of which every line is acked."""
    given: tuple[Given, ...] = ()
    """Told at the end of an order."""
