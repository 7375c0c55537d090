"""What a worker knows of its group: the newest row of each lease that it saw, and who is alive."""

from collections.abc import Container, Iterable, Mapping, Sequence

from raftwood.loghub.consumer.leases import (
    Lease,
    LeaseTimes,
    NewLease,
    Owner,
    Renewal,
    Scan,
    WorkerRow,
    creatable,
)
from raftwood.loghub.consumer.rules.observing import Observations
from raftwood.loghub.consumer.rules.plan import Situation


class View:
    """Rows come in any order: an older one never replaces a newer one."""

    def __init__(self, times: LeaseTimes) -> None:
        self.leases: dict[str, Lease] = {}
        self.version = 0
        """Grows with whatever a plan may depend on; not as leases are renewed."""
        self.update_seq = 0
        """All changes up to this were seen."""
        self.polled_seq = 0
        """All changes up to this of the own rows were seen."""
        self.has_deleted = False
        """Some leases are gone that are still here: all have to be looked at."""
        self.deleted_seq = 0
        """Of the latest scan."""
        self.listing: tuple[Sequence[NewLease], int] = ((), 0)
        """Shards, and the `deleted_seq` that was known before they were listed."""
        self.live_since_ms = 0
        """Since when the same ones are alive."""
        self._live: dict[str, str] = {}
        self._whole_seq = 0
        self._observations = Observations(times)

    def scanned(self, scan: Scan, *, is_full: bool, now_ms: int) -> list[Lease]:
        """Answers the leases that were new, or newer."""
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

    def polled(self, scan: Scan, now_ms: int) -> list[Lease]:
        self.polled_seq = max(self.polled_seq, scan.update_seq)
        return self.see(scan.leases, now_ms)

    def see(self, leases: Iterable[Lease], now_ms: int) -> list[Lease]:
        changed = []
        for lease in leases:
            known = self.leases.get(lease.shard)
            # Neither number ever goes back, and each change adds to one of them.
            if known and (known.lease_id, known.update_seq) > (lease.lease_id, lease.update_seq):
                continue
            if known is None or _facts(known) != _facts(lease):
                self.version += 1
            self.leases[lease.shard] = lease
            self._observations.see(lease, now_ms)
            changed.append(lease)
        return changed

    def known(self, shards: Container[str]) -> list[Lease]:
        """As they were last seen."""
        return [lease for lease in self.leases.values() if lease.shard in shards]

    def deleted(self, shards: Container[str]) -> list[str]:
        """These were to be deleted; answers those that are gone, for what had not ended stays."""
        gone = [lease.shard for lease in self.known(shards) if lease.is_ended]
        self.forget(gone)
        return gone

    def forget(self, shards: Iterable[str]) -> None:
        for shard in shards:
            self.version += 1
            self.leases.pop(shard, None)
            self._observations.forget(shard)

    def live(self, me: Owner, now_ms: int) -> dict[str, str]:
        """Instances by process, sorted; oneself is always alive."""
        found = {**self._observations.live(), me.process: me.instance}
        if found != self._live:
            self._live = dict(sorted(found.items(), key=lambda each: (each[1], each[0])))
            self.live_since_ms = now_ms
        return self._live

    def is_first(self, me: Owner) -> bool:
        """Of what one worker should do for all: they agree on who is the first."""
        return next(iter(self._live), None) == me.process

    def renewals(self, shards: Iterable[str], me: Owner) -> list[Renewal]:
        """Of those that are one's own, as they were last seen."""
        leases = (self.leases[shard] for shard in shards if shard in self.leases)
        return [
            Renewal(lease.shard, lease.lease_id)
            for lease in leases
            if lease.lease_process == me.process
        ]

    @property
    def looked_ms(self) -> int:
        """For how long this worker has looked, all in all."""
        return self._observations.clock_ms

    def timeout_ms(self, lease: Lease) -> int:
        """For how long its consumer may be at work that is not heard of."""
        return self._observations.timeout_ms(lease)

    def stale_workers(self) -> list[WorkerRow]:
        return self._observations.stale_workers()

    def situation(self, live: Mapping[str, str], me: Owner) -> Situation:
        free = {
            shard
            for shard, lease in self.leases.items()
            if lease.lease_process not in live and self._observations.is_expired(lease)
        }
        # What this worker takes for expired is so for itself, however new it is.
        newcomers = [each for each in self._observations.newcomers() if each != me.process]
        return Situation(self.leases, live, free, newcomers)

    def is_all_in(self, live: Container[str]) -> bool:
        """No lease will be free by the mere passing of time."""
        return all(lease.is_ended or lease.lease_process in live for lease in self.leases.values())

    def listed(self, shards: Sequence[NewLease], deleted_seq: int) -> None:
        self.listing = shards, deleted_seq

    @property
    def is_listing_old(self) -> bool:
        """Leases were deleted since then: what was listed may be over."""
        return self.listing[1] < self.deleted_seq

    def unknown(self) -> list[NewLease]:
        """Shards that need a lease."""
        if self.is_listing_old:
            return []
        parents = {shard: lease.parents for shard, lease in self.leases.items()}
        return creatable(parents, self.listing[0])

    def finished_parents(self) -> list[str]:
        """Ended, and all children have come as far as a checkpoint: nobody asks for them again."""
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


def _facts(lease: Lease) -> tuple[int, float]:
    return lease.update_seq, lease.bytes_per_s
