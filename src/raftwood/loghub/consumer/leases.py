"""Shard leases: the rows, the requests, and `LeaseStore`, the seam to what keeps them.

A lease has two owners. The lease owner renews it; the consumer owner reads the shard. They are the
same while all is well. A thief becomes lease owner first, and consumer owner only when its victim
has handed over or must have stopped. `lease_id` guards the lease owner: every change of it, and
every renewal, adds one. `epoch` guards checkpoints: it grows only as a consumer owner is set, so
that a robbed worker's last flush still lands.

One store is one consumer group on one logstore. Each call is one transaction, and takes many leases
at once. A call that fails with `Unavailable` or `DeadlineExceeded` may have been done all the same:
every answer shows the rows as they are afterwards, and the caller who asks again finds its own
process in them.

Two counters make changes visible without reading all:

- `update_seq` of a lease comes from one counter of the group, added to within the transaction that
  changes the row, so that numbers become visible in their order. All that changes a lease gives it
  a new one, but for renewals, checkpoints after the first that are not the end, and bytes per
  second.
- `heartbeat` of a worker's row grows with each heartbeat and with each `renew`, in the transaction
  that renews. So a worker that sees it stand still knows that no lease of that process was renewed.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

NOBODY = ""
SHARD_END = "SHARD_END"
"""The checkpoint of a shard that was read to its end; it is final."""
SIGNATURE_CHARACTERS = 64
NAME_CHARACTERS_MAX = 64
"""Of an instance, a process and a shard's id."""
GROUP_CHARACTERS_MAX = 128
FORGET_TIMEOUTS = 10
"""A worker's row that stood still for so many of its timeouts is removed."""
SENT_AWAY = "sent-away-"
"""What the process of a row begins with that an operator put in a worker's place."""


class LeaseTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What the workers of a group should agree on; all follows from the timeout, T."""

    timeout_ms: int = 10_000
    drift: float = 0.05
    """No clock of a worker is slower than another's by a larger share than this."""
    margin_ms: int = 50
    """A worker stops so much earlier, for what passes between its look at the clock and its act."""
    poll_ms: int = 50
    """Between looks at the own rows, by which a hand-over is noticed."""

    @property
    def renew_ms(self) -> int:
        return self.timeout_ms // 3

    @property
    def scan_ms(self) -> int:
        return self.timeout_ms // 2

    @property
    def settle_ms(self) -> int:
        """Who joined or left is looked at again after this, so that many at once are one move."""
        return self.timeout_ms // 20

    @property
    def early_ms(self) -> int:
        """A scan is made so soon after the last one where something changed in the group."""
        return self.timeout_ms // 10

    @property
    def hold_ms(self) -> int:
        """So long after a renewal was sent its worker may be at work."""
        return int(self.timeout_ms * (1 - self.drift)) - self.margin_ms


class LeaseOwner(msgspec.Struct, frozen=True):
    """Who asks: a name that outlives restarts, and a UUID that does not."""

    instance: str
    process: str
    timeout_ms: int = 0
    """Its T, as its row shows it to others."""


class WorkerRow(msgspec.Struct, frozen=True):
    """A worker as all others see it; the times are for people, and decide nothing."""

    instance: str
    process: str
    heartbeat: int
    create_ms: int = 0
    update_ms: int = 0
    timeout_ms: int = 0
    """Nobody takes it for dead sooner, whose own timeout may be shorter."""

    @property
    def is_sent_away(self) -> bool:
        """No worker: whose name this is has to leave, and takes the row away."""
        return self.process.startswith(SENT_AWAY)


class ShardLease(msgspec.Struct, frozen=True):
    """A shard's row."""

    shard: str
    lease_id: int = 0
    lease_owner: str = NOBODY
    lease_process: str = NOBODY
    consumer_owner: str = NOBODY
    consumer_process: str = NOBODY
    epoch: int = 0
    checkpoint: str | None = None
    seq: int = 0
    """Of the checkpoint; a smaller one never lands."""
    parents: tuple[str, ...] = ()
    bytes_per_s: float = 0.0
    """As its consumer measured it when it last saved a checkpoint."""
    update_seq: int = 0
    """When it last changed, as its group counts; a renewal or a later checkpoint does not count."""
    timeout_ms: int = 0
    """The longest T of its two owners, whose rows may be gone before anybody saw them."""

    @property
    def is_ended(self) -> bool:
        return self.checkpoint == SHARD_END

    @property
    def is_handing_over(self) -> bool:
        """Somebody may still read it who does not own it any more."""
        return self.consumer_process not in (NOBODY, self.lease_process)

    @property
    def is_vacant(self) -> bool:
        """Nobody has it, and nobody reads it."""
        return self.lease_process == NOBODY and self.consumer_process == NOBODY


class NewLease(msgspec.Struct, frozen=True):
    """A shard that has no lease yet."""

    shard: str
    parents: tuple[str, ...] = ()


class Renewal(msgspec.Struct, frozen=True):
    """A lease as its owner last knew it."""

    shard: str
    lease_id: int


class Take(msgspec.Struct, frozen=True):
    """A lease to be taken, if it is still as it was seen."""

    shard: str
    lease_id: int
    sets_consumer: bool
    """Nobody can be at work on it: it expired, or is vacant. Else the taker has to wait."""


