"""What stores say to one another beside the frames of `wire`: methods and who may call them."""

import struct
from typing import Final

import msgspec

from raftwood.base.environment import Environment
from raftwood.net import (
    ClientCredentials,
    ClientLimits,
    ClientTls,
    Connection,
    Identity,
    Method,
    Payload,
    Secret,
    ServerCredentials,
    connect,
)
from raftwood.net.store_names import (
    CLIENT_ROLE,
    OPERATOR_ROLE,
    READER_ROLE,
    STORE_ROLE,
    split_address,
    store_identity,
)

_STORES = (STORE_ROLE,)
GROUP_BYTES = 8
SYNC_MS_MAX: Final = (1 << 32) - 1

RAFT_FRAME = Method(16, "raft-frame", roles=_STORES)
INTRODUCE = Method(17, "introduce", roles=_STORES)
PING = Method(18, "ping", roles=_STORES)
SLEEP = Method(19, "sleep", roles=_STORES)
REMOVED = Method(23, "removed", roles=_STORES)
ASK_MEMBERSHIP = Method(24, "ask-membership", roles=_STORES)


class Introduction(msgspec.Struct, frozen=True, array_like=True):
    """The first word on a connection: which folder the store runs on, and which start of it."""

    incarnation: str
    epoch: int
    address: str
    """Where the store can be reached; empty where it does not know."""
    knows_sync_times: bool = False
    """Whether a ping to it may tell how long a sync takes; release 0.1.0 does not say so."""


_SYNC_TIME = struct.Struct("<I")


def encode_ping(sync_ms: int | None) -> bytes:
    """A store's word that it lives, and how long a sync takes there, where that is known."""
    return b"" if sync_ms is None else _SYNC_TIME.pack(min(sync_ms, SYNC_MS_MAX))


def decode_ping(payload: Payload) -> int | None:
    """How long a sync takes at the sender; None where it does not say."""
    if len(payload) < _SYNC_TIME.size:
        return None
    sync_ms: int = _SYNC_TIME.unpack_from(payload)[0]
    return sync_ms


class Removed(msgspec.Struct, frozen=True, array_like=True):
    """A leader's word to a store that is no member any more: what it has applied says so."""

    group: int
    term: int
    applied: int


class HostNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """How the stores of a cluster know and reach one another."""

    cluster: str
    secret: Secret
    """Known to the stores alone."""
    client_secret: Secret | None = None
    """Known to clients as well; without it none are let in."""
    reader_secret: Secret | None = None
    """Known to clients that may change nothing."""
    operator_secret: Secret | None = None
    """Known to those who may change the groups; without it only stores may."""
    tls: ClientTls | None = None
    limits: ClientLimits = ClientLimits(
        connect_timeout_ms=2_000, ping_interval_ms=2_000, ping_timeout_ms=2_000
    )

    def server_credentials(self, store: int) -> ServerCredentials:
        return ServerCredentials(
            cluster_id=self.cluster,
            identity=store_identity(store),
            secret_of=self._secret_of,
        )

    def _secret_of(self, identity: Identity) -> Secret | None:
        secrets = {
            STORE_ROLE: self.secret,
            CLIENT_ROLE: self.client_secret,
            READER_ROLE: self.reader_secret,
            OPERATOR_ROLE: self.operator_secret,
        }
        return secrets.get(identity.role)

    async def dial(
        self, environment: Environment, address: str, *, own: int, peer: int
    ) -> Connection:
        host, port = split_address(address)
        credentials = ClientCredentials(
            cluster_id=self.cluster,
            identity=store_identity(own),
            secret=self.secret,
            server=store_identity(peer),
        )
        return await connect(
            host, port, credentials, environment.random, limits=self.limits, tls=self.tls
        )
