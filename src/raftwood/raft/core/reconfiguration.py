"""Membership changes in the life of a node: proposing, applying, leaving joint configurations."""

from typing import TYPE_CHECKING

from raftwood.base.errors import InvariantViolated
from raftwood.raft.core import replication
from raftwood.raft.core.errors import InvalidChange, ProposalDropped
from raftwood.raft.core.membership import LEAVE_JOINT, Changer, change_entry, change_of
from raftwood.raft.core.messages import (
    IS_CHANGE,
    LEADER,
    NOBODY,
    ConfState,
    Entry,
    Message,
    MessageKind,
)

if TYPE_CHECKING:
    from raftwood.raft.core.raft import Raft


def screen_proposal(raft: "Raft", entries: list[Entry]) -> None:
    """Let one change at a time into the log; another becomes an empty entry in its place.

    Two unapplied changes could meet in configurations whose majorities do not overlap
    (dissertation, section 4.1). The proposer sees from the empty entry that its change was refused.
    """
    for position, entry in enumerate(entries):
        if not IS_CHANGE[entry.kind]:
            continue
        if raft.settings.change_validation and not _fits(raft, entry):
            entries[position] = Entry()
        else:
            raft.pending_change_index = raft.log.last_index + position + 1


def _fits(raft: "Raft", entry: Entry) -> bool:
    if raft.pending_change_index > raft.log.applied:
        return False
    try:
        # Nothing is pending, so that this is the configuration that the change will meet: what
        # cannot be applied is found out before every replica has to stop at it.
        Changer(raft.tracker, last_index=raft.log.last_index).change(change_of(entry).as_v2())
    except InvalidChange:
        return False
    return True


def propose_leaving_joint(raft: "Raft") -> None:
    """The leader itself ends a joint configuration that was entered to be left on its own."""
    try:
        raft.step(Message(MessageKind.PROPOSE, source=raft.id, entries=[change_entry(LEAVE_JOINT)]))
    except ProposalDropped:
        # A transfer is under way: this leader or the next one does it after another entry.
        return


def apply_change(raft: "Raft", entry: Entry) -> ConfState:
    """Put a committed change into force; answers the membership from now on."""
    overtaken = entry.index <= raft.restored_index
    tracker = raft.tracker
    if overtaken:
        # A snapshot arrived while the entry was on its way to the state machine. The node goes by
        # the snapshot already; the state machine is told the membership that it is at.
        if raft.overtaken_tracker is None:
            return tracker.members.conf_state()
        tracker = raft.overtaken_tracker
    try:
        changer = Changer(tracker, last_index=raft.log.last_index)
        tracker.adopt(*changer.change(change_of(entry).as_v2()))
    except InvalidChange as error:
        # It was committed, so every node holds it: to ignore it here would part them.
        raise InvariantViolated(f"a committed change does not apply: {error}") from error
    state = tracker.members.conf_state()
    if not overtaken:
        _follow_up(raft)
    return state


def _follow_up(raft: "Raft") -> None:
    if raft.role is not LEADER:
        return
    progress = raft.tracker.progress.get(raft.id)
    if progress is None or progress.is_learner:
        # Without the setting it goes on until it is told to hand over: nobody else may know yet
        # that the change is committed (dissertation, section 4.2.2).
        if raft.settings.step_down_on_removal:
            raft.become_follower(raft.term, NOBODY)
        return
    if not raft.tracker.members.incoming:
        return
    if replication.try_commit(raft):
        # A smaller quorum may have all that is needed.
        replication.broadcast_append(raft)
    else:
        for node, other in raft.tracker.progress.items():
            if node != raft.id:
                replication.send_append(raft, node, other, even_empty=False)
    if raft.transferee and raft.transferee not in raft.tracker.members.voters:
        raft.transferee = NOBODY
