"""What HAKeeper is told: heartbeats of log stores, and of the services that use the log."""

from enum import StrEnum

import msgspec

HAKEEPER_SHARD = 0
GUESTS_FIRST = 1 << 40
"""Shards from this number on are no logs: other state machines, named when a cluster begins, that
HAKeeper places and mends as it does logs."""
DISK_SLOW = "disk-slow"
"""Begins the alarm of a store whose disk is far slower than others'."""


def is_log(shard: int) -> bool:
    return HAKEEPER_SHARD < shard < GUESTS_FIRST


class ReplicaReport(msgspec.Struct, frozen=True, array_like=True):
    """One shard's replica as its store sees it; a store has one of a shard at the most."""

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
    """At the leader: how many entries each other member that has answered it is behind."""
    problem: str = ""
    """Why the replica does not serve; it is being repaired by its store."""
    retained_bytes: int = 0
    """Of the log that cannot be freed yet."""
    is_joint: bool = False
    """Whether a joint change is under way; `voters` are those after it."""


class FinishedOrder(msgspec.Struct, frozen=True, array_like=True):
    """The acknowledgement of an order: it was carried out, or why it was not."""

    order: int
    error: str = ""


class StoreHeartbeat(msgspec.Struct, frozen=True, array_like=True):
    """A log store's word, each second."""

    store: int
    address: str
    failure_domain: str
    incarnation: str
    """Of the data folder: a store that comes back empty has another one."""
    version: str
    replicas: tuple[ReplicaReport, ...] = ()
    finished: tuple[FinishedOrder, ...] = ()
    """Orders since the last heartbeat that was answered."""
    alarms: tuple[str, ...] = ()
    disk_bytes: int = 0
    disk_free_bytes: int = 0
    is_short: bool = False
    """So little is free that it takes no more appends."""


class ServiceKind(StrEnum):
    """Who uses the log."""

    CN = "cn"
    """Computes: gateways and readers; many, and none owns a shard."""
    TN = "tn"
    """Owns TN shards: the one writer of a log shard, by its lease."""
    OTHER = "other"


class TnReplicaReport(msgspec.Struct, frozen=True, array_like=True):
    """A TN shard that a service has, and under which leaseholder id."""

    tn_shard: int
    log_shard: int
    holder: int


class ServiceHeartbeat(msgspec.Struct, frozen=True, array_like=True):
    """A service's word."""

    service: str
    """Its id, the same over restarts."""
    kind: ServiceKind
    address: str
    labels: dict[str, str] = {}
    replicas: tuple[TnReplicaReport, ...] = ()
    finished: tuple[FinishedOrder, ...] = ()
