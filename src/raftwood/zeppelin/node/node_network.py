"""What a node proves itself by; apart from the node, so that it is known without loading that."""

import msgspec

from raftwood.net import ClientTls, Secret, ServerCredentials, ServerTls
from raftwood.net.store_names import OPERATOR_ROLE
from raftwood.zeppelin.model import NodeId
from raftwood.zeppelin.node.admin_wire import admin_identity
from raftwood.zeppelin.replication.peers import ReplicationNetwork


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
