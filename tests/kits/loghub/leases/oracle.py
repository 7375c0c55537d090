"""What must hold at every moment, checked from outside: no worker is asked what it thinks."""

from dataclasses import dataclass, field

from raftwood.loghub.consumer.leases import NOBODY, SHARD_END, Save, ShardLease
from tests.kits.models import Violation

END = 1 << 40


@dataclass
class Shard:
    """Numbered records, and how often each was processed."""

    name: str
    parents: tuple[str, ...] = ()
    length: int = 0
    is_sealed: bool = False
    seen: dict[int, int] = field(default_factory=dict)
    """By record: the last epoch that processed it."""

    def is_read(self) -> bool:
        return len(self.seen) == self.length


@dataclass
class Work:
    """A call of process() under way."""

    process: str
    epoch: int
    deadline_ms: float
    """In true time: what runs on after it is the user's overrun, and does not count."""


@dataclass
class Oracle:
    shards: dict[str, Shard] = field(default_factory=dict)
    works: dict[str, list[Work]] = field(default_factory=dict)
    clean: set[tuple[str, int]] = field(default_factory=set)
    """Consumers, by shard and epoch, whose last position was handed over."""
    processed: int = 0
    duplicates: int = 0
    overruns: int = 0
    marks: dict[str, tuple[int, int, int, int]] = field(default_factory=dict)

    def begins(self, shard: str, work: Work, now_ms: float) -> None:
        """Property 1 and 5."""
        others = self.works.setdefault(shard, [])
        for other in others:
            if now_ms < other.deadline_ms:
                raise Violation(f"{shard}: {work} begins beside {other} at {now_ms}")
        others.append(work)
        for parent in self.shards[shard].parents:
            if not (self.shards[parent].is_sealed and self.shards[parent].is_read()):
                raise Violation(f"{shard} begins before its parent {parent} was read")

    def ends(self, shard: str, work: Work, records: range, now_ms: float) -> None:
        """Property 3: none again that somebody handed over."""
        self.leaves(shard, work)
        self.overruns += now_ms > work.deadline_ms
        seen = self.shards[shard].seen
        for record in records:
            self.processed += 1
            if record in seen:
                self.duplicates += 1
                if (shard, seen[record]) in self.clean and work.epoch > seen[record]:
                    raise Violation(f"{shard}/{record}: again in {work.epoch}, after a hand-over")
            seen[record] = work.epoch

    def leaves(self, shard: str, work: Work) -> None:
        self.works[shard].remove(work)

    def saves(
        self, before: ShardLease | None, after: ShardLease | None, save: Save, process: str
    ) -> None:
        """Property 4: no stale epoch's write lands."""
        if before is None or after is None or after.checkpoint == before.checkpoint:
            return
        if (before.consumer_process, before.epoch) != (process, save.epoch):
            raise Violation(f"{save} of {process} landed on {before}")

    def rows(self, leases: dict[str, ShardLease]) -> None:
        """Property 4: nothing goes back."""
        for shard, lease in leases.items():
            mark = (lease.lease_id, lease.epoch, lease.seq, position(lease.checkpoint))
            if any(new < old for new, old in zip(mark, self.marks.get(shard, mark), strict=True)):
                raise Violation(f"{shard}: {self.marks[shard]} went back to {mark}")
            self.marks[shard] = mark

    def all_is_read(self) -> None:
        """Property 2."""
        for shard in self.shards.values():
            if not shard.is_read():
                raise Violation(f"{shard.name}: {len(shard.seen)} of {shard.length} were processed")

    def all_is_settled(self, leases: dict[str, ShardLease], live: list[str]) -> None:
        """Property 9, and the first half of 6 is for who counts them."""
        for shard, lease in leases.items():
            if lease.is_ended:
                continue
            if lease.lease_process not in live or lease.consumer_process != lease.lease_process:
                raise Violation(f"{shard} is left as {lease}")
        known = set(leases)
        for name, facts in self.shards.items():
            if not facts.is_sealed and name not in known:
                raise Violation(f"{name} has no lease")


def position(checkpoint: str | None) -> int:
    if checkpoint is None:
        return 0
    return END if checkpoint == SHARD_END else int(checkpoint)


def counts(leases: dict[str, ShardLease], live: list[str]) -> dict[str, int]:
    """Leases by live process."""
    found = dict.fromkeys(live, 0)
    for lease in leases.values():
        if not lease.is_ended and lease.lease_process != NOBODY:
            found[lease.lease_process] = found.get(lease.lease_process, 0) + 1
    return found
