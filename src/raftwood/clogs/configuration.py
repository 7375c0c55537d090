"""`RingConfiguration`: a ring's servers, the rules of isolation, and files that are placed by hand.

All clients of a ring share it. It has a version and a digest, and may change while clients run. Its
text is JSON everywhere, and also TOML in files whose names end in .toml.
"""

import hashlib
import tomllib
from collections.abc import Callable, Iterator
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from raftwood.base.errors import InvalidConfiguration
from raftwood.base.files import Buffer

DEFAULT_PORT: Final = 11211
"""Left out of a server's ring name: memcached's port, as in twemproxy."""
SERVERS_MAX: Final = 4096
FILE_NAME_BYTES_MAX: Final = 1024

_Host = Annotated[str, Meta(pattern=r"\A[^\s\x00-\x1f]{1,253}\Z")]


class LogServer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One receiver of the ring."""

    host: _Host
    port: Annotated[int, Meta(ge=1, le=65_535)]
    weight: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    name: Annotated[str, Meta(max_length=253)] = ""
    """Determines the server's place in the ring: with a name of its own a server can move to
    another address and keep its files.
    """

    @property
    def ring_name(self) -> str:
        """Returns the server's name as twemproxy forms it; the weight is never part of it."""
        if self.name:
            return self.name
        return self.host if self.port == DEFAULT_PORT else f"{self.host}:{self.port}"

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class HaRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a server is isolated, and for how long at least."""

    check_gap_ms: Annotated[int, Meta(ge=10, le=3_600_000)] = 5_000
    """The interval between pings."""
    invalid_checks_max: Annotated[int, Meta(ge=1, le=1000)] = 3
    """So many checks in a row without a valid pong isolate the server."""
    isolated_percent_max: Annotated[int, Meta(ge=0, le=100)] = 100
    """The share of servers that may be isolated at once; if all are, all are used (panic mode)."""
    isolation_first_ms: Annotated[int, Meta(ge=0, le=3_600_000)] = 1_000
    """The minimum duration of an isolation, however soon the server answers."""
    isolation_longest_ms: Annotated[int, Meta(ge=0, le=86_400_000)] = 300_000
    """The limit of that duration, which grows with each isolation soon after the last."""


class RingConfiguration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The configuration that all clients of a ring share."""

    servers: tuple[LogServer, ...]
    ha: HaRules = HaRules()
    hash_tag: Annotated[str, Meta(pattern=r"\A([^\s]{2})?\Z")] = "{}"
    """If a file name has these two characters in this order, only the part between them is hashed:
    such files share a server. Empty: always the whole name.
    """
    pins: dict[str, str] = {}
    """Files placed by hand: the file's whole name, and its server's ring name."""


class VersionedConfiguration(msgspec.Struct, frozen=True):
    """A configuration with its version. Versions are compared by `!=`, and digests as well: a
    roll-back has a smaller version.
    """

    version: int
    digest: str
    """The `configuration_digest` of the configuration's canonical text."""
    configuration: RingConfiguration


def checked_file_name(name: str) -> str:
    """Returns the name if a file can be shipped under it, else raises `InvalidConfiguration`."""
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


CONFIGURATION_BYTES_MAX: Final = 480 << 10
"""Limit of a text: it must fit in one metastore value; 4096 servers and thousands of pins do."""
_PROBLEMS_MAX: Final = 20
"""More problems than a person corrects at once."""
_DIGEST_BYTES: Final = 16
_SHAPE: Final = (
    "write {servers: [{host, port, weight, name}, …], ha: {…}, hash_tag, pins: {file: server}}"
)
_T = TypeVar("_T")


class _FileConfiguration(RingConfiguration, frozen=True, forbid_unknown_fields=True):
    """A configuration in a file, which may state its version."""

    version: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)] | None = None


def encode_configuration(configuration: RingConfiguration) -> bytes:
    """Returns the canonical text."""
    return msgspec.json.encode(configuration, order="sorted")


def configuration_digest(configuration: RingConfiguration) -> str:
    """Returns a digest that is equal only for equal configurations."""
    return text_digest(encode_configuration(configuration))


def text_digest(text: Buffer) -> str:
    return hashlib.blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()


