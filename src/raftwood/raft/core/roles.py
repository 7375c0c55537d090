"""What a node is at the moment; the values are the names that scripts and status texts use."""

from enum import Enum


class Role(Enum):
    """Raft, figure 4, and the pre-candidate of the dissertation's section 9.6."""

    FOLLOWER = "StateFollower"
    CANDIDATE = "StateCandidate"
    LEADER = "StateLeader"
    PRECANDIDATE = "StatePreCandidate"


FOLLOWER = Role.FOLLOWER
CANDIDATE = Role.CANDIDATE
LEADER = Role.LEADER
PRECANDIDATE = Role.PRECANDIDATE
