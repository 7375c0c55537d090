"""Settings: fields of sections, each with a type, bounds, a unit, a meaning and a default.

A package that has settings defines one `Section`; `server/settings.py` puts the sections together.
Every field has a default and a `msgspec.Meta(description=...)`, and bounds where it has any:

    class DiskSettings(Section, frozen=True):
        scope = "node"
        segment_bytes: Annotated[int, Meta(ge=1 << 20, description="Size of one file.")] = 64 << 20

A field of type `Secret` never shows its value. The sections that belong to no single package stand
at the end: the cluster, the node, its secrets, TLS, HTTP, connections and log lines.
`configuration` reads the values.
"""

import functools
import hmac
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, inspect

from raftwood.base.errors import InvalidConfiguration
from raftwood.base.names import NAME_PATTERN
from raftwood.base.text import BYTES, parse_quantity, units_of

Scope = Literal["node", "cluster"]
HIDDEN = "****"
KEY_BYTES_MIN = 16


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one package; relations between fields are checked in `__post_init__`."""

    scope: ClassVar[Scope] = "node"
    """A `cluster` section must be the same on every node; a `node` section belongs to one node."""


class Secret:
    """A password or a key: it never shows in a repr, a log line or a pickle.

    `reveal` returns a password's text, to the code that checks it. Two sides share a key, and prove
    to each other that they know it by what they `sign`.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str | bytes = b"") -> None:
        self._value = (
            value.encode(errors="surrogateescape") if isinstance(value, str) else bytes(value)
        )

    def reveal(self) -> str:
        return self._value.decode(errors="surrogateescape")

    def as_key(self) -> Self:
        """Returns the secret, and checks that it is long enough to sign with."""
        if len(self._value) < KEY_BYTES_MIN:
            raise InvalidConfiguration(
                f"a secret has {len(self._value)} bytes: use at least {KEY_BYTES_MIN} random ones"
            )
        return self

    def sign(self, message: bytes) -> bytes:
        """Computes the HMAC-SHA256 of a message under this secret."""
        return hmac.digest(self._value, message, "sha256")

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return HIDDEN if self._value else "''"

    __str__ = __repr__

    def __reduce__(self) -> tuple[type["Secret"], tuple[()]]:
        # A copy through serialization would carry the text to unexpected places.
        raise TypeError("a secret is not serialized")


class Setting(msgspec.Struct, frozen=True):
    """The declaration of one setting."""

    section: str
    key: str
    scope: Scope
    annotation: Any
    default: Any
    meaning: str
    allowed: str

    @property
    def name(self) -> str:
        return f"{self.section}.{self.key}"

    @property
    def variable(self) -> str:
        return f"RAFTWOOD_{self.section.upper()}__{self.key.upper()}"

    @property
    def secret(self) -> bool:
        return _plain(self.annotation) is Secret

    @property
    def is_list(self) -> bool:
        return get_origin(_plain(self.annotation)) in (tuple, list)

    @property
    def allowed_as_text(self) -> str:
        """What a flag or an environment variable may say."""
        if not self.is_list:
            return self.allowed
        return self.allowed.replace("a list,", "a list as A,B,C without brackets,", 1)

    def show(self, value: Any) -> Any:
        """Returns the value fit to be shown: plain data, secrets hidden."""
        if self.secret:
            return HIDDEN if value else ""
        return msgspec.to_builtins(value)

    def parse(self, value: Any) -> Any:
        """Parses a value from a file's plain data; ValueError says what is wrong."""
        if isinstance(value, str) and (units := units_of(self.key)) is not None:
            value = parse_quantity(value, units)
        return _convert(value, self.annotation, strict=True)

    def parse_text(self, text: str) -> Any:
        """Parses a value from a flag or an environment variable, where everything is text."""
        if units_of(self.key) is not None:
            return self.parse(text)
        plain = _plain(self.annotation)
        if plain is str or plain is Secret or get_origin(plain) is Literal:
            return self.parse(text)
        if self.is_list:
            if text.lstrip().startswith(('["', "['")):
                raise ValueError("a list has neither brackets nor quotes here")
            parts = [part.strip() for part in text.split(",") if part.strip()]
            return _convert(parts, self.annotation, strict=False)
        return _convert(text, self.annotation, strict=False)


