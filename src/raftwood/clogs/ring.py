"""The server of a file: consistent hashing (ketama) point for point as twemproxy has it, and pins.

Twemproxy's `hash: md5`, `distribution: ketama`, as clogs' text has it (section "Load balancing"): a
server that leaves takes along the files that are its own, and by a hash modulo the number of
servers nearly all files would move (`test_the_keys_of_other_servers_stay_when_one_is_isolated`).

Each server has points on a circle of 32 bits, some 160 of them, and a key goes to the server of the
first point at or behind its hash. All is computed as twemproxy does it, in single precision where
it does so: at 25 equal servers that is 156 points each, and in double precision keys would go
elsewhere. Clients of two implementations beside each other would then ship one file to two servers
(`test_two_thousand_keys_go_where_twemproxy_sends_them`; `test_the_vectors_catch` shows mistakes
that these keys find).

`Routing` applies pins first, then the ring of the live servers. Pins answer the drawback that the
text ends with: that the user cannot determine where a file goes.
"""

import struct
from bisect import bisect_left
from collections.abc import Collection, Sequence
from functools import cache, lru_cache
from typing import Any, Final

from raftwood.base.errors import InvalidConfiguration, InvalidInput
from raftwood.clogs.configuration import SERVERS_MAX, LogServer, RingConfiguration

try:
    # OpenSSL's takes three times as long for a short text, most of it to find the algorithm.
    from _md5 import md5  # type: ignore[import-not-found]
except ImportError:  # a Python that was built without its own
    from functools import partial
    from hashlib import md5 as _of_openssl

    md5 = partial(_of_openssl, usedforsecurity=False)

POINTS_PER_SERVER: Final = 160
POINTS_PER_HASH: Final = 4
_SINGLE: Final = struct.Struct("<f")
_DIGEST_HEAD: Final = struct.Struct("<I12x")
_OWNER_BITS: Final = 12
_OWNER: Final = (1 << _OWNER_BITS) - 1
_FEW_NAMES: Final = 64
"""With fewer, what numpy saves is less than what a call of it costs."""


def single(value: float) -> float:
    """A number rounded to single precision. After one operation on two such numbers the result is
    that of a processor that computes in single precision: double has more than twice the digits, so
    that rounding twice changes nothing."""
    rounded: float = _SINGLE.unpack(_SINGLE.pack(value))[0]
    return rounded


def hashes_of_server(*, weight: int, total_weight: int, count: int) -> int:
    """Returns how many hashes a server among `count` live ones gets: four points each.

    From left to right, and rounded after every step, as twemproxy's compiler does; the addition at
    the end is in double precision there
    (`test_equal_servers_have_156_points_where_single_precision_rounds_down`).
    """
    share = single(single(weight) / single(total_weight))
    points = single(single(share * POINTS_PER_SERVER) / POINTS_PER_HASH)
    return int(single(single(points * single(count)) + 1e-10))


@lru_cache(maxsize=2 * SERVERS_MAX)
def _points_of(ring_name: str, hashes: int) -> tuple[int, ...]:
    """Returns a server's points in order, each with room for its owner's number below it.

    Kept, so that a ring without one of many servers need not hash for all the others again.
    """
    name = ring_name.encode()
    data = b"".join([md5(b"%b-%d" % (name, number)).digest() for number in range(hashes)])
    points = sorted(struct.unpack(f"<{POINTS_PER_HASH * hashes}I", data))
    return tuple([point << _OWNER_BITS for point in points])


def key_hash(name: str | bytes) -> int:
    """Returns a key's place on the circle."""
    if not name:
        return 0
    key = name if isinstance(name, bytes) else _encoded(name)
    place: int = _DIGEST_HEAD.unpack(md5(key).digest())[0]
    return place


def _encoded(name: str) -> bytes:
    """A name as bytes. One that came as bytes of another encoding, and was read with escapes, goes
    back to these: twemproxy hashes what the file system has."""
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{name[:80]!r} is no text: it has half of a character") from error


