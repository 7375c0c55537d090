"""Membership changes in the life of a node: proposing, applying, leaving joint configurations.

A change takes force when it is applied, as in etcd, and not when it is appended, as in the paper
(dissertation, section 4.1). The paper's rule would have every node undo a change whose entry is
replaced. Ours needs two others in its place: a leader waits until a change is applied before it
proposes another, and a node does not stand while it knows of one that it has not applied
(`election.stand`).
"""

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

    Each change alone keeps the majorities before and after it overlapping. Two that are not applied
    everywhere do not: with voters 1 to 3, adding 4 and then 5, nodes 1 and 2 may not know of either
    change and be a majority, while 3, 4 and 5 are one too (dissertation, section 4.1). The proposer
    sees from the empty entry that its change was refused; dropping the proposal would drop the
    entries that came with it. Test: test_raw_node::test_a_second_change_has_to_wait_for_the_first
    """
    for position, entry in enumerate(entries):
        if not IS_CHANGE[entry.kind]:
            continue
        if raft.settings.change_validation and not _fits(raft, entry):
            entries[position] = Entry()
        else:
            raft.pending_change_index = raft.log.last_index + position + 1


def _fits(raft: "Raft", entry: Entry) -> bool:
    """Whether a change may be appended: no other one waits, and it can be applied."""
    if raft.pending_change_index > raft.log.applied:
        return False
    try:
        # No change is pending, so the membership now is the one that this change will meet. A
        # change that cannot be applied, such as removing the last voter, would be committed and
        # then stop every replica, for good (decision 0005). Test:
        # test_raw_node::test_a_change_that_cannot_be_applied_becomes_an_empty_entry
        Changer(raft.tracker, last_index=raft.log.last_index).change(change_of(entry).as_v2())
    except InvalidChange:
        return False
    return True


def propose_leaving_joint(raft: "Raft") -> None:
    """Propose to leave a joint configuration whose change says that the leader does so."""
    try:
        raft.step(Message(MessageKind.PROPOSE, source=raft.id, entries=[change_entry(LEAVE_JOINT)]))
    except ProposalDropped:
        # A transfer is under way. If it fails, this leader tries again when it has applied another
        # entry; if it succeeds, the next leader does when it has applied its first.
        return


def apply_change(raft: "Raft", entry: Entry) -> ConfState:
    """Put a committed change into force; returns the membership from now on."""
    overtaken = entry.index <= raft.restored_index
    tracker = raft.tracker
    if overtaken:
        # A snapshot arrived while the entry was on its way to the state machine. The node follows
        # the snapshot's newer membership already and must not go back. The state machine is still
        # at the entry: it gets the membership as of there, for a snapshot that it takes now would
        # else claim changes that come later (decision 0005).
        # Test: test_raw_node::test_an_overtaken_change_is_told_as_of_its_entry
        if raft.overtaken_tracker is None:
            return tracker.members.conf_state()
        tracker = raft.overtaken_tracker
    try:
        changer = Changer(tracker, last_index=raft.log.last_index)
        tracker.adopt(*changer.change(change_of(entry).as_v2()))
    except InvalidChange as error:
        # Every node applies this entry. To ignore it here would leave this one with another
        # membership than the rest, and with other majorities.
        raise InvariantViolated(f"a committed change does not apply: {error}") from error
    state = tracker.members.conf_state()
    if not overtaken:
        _follow_up(raft)
    return state


def _follow_up(raft: "Raft") -> None:
    """Let the leader act on a membership that has just taken force."""
    if raft.role is not LEADER:
        return
    progress = raft.tracker.progress.get(raft.id)
    if progress is None or progress.is_learner:
        # A leader that was removed goes on leading unless the setting says otherwise, and does not
        # count itself (dissertation, section 4.2.2). The others may not know yet that the change is
        # committed: if it fell silent now, they would wait for an election timeout, and could elect
        # a leader only with the old majority, of which this node was one.
        # Script: step_down_on_removal.txt. Test:
        # test_raw_node::test_a_removed_leader_takes_no_proposals
        if raft.settings.step_down_on_removal:
            raft.become_follower(raft.term, NOBODY)
        return
    if not raft.tracker.members.incoming:
        return
    if replication.try_commit(raft):
        # The majority is smaller without the removed voter, and may have more entries already. No
        # answer may be on its way that would commit them: with all followers up to date, they would
        # wait for the next proposal. Test: test_raw_node::
        # test_a_smaller_majority_commits_what_it_has_as_soon_as_the_change_is_applied
        replication.broadcast_append(raft)
    else:
        # A member that was just added starts to get the log now, not at the next heartbeat.
        for node, other in raft.tracker.progress.items():
            if node != raft.id:
                replication.send_append(raft, node, other, even_empty=False)
    # A target that can no longer lead would keep proposals out until the transfer times out.
    # Test: test_raw_node::test_a_transfer_ends_when_its_target_is_removed
    if raft.transferee and raft.transferee not in raft.tracker.members.voters:
        raft.transferee = NOBODY
