"""HAKeeper's state: stores, shards, services, orders under way; all that a snapshot holds."""

from enum import StrEnum

import msgspec

from raftwood.base.versions import StateFormat
from raftwood.logservice.hakeeper.messages import (
    Order,
    OrderKind,
    ServiceKind,
    ShardReplicaReport,
    TnReplicaReport,
)

_FORMAT = StateFormat(b"RWHK", 1, "HAKeeper")


class ClusterPhase(StrEnum):
    """How far the cluster is."""

    CREATED = "created"
    """No proposal has named the first shards and stores yet."""
    BOOTSTRAPPING = "bootstrapping"
    BOOTSTRAP_COMMANDS_RECEIVED = "bootstrap-commands-received"
    """The places of the first shards are decided."""
    RUNNING = "running"
    BOOTSTRAP_FAILED = "bootstrap-failed"
    """Some shard did not begin in time; the cluster still runs as soon as all have begun."""


class StoreState(msgspec.Struct, array_like=True):
    """A store that has reported, and its last report."""

    address: str
    failure_domain: str
    incarnation: str
    version: str
    heard_tick: int
    replicas: dict[int, ShardReplicaReport] = {}
    alarms: tuple[str, ...] = ()
    disk_bytes: int = 0
    disk_free_bytes: int = 0
    is_draining: bool = False
    strange_since: dict[int, int] = {}
    """Shards of which it has a replica but is no (coming) member, and since when."""
    condemned: list[int] = []
    """Shards whose replica it was ordered to remove; it gets no new one before that."""
    is_short: bool = False
    """It takes no more appends, because its disk is nearly full."""
    served_as: str = ""
    """Its incarnation when it first had a replica."""

    @property
    def is_reborn(self) -> bool:
        """Whether it lost its data: other stores may refuse it under this number."""
        return self.served_as not in ("", self.incarnation)


class VoterMove(msgspec.Struct, frozen=True, array_like=True):
    """A voter that moves to balance the load."""

    source: int
    target: int


class KeeperShardState(msgspec.Struct, array_like=True):
    """A shard: the wanted members, and the newest known configuration."""

    name: str
    replicas: int
    learners_wanted: int
    created_tick: int
    nonce: str = ""
    is_initial: bool = False
    founders: dict[int, str] = {}
    """Its first voters; once set, never changed: two beginnings would make two shards."""
    awaited: list[int] = []
    """Founders that have not begun yet, and may."""
    epoch: int = 0
    voters: tuple[int, ...] = ()
    learners: tuple[int, ...] = ()
    is_joint: bool = False
    lost: list[int] = []
    """Members whose store came back without its data, and so forgot its votes."""
    leader: int = 0
    term: int = 0
    leader_tick: int = 0
    """When a leader last reported itself."""
    lagging: dict[int, int] = {}
    move: VoterMove | None = None
    conflicts: dict[int, str] = {}
    """Stores that contradict the configuration at the same epoch, and their reports."""
    told: list[int] = []
    """Awaited founders that received the order to begin, so that they may have begun."""


class ServiceState(msgspec.Struct, array_like=True):
    """A service that has reported, and its last report."""

    kind: ServiceKind
    address: str
    heard_tick: int
    labels: dict[str, str] = {}
    replicas: tuple[TnReplicaReport, ...] = ()


class TnShardState(msgspec.Struct, array_like=True):
    """A TN shard: the log shard it writes, and its owner with the lease."""

    log_shard: int
    nonce: str = ""
    owner: str = ""
    holder: int = 0


class FailedOrder(msgspec.Struct, frozen=True, array_like=True):
    """An order that was not carried out."""

    tick: int
    kind: OrderKind
    target: str
    shard: int
    error: str
    store: int = 0
    """The store that the order was about, if it is not the target."""


class KeeperState(msgspec.Struct, array_like=True):
    """HAKeeper's whole state; equal commands lead to equal states."""

    phase: ClusterPhase = ClusterPhase.CREATED
    reason: str = ""
    """Why the bootstrap failed."""
    tick: int = 1
    """Starts above 0, so that 0 means never."""
    term: int = 0
    """The term of the newest batch of orders."""
    initial_tick: int = 0
    members: dict[int, str] = {}
    """The stores named at the beginning."""
    next_id: int = 1
    next_order: int = 1
    stores: dict[int, StoreState] = {}
    shards: dict[int, KeeperShardState] = {}
    removed_shards: list[int] = []
    services: dict[str, ServiceState] = {}
    tn_shards: dict[int, TnShardState] = {}
    orders: dict[int, Order] = {}
    failures: list[FailedOrder] = []
    forgotten: dict[int, str] = {}
    """Stores that an operator removed, and the incarnation that each had replicas as."""


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[KeeperState] = msgspec.msgpack.Decoder(KeeperState)


def encode_state(state: KeeperState) -> bytes:
    fields = msgspec.structs.astuple(state)
    if not state.forgotten:
        fields = fields[:-1]  # as release 0.1.0 wrote it, while there is nothing to add
    return _FORMAT.encode(_encoder.encode(fields))


def decode_state(data: bytes) -> KeeperState:
    """Decodes a snapshot: `UnsupportedVersion` if a newer program made it, else `StoreDamaged`."""
    return _FORMAT.decode(data, _checked)


def _checked(body: bytes) -> KeeperState:
    state = _decoder.decode(body)
    if any(each.log_shard not in state.shards for each in state.tn_shards.values()) or any(
        number != order.id for number, order in state.orders.items()
    ):
        raise ValueError("it names shards or orders that it lacks")
    return state
