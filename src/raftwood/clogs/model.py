"""A ring's configuration: its servers, when one is isolated, and files that are placed by hand.

It is the same for all clients of a ring, has a version and a digest, and changes while they run.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from raftwood.base.errors import InvalidConfiguration

DEFAULT_PORT: Final = 11211
"""Left out of a server's ring name: memcached's, as twemproxy has it."""
SERVERS_MAX: Final = 4096
FILE_NAME_BYTES_MAX: Final = 1024

_Host = Annotated[str, Meta(pattern=r"\A[^\s\x00-\x1f]{1,253}\Z")]


class LogServer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One receiver of the ring."""

    host: _Host
    port: Annotated[int, Meta(ge=1, le=65_535)]
    weight: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    name: Annotated[str, Meta(max_length=253)] = ""
    """Where it stands in the ring follows from its name: with one of its own a server can move to
    another address and keep its files."""

    @property
    def ring_name(self) -> str:
        """As twemproxy names it; the weight is never part of it."""
        if self.name:
            return self.name
        return self.host if self.port == DEFAULT_PORT else f"{self.host}:{self.port}"

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class HaRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a server is isolated, and for how long at the least."""

    check_gap_ms: Annotated[int, Meta(ge=10, le=3_600_000)] = 5_000
    """From one ping to the next."""
    invalid_checks_max: Annotated[int, Meta(ge=1, le=1000)] = 3
    """So many checks in a row without a valid pong isolate."""
    isolated_percent_max: Annotated[int, Meta(ge=0, le=100)] = 100
    """Of the servers, isolated at once; where all are, the full ring is used (panic mode)."""
    isolation_first_ms: Annotated[int, Meta(ge=0, le=3_600_000)] = 1_000
    """A server stays isolated for so long at least, however soon it answers."""
    isolation_longest_ms: Annotated[int, Meta(ge=0, le=86_400_000)] = 300_000
    """Each time that it is isolated again soon takes longer, up to this."""


class RingConfiguration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all clients of a ring share."""

    servers: tuple[LogServer, ...]
    ha: HaRules = HaRules()
    hash_tag: Annotated[str, Meta(pattern=r"\A([^\s]{2})?\Z")] = "{}"
    """Of a file name that has these two characters in this order, only what is between is hashed:
    such files share a server. Empty: the whole name always."""
    pins: dict[str, str] = {}
    """Files placed by hand: the file's whole name, and its server's ring name."""


class VersionedConfiguration(msgspec.Struct, frozen=True):
    """A configuration as it is handed out. Versions are compared by `!=`, and digests as well: a
    roll-back has a smaller version."""

    version: int
    digest: str
    """Of the canonical text of the configuration: `configuration_digest`."""
    configuration: RingConfiguration


def checked_file_name(name: str) -> str:
    """The name itself if a file can be shipped under it, else `InvalidConfiguration`."""
    if (
        not name
        or len(name.encode("utf-8", "replace")) > FILE_NAME_BYTES_MAX
        or not (name.isprintable())
    ):
        raise InvalidConfiguration(
            f"{name[:80]!r} cannot be a file's name: give 1 to {FILE_NAME_BYTES_MAX} bytes of "
            "printable text"
        )
    return name
