"""A worker's view of its group: the newest row of each lease, live workers, expired leases.

Times that other workers wrote do not count. A lease has expired when both it and its process's
heartbeat stood still for T: a renewal increments the heartbeat in its own transaction, and every
other change of a lease's id changes its `update_seq` too. The ids alone would mislead: scans by
change do not show renewals, so an id is new whenever it is read again. Stillness is counted only
while this worker was looking. A pause of this worker or an outage of the store does not count
against others, who may have been cut off as well.
"""

from collections.abc import Container, Iterable, Mapping, Sequence

from raftwood.loghub.consumer.lease_plan import Situation
from raftwood.loghub.consumer.leases import (
    FORGET_TIMEOUTS,
    NOBODY,
    LeaseOwner,
    LeaseTimes,
    NewLease,
    Renewal,
    Scan,
    ShardLease,
    WorkerRow,
    creatable,
)


class FailureDetector:
    """Measures how long rows stand still; its worker's clock must run on during suspension."""

    def __init__(self, times: LeaseTimes) -> None:
        self._times = times
        self.clock_ms = 0
        """Grows while this worker looks; never faster than time."""
        self._looked_ms: int | None = None
        self._workers: dict[str, WorkerRow] = {}
        self._beats: dict[str, tuple[int, int]] = {}
        """By process: the heartbeat, and when it was first seen."""
        self._joined: dict[str, int] = {}
        """By process: when its row was first seen."""
        self._gone: dict[str, int] = {}
        """By process that leases something and has no row: since when."""
        self._leases: dict[str, tuple[str, int, int]] = {}
        """By shard: process and `update_seq`, and when they were first seen."""

    def look(self, workers: Iterable[WorkerRow], now_ms: int) -> None:
        """Takes in a scan that showed exactly these workers."""
        self.clock_ms = self._at(now_ms)
        self._looked_ms = now_ms
        before = self._beats
        self._workers = {row.process: row for row in workers}
        self._beats = {}
        for process, row in self._workers.items():
            beat = before.get(process)
            is_same = beat is not None and beat[0] == row.heartbeat
            self._beats[process] = beat if beat and is_same else (row.heartbeat, self.clock_ms)
        self._joined = {
            process: self._joined.get(process, self.clock_ms) for process in self._beats
        }
        for process in before:
            if process not in self._beats:
                self._gone[process] = self.clock_ms
        leasing = {process for process, _, _ in self._leases.values()}
        self._gone = {
            process: since
            for process, since in self._gone.items()
            if process in leasing and process not in self._beats
        }

    def timeout_ms(self, row: WorkerRow | ShardLease) -> int:
        """Returns how long a row may stand still: its own timeout, at least this worker's."""
        return max(self._times.timeout_ms, row.timeout_ms)

    def see(self, lease: ShardLease, now_ms: int) -> None:
        """Takes in a lease, as it is now or was a moment ago."""
        found = self._leases.get(lease.shard)
        if found is None or found[:2] != (lease.lease_process, lease.update_seq):
            self._leases[lease.shard] = (lease.lease_process, lease.update_seq, self._at(now_ms))

    def forget(self, shard: str) -> None:
        self._leases.pop(shard, None)

    def live(self) -> dict[str, str]:
        """Returns instances by process, if they moved within T; sorted by instance, process."""
        rows = sorted(self._workers.values(), key=lambda row: (row.instance, row.process))
        return {
            row.process: row.instance
            for row in rows
            if not row.is_sent_away
            and self.clock_ms - self._beats[row.process][1] < self.timeout_ms(row)
        }

    def newcomers(self) -> list[str]:
        """Returns processes that joined within T: they cannot have watched anything for T."""
        return [
            process
            for process, since in self._joined.items()
            if self.clock_ms - since < self.timeout_ms(self._workers[process])
        ]

    def stale_workers(self) -> list[WorkerRow]:
        """Returns rows that stood still so long that they can be removed."""
        return [
            row
            for process, row in self._workers.items()
            if self.clock_ms - self._beats[process][1] >= self.timeout_ms(row) * FORGET_TIMEOUTS
        ]

    def still_ms(self, lease: ShardLease) -> int:
        """Returns how long the lease is known to stand still."""
        _, _, since = self._leases[lease.shard]
        process = lease.lease_process
        if process in self._beats:
            since = max(since, self._beats[process][1])
        elif process != NOBODY:
            since = max(since, self._gone.get(process, 0))
        return self.clock_ms - since

    def is_expired(self, lease: ShardLease) -> bool:
        """Whether no process can be at work on it. A lease with id 0 never had an owner."""
        return (
            lease.lease_id == 0 or lease.is_vacant or self.still_ms(lease) >= self.timeout_ms(lease)
        )

    def _at(self, now_ms: int) -> int:
        if self._looked_ms is None:
            return 0
        unseen_ms = now_ms - self._looked_ms
        return self.clock_ms + min(unseen_ms, self._times.scan_ms + self._times.early_ms)


