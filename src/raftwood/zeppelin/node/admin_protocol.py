"""A node's admin listener: its method, and how nodes and operators authenticate.

A module of its own, so that operators' commands do not load the node.
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
    """Asks for a node's status."""

    tables: tuple[str, ...] = ()
    """Only partitions of these tables; empty: of all."""


class CopyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a node's copy of one partition."""

    table: str
    partition: int
    role: str
    """`master`, `slave`, or `none` while there is no master."""
    master: NodeId | None
    epoch: int
    """The partition's epoch in the topology."""
    is_writing: bool
    """Whether it serves clients."""
    is_whole: bool
    first_sequence: int
    last_sequence: int
    synced_sequence: int
    lag_bytes: int
    contact_ms: int | None
    """Time since a slave last heard its master."""
    slaves_in_sync: int
    """On a master: how many slaves have its last record."""


class ParkedStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of requests that waited for the end of a hand-over."""

    now: int = 0
    total: int = 0
    """Since the node was started, like `longest_ms`."""
    p50_ms: float = 0.0
    """Of the last thousand, like `p99_ms`."""
    p99_ms: float = 0.0
    longest_ms: float = 0.0


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A node's status at one moment."""

    node: NodeId
    run: int
    applied_epoch: int
    lease_ms: int
    """How long it may serve as master without word from the meta server."""
    problem: str
    connections: int
    commands: int
    disk_bytes: int
    """Bytes of the binlogs."""
    copies: tuple[CopyStatus, ...]
    parked: ParkedStatus = ParkedStatus()
    copied_bytes: int = 0
    """Bytes of whole copies received since the node was started."""
    streamed_bytes: int = 0
    """Bytes of records received from masters since the node was started."""


STATUS: Final = TypedMethod(
    MethodNumber.KV_STATUS,
    "kv-status",
    request=AskStatus,
    response=NodeStatus,
    roles=(OPERATOR_ROLE,),
)


class NodeNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """How a node, its peers and its operators authenticate."""

    replication: ReplicationNetwork
    operators: Secret
    tls: ServerTls | None = None

    @property
    def certificates(self) -> "list[ServerTls | ClientTls]":
        """The certificates that can be reloaded."""
        return [each for each in (self.tls, self.replication.tls) if each is not None]

    def operator_credentials(self, node: NodeId) -> ServerCredentials:
        return ServerCredentials(
            cluster_id=self.replication.cluster,
            identity=admin_identity(node),
            secret_of=lambda peer: self.operators if peer.role == OPERATOR_ROLE else None,
        )
