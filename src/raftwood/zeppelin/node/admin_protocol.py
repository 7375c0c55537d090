"""A node's admin listener: its method, and how a node and its operators prove themselves.

Apart from the node, so that operators' commands know it without loading that.
"""

from typing import Final

import msgspec

from raftwood.net import ClientTls, Identity, Secret, ServerCredentials, ServerTls, TypedMethod
from raftwood.net.identity import OPERATOR_ROLE
from raftwood.net.method_numbers import MethodNumber
from raftwood.zeppelin.model import NodeId
from raftwood.zeppelin.replication.peers import ReplicationNetwork

ADMIN_ROLE: Final = "zeppelin-admin"


def admin_identity(node: NodeId) -> Identity:
    return Identity(role=ADMIN_ROLE, node_id=node)


class AskStatus(msgspec.Struct, frozen=True, array_like=True):
    """How a node is."""

    tables: tuple[str, ...] = ()
    """Only partitions of these; none: of all."""


class CopyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A node's copy of one partition."""

    table: str
    partition: int
    role: str
    """`master`, `slave`, or `none` while there is no master."""
    master: NodeId | None
    epoch: int
    """Of the topology."""
    is_writing: bool
    """Clients are served."""
    is_whole: bool
    first_sequence: int
    last_sequence: int
    synced_sequence: int
    lag_bytes: int
    contact_ms: int | None
    """So long ago a slave heard its master."""
    slaves_in_sync: int
    """Of a master: so many have its last record."""


class ParkedStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that waited for the end of a hand-over."""

    now: int = 0
    total: int = 0
    """Since the node was started, as the longest is."""
    p50_ms: float = 0.0
    """Of the last thousand, as the next."""
    p99_ms: float = 0.0
    longest_ms: float = 0.0


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """All there is to tell of a node at one moment."""

    node: NodeId
    run: int
    applied_epoch: int
    lease_ms: int
    """So long it may serve as master without word from the meta server."""
    problem: str
    connections: int
    commands: int
    disk_bytes: int
    """Of the binlogs."""
    copies: tuple[CopyStatus, ...]
    parked: ParkedStatus = ParkedStatus()
    copied_bytes: int = 0
    """Of whole copies that have come since the node was started."""
    streamed_bytes: int = 0
    """Of records that have come from masters since then."""


STATUS: Final = TypedMethod(
    MethodNumber.KV_STATUS,
    "kv-status",
    request=AskStatus,
    response=NodeStatus,
    roles=(OPERATOR_ROLE,),
)


class NodeNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """How a node, its peers and its operators prove themselves."""

    replication: ReplicationNetwork
    operators: Secret
    tls: ServerTls | None = None

    @property
    def certificates(self) -> "list[ServerTls | ClientTls]":
        """That can be read again."""
        return [each for each in (self.tls, self.replication.tls) if each is not None]

    def operator_credentials(self, node: NodeId) -> ServerCredentials:
        return ServerCredentials(
            cluster_id=self.replication.cluster,
            identity=admin_identity(node),
            secret_of=lambda peer: self.operators if peer.role == OPERATOR_ROLE else None,
        )
