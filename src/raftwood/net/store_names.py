"""Who is who in a cluster: stores by number, others by role; and addresses as text."""

from raftwood.base.errors import InvalidInput
from raftwood.net.identity import Identity

STORE_ROLE = "store"
CLIENT_ROLE = "client"
READER_ROLE = "reader"
"""A client that may change nothing."""
OPERATOR_ROLE = "operator"


def store_identity(store: int) -> Identity:
    return Identity(role=STORE_ROLE, node_id=str(store))


def store_of(peer: Identity) -> int:
    """The number of the store that speaks; the handshake has proved the identity."""
    return int(peer.node_id)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of an address such as 127.0.0.1:7001."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise InvalidInput(f"{address!r} is no address: give host:port, such as 127.0.0.1:7001")
    return host.strip("[]"), int(port)
