"""Identities: the role and name of a peer, and its address.

Stores are named by number; clients, readers and operators by role.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from raftwood.base.errors import InvalidInput, InvalidName, Unauthenticated
from raftwood.base.names import checked_name


class Identity(msgspec.Struct, frozen=True, order=True):
    """A peer's role (such as "node" or "client") and its name within the cluster."""

    role: str
    node_id: str

    def __post_init__(self) -> None:
        checked_name("role", self.role)
        checked_name("node", self.node_id)

    def __str__(self) -> str:
        return f"{self.role}/{self.node_id}"


def identity_of_certificate(certificate: Mapping[str, Any] | None, *, cluster_id: str) -> Identity:
    """The identity that a verified certificate states, or Unauthenticated.

    The subject's organization is the cluster, its organizational unit the role and its common
    name the node. The certificate comes from `ssl`, which has checked its chain.
    """
    if not certificate:
        raise Unauthenticated("no client certificate was shown: connect with one")
    subject: dict[str, str] = {}
    for relative_name in certificate.get("subject", ()):
        subject.update(relative_name)
    if subject.get("organizationName") != cluster_id:
        raise Unauthenticated("the certificate's organization is not this cluster's id")
    try:
        return Identity(
            role=subject["organizationalUnitName"],
            node_id=subject["commonName"],
        )
    except (KeyError, InvalidName) as error:
        raise Unauthenticated(
            "the certificate's subject lacks an organizational unit (role) or common name (node)"
        ) from error


STORE_ROLE = "store"
CLIENT_ROLE = "client"
READER_ROLE = "reader"
"""The role of clients that may not change anything."""
OPERATOR_ROLE = "operator"


def store_identity(store: int) -> Identity:
    return Identity(role=STORE_ROLE, node_id=str(store))


def store_of(peer: Identity) -> int:
    """The number of the store that is the peer; the handshake has proved its identity."""
    return int(peer.node_id)


def split_address(address: str) -> tuple[str, int]:
    """Splits an address such as 127.0.0.1:7001 into host and port."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise InvalidInput(f"{address!r} is no address: give host:port, such as 127.0.0.1:7001")
    return host.strip("[]"), int(port)
