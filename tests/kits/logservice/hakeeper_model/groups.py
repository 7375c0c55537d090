"""A raft group by its membership alone: who votes, who leads, who has which part of the log.

What raft promises is taken for granted; what a change of members may break is checked.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.kits.models import Violation


@dataclass(frozen=True)
class Configuration:
    epoch: int
    voters: tuple[int, ...]
    learners: tuple[int, ...] = ()
    outgoing: tuple[int, ...] = ()

    def has(self, store: int) -> bool:
        return store in self.voters or store in self.learners or store in self.outgoing

    def is_decided(self, present: Callable[[int], bool]) -> bool:
        """Whether those who are present decide."""
        return all(
            sum(map(present, voters)) > len(voters) // 2
            for voters in (self.voters, self.outgoing)
            if voters
        )


@dataclass
class Replica:
    """On one store's disk."""

    is_empty: bool = True
    match: int = 0
    epoch: int = 0
    is_running: bool = True
    fork: Configuration | None = None


@dataclass
class Group:
    """The truth about one shard; `replicas` are those on all disks, of members or not."""

    founders: dict[int, str]
    history: list[Configuration] = field(default_factory=list)
    replicas: dict[int, Replica] = field(default_factory=dict)
    promised: set[int] = field(default_factory=set)
    """Voters that have had data: if it is gone, they may not vote as they are."""
    leader: int = 0
    term: int = 0
    last: int = 0
    commit: int = 0

    def __post_init__(self) -> None:
        self.history.append(Configuration(0, tuple(sorted(self.founders))))

    @property
    def now(self) -> Configuration:
        return self.history[-1]

    def seen_by(self, replica: Replica) -> Configuration | None:
        if replica.fork is not None:
            return replica.fork
        if replica.is_empty:
            return None
        return next(each for each in reversed(self.history) if each.epoch <= replica.epoch)

    def takes_part(self, store: int, up: Callable[[int], bool]) -> bool:
        replica = self.replicas.get(store)
        return replica is not None and replica.is_running and up(store)

    def step(self, source: random.Random, up: Callable[[int], bool], *, write: float) -> None:
        """A moment of the group's life."""

        def present(store: int) -> bool:
            return self.takes_part(store, up)

        if self.leader and not (
            present(self.leader)
            and self.leader in (*self.now.voters, *self.now.outgoing)
            and self.now.is_decided(present)
        ):
            self.leader = 0
        if not self.leader and self.now.is_decided(present):
            self._elect(source, present)
        if not self.leader:
            return
        if self.now.outgoing and source.random() < 0.5:
            self.change(present, Configuration(0, self.now.voters, self.now.learners))
        if source.random() < write:
            self.last += source.randint(1, 4)
        self._replicate(source, present)

    def _elect(self, source: random.Random, present: Callable[[int], bool]) -> None:
        voters = dict.fromkeys((*self.now.voters, *self.now.outgoing))
        candidates = [store for store in voters if present(store)]
        best = max(self.replicas[store].match for store in candidates)
        if best < self.commit:
            raise Violation(f"a leader lacks entries {best + 1} to {self.commit}")
        self.lead(
            source.choice([store for store in candidates if self.replicas[store].match == best])
        )
        self.last = best
        for replica in self.replicas.values():
            replica.match = min(replica.match, best)

    def lead(self, store: int) -> None:
        """Begin a term."""
        self.leader = store
        self.term += 1
        leader = self.replicas[store]
        leader.is_empty, leader.epoch, leader.fork = False, self.now.epoch, None

    def _replicate(self, source: random.Random, present: Callable[[int], bool]) -> None:
        now = self.now
        members = dict.fromkeys((*now.voters, *now.learners, *now.outgoing))
        for store in members:
            if not present(store):
                continue
            replica = self.replicas[store]
            step = source.choice((1, 8, 64))
            match = self.last if store == self.leader else min(self.last, replica.match + step)
            if match > replica.match or match == self.last:
                replica.is_empty, replica.match = False, match
                replica.epoch = max(
                    replica.epoch,
                    next(each.epoch for each in reversed(self.history) if each.epoch <= match),
                )
        decided = []
        for voters in (now.voters, now.outgoing):
            if voters:
                matches = sorted(
                    self.replicas[store].match if store in self.replicas else 0 for store in voters
                )
                decided.append(matches[(len(matches) - 1) // 2])
        self.commit = max(self.commit, min(decided))
        for store, replica in self.replicas.items():
            # A removed replica may hear of it from the leader's last message.
            if store not in members and not replica.is_empty and source.random() < 0.01:
                replica.epoch, replica.match = now.epoch, max(replica.match, now.epoch)

    def change(self, present: Callable[[int], bool], wanted: Configuration) -> bool:
        """Commit another configuration at the leader, if those before and after decide."""
        if not (self.now.is_decided(present) and wanted.is_decided(present)):
            return False
        self.last += 1
        after = Configuration(self.last, wanted.voters, wanted.learners, wanted.outgoing)
        for configuration in (self.now, after):
            for store in (*configuration.voters, *configuration.outgoing):
                if present(store):
                    self.replicas[store].match = self.last
                    self.replicas[store].is_empty = False
        self.history.append(after)
        self.replicas[self.leader].epoch = after.epoch
        self.commit = self.last
        voting = {store for store in after.voters if store in self.replicas}
        self.promised = {each for each in self.promised if after.has(each)} | voting
        return True
