"""A ring's configuration as text: JSON everywhere, and TOML in files whose names end in .toml.

The canonical text has its keys in order and its defaults written out, so that equal configurations
have equal texts, and a later change of a default changes nothing that was set before.
"""

import hashlib
import tomllib
from collections.abc import Callable, Iterator
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from raftwood.base.errors import InvalidConfiguration
from raftwood.base.files import Buffer
from raftwood.clogs.model import (
    SERVERS_MAX,
    RingConfiguration,
    VersionedConfiguration,
    checked_file_name,
)

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