class Ring:
    """Servers on the circle; never changes. A server that leaves or comes makes another ring."""

    __slots__ = ("_arrays", "_circle", "points", "servers")

    def __init__(self, servers: Sequence[LogServer]) -> None:
        self.servers: Final = tuple(servers)
        _check(self.servers)
        total, count = sum(server.weight for server in self.servers), len(self.servers)
        hashes = [
            hashes_of_server(weight=server.weight, total_weight=total, count=count)
            for server in self.servers
        ]
        self.points: Final = tuple(POINTS_PER_HASH * each for each in hashes)
        """The number of points of each server, in the servers' order."""
        # One number for a point and its owner: sorted by the point, and equal ones by the owner.
        circle = [
            point | owner
            for owner, (server, each) in enumerate(zip(self.servers, hashes, strict=True))
            for point in _points_of(server.ring_name, each)
        ]
        circle.sort()
        # A key behind the last point belongs to the first one: it is a circle.
        circle.append(1 << 32 + _OWNER_BITS | circle[0] & _OWNER)
        self._circle: Final = circle
        self._arrays: tuple[Any, Any] | None = None

    def server_of(self, name: str | bytes) -> int:
        """Returns the number of a key's server."""
        circle = self._circle
        return circle[bisect_left(circle, key_hash(name) << _OWNER_BITS)] & _OWNER

    def servers_of(self, names: Sequence[str] | Sequence[bytes]) -> list[int]:
        """Like `server_of`, for many keys at once."""
        numpy = _numpy() if len(names) >= _FEW_NAMES else None
        if numpy is None:
            return list(map(self.server_of, names))
        digests = b"".join([md5(name).digest() for name in _all_encoded(names)])
        hashes = numpy.frombuffer(digests, dtype="<u4")[::POINTS_PER_HASH]
        if not all(names):
            hashes = numpy.where([bool(name) for name in names], hashes, 0)
        points, owners = self._as_arrays(numpy)
        found: list[int] = owners[points.searchsorted(hashes)].tolist()
        return found

    def _as_arrays(self, numpy: Any) -> tuple[Any, Any]:
        """Points, and their owners with one more; in types that take the least room, since those
        are searched the fastest."""
        if self._arrays is None:
            circle = numpy.array(self._circle, dtype="uint64")
            points = (circle[:-1] >> _OWNER_BITS).astype("uint32")
            self._arrays = (points, (circle & _OWNER).astype("uint16"))
        return self._arrays


def _all_encoded(names: Sequence[str] | Sequence[bytes]) -> list[bytes]:
    try:
        return [name.encode() for name in names]  # type: ignore[union-attr]
    except (AttributeError, UnicodeEncodeError):
        return [name if isinstance(name, bytes) else _encoded(name) for name in names]


def _check(servers: tuple[LogServer, ...]) -> None:
    if not servers:
        raise InvalidConfiguration("a ring needs a server: name one at least")
    if len(servers) > SERVERS_MAX:
        raise InvalidConfiguration(
            f"a ring of {len(servers)} servers is too large: name up to {SERVERS_MAX}"
        )
    seen: set[str] = set()
    for server in servers:
        if server.ring_name in seen:
            raise InvalidConfiguration(
                f"two servers are called {server.ring_name!r} in the ring: give each its own name"
            )
        seen.add(server.ring_name)


@cache
def _numpy() -> Any:
    """Returns numpy for batches of look-ups, if installed; loaded on first use: it is large."""
    try:
        import numpy  # noqa: PLC0415
    except ImportError:
        return None
    return numpy


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
    """The routes of one configuration and one set of live servers; a change of either makes another
    object, so that a batch is routed by one state and never by half of two."""

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
        # A pin to a server that is not live counts for nothing: a pinned file would wait while
        # every other file goes on (`test_a_pin_to_a_server_that_is_not_live_counts_for_nothing`).
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
        """Returns the server of a file."""
        return self._cache.get(name) or self._found(name)

    def ring_name_of(self, name: str) -> str:
        return self.server_of(name).ring_name

    def servers_of(self, names: list[str]) -> list[LogServer]:
        """Like `server_of`, for many files at once, without caching them."""
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