class GroupView:
    """The newest rows. They may arrive in any order: an older row never replaces a newer one."""

    def __init__(self, times: LeaseTimes) -> None:
        self.leases: dict[str, ShardLease] = {}
        self.version = 0
        """Grows with every change that a plan depends on, which excludes renewals."""
        self.update_seq = 0
        """All changes up to this number were seen."""
        self.polled_seq = 0
        """All changes of the own rows up to this number were seen."""
        self.has_deleted = False
        """Leases were deleted that this view may still have: the next scan must be a full one."""
        self.deleted_seq = 0
        """The `deleted_seq` of the latest scan."""
        self.listing: tuple[Sequence[NewLease], int] = ((), 0)
        """Shards, and the `deleted_seq` that was known before they were listed."""
        self.live_since_ms = 0
        """Since when the set of live workers is the same."""
        self._live: dict[str, str] = {}
        self._whole_seq = 0
        self._observations = FailureDetector(times)

    def scanned(self, scan: Scan, *, is_full: bool, now_ms: int) -> list[ShardLease]:
        """Takes in a scan; returns the leases that were new, or newer."""
        self._observations.look(scan.workers, now_ms)
        changed = self.see(scan.leases, now_ms)
        self.update_seq = max(self.update_seq, scan.update_seq)
        self.deleted_seq = max(self.deleted_seq, scan.deleted_seq)
        self.has_deleted = not is_full and scan.deleted_seq > self._whole_seq
        if is_full:
            self._whole_seq = scan.update_seq
            shown = {lease.shard for lease in scan.leases}
            gone = [
                shard
                for shard, lease in self.leases.items()
                if shard not in shown and lease.update_seq <= scan.update_seq
            ]
            self.forget(gone)
        return changed

    def polled(self, scan: Scan, now_ms: int) -> list[ShardLease]:
        self.polled_seq = max(self.polled_seq, scan.update_seq)
        return self.see(scan.leases, now_ms)

    def see(self, leases: Iterable[ShardLease], now_ms: int) -> list[ShardLease]:
        changed = []
        for lease in leases:
            known = self.leases.get(lease.shard)
            # Neither number ever decreases, and each change increments one of them.
            if known and (known.lease_id, known.update_seq) > (lease.lease_id, lease.update_seq):
                continue
            if known is None or _facts(known) != _facts(lease):
                self.version += 1
            self.leases[lease.shard] = lease
            self._observations.see(lease, now_ms)
            changed.append(lease)
        return changed

    def known(self, shards: Container[str]) -> list[ShardLease]:
        """Returns these leases as they were last seen."""
        return [lease for lease in self.leases.values() if lease.shard in shards]

    def deleted(self, shards: Container[str]) -> list[str]:
        """Takes in a deletion; returns what is gone, since leases that have not ended stay."""
        gone = [lease.shard for lease in self.known(shards) if lease.is_ended]
        self.forget(gone)
        return gone

    def forget(self, shards: Iterable[str]) -> None:
        for shard in shards:
            self.version += 1
            self.leases.pop(shard, None)
            self._observations.forget(shard)

    def live(self, me: LeaseOwner, now_ms: int) -> dict[str, str]:
        """Returns instances by process, sorted; the own process always counts as alive."""
        found = {**self._observations.live(), me.process: me.instance}
        if found != self._live:
            self._live = dict(sorted(found.items(), key=lambda each: (each[1], each[0])))
            self.live_since_ms = now_ms
        return self._live

    def is_first(self, me: LeaseOwner) -> bool:
        """Whether this worker is the first one, which does the work that one does for all."""
        return next(iter(self._live), None) == me.process

    def renewals(self, shards: Iterable[str], me: LeaseOwner) -> list[Renewal]:
        """Returns the renewals of own leases, with the ids last seen."""
        leases = (self.leases[shard] for shard in shards if shard in self.leases)
        return [
            Renewal(lease.shard, lease.lease_id)
            for lease in leases
            if lease.lease_process == me.process
        ]

    @property
    def looked_ms(self) -> int:
        """Returns how long this worker has looked, in all."""
        return self._observations.clock_ms

    def timeout_ms(self, lease: ShardLease) -> int:
        """Returns how long its consumer may be at work without a sign of life."""
        return self._observations.timeout_ms(lease)

    def stale_workers(self) -> list[WorkerRow]:
        return self._observations.stale_workers()

    def situation(self, live: Mapping[str, str], me: LeaseOwner) -> Situation:
        free = {
            shard
            for shard, lease in self.leases.items()
            if lease.lease_process not in live and self._observations.is_expired(lease)
        }
        # What this worker sees as expired is expired for itself, however new it is.
        newcomers = [each for each in self._observations.newcomers() if each != me.process]
        return Situation(self.leases, live, free, newcomers)

    def is_all_in(self, live: Container[str]) -> bool:
        """Whether no lease will become free just because time passes."""
        return all(lease.is_ended or lease.lease_process in live for lease in self.leases.values())

    def listed(self, shards: Sequence[NewLease], deleted_seq: int) -> None:
        self.listing = shards, deleted_seq

    @property
    def is_listing_old(self) -> bool:
        """Whether leases were deleted since the shards were listed: a listed shard may be over."""
        return self.listing[1] < self.deleted_seq

    def unknown(self) -> list[NewLease]:
        """Returns the shards that need a lease."""
        if self.is_listing_old:
            return []
        parents = {shard: lease.parents for shard, lease in self.leases.items()}
        return creatable(parents, self.listing[0])

    def finished_parents(self) -> list[str]:
        """Returns ended parents whose children all have a checkpoint; nothing needs them."""
        has_begun: dict[str, bool] = {}
        for lease in self.leases.values():
            for parent in lease.parents:
                is_begun = lease.checkpoint is not None
                has_begun[parent] = has_begun.get(parent, True) and is_begun
        return [
            shard
            for shard, is_begun in has_begun.items()
            if is_begun and shard in self.leases and self.leases[shard].is_ended
        ]


def _facts(lease: ShardLease) -> tuple[int, float]:
    return lease.update_seq, lease.bytes_per_s
