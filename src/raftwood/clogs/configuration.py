"""`RingConfiguration`: a ring's servers, when one is isolated, and files that are placed by hand.

It is the same for all clients of a ring, has a version and a digest, and changes while they run. As
text it is JSON everywhere, and TOML in files whose names end in .toml.
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


CONFIGURATION_BYTES_MAX: Final = 480 << 10
"""Of a text: it must fit in one value of a metastore, 4096 servers and thousands of pins do."""
_PROBLEMS_MAX: Final = 20
"""More than anybody mends at once."""
_DIGEST_BYTES: Final = 16
_SHAPE: Final = (
    "write {servers: [{host, port, weight, name}, …], ha: {…}, hash_tag, pins: {file: server}}"
)
_T = TypeVar("_T")


class _FileConfiguration(RingConfiguration, frozen=True, forbid_unknown_fields=True):
    """As it stands in a file, which may say its version."""

    version: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)] | None = None


def encode_configuration(configuration: RingConfiguration) -> bytes:
    """The canonical text."""
    return msgspec.json.encode(configuration, order="sorted")


def configuration_digest(configuration: RingConfiguration) -> str:
    """Equal for equal configurations alone."""
    return text_digest(encode_configuration(configuration))


def text_digest(text: Buffer) -> str:
    return hashlib.blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()


def decode_configuration(data: Buffer) -> RingConfiguration:
    """From JSON, canonical or not, and checked; `InvalidConfiguration` tells all that is wrong."""
    _check_size(len(data))
    return _checked(_decoded(lambda: msgspec.json.decode(data, type=RingConfiguration)))


def decode_file(data: Buffer, file: str) -> tuple[RingConfiguration, int | None]:
    """What stands in a file, and the version that it says it is."""
    _check_size(len(data))
    if file.lower().endswith(".toml"):
        decoded = _decoded(lambda: _from_toml(bytes(data)))
    else:
        decoded = _decoded(lambda: msgspec.json.decode(data, type=_FileConfiguration))
    fields = {name: getattr(decoded, name) for name in RingConfiguration.__struct_fields__}
    return _checked(RingConfiguration(**fields)), decoded.version


def accepted(version: int, digest: str, text: Buffer) -> VersionedConfiguration:
    """What a source was told, once it is checked; `InvalidConfiguration` where it is no good."""
    # Of the text as it was set: this program may have more defaults than that which set it.
    if text_digest(text) != digest:
        raise InvalidConfiguration(
            f"version {version} of the ring's configuration has another text than its digest "
            f"{digest[:80]!r} says: set it again"
        )
    return VersionedConfiguration(version, digest, decode_configuration(text))


def check_configuration(configuration: RingConfiguration) -> RingConfiguration:
    """The configuration itself if clients can use it, else `InvalidConfiguration` with all that is
    wrong, a line each."""
    plain = msgspec.to_builtins(configuration)
    _decoded(lambda: msgspec.convert(plain, type=RingConfiguration))
    return _checked(configuration)


def _checked(configuration: RingConfiguration) -> RingConfiguration:
    """As `check_configuration`, for one whose types are right."""
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
