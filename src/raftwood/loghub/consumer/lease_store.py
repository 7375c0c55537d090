"""The seam to where leases are kept: one store is one consumer group on one logstore.

Each call is one transaction, and takes many leases at once. A call that fails with `Unavailable`
or `DeadlineExceeded` may have been done all the same: every answer shows the rows as they are
afterwards, and the caller who asks again finds its own process in them.

Two counters make changes visible without reading all:

- `update_seq` of a lease comes from one counter of the group, added to within the transaction that
  changes the row, so that numbers become visible in their order. All that changes a lease gives it
  a new one, but for renewals, checkpoints after the first that are not the end, and bytes per
  second.
- `heartbeat` of a worker's row grows with each heartbeat and with each `renew`, in the transaction
  that renews. So whoever sees it stand still knows that no lease of that process was renewed.
"""

from collections.abc import Sequence
from typing import Protocol

from raftwood.loghub.consumer.leases import (
    Lease,
    NewLease,
    Owner,
    Renewal,
    Renewed,
    Save,
    Scan,
    Take,
    WorkerRow,
)


class LeaseStore(Protocol):
    """Rows of workers and leases; what is not there is left out of answers."""

    async def open(self) -> None:
        """Make or migrate the schema, and connect; before all else."""
        ...

    async def close(self) -> None: ...

    async def register(self, worker: Owner) -> WorkerRow:
        """Make the name this process's own, whoever had it; once, as a process starts."""
        ...

    async def heartbeat(self, worker: Owner) -> WorkerRow:
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

    async def renew(self, worker: Owner, renewals: Sequence[Renewal]) -> Renewed:
        """A heartbeat, and one more to each id that is as given and whose lease this process has.

        Where another process has the worker's name, nothing is done.
        """
        ...

    async def take(self, worker: Owner, takes: Sequence[Take]) -> list[Lease]:
        """Make it the lease owner where the id is as given: id + 1.

        With `sets_consumer` the consumer owner too, and epoch + 1. An ended lease is not taken.
        """
        ...

    async def become_consumer(self, worker: Owner, renewals: Sequence[Renewal]) -> list[Lease]:
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

    async def hand_over(self, process: str, saves: Sequence[Save]) -> list[Lease]:
        """Save as `save` does, and clear the consumer owner where process and epoch match.

        A save without checkpoint only clears; one whose seq is too small only clears.
        """
        ...

    async def release(self, process: str, shards: Sequence[str]) -> list[Lease]:
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
