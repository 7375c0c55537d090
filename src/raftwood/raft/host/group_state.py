"""A group's small record in the log: hard state, first membership, and where its log begins.

Version 1 knew no snapshots, and kept the first members here and not in the log.
"""

from enum import StrEnum
from typing import Final

import msgspec

from raftwood.base.errors import StoreDamaged, UnsupportedVersion
from raftwood.raft.core import ConfState, HardState

STATE_VERSION: Final = 2
VOTES_NEVER: Final = (1 << 63) - 1
"""As `votes_from`: the log is lost, so that not even its end is known. The addition to the group,
which comes after all that the replica had acknowledged, takes its place."""


class RepairStage(StrEnum):
    """How far the repair of a damaged replica has come; `repair` tells the whole."""

    NONE = ""
    LOOK = "look"
    """The store has lost its log, and has this record of the group alone. The group is asked
    whether the store is a member."""
    LEAVE = "leave"
    """The group is asked to remove this store; the damaged data is still here."""
    JOIN = "join"
    """The data is dropped; the group is asked to add this store as a learner."""
    LEARN = "learn"
    """The replica runs again and catches up; then it becomes a voter, as it was."""


class GroupState(msgspec.Struct, frozen=True, array_like=True):
    """What must survive a crash beside the entries."""

    version: int
    term: int
    vote: int
    commit: int
    voters: tuple[int, ...] = ()
    """In version 1, the membership that the log begins with; now that is in the log itself."""
    start_term: int = 0
    """The term of the entry before the log's first."""
    snapshots: tuple[int, ...] = ()
    """The indexes of the snapshots, oldest first; other files are left-overs."""
    is_removed: bool = False
    """The replica was removed: only its term and vote are kept, for it may come back."""
    forced_voters: tuple[int, ...] = ()
    """Set by an operator after the quorum was lost for good: the membership from the end on."""
    given_up: tuple[int, ...] = ()
    """Stores that an operator gave up then: nothing they say about this group is heard again."""
    votes_from: int = 0
    """No vote is given, and none asked for, before this entry is applied: what the replica had
    acknowledged up to it was dropped."""
    repair: RepairStage = RepairStage.NONE
    repair_as_voter: bool = False
    """What the replica was before its repair, and is to be again."""

    @property
    def is_without_replica(self) -> bool:
        """A repair has not come to where a replica runs again."""
        return self.repair in (RepairStage.LOOK, RepairStage.LEAVE, RepairStage.JOIN)

    @property
    def hard_state(self) -> HardState:
        return HardState(self.term, self.vote, self.commit)

    def encoded(self) -> bytes:
        return _encode(self)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(GroupState).decode


def first_state() -> GroupState:
    """The state of a group that has done nothing yet."""
    return GroupState(STATE_VERSION, 0, 0, 0)


def decode_state(group: int, data: bytes) -> GroupState:
    """A stored state, brought to this version; `UnsupportedVersion` for one of a newer version."""
    try:
        fields = msgspec.msgpack.decode(data)
        if isinstance(fields, list) and fields and fields[0] not in (1, STATE_VERSION):
            raise UnsupportedVersion(
                f"the state of group {group} is of version {fields[0]}, this program reads up to "
                f"{STATE_VERSION}: use a newer program"
            )
        return msgspec.structs.replace(_decode(data), version=STATE_VERSION)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StoreDamaged(f"the state of group {group} is none of a raft group") from error


def membership_of(state: GroupState) -> ConfState:
    """The membership at the beginning of the log."""
    return ConfState(voters=state.voters)
