"""Leases in memory: defines the exact meaning of every call; for tests, and workers of one process.

`RowChanges` is for stores that read rows, change them and write them back. Such a store puts the
rows of a call into a `MemoryLeaseStore`, which makes the changes, and then writes the rows that
differ.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import structs

from raftwood.loghub.consumer.leases import (
    NOBODY,
    LeaseOwner,
    NewLease,
    Renewal,
    Renewed,
    Save,
    Scan,
    ShardLease,
    Take,
    WorkerRow,
    creatable,
)


class MemoryLeaseStore:
    """One consumer group on one logstore; workers share the object. No call waits."""

    def __init__(self) -> None:
        self.leases: dict[str, ShardLease] = {}
        self.workers: dict[str, WorkerRow] = {}
        self.update_seq = 0
        self.deleted_seq = 0

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def register(self, worker: LeaseOwner) -> WorkerRow:
        return self._beat(worker, self.workers.get(worker.instance))

    async def heartbeat(self, worker: LeaseOwner) -> WorkerRow:
        row = self.workers.get(worker.instance)
        if row is not None and row.process != worker.process:
            return row
        return self._beat(worker, row)

    async def forget_workers(self, rows: Sequence[WorkerRow]) -> None:
        for row in rows:
            found = self.workers.get(row.instance)
            if found and (found.process, found.heartbeat) == (row.process, row.heartbeat):
                del self.workers[row.instance]

    async def scan(self, after: int, processes: Sequence[str] = ()) -> Scan:
        wanted = set(processes)
        leases = [
            lease
            for lease in self.leases.values()
            if lease.update_seq > after or lease.lease_process in wanted
        ]
        workers = list(self.workers.values())
        return Scan(leases, workers, self.update_seq, self.deleted_seq)

    async def own(self, process: str, after: int) -> Scan:
        leases = [
            lease
            for lease in self.leases.values()
            if lease.update_seq > after and process in (lease.lease_process, lease.consumer_process)
        ]
        return Scan(leases, (), self.update_seq, self.deleted_seq)

    async def create(self, leases: Sequence[NewLease], *, deleted_seq: int | None = None) -> None:
        if deleted_seq is not None and deleted_seq < self.deleted_seq:
            return
        parents = {shard: lease.parents for shard, lease in self.leases.items()}
        for new in creatable(parents, leases):
            self._put(ShardLease(new.shard, parents=new.parents))

    async def renew(self, worker: LeaseOwner, renewals: Sequence[Renewal]) -> Renewed:
        row = await self.heartbeat(worker)
        if row.process == worker.process:
            for lease in self._as_given(worker.process, renewals):
                self.leases[lease.shard] = structs.replace(lease, lease_id=lease.lease_id + 1)
        return Renewed(self._rows([each.shard for each in renewals]), row)

    async def take(self, worker: LeaseOwner, takes: Sequence[Take]) -> list[ShardLease]:
        for take in takes:
            lease = self.leases.get(take.shard)
            if lease and lease.lease_id == take.lease_id and not lease.is_ended:
                changes: dict[str, Any] = {
                    "lease_id": lease.lease_id + 1,
                    "lease_owner": worker.instance,
                    "lease_process": worker.process,
                    "timeout_ms": max(lease.timeout_ms, worker.timeout_ms),
                }
                if take.sets_consumer:
                    changes |= _as_consumer(worker, lease)
                self._change(lease, **changes)
        return self._rows([each.shard for each in takes])

    async def become_consumer(
        self, worker: LeaseOwner, renewals: Sequence[Renewal]
    ) -> list[ShardLease]:
        for lease in self._as_given(worker.process, renewals):
            self._change(lease, lease_id=lease.lease_id + 1, **_as_consumer(worker, lease))
        return self._rows([each.shard for each in renewals])

    async def save(self, process: str, saves: Sequence[Save]) -> list[str]:
        return [save.shard for save in saves if not self._saved(process, save)]

    async def hand_over(self, process: str, saves: Sequence[Save]) -> list[ShardLease]:
        for save in saves:
            if save.checkpoint is not None:
                self._saved(process, save)
            lease = self.leases.get(save.shard)
            if lease and (lease.consumer_process, lease.epoch) == (process, save.epoch):
                self._change(lease, consumer_owner=NOBODY, consumer_process=NOBODY)
        return self._rows([each.shard for each in saves])

    async def release(self, process: str, shards: Sequence[str]) -> list[ShardLease]:
        for lease in self._rows(shards):
            if lease.lease_process == process:
                self._change(
                    lease, lease_id=lease.lease_id + 1, lease_owner=NOBODY, lease_process=NOBODY
                )
        return self._rows(shards)

    async def delete(self, shards: Sequence[str]) -> None:
        ended = [lease.shard for lease in self._rows(shards) if lease.is_ended]
        for shard in ended:
            del self.leases[shard]
        if ended:
            self.update_seq += 1
            self.deleted_seq = self.update_seq

    async def reset(self, checkpoints: Sequence[tuple[str, str | None]]) -> list[str]:
        refused = []
        for shard, checkpoint in checkpoints:
            lease = self.leases.get(shard)
            if lease and lease.consumer_process == NOBODY:
                self._change(lease, checkpoint=checkpoint, seq=lease.seq + 1)
            else:
                refused.append(shard)
        return refused

    def _beat(self, worker: LeaseOwner, before: WorkerRow | None) -> WorkerRow:
        heartbeat = before.heartbeat + 1 if before else 1
        row = WorkerRow(worker.instance, worker.process, heartbeat, timeout_ms=worker.timeout_ms)
        self.workers[worker.instance] = row
        return row

    def _as_given(self, process: str, renewals: Sequence[Renewal]) -> list[ShardLease]:
        """Returns the leases that this process owns and whose id is as the caller knows it."""
        return [
            lease
            for each in renewals
            if (lease := self.leases.get(each.shard))
            and (lease.lease_id, lease.lease_process) == (each.lease_id, process)
        ]

    def _saved(self, process: str, save: Save) -> bool:
        lease = self.leases.get(save.shard)
        if (
            lease is None
            or (lease.consumer_process, lease.epoch) != (process, save.epoch)
            or save.seq < lease.seq
            or (lease.is_ended and save.checkpoint != lease.checkpoint)
        ):
            return False
        after = structs.replace(
            lease, checkpoint=save.checkpoint, seq=save.seq, bytes_per_s=save.bytes_per_s
        )
        if lease.checkpoint is None or after.is_ended:
            self._put(after)
        else:
            self.leases[lease.shard] = after
        return True

    def _change(self, lease: ShardLease, **changes: Any) -> None:
        self._put(structs.replace(lease, **changes))

    def _put(self, lease: ShardLease) -> None:
        self.update_seq += 1
        self.leases[lease.shard] = structs.replace(lease, update_seq=self.update_seq)

    def _rows(self, shards: Sequence[str]) -> list[ShardLease]:
        return [self.leases[shard] for shard in shards if shard in self.leases]


def _as_consumer(worker: LeaseOwner, lease: ShardLease) -> dict[str, Any]:
    return {
        "consumer_owner": worker.instance,
        "consumer_process": worker.process,
        "epoch": lease.epoch + 1,
        "timeout_ms": worker.timeout_ms,
    }


_UNNUMBERED = 1 << 62
"""Numbers above this are placeholders, until the group's counter gives real ones."""