class Save(msgspec.Struct, frozen=True):
    """A checkpoint, fenced by the epoch of the consumer that made it."""

    shard: str
    epoch: int
    checkpoint: str | None
    """None only at a hand-over: nothing was read."""
    seq: int
    bytes_per_s: float = 0.0


class Renewed(msgspec.Struct, frozen=True):
    """What a renewal led to."""

    leases: Sequence[ShardLease]
    """Every lease that was asked for and is there, as it is now."""
    worker: WorkerRow
    """Of another process where that has taken this one's name: nothing was renewed."""


class Scan(msgspec.Struct, frozen=True):
    """What a look at the store showed, all of one moment or later."""

    leases: Sequence[ShardLease]
    workers: Sequence[WorkerRow]
    update_seq: int
    """The next scan goes on from here."""
    deleted_seq: int = 0
    """When leases were last deleted: who has not seen all since then has to look at all again."""


def creatable(parents: Mapping[str, Sequence[str]], new: Sequence[NewLease]) -> list[NewLease]:
    """Of these shards those that need a lease, where the ones in `parents` have one.

    Not one whose child has a lease, or was itself read to its end: it was over, and deleted.
    """
    parents_of_new = {each.shard: each.parents for each in new}
    over: set[str] = set()
    stack = [parent for each in parents.values() for parent in each]
    while stack:
        shard = stack.pop()
        if shard not in over:
            over.add(shard)
            stack += parents_of_new.get(shard, ())
    return [each for each in new if each.shard not in parents and each.shard not in over]


def signature(project: str, logstore: str) -> str:
    """The `logstream_sig` of a logstore."""
    text = f"{project}/{logstore}"
    return hashlib.sha256(text.encode()).hexdigest()[:SIGNATURE_CHARACTERS]


class LeaseStore(Protocol):
    """Rows of workers and leases; what is not there is left out of answers."""

    async def open(self) -> None:
        """Make or migrate the schema, and connect; before all else."""
        ...

    async def close(self) -> None: ...

    async def register(self, worker: LeaseOwner) -> WorkerRow:
        """Make the name this process's own, whoever had it; once, as a process starts."""
        ...

    async def heartbeat(self, worker: LeaseOwner) -> WorkerRow:
        """Add one to the worker's heartbeat; a row that was removed is made anew.

        Where another process has the name, nothing is changed, and its row is answered.
        """
        ...

    async def forget_workers(self, rows: Sequence[WorkerRow]) -> None:
        """Remove each row whose process and heartbeat are still these."""
        ...

    async def scan(self, after: int, processes: Sequence[str] = ()) -> Scan:
        """All workers; leases that changed after `after`, all for 0; those that `processes` lease.

        The leases of `processes` are read for their present ids, which renewals do not show.
        """
        ...

    async def own(self, process: str, after: int) -> Scan:
        """Changes after `after` of leases whose lease or consumer process this is; no workers.

        Runs many times a second in each worker: it must be cheap where nothing changed.
        """
        ...

    async def create(self, leases: Sequence[NewLease], *, deleted_seq: int | None = None) -> None:
        """Leases with id 0 and no owner, for those that are `creatable` beside what is there.

        The caller gives all shards that it knows, for their parents' sake, and the `deleted_seq` of
        a scan before it listed them: where leases were deleted since then, nothing is done. A list
        from before a split, that comes late, would bring back a shard that was read to its end.
        """
        ...

    async def renew(self, worker: LeaseOwner, renewals: Sequence[Renewal]) -> Renewed:
        """A heartbeat, and one more to each id that is as given and whose lease this process has.

        Where another process has the worker's name, nothing is done.
        """
        ...

    async def take(self, worker: LeaseOwner, takes: Sequence[Take]) -> list[ShardLease]:
        """Make it the lease owner where the id is as given: id + 1.

        With `sets_consumer` the consumer owner too, and epoch + 1. An ended lease is not taken.
        """
        ...

    async def become_consumer(
        self, worker: LeaseOwner, renewals: Sequence[Renewal]
    ) -> list[ShardLease]:
        """Set the consumer owner where the id is as given and this process leases it.

        Both id and epoch + 1; the checkpoint is read after that, in the same transaction: whatever
        the one before has still saved by then is seen, and nothing of it lands later.
        """
        ...

    async def save(self, process: str, saves: Sequence[Save]) -> list[str]:
        """Checkpoints of shards that this process consumes in this epoch; answers those refused.

        Refused too is one with a smaller seq than is stored, and any other after `SHARD_END`.
        """
        ...

    async def hand_over(self, process: str, saves: Sequence[Save]) -> list[ShardLease]:
        """Save as `save` does, and clear the consumer owner where process and epoch match.

        A save without checkpoint only clears; one whose seq is too small only clears.
        """
        ...

    async def release(self, process: str, shards: Sequence[str]) -> list[ShardLease]:
        """Clear the lease owner where this process leases it: id + 1."""
        ...

    async def delete(self, shards: Sequence[str]) -> None:
        """Remove leases that ended; the `deleted_seq` of scans becomes a new `update_seq`."""
        ...

    async def reset(self, checkpoints: Sequence[tuple[str, str | None]]) -> list[str]:
        """Set checkpoints by hand, of leases that nobody consumes; answers those refused.

        Also of those that ended, and back; seq + 1.
        """
        ...
