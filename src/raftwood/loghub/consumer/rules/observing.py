"""Who is alive and which leases have expired, by what this worker itself saw move, and when.

No time that another wrote down counts. A lease has expired when both it and its process's heartbeat
stood still for T: a renewal adds to the heartbeat in its own transaction, and whatever else gives a
lease another id gives it another `update_seq` too. Ids by themselves would mislead: scans by change
do not show renewals, so that an id is new whenever it is looked up. Stillness is counted only while
this worker was looking: what it did not see during a pause, or while the store was away, is not
held against others, who may have been cut off as well.
"""

from collections.abc import Iterable

from raftwood.loghub.consumer.leases import (
    FORGET_TIMEOUTS,
    NOBODY,
    Lease,
    LeaseTimes,
    WorkerRow,
)


class Observations:
    """Of one worker, in milliseconds of its own clock, which must run on while it is suspended."""

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
        """A scan showed these workers, and no others."""
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

    def timeout_ms(self, row: WorkerRow | Lease) -> int:
        """How long it may stand still: its own timeout, or this worker's if that is longer."""
        return max(self._times.timeout_ms, row.timeout_ms)

    def see(self, lease: Lease, now_ms: int) -> None:
        """A lease, as it is now or was a moment ago."""
        found = self._leases.get(lease.shard)
        if found is None or found[:2] != (lease.lease_process, lease.update_seq):
            self._leases[lease.shard] = (lease.lease_process, lease.update_seq, self._at(now_ms))

    def forget(self, shard: str) -> None:
        self._leases.pop(shard, None)

    def live(self) -> dict[str, str]:
        """Processes that moved within T, and their instances, in the order of these."""
        rows = sorted(self._workers.values(), key=lambda row: (row.instance, row.process))
        return {
            row.process: row.instance
            for row in rows
            if not row.is_sent_away
            and self.clock_ms - self._beats[row.process][1] < self.timeout_ms(row)
        }

    def newcomers(self) -> list[str]:
        """Processes that cannot have seen anything stand still for T."""
        return [
            process
            for process, since in self._joined.items()
            if self.clock_ms - since < self.timeout_ms(self._workers[process])
        ]

    def stale_workers(self) -> list[WorkerRow]:
        """Rows that stood still for so long that they can be removed."""
        return [
            row
            for process, row in self._workers.items()
            if self.clock_ms - self._beats[process][1] >= self.timeout_ms(row) * FORGET_TIMEOUTS
        ]

    def still_ms(self, lease: Lease) -> int:
        """For how long the lease is known to stand still."""
        _, _, since = self._leases[lease.shard]
        process = lease.lease_process
        if process in self._beats:
            since = max(since, self._beats[process][1])
        elif process != NOBODY:
            since = max(since, self._gone.get(process, 0))
        return self.clock_ms - since

    def is_expired(self, lease: Lease) -> bool:
        """Nobody can be at work on it. A lease with id 0 never had anybody."""
        return (
            lease.lease_id == 0 or lease.is_vacant or self.still_ms(lease) >= self.timeout_ms(lease)
        )

    def _at(self, now_ms: int) -> int:
        if self._looked_ms is None:
            return 0
        unseen_ms = now_ms - self._looked_ms
        return self.clock_ms + min(unseen_ms, self._times.scan_ms + self._times.early_ms)
