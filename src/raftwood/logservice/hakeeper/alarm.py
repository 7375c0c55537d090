"""An alarm: something that people should look at."""

from enum import StrEnum

import msgspec


class AlarmKind(StrEnum):
    """What is wrong."""

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
    """A store's own word."""


class Alarm(msgspec.Struct, frozen=True, array_like=True):
    """One alarm; the shard is -1 and the store 0 where it is not about one."""

    kind: AlarmKind
    text: str
    shard: int = -1
    store: int = 0