class RowChanges:
    """Rows before and after a call on `memory`."""

    def __init__(self, leases: Iterable[ShardLease], worker: WorkerRow | None = None) -> None:
        self._before = {lease.shard: lease for lease in leases}
        self._worker_before = worker
        self.memory = MemoryLeaseStore()
        self.memory.leases = dict(self._before)
        self.memory.update_seq = _UNNUMBERED
        if worker is not None:
            self.memory.workers[worker.instance] = worker

    @property
    def numbers(self) -> int:
        """Returns how many numbers of the group's counter are needed."""
        return self.memory.update_seq - _UNNUMBERED

    def number(self, latest: int) -> None:
        """Gives the changes the numbers up to `latest`."""
        below = latest - self.memory.update_seq
        for shard, lease in self.memory.leases.items():
            if lease.update_seq > _UNNUMBERED:
                numbered = structs.replace(lease, update_seq=lease.update_seq + below)
                self.memory.leases[shard] = numbered

    @property
    def made(self) -> list[ShardLease]:
        return [each for each in self.memory.leases.values() if each.shard not in self._before]

    def keep_made(self, kept: Sequence[ShardLease]) -> None:
        """Creates only these, numbered anew."""
        self.memory.leases = dict(self._before)
        self.memory.update_seq = _UNNUMBERED
        for lease in kept:
            self.memory.update_seq += 1
            numbered = structs.replace(lease, update_seq=self.memory.update_seq)
            self.memory.leases[lease.shard] = numbered

    @property
    def changed(self) -> list[ShardLease]:
        """Returns the changed leases that existed before."""
        return [
            after
            for shard, before in self._before.items()
            if (after := self.memory.leases.get(shard)) is not None and after is not before
        ]

    @property
    def removed(self) -> list[str]:
        return [shard for shard in self._before if shard not in self.memory.leases]

    @property
    def worker(self) -> WorkerRow:
        """Returns the row of the call's one worker after the call."""
        (row,) = self.memory.workers.values()
        return row

    def stamp_worker(self, *, now_ms: int) -> None:
        """Adds the times to the worker's row, if it changed."""
        before = self._worker_before
        for instance, after in self.memory.workers.items():
            if after is not before:
                is_same = before is not None and before.process == after.process
                create_ms = before.create_ms if before is not None and is_same else now_ms
                stamped = structs.replace(after, create_ms=create_ms, update_ms=now_ms)
                self.memory.workers[instance] = stamped

    @property
    def changed_worker(self) -> WorkerRow | None:
        """Returns the worker's row, or None if there is none or it did not change."""
        rows = [each for each in self.memory.workers.values() if each is not self._worker_before]
        return rows[0] if rows else None

    @property
    def is_nothing(self) -> bool:
        return not (self.made or self.changed or self.removed or self.changed_worker)

    def rows(self, shards: Sequence[str]) -> list[ShardLease]:
        """Returns the rows after the call; leaves out those that do not exist."""
        found = self.memory.leases
        return [found[shard] for shard in shards if shard in found]


def parents_first(leases: Sequence[ShardLease]) -> list[ShardLease]:
    """Sorts leases so that none comes before one of its parents."""
    rest = {lease.shard: lease for lease in leases}
    ordered: list[ShardLease] = []
    while rest:
        ready = [each for each in rest.values() if not any(name in rest for name in each.parents)]
        # A cycle of parents is impossible in valid data; it must not loop for ever here.
        ordered += [rest.pop(lease.shard) for lease in ready or list(rest.values())]
    return ordered
