"""What clients and replicas say to one another, and who they are."""

import msgspec

from raftwood.net import (
    ClientCredentials,
    ClientLimits,
    Identity,
    Secret,
    ServerCredentials,
    ServerLimits,
    TypedMethod,
)

CLUSTER = "toy"
SECRET = Secret(b"the toy's secret, known to all of its members")
CALL_TIMEOUT_MS = 1_000

# Short, so that a peer that lost its power is noticed while the faults still last.
CLIENT_LIMITS = ClientLimits(
    connect_timeout_ms=1_000, ping_interval_ms=1_000, ping_timeout_ms=1_000
)
SERVER_LIMITS = ServerLimits(
    handshake_timeout_ms=2_000, ping_interval_ms=2_000, ping_timeout_ms=2_000
)


class Timestamp(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Orders all writes of a key.

    The number of the operation is a part of it: a writer that timed out doesn't know whether its
    counter was taken, and may come to the same one again with another value.
    """

    counter: int = 0
    writer: int = 0
    operation: int = 0


class Versioned(msgspec.Struct, frozen=True, array_like=True):
    """A register's value and the write that it came from."""

    timestamp: Timestamp = Timestamp()
    value: str = ""


class StoreRequest(msgspec.Struct, frozen=True, array_like=True):
    """Keep this, unless there is something later."""

    key: int
    versioned: Versioned


QUERY = TypedMethod(1, "query", request=int, response=Versioned)
STORE = TypedMethod(2, "store", request=StoreRequest, response=bool)


def client_credentials(name: str, *, server: str) -> ClientCredentials:
    return ClientCredentials(
        cluster_id=CLUSTER,
        identity=Identity(role="client", node_id=name),
        secret=SECRET,
        server=Identity(role="replica", node_id=server),
    )


def server_credentials(name: str) -> ServerCredentials:
    return ServerCredentials(
        cluster_id=CLUSTER,
        identity=Identity(role="replica", node_id=name),
        secret_of=lambda identity: SECRET if identity.role == "client" else None,
    )
