"""What a node looks like from outside, as a copy that does not change any more."""

from typing import TYPE_CHECKING

import msgspec

from raftwood.raft.core.messages import ConfState, HardState
from raftwood.raft.core.progress import Progress, ProgressState
from raftwood.raft.core.roles import LEADER, Role

if TYPE_CHECKING:
    from raftwood.raft.core.raft import Raft


class FollowerStatus(msgspec.Struct, frozen=True):
    """One member as the leader knows it."""

    state: ProgressState
    match: int
    next: int
    is_learner: bool
    paused: bool
    pending_snapshot: int
    recently_active: bool
    inflight_messages: int
    inflight_full: bool


class Status(msgspec.Struct, frozen=True):
    """One node; `progress` is empty unless it leads."""

    node: int
    role: Role
    lead: int
    hard_state: HardState
    applied: int
    last_index: int
    transferee: int
    configuration: ConfState
    progress: dict[int, FollowerStatus]


def status_of(raft: "Raft") -> Status:
    progress = {}
    if raft.role is LEADER:
        progress = {node: follower_status(item) for node, item in raft.tracker.progress.items()}
    return Status(
        raft.id,
        raft.role,
        raft.lead,
        raft.hard_state(),
        raft.log.applied,
        raft.log.last_index,
        raft.transferee,
        raft.tracker.members.conf_state(),
        progress,
    )


def follower_status(progress: Progress) -> FollowerStatus:
    return FollowerStatus(
        progress.state,
        progress.match,
        progress.next,
        progress.is_learner,
        progress.paused,
        progress.pending_snapshot,
        progress.recently_active,
        len(progress.inflights),
        progress.inflights.full,
    )
