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
    """Nobody has said yet what the cluster is to be."""
    BOOTSTRAPPING = "bootstrapping"
    BOOTSTRAP_COMMANDS_RECEIVED = "bootstrap-commands-received"
    """It is decided where each of the first shards begins."""
    RUNNING = "running"
    BOOTSTRAP_FAILED = "bootstrap-failed"
    """Some shard did not begin in time; the cluster runs as soon as all do after all."""


class StoreState(msgspec.Struct, array_like=True):
    """A store that has reported, and what it said last."""

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
    """Shards that it has a replica of without being a member, or about to be, and since when."""
    condemned: list[int] = []
    """Shards whose replica it was told to remove; it gets no other before it has done so."""
    is_short: bool = False
    """It takes no more appends, for its disk is nearly full."""
    served_as: str = ""
    """The incarnation that it first had a replica as."""

    @property
    def is_reborn(self) -> bool:
        """Whether it lost its data: other stores may refuse it under this number."""
        return self.served_as not in ("", self.incarnation)


class VoterMove(msgspec.Struct, frozen=True, array_like=True):
    """A voter that moves for the sake of balance."""

    source: int
    target: int


class KeeperShardState(msgspec.Struct, array_like=True):
    """A shard: what is wanted, and the newest that is known of it."""

    name: str
    replicas: int
    learners_wanted: int
    created_tick: int
    nonce: str = ""
    is_initial: bool = False
    founders: dict[int, str] = {}
    """Its first voters; once set, never changed: two beginnings would be two shards."""
    awaited: list[int] = []
    """Founders that have not begun yet, and may."""
    epoch: int = 0
    voters: tuple[int, ...] = ()
    learners: tuple[int, ...] = ()
    is_joint: bool = False
    lost: list[int] = []
    """Members whose store came back without its data: what they voted for is forgotten."""
    leader: int = 0
    term: int = 0
    leader_tick: int = 0
    """When a leader last reported itself."""
    lagging: dict[int, int] = {}
    move: VoterMove | None = None
    conflicts: dict[int, str] = {}
    """Stores that contradict the configuration at the same epoch, and what they say."""
    told: list[int] = []
    """Awaited founders that an answer has told to begin, so that they may have."""


class ServiceState(msgspec.Struct, array_like=True):
    """A service that has reported, and what it said last."""

    kind: ServiceKind
    address: str
    heard_tick: int
    labels: dict[str, str] = {}
    replicas: tuple[TnReplicaReport, ...] = ()


class TnShardState(msgspec.Struct, array_like=True):
    """A TN shard: the log shard it writes, and who owns it under which lease."""

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
    """Whom the order was about, where that is another than its target."""


class KeeperState(msgspec.Struct, array_like=True):
    """All of it; equal commands lead to equal states."""

    phase: ClusterPhase = ClusterPhase.CREATED
    reason: str = ""
    """Why the bootstrap failed."""
    tick: int = 1
    """Above 0, so that 0 means never."""
    term: int = 0
    """Of the newest batch of orders."""
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
    """Stores that an operator had forgotten, and the incarnation that each had replicas as."""


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[KeeperState] = msgspec.msgpack.Decoder(KeeperState)


def encode_state(state: KeeperState) -> bytes:
    fields = msgspec.structs.astuple(state)
    if not state.forgotten:
        fields = fields[:-1]  # as release 0.1.0 wrote it, until there is something to tell
    return _FORMAT.encode(_encoder.encode(fields))


def decode_state(data: bytes) -> KeeperState:
    """`UnsupportedVersion` where a newer program made it, `StoreDamaged` where none did."""
    return _FORMAT.decode(data, _checked)


def _checked(body: bytes) -> KeeperState:
    state = _decoder.decode(body)
    if any(each.log_shard not in state.shards for each in state.tn_shards.values()) or any(
        number != order.id for number, order in state.orders.items()
    ):
        raise ValueError("it names shards or orders that it lacks")
    return state
