"""Bugs planted on purpose: each must be caught, or the checkers prove nothing.

A mutant is either a host that neglects one of its duties, or a core with one rule broken.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from unittest import mock

from raftwood.raft.core import ConfState, Entry, HardState, Message, Snapshot
from raftwood.raft.core import follower as follower_module
from raftwood.raft.core.log import RaftLog
from raftwood.raft.core.messages import MessageKind
from raftwood.raft.core.quorum import majority_committed
from raftwood.raft.core.raft import Raft
from raftwood.raft.core.reads import PendingReads
from raftwood.raft.core.tracker import Tracker
from tests.kits.raft.model.profile import Profile
from tests.kits.raft.model.replica import Replica
from tests.kits.raft.model.world import run


class VoteNotDurable(Replica):
    """Restarts after each vote for another, to show soon what it has forgotten."""

    def pump(self) -> None:
        super().pump()
        if self.raw.raft.vote not in (0, self.node) and not self.raw.raft.lead:
            self.crash(lose_unsynced=False)
            self.start()

    def persist(
        self,
        state: HardState | None,
        entries: list[Entry],
        snapshot: Snapshot | None,
        *,
        sync: bool,
    ) -> None:
        if state is not None:
            state = HardState(state.term, 0, state.commit)
        super().persist(state, entries, snapshot, sync=sync)


class TermNotDurable(Replica):
    """Hard state is written and never synced."""

    def persist(
        self,
        state: HardState | None,
        entries: list[Entry],
        snapshot: Snapshot | None,
        *,
        sync: bool,
    ) -> None:
        super().persist(state, entries, snapshot, sync=sync and snapshot is not None)


class AcknowledgedBeforeDurable(Replica):
    def take_append(self, message: Message) -> None:
        self.append_work.append(message)
        for response in message.responses:
            if response.target != self.node:
                self._send(response)


class SnapshotWithoutLastChange(Replica):
    def snapshot_configuration(self) -> ConfState:
        return self.previous_configuration


class ReorderedApply(Replica):
    def apply(self, entries: list[Entry]) -> None:
        super().apply([*entries[1:], entries[0]])


class MembershipEntryLost(Replica):
    def _change(self, entry: Entry) -> None:
        if (entry.index + self.node) % 3:
            super()._change(entry)


@contextmanager
def _commits_old_terms() -> Iterator[None]:
    def try_commit(log: RaftLog, index: int, *, term: int) -> bool:
        if index > log.committed and term:
            log.commit_to(index)
            return True
        return False

    with mock.patch.object(RaftLog, "try_commit", try_commit):
        yield


@contextmanager
def _counts_learners() -> Iterator[None]:
    def committed(tracker: Tracker) -> int:
        acknowledged = {node: progress.match for node, progress in tracker.progress.items()}
        return majority_committed(acknowledged, acknowledged)

    with mock.patch.object(Tracker, "committed", committed):
        yield


@contextmanager
def _truncates_below_commit() -> Iterator[None]:
    def on_append(raft: Raft, message: Message) -> None:
        """Trusts the leader's last message, however old it is."""
        log, index = raft.log, message.index
        if message.entries and log.holds(index, term=message.log_term):
            log.unstable.truncate_and_append(message.entries)
            log.last_index = message.entries[-1].index
            answer = Message(MessageKind.APPEND_RESPONSE, message.source, index=log.last_index)
            raft.send(answer)
        else:
            original(raft, message)

    original = follower_module.on_append
    with mock.patch.object(follower_module, "on_append", on_append):
        yield


@contextmanager
def _reads_without_quorum() -> Iterator[None]:
    everybody = dict.fromkeys(range(1, 10), True)
    with mock.patch.object(PendingReads, "acknowledge", return_value=everybody):
        yield


@contextmanager
def _votes_for_shorter_logs() -> Iterator[None]:
    with mock.patch.object(RaftLog, "up_to_date", return_value=True):
        yield


@dataclass(frozen=True)
class Mutant:
    """A bug, and the weather in which it shows sooner than in most."""

    replica: type[Replica] = Replica
    plant: Callable[[], AbstractContextManager[None]] = nullcontext
    weather: dict[str, float] = field(default_factory=dict)

    def run(self, seed: int, events: int) -> None:
        profile = replace(Profile.choose(seed), **self.weather)  # type: ignore[arg-type]
        with self.plant():
            run(seed, events, profile=profile, replica=self.replica)


_CONTESTED: dict[str, float] = {
    "prevote": False,
    "check_quorum": False,
    "changes": False,
    "delay_ready": 0.0,
    "contest": 0.15,
}
MUTANTS: dict[str, Mutant] = {
    "acknowledged before durable": Mutant(AcknowledgedBeforeDurable),
    "commit of an old term": Mutant(
        plant=_commits_old_terms,
        weather=_CONTESTED | {"nodes": 5, "message_bytes": 1, "partition": 0.3, "crash": 0.0},
    ),
    "learner counted as voter": Mutant(
        plant=_counts_learners,
        weather=_CONTESTED | {"nodes": 3, "learners": 2, "partition": 0.3, "crash": 0.02},
    ),
    "membership entry lost": Mutant(MembershipEntryLost, weather={"changes": True}),
    "read without a quorum": Mutant(plant=_reads_without_quorum),
    "reordered apply": Mutant(ReorderedApply),
    "snapshot without the last change": Mutant(
        SnapshotWithoutLastChange, weather={"changes": True, "compact": 0.3}
    ),
    "term not durable": Mutant(TermNotDurable, weather={"crash": 0.15}),
    "truncated below commit": Mutant(plant=_truncates_below_commit),
    "vote for a shorter log": Mutant(plant=_votes_for_shorter_logs),
    "vote not durable": Mutant(
        VoteNotDurable,
        weather=_CONTESTED | {"nodes": 3, "async_writes": False},
    ),
}
