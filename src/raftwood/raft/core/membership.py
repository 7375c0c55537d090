"""Applies membership changes: simple ones, entering and leaving joint configurations, restoring.

A simple change may move one voter only, because then the old and the new majorities overlap; all
else goes through a joint configuration (Raft dissertation, sections 4.1 and 4.3). Every function
works on copies, so that a refused change leaves nothing half done.
"""

from collections.abc import Iterable

from raftwood.base.errors import InvariantViolated
from raftwood.raft.core.changes import ChangeStep, ChangeV2, StepKind
from raftwood.raft.core.errors import InvalidChange
from raftwood.raft.core.messages import ConfState
from raftwood.raft.core.progress import Progress
from raftwood.raft.core.tracker import Membership, Tracker

Configuration = tuple[Membership, dict[int, Progress]]


class Changer:
    """Computes what a tracker's configuration becomes; the tracker itself is not changed."""

    def __init__(self, tracker: Tracker, *, last_index: int) -> None:
        self._tracker = tracker
        self._last_index = last_index
        """New followers are probed from here on: they most likely need a snapshot anyway."""
        self._members = tracker.members.copy()
        self._progress = {node: _copy(item) for node, item in tracker.progress.items()}
        _check(self._members, self._progress)

    def change(self, change: ChangeV2) -> Configuration:
        """Whatever a change asks for."""
        if change.leaves_joint:
            return self.leave_joint()
        if change.enters_joint:
            return self.enter_joint(change.steps, auto_leave=change.auto_leave)
        return self.simple(change.steps)

    def simple(self, steps: Iterable[ChangeStep]) -> Configuration:
        if self._members.joint:
            raise InvalidChange("can't apply simple config change in joint config")
        before = set(self._members.incoming)
        self._apply(steps)
        if len(before ^ self._members.incoming) > 1:
            raise InvalidChange("more than one voter changed without entering joint config")
        return self._result()

    def enter_joint(self, steps: Iterable[ChangeStep], *, auto_leave: bool) -> Configuration:
        if self._members.joint:
            raise InvalidChange("config is already joint")
        if not self._members.incoming:
            # Adding the first voters is a simple change; an empty outgoing half would decide
            # nothing and still look joint to nobody.
            raise InvalidChange("can't make a zero-voter config joint")
        self._members.outgoing = set(self._members.incoming)
        self._apply(steps)
        self._members.auto_leave = auto_leave
        return self._result()

    def leave_joint(self) -> Configuration:
        members = self._members
        if not members.joint:
            raise InvalidChange("can't leave a non-joint config")
        for node in sorted(members.learners_next):
            members.learners.add(node)
            self._progress[node].is_learner = True
        members.learners_next.clear()
        for node in sorted(members.outgoing):
            if node not in members.incoming and node not in members.learners:
                del self._progress[node]
        members.outgoing = set()
        members.auto_leave = False
        return self._result()

    def _result(self) -> Configuration:
        _check(self._members, self._progress)
        return self._members, self._progress

    def _apply(self, steps: Iterable[ChangeStep]) -> None:
        for step in steps:
            # Node zero stands for a step that was filtered out before it was proposed.
            if not step.node or step.kind is StepKind.UPDATE:
                continue
            if step.kind is StepKind.ADD_VOTER:
                self._make_voter(step.node)
            elif step.kind is StepKind.ADD_LEARNER:
                self._make_learner(step.node)
            else:
                self._remove(step.node)
        if not self._members.incoming:
            raise InvalidChange("removed all voters")

    def _make_voter(self, node: int) -> None:
        progress = self._progress.get(node)
        if progress is None:
            self._add(node, is_learner=False)
            return
        progress.is_learner = False
        self._members.learners.discard(node)
        self._members.learners_next.discard(node)
        self._members.incoming.add(node)

    def _make_learner(self, node: int) -> None:
        progress = self._progress.get(node)
        if progress is None:
            self._add(node, is_learner=True)
            return
        if progress.is_learner:
            return
        self._remove(node)
        self._progress[node] = progress
        if node in self._members.outgoing:
            # It still votes in the outgoing half, and nobody may be voter and learner at once.
            self._members.learners_next.add(node)
        else:
            progress.is_learner = True
            self._members.learners.add(node)

    def _remove(self, node: int) -> None:
        if node not in self._progress:
            return
        self._members.incoming.discard(node)
        self._members.learners.discard(node)
        self._members.learners_next.discard(node)
        if node not in self._members.outgoing:
            del self._progress[node]

    def _add(self, node: int, *, is_learner: bool) -> None:
        (self._members.learners if is_learner else self._members.incoming).add(node)
        progress = self._tracker.new_progress(
            match=0, next_index=max(self._last_index, 1), is_learner=is_learner
        )
        # A new node has not had the time to be heard from; the next quorum check must not count
        # that against the leader.
        progress.recently_active = True
        self._progress[node] = progress


def restore(tracker: Tracker, state: ConfState, *, last_index: int) -> None:
    """Bring an empty tracker to a stored membership by the changes that lead there."""
    incoming = [
        *(ChangeStep(StepKind.REMOVE, node) for node in state.voters_outgoing),
        *(ChangeStep(StepKind.ADD_VOTER, node) for node in state.voters),
        *(ChangeStep(StepKind.ADD_LEARNER, node) for node in state.learners),
        *(ChangeStep(StepKind.ADD_LEARNER, node) for node in state.learners_next),
    ]
    outgoing = [ChangeStep(StepKind.ADD_VOTER, node) for node in state.voters_outgoing]
    for step in outgoing or incoming:
        tracker.adopt(*Changer(tracker, last_index=last_index).simple([step]))
    if outgoing:
        changer = Changer(tracker, last_index=last_index)
        tracker.adopt(*changer.enter_joint(incoming, auto_leave=state.auto_leave))
    if tracker.members.conf_state() != state.normalized():
        raise InvariantViolated(f"the stored membership {state} is not one that changes lead to")


def _copy(progress: Progress) -> Progress:
    other = object.__new__(Progress)
    for name in Progress.__slots__:
        setattr(other, name, getattr(progress, name))
    return other


def _check(members: Membership, progress: dict[int, Progress]) -> None:
    """What holds of every configuration; anything else is our bug."""
    tracked = members.incoming | members.outgoing | members.learners | members.learners_next
    problem = ""
    if tracked != set(progress):
        problem = "members and progress differ"
    elif not members.learners_next <= members.outgoing:
        problem = "a node is to become a learner and is no outgoing voter"
    elif any(progress[node].is_learner for node in members.learners_next):
        problem = "a node votes and is marked as a learner"
    elif members.learners & members.voters:
        problem = "a node is voter and learner"
    elif not all(progress[node].is_learner for node in members.learners):
        problem = "a learner is not marked as one"
    elif not members.joint and (members.learners_next or members.auto_leave):
        problem = "a configuration that is not joint has parts of a joint one"
    if problem:
        raise InvariantViolated(f"{problem}: {members.conf_state()}")
