"""Bugs planted on purpose: each must be caught, or the checkers prove nothing.

A mutant is either a host that neglects one of its duties, or a core with one rule broken.
"""

from collections.abc import Callable
from dataclasses import replace

from raftwood.raft.core import ConfState, Entry, HardState, Message, Snapshot
from raftwood.raft.core import follower as follower_module
from raftwood.raft.core.log import RaftLog
from raftwood.raft.core.messages import MessageKind
from raftwood.raft.core.quorum import majority_committed
from raftwood.raft.core.raft import Raft
from raftwood.raft.core.reads import PendingReads
from raftwood.raft.core.tracker import Tracker
from tests.kits.models import Mutant, Plant, replaced
from tests.kits.raft.model import world
from tests.kits.raft.model.replica import Replica
from tests.kits.raft.model.world import Profile, run

_EVENTS = 10_000


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


def _commits_old_terms(log: RaftLog, index: int, *, term: int) -> bool:
    if index > log.committed and term:
        log.commit_to(index)
        return True
    return False


def _counts_learners(tracker: Tracker) -> int:
    acknowledged = {node: progress.match for node, progress in tracker.progress.items()}
    return majority_committed(acknowledged, acknowledged)


def _truncates_below_commit(raft: Raft, message: Message) -> None:
    """Trusts the leader's last message, however old it is."""
    log, index = raft.log, message.index
    if message.entries and log.holds(index, term=message.log_term):
        log.unstable.truncate_and_append(message.entries)
        log.last_index = message.entries[-1].index
        answer = Message(MessageKind.APPEND_RESPONSE, message.source, index=log.last_index)
        raft.send(answer)
    else:
        _on_append(raft, message)


def _acknowledged_by_everybody(*_: object) -> dict[int, bool]:
    return dict.fromkeys(range(1, 10), True)


def _always_up_to_date(*_: object, **__: object) -> bool:
    return True


_on_append = follower_module.on_append


def _replica(kind: type[Replica]) -> Plant:
    return replaced(world, Replica=kind)


def _weather(**chosen: float) -> Callable[[int], object]:
    """Runs in which a bug shows sooner than in most."""

    def run_in_it(seed: int) -> object:
        profile = replace(Profile.choose(seed), **chosen)  # type: ignore[arg-type]
        return run(seed, _EVENTS, profile=profile)

    return run_in_it


_CONTESTED: dict[str, float] = {
    "prevote": False,
    "check_quorum": False,
    "changes": False,
    "delay_ready": 0.0,
    "contest": 0.15,
}
_ANY = _weather()
MUTANTS: dict[str, Mutant] = {
    "acknowledged before durable": Mutant(_ANY, _replica(AcknowledgedBeforeDurable), first=19),
    "commit of an old term": Mutant(
        _weather(**_CONTESTED, nodes=5, message_bytes=1, partition=0.3, crash=0.0),
        replaced(RaftLog, try_commit=_commits_old_terms),
        first=35,
    ),
    "learner counted as voter": Mutant(
        _weather(**_CONTESTED, nodes=3, learners=2, partition=0.3, crash=0.02),
        replaced(Tracker, committed=_counts_learners),
        first=6,
    ),
    "membership entry lost": Mutant(
        _weather(changes=True), _replica(MembershipEntryLost), first=35
    ),
    "read without a quorum": Mutant(
        _ANY, replaced(PendingReads, acknowledge=_acknowledged_by_everybody), first=19
    ),
    "reordered apply": Mutant(_ANY, _replica(ReorderedApply), first=3),
    "snapshot without the last change": Mutant(
        _weather(changes=True, compact=0.3), _replica(SnapshotWithoutLastChange), first=2
    ),
    "term not durable": Mutant(_weather(crash=0.15), _replica(TermNotDurable), first=18),
    "truncated below commit": Mutant(
        _ANY, replaced(follower_module, on_append=_truncates_below_commit), first=6
    ),
    "vote for a shorter log": Mutant(_ANY, replaced(RaftLog, up_to_date=_always_up_to_date)),
    "vote not durable": Mutant(
        _weather(**_CONTESTED, nodes=3, async_writes=False), _replica(VoteNotDurable), first=12
    ),
}