def _plain(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _convert(value: Any, annotation: Any, *, strict: bool) -> Any:
    if _plain(annotation) is Secret:
        # msgspec's messages name no value, but a secret of a wrong type must not show either.
        if not isinstance(value, str):
            raise ValueError("expected a text")
        return Secret(value)
    try:
        return msgspec.convert(value, annotation, strict=strict)
    except msgspec.ValidationError as error:
        text = str(error)
    except (OverflowError, RecursionError) as error:
        text = str(error)
    raise ValueError(text[:1].lower() + text[1:])


@functools.cache
def describe(settings: type[msgspec.Struct]) -> tuple[Setting, ...]:
    """Lists every setting of a struct whose fields are sections, in order of declaration."""
    return tuple(_describe(settings))


def _describe(settings: type[msgspec.Struct]) -> Iterator[Setting]:
    for section, kind in get_type_hints(settings).items():
        hints = get_type_hints(kind, include_extras=True)
        for field in msgspec.structs.fields(kind):
            annotation = hints[field.name]
            yield Setting(
                section=section,
                key=field.name,
                scope=kind.scope,
                annotation=annotation,
                default=_default(kind, field),
                meaning=_meaning(annotation),
                allowed=_allowed(annotation, field.name),
            )


def _default(kind: type[Section], field: msgspec.structs.FieldInfo) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    raise TypeError(f"{kind.__name__}.{field.name} has no default; every setting needs one")


def _meaning(annotation: Any) -> str:
    for extra in get_args(annotation)[1:]:
        if isinstance(extra, msgspec.Meta) and extra.description:
            return extra.description
    raise TypeError(f"{annotation} has no Meta(description=...); every setting needs one")


def _allowed(annotation: Any, key: str) -> str:
    if _plain(annotation) is Secret:
        return "a text"
    if get_origin(_plain(annotation)) is Literal:
        # In order of declaration, which has a meaning; msgspec would sort them.
        return "one of " + ", ".join(get_args(_plain(annotation)))
    kind = inspect.type_info(annotation)
    if isinstance(kind, inspect.Metadata):
        kind = kind.type
    unit = ""
    if (units := units_of(key)) is not None:
        unit = 'bytes (or a text as "64MiB")' if units is BYTES else 'milliseconds (or as "5s")'
    return _allowed_by_kind(kind, unit)


def _allowed_by_kind(kind: inspect.Type, unit: str) -> str:
    match kind:
        case inspect.IntType() | inspect.FloatType():
            what = "a whole number" if isinstance(kind, inspect.IntType) else "a number"
            low = f"from {kind.ge}" if kind.ge is not None else None
            low = f"above {kind.gt}" if kind.gt is not None else low
            high = f"to {kind.le}" if kind.le is not None else None
            high = f"below {kind.lt}" if kind.lt is not None else high
            return " ".join(
                part for part in (what, f"of {unit}" if unit else "", low, high) if part
            )
        case inspect.StrType():
            length = f" of at most {kind.max_length} characters" if kind.max_length else ""
            return f"a text{length}" + (f" matching {kind.pattern}" if kind.pattern else "")
        case inspect.LiteralType():
            return "one of " + ", ".join(str(value) for value in kind.values)
        case inspect.EnumType():
            return "one of " + ", ".join(str(member.value) for member in kind.cls)
        case inspect.BoolType():
            return "true or false"
        case inspect.VarTupleType() | inspect.ListType():
            return f"a list, each {_allowed_by_kind(kind.item_type, unit)}"
        case _:
            raise TypeError(f"no setting can be of {type(kind).__name__}")


Level = Literal["debug", "info", "warning", "error"]


class ClusterSettings(Section, frozen=True):
    """Settings that all nodes of a cluster share."""

    scope = "cluster"

    name: Annotated[
        str,
        Meta(
            pattern=rf"\A{NAME_PATTERN}\Z",
            description="Name of the cluster; a node refuses peers and data of another cluster.",
        ),
    ] = "raftwood"
    members: Annotated[
        tuple[Annotated[str, Meta(pattern=r"\A[1-9][0-9]{0,9}=[^=\s]+:[0-9]{1,5}\Z")], ...],
        Meta(description="The first stores and where they are, such as 1=127.0.0.1:7001."),
    ] = ()

    def __post_init__(self) -> None:
        stores = [member.partition("=")[0] for member in self.members]
        if len(set(stores)) < len(stores):
            raise ValueError("members names a store twice; give each store one address")

    def addresses(self) -> dict[int, str]:
        """The first stores' addresses by store."""
        pairs = (member.split("=") for member in self.members)
        return {int(store): address for store, address in pairs}


class NodeSettings(Section, frozen=True):
    """The node's identity and its data folder."""

    store_id: Annotated[
        int,
        Meta(ge=1, le=(1 << 32) - 1, description="Number of this store, unique in the cluster."),
    ] = 1
    data_folder: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=1024,
            description="Folder that holds all data of this node; no other process may use it.",
        ),
    ] = "raftwood-data"
    listen: Annotated[
        str,
        Meta(
            pattern=r"\A([^=\s]+:[0-9]{1,5})?\Z",
            description="Address to serve on, host:port; without it the one in cluster.members, "
            "or 127.0.0.1:7001.",
        ),
    ] = ""
    advertise: Annotated[
        str,
        Meta(
            pattern=r"\A([^=\s]+:[0-9]{1,5})?\Z",
            description="Address at which others reach this store, host:port; without it the one "
            "in cluster.members, or node.listen.",
        ),
    ] = ""


