"""The events that a lease agent takes in, and the actions that it asks for.

Each `Ask…` is one call of the store, by the driver, which answers with the event of the same name
or with `StoreFailed`; at most one of each kind is under way.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from raftwood.loghub.consumer.leases import (
    NewLease,
    Renewal,
    Renewed,
    Save,
    Scan,
    ShardLease,
    Take,
    WorkerRow,
)


class StoreCall(StrEnum):
    """The kinds of store calls."""

    REGISTER = "register"
    SCAN = "scan"
    POLL = "own"
    RENEW = "renew"
    TAKE = "take"
    BECOME = "become_consumer"
    HAND_OVER = "hand_over"
    RELEASE = "release"
    CREATE = "create"
    DELETE = "delete"
    FORGET = "forget_workers"


class StopReason(StrEnum):
    """Why a consumer has to stop."""

    STOLEN = "stolen"
    """Another worker has the lease, and waits for the hand-over."""
    DEADLINE = "deadline"
    """No renewal came through; the lease may be another's soon."""
    DRAIN = "drain"
    """The worker leaves."""
    REFUSED = "refused"
    """A checkpoint was refused: another consumes the shard."""
    HUNG = "hung"
    """A call of the processor does not return; another is to read the shard."""


class Ticked(msgspec.Struct, frozen=True):
    """Time passed."""


class WorkerRegistered(msgspec.Struct, frozen=True):
    """The process's name is registered."""

    worker: WorkerRow


class Scanned(msgspec.Struct, frozen=True):
    """The answer to `AskScan`."""

    scan: Scan


class Polled(msgspec.Struct, frozen=True):
    """The answer to `AskPoll`."""

    scan: Scan


class LeasesRenewed(msgspec.Struct, frozen=True):
    """The answer to `AskRenew`."""

    renewed: Renewed


class LeasesAnswered(msgspec.Struct, frozen=True):
    """The answer to `AskTake`, `AskBecome`, `AskHandOver` or `AskRelease`."""

    call: StoreCall
    leases: Sequence[ShardLease]


class StoreCallDone(msgspec.Struct, frozen=True):
    """The answer to `AskCreate`, `AskDelete` or `AskForget`."""

    call: StoreCall


class StoreFailed(msgspec.Struct, frozen=True):
    """A call failed or timed out: the store may have done it or not."""

    call: StoreCall
    jitter: float
    """From 0 to 1, by chance, so that not all workers come back at once. The driver draws it: the
    agent itself has no randomness, and a run can be repeated."""


class ShardsListed(msgspec.Struct, frozen=True):
    """All shards that the source has, also those that ended: a child's parents must be known."""

    shards: Sequence[NewLease]
    deleted_seq: int
    """The agent's `deleted_seq` from before the source was asked: shows how old the list is."""


class ConsumerStopped(msgspec.Struct, frozen=True):
    """A consumer ended: after a stop, by itself, or at its shard's end (`SHARD_END`)."""

    save: Save
    restart_ms: int = 0
    """How long to wait before the shard begins again here. A processor that fails at once would
    otherwise start as fast as the store answers, and raise the epoch each time."""


class SaveRefused(msgspec.Struct, frozen=True):
    """The store refused a checkpoint: another process or epoch consumes the shard by now."""

    shard: str
    epoch: int


class DrainRequested(msgspec.Struct, frozen=True):
    """The worker is to hand over all that it has, and to leave."""


Event = (
    Ticked
    | WorkerRegistered
    | Scanned
    | Polled
    | LeasesRenewed
    | LeasesAnswered
    | StoreCallDone
    | StoreFailed
    | ShardsListed
    | ConsumerStopped
    | SaveRefused
    | DrainRequested
)


class AskRegister(msgspec.Struct, frozen=True):
    """Register the process under its name."""


class AskScan(msgspec.Struct, frozen=True):
    """Read all workers' rows, and the leases that changed."""

    after: int
    processes: Sequence[str]


class AskPoll(msgspec.Struct, frozen=True):
    """Read the own rows."""

    after: int


class AskRenew(msgspec.Struct, frozen=True):
    """Renew all leases in one call; without leases it is the heartbeat alone."""

    renewals: Sequence[Renewal]


class AskTake(msgspec.Struct, frozen=True):
    """Take leases that are free, or another's."""

    takes: Sequence[Take]


class AskBecome(msgspec.Struct, frozen=True):
    """Become consumer of leases that were stolen."""

    renewals: Sequence[Renewal]


class AskHandOver(msgspec.Struct, frozen=True):
    """Save the last checkpoints, and let go."""

    saves: Sequence[Save]


class AskRelease(msgspec.Struct, frozen=True):
    """Free leases."""

    shards: Sequence[str]


class AskCreate(msgspec.Struct, frozen=True):
    """Make leases for new shards, unless some were deleted since they were listed."""

    leases: Sequence[NewLease]
    deleted_seq: int


class AskDelete(msgspec.Struct, frozen=True):
    """Remove leases of parents whose children are under way."""

    shards: Sequence[str]


class AskForget(msgspec.Struct, frozen=True):
    """Remove rows of workers that are gone."""

    rows: Sequence[WorkerRow]


class StartConsumer(msgspec.Struct, frozen=True):
    """Read the shard from the lease's checkpoint, in its epoch.

    Where there is none: from the beginning if it has parents, else as the user wishes.
    """

    lease: ShardLease


class StopConsumer(msgspec.Struct, frozen=True):
    """End the consumer after the call of process() that it is in; then `ConsumerStopped`."""

    shard: str
    epoch: int
    reason: StopReason


class Finish(msgspec.Struct, frozen=True):
    """All was handed over; nothing more will come."""


Ask = (
    AskRegister
    | AskScan
    | AskPoll
    | AskRenew
    | AskTake
    | AskBecome
    | AskHandOver
    | AskRelease
    | AskCreate
    | AskDelete
    | AskForget
)
Action = Ask | StartConsumer | StopConsumer | Finish
