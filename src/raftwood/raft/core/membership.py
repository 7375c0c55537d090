"""Membership changes: how they are stored in the log, and the configurations that they lead to.

A `ChangeV1` adds, promotes, demotes or removes one node. A `ChangeV2` holds several steps; more
than one of them, or an explicit transition, goes through a joint configuration (Raft dissertation,
section 4.3). An empty `ChangeV2` leaves a joint configuration, and its payload is empty.

Nodes apply a change at different times, so for a while some go by the old voters and some by the
new. A simple change may move one voter only, because then any majority of the old overlaps with any
of the new. With two it need not: of voters 1 to 3 replaced by 3 to 5, nodes 1 and 2 elect one
leader and 4 and 5 another. All else goes through a joint configuration, in which both must agree
(sections 4.1 and 4.3). Every function of `Changer` works on copies, so a refused change leaves
nothing half done. Test: test_quorum::test_random_changes_keep_majorities_overlapping. Script:
joint_change.txt
"""

from collections.abc import Iterable
from enum import IntEnum

import msgspec

from raftwood.base.errors import InvariantViolated
from raftwood.raft.core.errors import InvalidChange
from raftwood.raft.core.messages import ConfState, Entry, EntryKind
from raftwood.raft.core.tracker import Membership, Progress, Tracker


class StepKind(IntEnum):
    """The kinds of steps, each for one node."""

    ADD_VOTER = 0
    REMOVE = 1
    UPDATE = 2
    """Changes nothing in raft; carries the caller's context through the log."""
    ADD_LEARNER = 3


class Transition(IntEnum):
    """How a `ChangeV2` takes effect."""

    AUTO = 0
    """Directly if one step is safe by itself, else joint and left by the leader."""
    JOINT_IMPLICIT = 1
    """Joint in any case, and left by the leader as soon as it is applied."""
    JOINT_EXPLICIT = 2
    """Joint in any case, until an empty change is proposed."""


class ChangeStep(msgspec.Struct, frozen=True):
    """One node's part in a change."""

    kind: StepKind
    node: int


class ChangeV2(msgspec.Struct, frozen=True):
    """Several steps that take effect together."""

    steps: tuple[ChangeStep, ...] = ()
    transition: Transition = Transition.AUTO
    context: bytes = b""

    @property
    def leaves_joint(self) -> bool:
        return not self.steps and self.transition is Transition.AUTO

    @property
    def enters_joint(self) -> bool:
        return self.transition is not Transition.AUTO or len(self.steps) > 1

    @property
    def auto_leave(self) -> bool:
        return self.transition is not Transition.JOINT_EXPLICIT

    def as_v2(self) -> "ChangeV2":
        return self


class ChangeV1(msgspec.Struct, frozen=True):
    """One step, never joint."""

    step: ChangeStep
    context: bytes = b""

    def as_v2(self) -> ChangeV2:
        return ChangeV2((self.step,), context=self.context)


Change = ChangeV1 | ChangeV2

LEAVE_JOINT = ChangeV2()

_encoder = msgspec.msgpack.Encoder()
_decoder_v1 = msgspec.msgpack.Decoder(ChangeV1)
_decoder_v2 = msgspec.msgpack.Decoder(ChangeV2)


def change_entry(change: Change) -> Entry:
    """The entry that proposes a change."""
    if isinstance(change, ChangeV1):
        return Entry(kind=EntryKind.CHANGE_V1, payload=_encoder.encode(change))
    payload = b"" if change == LEAVE_JOINT else _encoder.encode(change)
    return Entry(kind=EntryKind.CHANGE_V2, payload=payload)


def change_of(entry: Entry) -> Change:
    """The change that an entry holds; the entry must be of one of the two kinds."""
    try:
        if entry.kind is EntryKind.CHANGE_V1:
            return _decoder_v1.decode(entry.payload)
        return _decoder_v2.decode(entry.payload) if entry.payload else LEAVE_JOINT
    except msgspec.DecodeError as error:
        # Only what this module encoded is proposed as a change, on every node.
        raise InvariantViolated(f"entry {entry.index} holds no membership change") from error


