"""The sections that belong to no single package: who this node is, its logs, and the cluster."""

from typing import Annotated, Literal

from msgspec import Meta

from raftwood.base.names import NAME_PATTERN
from raftwood.base.settings import Secret, Section

Level = Literal["debug", "info", "warning", "error"]


class ClusterSettings(Section, frozen=True):
    """What all nodes of a cluster agree on."""

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
    """Who this node is and where it keeps its data."""

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
    """What proves that somebody belongs to the cluster; `raftwood config secret` makes them."""

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
    """What a node tells over HTTP: health, and metrics."""

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
    """How the node's own log lines look."""

    level: Annotated[Level, Meta(description="The least severe lines that are written.")] = "info"
    format: Annotated[
        Literal["auto", "text", "json"],
        Meta(description="Text for people, JSON lines for machines; auto: text on a terminal."),
    ] = "auto"