class SecretSettings(Section, frozen=True):
    """Secrets that authenticate members and clients; `raftwood config secret` makes them."""

    scope = "cluster"

    stores: Annotated[
        Secret, Meta(description="Known to the stores alone: proves a store to another.")
    ] = Secret()
    clients: Annotated[
        Secret, Meta(description="Known to stores and clients: proves each to the other.")
    ] = Secret()
    readers: Annotated[
        Secret, Meta(description="Known to stores and to clients that may only read; optional.")
    ] = Secret()
    operators: Annotated[
        Secret, Meta(description="Known to stores and operators: who has it may change members.")
    ] = Secret()
    metrics: Annotated[
        Secret, Meta(description="Known to who scrapes metrics over HTTP: the token to send.")
    ] = Secret()


class HttpSettings(Section, frozen=True):
    """A node's HTTP port: health, and metrics."""

    listen: Annotated[
        str,
        Meta(
            pattern=r"\A([^=\s]+:[0-9]{1,5})?\Z",
            description="Address to serve health and metrics on, such as 127.0.0.1:7080; without "
            "it they are not served.",
        ),
    ] = ""
    keep_alive_ms: Annotated[
        int,
        Meta(ge=0, le=600_000, description="How long a connection without a request is kept."),
    ] = 5_000
    request_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=600_000,
            description="How long a client may take to send a request and to read the answer.",
        ),
    ] = 10_000
    connections_max: Annotated[
        int, Meta(ge=1, le=10_000, description="Connections at a time; more are refused.")
    ] = 64

    def __post_init__(self) -> None:
        if self.listen and int(self.listen.rpartition(":")[2]) >= 1 << 16:
            raise ValueError("listen has a port above 65535; give one below, or 0 for any")


class ConnectionSettings(Section, frozen=True):
    """Shares of the connections that each listener of a process takes at a time."""

    address_percent: Annotated[
        int,
        Meta(
            ge=1,
            le=100,
            description="What one address may have of a listener's connections, at least 16; raise "
            "it where all clients come through one proxy.",
        ),
    ] = 75
    unauthenticated_percent: Annotated[
        int,
        Meta(
            ge=1,
            le=100,
            description="What those may have together on which nobody has logged in yet, at least "
            "16; a new one displaces the oldest of these.",
        ),
    ] = 25


class TlsSettings(Section, frozen=True):
    """PEM files for encrypted connections; without a certificate there is no encryption."""

    certificate: Annotated[
        str, Meta(max_length=1024, description="File with this store's certificate chain.")
    ] = ""
    key: Annotated[str, Meta(max_length=1024, description="File with the certificate's key.")] = ""
    authorities: Annotated[
        str,
        Meta(
            max_length=1024,
            description="File with the authorities that signed the stores' certificates; stores "
            "and clients connect with TLS if it is given.",
        ),
    ] = ""

    def __post_init__(self) -> None:
        if self.certificate and not (self.key and self.authorities):
            raise ValueError("certificate is given without key and authorities; give all three")


class LoggingSettings(Section, frozen=True):
    """The format of the node's own log lines."""

    level: Annotated[Level, Meta(description="The least severe lines that are written.")] = "info"
    format: Annotated[
        Literal["auto", "text", "json"],
        Meta(description="Text for people, JSON lines for machines; auto: text on a terminal."),
    ] = "auto"
