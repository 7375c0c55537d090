"""Heartbeats of stores and services, the orders that answer them, and alarms.

HAKeeper repeats an order with each answer until it is acknowledged or expires, so a store carries
it out at least once: doing it twice does no harm. A store carries out only the orders of its newest
answer: it drops those not begun when it sends the next heartbeat. A change of members names the
epoch at which it was decided, and is refused at any other.
"""

from enum import StrEnum

import msgspec


class AlarmKind(StrEnum):
    """What an alarm is about."""

    BOOTSTRAP_FAILED = "bootstrap-failed"
    LEADERLESS = "leaderless"
    LOST_QUORUM = "lost-quorum"
    EPOCH_CONFLICT = "epoch-conflict"
    TOO_FEW_STORES = "too-few-stores"
    TOO_FEW_VOTERS = "too-few-voters"
    STORE_DOWN = "store-down"
    REPLICA_PROBLEM = "replica-problem"
    UNKNOWN_REPLICA = "unknown-replica"
    STORE = "store"
    """An alarm that a store reports itself."""


class Alarm(msgspec.Struct, frozen=True, array_like=True):
    """One alarm; the shard is -1 and the store 0 if it concerns none."""

    kind: AlarmKind
    text: str
    shard: int = -1
    store: int = 0


EPOCH_OF_REMOVED = (1 << 63) - 1
"""The epoch of a removed shard: above any that a replica may know."""


class OrderKind(StrEnum):
    """What an order asks for."""

    BOOTSTRAP_SHARD = "bootstrap-shard"
    """To a store: begin a new shard; `members` are its first voters and their addresses."""
    START_REPLICA = "start-replica"
    """To a store: start an empty replica, which the shard's leader fills once it is a member."""
    STOP_REPLICA = "stop-replica"
    """To a store: stop the replica; its data stays."""
    KILL_ZOMBIE = "kill-zombie"
    """To a store: remove a replica and its data that its shard has removed or whose shard is
    deleted; a replica refuses if it knows itself as a member, at `epoch` or above."""
    ADD_LEARNER = "add-learner"
    """To the leader: add `store` at `address` as a learner, without a vote."""
    ADD_VOTER = "add-voter"
    """To the leader: give the learner `store` a vote; if `removed` is set, that member leaves in
    the same step, so that there is never a vote too few or too many."""
    REMOVE_MEMBER = "remove-member"
    """To the leader: remove the member `store`."""
    TRANSFER_LEADER = "transfer-leader"
    """To the leader: hand over to `store`."""
    ADD_TN_SHARD = "add-tn-shard"
    """To a TN: own `tn_shard`; take the lease of the log `shard` as `holder`."""
    REMOVE_TN_SHARD = "remove-tn-shard"
    """To a TN: give `tn_shard` up."""
    SHUTDOWN_SERVICE = "shutdown-service"
    """To a service taken for dead, whose work others have: stop, and begin anew."""


class Order(msgspec.Struct, frozen=True, array_like=True):
    """One order to the store `to_store` or the service `to_service`."""

    id: int
    """Its number, given when it is scheduled, increasing; 0 before."""
    kind: OrderKind
    to_store: int = 0
    to_service: str = ""
    shard: int = 0
    epoch: int = 0
    """The epoch at which a change of members was decided."""
    members: dict[int, str] = {}
    store: int = 0
    address: str = ""
    removed: int = 0
    tn_shard: int = 0
    holder: int = 0
    expires_tick: int = 0


class Orders(msgspec.Struct, frozen=True, array_like=True):
    """A heartbeat's answer. Orders of an older term than one seen before are ignored."""

    term: int
    """HAKeeper's raft term in which the newest of them was scheduled."""
    tick: int
    orders: tuple[Order, ...] = ()


HAKEEPER_SHARD = 0
GUESTS_FIRST = 1 << 40
"""Shards from this number on are no logs: other state machines, named when a cluster begins, that
HAKeeper places and repairs like logs."""
DISK_SLOW = "disk-slow"
"""The first word of the alarm of a store whose disk is far slower than others'."""


def is_log(shard: int) -> bool:
    return HAKEEPER_SHARD < shard < GUESTS_FIRST


class ShardReplicaReport(msgspec.Struct, frozen=True, array_like=True):
    """One shard's replica as its store sees it; a store has at most one of each shard."""

    shard: int
    epoch: int
    """The index of the last membership change that the replica has applied; 0 for none yet."""
    voters: tuple[int, ...]
    learners: tuple[int, ...]
    leader: int
    """The store that leads, as far as this one knows; 0 for none."""
    term: int
    applied: int
    lagging: dict[int, int] = {}
    """At the leader: by how many entries each other member that answered it is behind."""
    problem: str = ""
    """Why the replica does not serve; its store is repairing it."""
    retained_bytes: int = 0
    """The size of the log that cannot be freed yet."""
    is_joint: bool = False
    """Whether a joint change is under way; `voters` are those after it."""


class FinishedOrder(msgspec.Struct, frozen=True, array_like=True):
    """The acknowledgement of an order: success, or why it failed."""

    order: int
    error: str = ""


class StoreHeartbeat(msgspec.Struct, frozen=True, array_like=True):
    """A log store's report, each second."""

    store: int
    address: str
    failure_domain: str
    incarnation: str
    """The id of the data folder: a store that comes back empty has another one."""
    version: str
    replicas: tuple[ShardReplicaReport, ...] = ()
    finished: tuple[FinishedOrder, ...] = ()
    """Orders finished since the last heartbeat that was answered."""
    alarms: tuple[str, ...] = ()
    disk_bytes: int = 0
    disk_free_bytes: int = 0
    is_short: bool = False
    """Whether too little disk is free to take appends."""


class ServiceKind(StrEnum):
    """The kinds of services that use the log."""

    CN = "cn"
    """Compute node: gateways and readers; there are many, and none owns a shard."""
    TN = "tn"
    """Transaction node: owns TN shards; the one writer of a log shard, by its lease."""
    OTHER = "other"


class TnReplicaReport(msgspec.Struct, frozen=True, array_like=True):
    """A TN shard that a service has, and under which leaseholder id."""

    tn_shard: int
    log_shard: int
    holder: int


class ServiceHeartbeat(msgspec.Struct, frozen=True, array_like=True):
    """A service's report."""

    service: str
    """Its id, the same over restarts."""
    kind: ServiceKind
    address: str
    labels: dict[str, str] = {}
    replicas: tuple[TnReplicaReport, ...] = ()
    finished: tuple[FinishedOrder, ...] = ()
