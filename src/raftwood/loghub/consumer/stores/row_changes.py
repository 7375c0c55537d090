"""What a call makes of a few rows, for stores that read them, change them and write them back.

`MemoryLeaseStore` is what every call means: a store gives it the rows that a call is about, and
writes what is different afterwards.
"""

from collections.abc import Iterable, Sequence

from msgspec import structs

from raftwood.loghub.consumer.leases import Lease, WorkerRow
from raftwood.loghub.consumer.stores.memory import MemoryLeaseStore

_UNNUMBERED = 1 << 62
"""Numbers above this are still to be had from the group's counter."""


class RowChanges:
    """Rows before and after a call on `memory`."""

    def __init__(self, leases: Iterable[Lease], worker: WorkerRow | None = None) -> None:
        self._before = {lease.shard: lease for lease in leases}
        self._worker_before = worker
        self.memory = MemoryLeaseStore()
        self.memory.leases = dict(self._before)
        self.memory.update_seq = _UNNUMBERED
        if worker is not None:
            self.memory.workers[worker.instance] = worker

    @property
    def numbers(self) -> int:
        """So many are needed of the group's counter."""
        return self.memory.update_seq - _UNNUMBERED

    def number(self, latest: int) -> None:
        """Give the changes the numbers up to `latest`."""
        below = latest - self.memory.update_seq
        for shard, lease in self.memory.leases.items():
            if lease.update_seq > _UNNUMBERED:
                numbered = structs.replace(lease, update_seq=lease.update_seq + below)
                self.memory.leases[shard] = numbered

    @property
    def made(self) -> list[Lease]:
        return [each for each in self.memory.leases.values() if each.shard not in self._before]

    def keep_made(self, kept: Sequence[Lease]) -> None:
        """Make only these, numbered anew."""
        self.memory.leases = dict(self._before)
        self.memory.update_seq = _UNNUMBERED
        for lease in kept:
            self.memory.update_seq += 1
            numbered = structs.replace(lease, update_seq=self.memory.update_seq)
            self.memory.leases[lease.shard] = numbered

    @property
    def changed(self) -> list[Lease]:
        """Of those that were there before."""
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
        """Of the one worker that the call was about, as it is afterwards."""
        (row,) = self.memory.workers.values()
        return row

    def stamp_worker(self, *, now_ms: int) -> None:
        """Add the times to the worker's row, where it was changed."""
        before = self._worker_before
        for instance, after in self.memory.workers.items():
            if after is not before:
                is_same = before is not None and before.process == after.process
                create_ms = before.create_ms if before is not None and is_same else now_ms
                stamped = structs.replace(after, create_ms=create_ms, update_ms=now_ms)
                self.memory.workers[instance] = stamped

    @property
    def changed_worker(self) -> WorkerRow | None:
        """None where there is none, or it is as it was."""
        rows = [each for each in self.memory.workers.values() if each is not self._worker_before]
        return rows[0] if rows else None

    @property
    def is_nothing(self) -> bool:
        return not (self.made or self.changed or self.removed or self.changed_worker)

    def rows(self, shards: Sequence[str]) -> list[Lease]:
        """As they are afterwards; what is not there is left out."""
        found = self.memory.leases
        return [found[shard] for shard in shards if shard in found]


def parents_first(leases: Sequence[Lease]) -> list[Lease]:
    """In an order in which no lease comes before one of its parents."""
    rest = {lease.shard: lease for lease in leases}
    ordered: list[Lease] = []
    while rest:
        ready = [each for each in rest.values() if not any(name in rest for name in each.parents)]
        # Shards that are each other's parents cannot be; they are not waited for.
        ordered += [rest.pop(lease.shard) for lease in ready or list(rest.values())]
    return ordered
