"""Leases in memory: the exact meaning of every call, for tests and for workers of one process."""

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from raftwood.loghub.consumer.leases import (
    NOBODY,
    Lease,
    NewLease,
    Owner,
    Renewal,
    Renewed,
    Save,
    Scan,
    Take,
    WorkerRow,
    creatable,
)


class MemoryLeaseStore:
    """One consumer group on one logstore; workers share the object. No call waits for anything."""

    def __init__(self) -> None:
        self.leases: dict[str, Lease] = {}
        self.workers: dict[str, WorkerRow] = {}
        self.update_seq = 0
        self.deleted_seq = 0

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def register(self, worker: Owner) -> WorkerRow:
        return self._beat(worker, self.workers.get(worker.instance))

    async def heartbeat(self, worker: Owner) -> WorkerRow:
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
            self._put(Lease(new.shard, parents=new.parents))

    async def renew(self, worker: Owner, renewals: Sequence[Renewal]) -> Renewed:
        row = await self.heartbeat(worker)
        if row.process == worker.process:
            for lease in self._as_given(worker.process, renewals):
                self.leases[lease.shard] = structs.replace(lease, lease_id=lease.lease_id + 1)
        return Renewed(self._rows([each.shard for each in renewals]), row)

    async def take(self, worker: Owner, takes: Sequence[Take]) -> list[Lease]:
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

    async def become_consumer(self, worker: Owner, renewals: Sequence[Renewal]) -> list[Lease]:
        for lease in self._as_given(worker.process, renewals):
            self._change(lease, lease_id=lease.lease_id + 1, **_as_consumer(worker, lease))
        return self._rows([each.shard for each in renewals])

    async def save(self, process: str, saves: Sequence[Save]) -> list[str]:
        return [save.shard for save in saves if not self._saved(process, save)]

    async def hand_over(self, process: str, saves: Sequence[Save]) -> list[Lease]:
        for save in saves:
            if save.checkpoint is not None:
                self._saved(process, save)
            lease = self.leases.get(save.shard)
            if lease and (lease.consumer_process, lease.epoch) == (process, save.epoch):
                self._change(lease, consumer_owner=NOBODY, consumer_process=NOBODY)
        return self._rows([each.shard for each in saves])

    async def release(self, process: str, shards: Sequence[str]) -> list[Lease]:
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

    def _beat(self, worker: Owner, before: WorkerRow | None) -> WorkerRow:
        heartbeat = before.heartbeat + 1 if before else 1
        row = WorkerRow(worker.instance, worker.process, heartbeat, timeout_ms=worker.timeout_ms)
        self.workers[worker.instance] = row
        return row

    def _as_given(self, process: str, renewals: Sequence[Renewal]) -> list[Lease]:
        """Those whose id is as the caller knows it, and that are its own."""
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

    def _change(self, lease: Lease, **changes: Any) -> None:
        self._put(structs.replace(lease, **changes))

    def _put(self, lease: Lease) -> None:
        self.update_seq += 1
        self.leases[lease.shard] = structs.replace(lease, update_seq=self.update_seq)

    def _rows(self, shards: Sequence[str]) -> list[Lease]:
        return [self.leases[shard] for shard in shards if shard in self.leases]


def _as_consumer(worker: Owner, lease: Lease) -> dict[str, Any]:
    return {
        "consumer_owner": worker.instance,
        "consumer_process": worker.process,
        "epoch": lease.epoch + 1,
        "timeout_ms": worker.timeout_ms,
    }
