"""Which server takes a file now: pins first, then the ring of the servers that are live."""

from collections.abc import Collection
from typing import Final

from raftwood.clogs.model import LogServer, RingConfiguration
from raftwood.clogs.ring.ketama import Ring

CACHED_NAMES_MAX: Final = 1 << 16


def hashed_part(name: str, hash_tag: str) -> str:
    """What of a name is hashed: what the two characters of the tag enclose, if there is anything.

    As twemproxy takes it: from the first opening character to the next closing one.
    """
    if not hash_tag:
        return name
    begin = name.find(hash_tag[0])
    if begin < 0:
        return name
    end = name.find(hash_tag[1], begin + 1)
    return name[begin + 1 : end] if end > begin + 1 else name


class Routing:
    """Of one configuration and one set of live servers: a change of either makes another one."""

    __slots__ = ("_cache", "_hash_tag", "_pins", "_ring", "is_panic")

    def __init__(self, configuration: RingConfiguration, live: Collection[str]) -> None:
        """`live` has ring names."""
        names = frozenset(live)
        servers = [server for server in configuration.servers if server.ring_name in names]
        self.is_panic: Final = not servers
        """No server is live, so all are used: a batch waits at its own server."""
        self._ring: Final = Ring(servers or configuration.servers)
        self._hash_tag: Final = configuration.hash_tag
        by_name = {server.ring_name: server for server in self._ring.servers}
        # A pin to a server that is not live counts for nothing: what is pinned must not wait.
        self._pins: Final = {
            name: by_name[server]
            for name, server in configuration.pins.items()
            if server in by_name
        }
        self._cache: Final[dict[str, LogServer]] = {}

    @property
    def ring(self) -> Ring:
        return self._ring

    def server_of(self, name: str) -> LogServer:
        """Where a file of this name goes."""
        return self._cache.get(name) or self._found(name)

    def ring_name_of(self, name: str) -> str:
        return self.server_of(name).ring_name

    def servers_of(self, names: list[str]) -> list[LogServer]:
        """As `server_of`, for many at once; they are not kept in mind."""
        servers, tag = self._ring.servers, self._hash_tag
        hashed = [hashed_part(name, tag) for name in names] if tag else names
        placed = [servers[number] for number in self._ring.servers_of(hashed)]
        if self._pins:
            pinned = self._pins.get
            return [pinned(name) or server for name, server in zip(names, placed, strict=True)]
        return placed

    def _found(self, name: str) -> LogServer:
        server = self._pins.get(name)
        if server is None:
            ring = self._ring
            server = ring.servers[ring.server_of(hashed_part(name, self._hash_tag))]
        if len(self._cache) >= CACHED_NAMES_MAX:
            self._cache.clear()
        self._cache[name] = server
        return server