def decode_configuration(data: Buffer) -> RingConfiguration:
    """Decodes and checks JSON, canonical or not; `InvalidConfiguration` lists all problems."""
    _check_size(len(data))
    return _checked(_decoded(lambda: msgspec.json.decode(data, type=RingConfiguration)))


def decode_file(data: Buffer, file: str) -> tuple[RingConfiguration, int | None]:
    """Decodes a file; returns also the version that it states."""
    _check_size(len(data))
    if file.lower().endswith(".toml"):
        decoded = _decoded(lambda: _from_toml(bytes(data)))
    else:
        decoded = _decoded(lambda: msgspec.json.decode(data, type=_FileConfiguration))
    fields = {name: getattr(decoded, name) for name in RingConfiguration.__struct_fields__}
    return _checked(RingConfiguration(**fields)), decoded.version


def accepted(version: int, digest: str, text: Buffer) -> VersionedConfiguration:
    """Checks what a source received; raises `InvalidConfiguration` if it is invalid."""
    # The digest is of the original text: this program may have more defaults than the one that set
    # it.
    if text_digest(text) != digest:
        raise InvalidConfiguration(
            f"version {version} of the ring's configuration has another text than its digest "
            f"{digest[:80]!r} says: set it again"
        )
    return VersionedConfiguration(version, digest, decode_configuration(text))


def check_configuration(configuration: RingConfiguration) -> RingConfiguration:
    """Returns the configuration if clients can use it, else raises `InvalidConfiguration` with all
    problems, a line each.
    """
    plain = msgspec.to_builtins(configuration)
    _decoded(lambda: msgspec.convert(plain, type=RingConfiguration))
    return _checked(configuration)


def _checked(configuration: RingConfiguration) -> RingConfiguration:
    """Like `check_configuration`, for one whose types are right."""
    problems = list(_problems(configuration))
    if problems:
        left_out = len(problems) - _PROBLEMS_MAX
        if left_out > 0:
            problems[_PROBLEMS_MAX:] = [f"and {left_out} more"]
        raise InvalidConfiguration("\n".join(problems))
    _check_size(len(encode_configuration(configuration)))
    return configuration


def _problems(configuration: RingConfiguration) -> Iterator[str]:
    count = len(configuration.servers)
    if not 1 <= count <= SERVERS_MAX:
        yield f"the ring has {count} servers: name 1 to {SERVERS_MAX}"
    names: set[str] = set()
    addresses: dict[tuple[str, int], str] = {}
    for server in configuration.servers:
        name = server.ring_name
        if not name.isprintable() or name != name.strip():
            yield f"server {name[:80]!r} has a name that cannot be shown: use printable text"
        if name in names:
            yield f"two servers are named {name!r}: give each a name of its own"
        names.add(name)
        other = addresses.setdefault((server.host.lower(), server.port), name)
        if other != name:
            yield f"servers {other!r} and {name!r} are both at {server.address}: remove one"
    tag = configuration.hash_tag
    if tag and (tag[0] == tag[1] or not tag.isprintable()):
        yield f"hash_tag {tag!r} marks nothing: give two different printable characters, or none"
    ha = configuration.ha
    if ha.isolation_longest_ms < ha.isolation_first_ms:
        yield (
            f"ha.isolation_longest_ms is {ha.isolation_longest_ms}, less than "
            f"ha.isolation_first_ms, {ha.isolation_first_ms}: give it as much at least"
        )
    for file, pinned in configuration.pins.items():
        try:
            checked_file_name(file)
        except InvalidConfiguration as error:
            yield f"a pin is wrong: {error.message}"
        if pinned not in names:
            yield f"{file[:80]!r} is pinned to {pinned[:80]!r}, which is no server of the ring"


def _from_toml(data: bytes) -> _FileConfiguration:
    return msgspec.convert(tomllib.loads(data.decode()), type=_FileConfiguration)


def _decoded(decode: Callable[[], _T]) -> _T:
    try:
        return decode()
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError as error:  # msgspec's errors, TOML's and UTF-8's are all of this kind
        reason = str(error)
    raise InvalidConfiguration(f"the ring's configuration cannot be read: {reason}; {_SHAPE}")


def _check_size(count: int) -> None:
    if count > CONFIGURATION_BYTES_MAX:
        raise InvalidConfiguration(
            f"the ring's configuration has {count} bytes, more than {CONFIGURATION_BYTES_MAX}: "
            "name fewer servers or pins"
        )