Configuration = tuple[Membership, dict[int, Progress]]


class Changer:
    """Computes what a tracker's configuration becomes; the tracker itself is not changed."""

    def __init__(self, tracker: Tracker, *, last_index: int) -> None:
        self._tracker = tracker
        self._last_index = last_index
        """New followers are probed from here on; the first refusal says how far back to go."""
        self._members = tracker.members.copy()
        self._progress = {node: _copy(item) for node, item in tracker.progress.items()}
        _check(self._members, self._progress)

    def change(self, change: ChangeV2) -> Configuration:
        """Apply a change as it asks: directly, into a joint configuration, or out of one."""
        if change.leaves_joint:
            return self.leave_joint()
        if change.enters_joint:
            return self.enter_joint(change.steps, auto_leave=change.auto_leave)
        return self.simple(change.steps)

    def simple(self, steps: Iterable[ChangeStep]) -> Configuration:
        """Change one voter, or any learners, in one step (dissertation, section 4.1)."""
        # It would change the new half alone, and the two halves would no longer be the sets that
        # the joint configuration leads from and to.
        if self._members.joint:
            raise InvalidChange("can't apply simple config change in joint config")
        before = set(self._members.incoming)
        self._apply(steps)
        # Learners are in no majority, so any number of them may come and go.
        if len(before ^ self._members.incoming) > 1:
            raise InvalidChange("more than one voter changed without entering joint config")
        return self._result()

    def enter_joint(self, steps: Iterable[ChangeStep], *, auto_leave: bool) -> Configuration:
        """Keep the voters as the outgoing half, and apply the steps to the incoming one (4.3)."""
        # It would take a third voter set to keep the first one in the decisions.
        if self._members.joint:
            raise InvalidChange("config is already joint")
        if not self._members.incoming:
            # The outgoing half would be empty, which is how a configuration says that it is not
            # joint. The first voters are added by simple changes.
            raise InvalidChange("can't make a zero-voter config joint")
        self._members.outgoing = set(self._members.incoming)
        self._apply(steps)
        self._members.auto_leave = auto_leave
        return self._result()

    def leave_joint(self) -> Configuration:
        """Drop the outgoing half; its voters are demoted or forgotten only now (4.3)."""
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
            # Node zero stands for a step that was filtered out before the change was proposed.
            if not step.node or step.kind is StepKind.UPDATE:
                continue
            if step.kind is StepKind.ADD_VOTER:
                self._make_voter(step.node)
            elif step.kind is StepKind.ADD_LEARNER:
                self._make_learner(step.node)
            else:
                self._remove(step.node)
        # Without a voter no entry is ever committed again, the one that would add a voter included.
        # Test: test_raw_node::test_a_change_that_cannot_be_applied_becomes_an_empty_entry
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
        # Its progress stays: a voter that is demoted has the log already.
        self._progress[node] = progress
        if node in self._members.outgoing:
            # It still votes in the outgoing half. As a learner it would not stand, and others would
            # not count it, though the outgoing majority may need it. So it is demoted on leaving.
            # The script membership.txt shows it.
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
        # A voter of the outgoing half still gets the log and is counted until that half is left.
        if node not in self._members.outgoing:
            del self._progress[node]

    def _add(self, node: int, *, is_learner: bool) -> None:
        (self._members.learners if is_learner else self._members.incoming).add(node)
        progress = self._tracker.new_progress(
            match=0, next_index=max(self._last_index, 1), is_learner=is_learner
        )
        # A new node has not had the time to answer. Without this, a leader of one voter that adds a
        # second one could step down at its next quorum check. Script: membership.txt
        progress.recently_active = True
        self._progress[node] = progress


def restore(tracker: Tracker, state: ConfState, *, last_index: int) -> None:
    """Bring an empty tracker to a stored membership by the changes that lead there.

    It goes through `Changer`, so that a stored membership is checked like a proposed one.
    """
    # To a joint configuration in two steps: the outgoing voters first, one by one, then the change
    # from them to the incoming ones.
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
    """Raise `InvariantViolated` for a configuration that no change leads to: that is our bug."""
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
