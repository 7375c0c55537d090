"""Majorities, single and joint: the result of a vote, and the index that is committed.

Any two majorities of one voter set share a voter. That voter is why a term has one leader, and why
a leader has what was committed before it (Raft, 5.4.3). A joint configuration decides only what
both of its halves decide, so its decisions share a voter with those of the old and of the new set:
no moment exists at which the two could decide apart (Raft dissertation, section 4.3). An empty half
agrees to everything, so an ordinary configuration is a joint one with an empty second half. Tests:
test_quorum, against brute force. Scripts: joint_change.txt, quorum.txt
"""

from collections.abc import Collection, Mapping
from enum import Enum

from raftwood.raft.core.messages import UNLIMITED


class VoteResult(Enum):
    """The state of an election as one voter set sees it.

    LOST and PENDING differ so that a candidate that cannot win any more gives up at once.
    """

    PENDING = "VotePending"
    LOST = "VoteLost"
    WON = "VoteWon"


def majority_committed(voters: Collection[int], acknowledged: Mapping[int, int]) -> int:
    """The highest index that a majority has acknowledged; unheard voters count as zero."""
    count = len(voters)
    if not count:
        # The other half of the joint configuration decides alone.
        return UNLIMITED
    if count == 1:
        (voter,) = voters
        return acknowledged.get(voter, 0)
    get = acknowledged.get
    indexes = sorted([get(voter, 0) for voter in voters])
    # Counted from the lowest: of three voters the second, of four the second, of five the third. A
    # majority has this index or a higher one.
    return indexes[count - (count // 2 + 1)]


def majority_vote(voters: Collection[int], votes: Mapping[int, bool]) -> VoteResult:
    """The outcome among voters, while some have not answered yet."""
    if not voters:
        return VoteResult.WON
    granted = refused = 0
    for voter in voters:
        vote = votes.get(voter)
        if vote is None:
            continue
        if vote:
            granted += 1
        else:
            refused += 1
    quorum = len(voters) // 2 + 1
    if granted >= quorum:
        return VoteResult.WON
    if len(voters) - refused >= quorum:
        return VoteResult.PENDING
    return VoteResult.LOST


def joint_committed(
    incoming: Collection[int], outgoing: Collection[int], acknowledged: Mapping[int, int]
) -> int:
    """The highest index that both halves have committed."""
    committed = majority_committed(incoming, acknowledged)
    if outgoing:
        return min(committed, majority_committed(outgoing, acknowledged))
    return committed


def joint_vote(
    incoming: Collection[int], outgoing: Collection[int], votes: Mapping[int, bool]
) -> VoteResult:
    """Won if both halves are won, lost if either is lost."""
    first = majority_vote(incoming, votes)
    second = majority_vote(outgoing, votes)
    if first is second:
        return first
    if VoteResult.LOST in (first, second):
        return VoteResult.LOST
    return VoteResult.PENDING


def describe_committed(voters: Collection[int], acknowledged: Mapping[int, int]) -> str:
    """A table of what each voter acknowledged; a longer bar means more voters are behind it."""
    if not voters:
        return "<empty majority quorum>"
    count = len(voters)
    bars: dict[int, int] = {}
    previous_index, previous_bar = 0, 0
    for position, (index, voter) in enumerate(
        sorted((acknowledged.get(voter, 0), voter) for voter in voters)
    ):
        if index > previous_index and position:
            previous_bar = position
        previous_index = index
        bars[voter] = previous_bar
    lines = [" " * count + "    idx"]
    for voter in sorted(voters):
        if voter in acknowledged:
            bar = "x" * bars[voter] + ">" + " " * (count - bars[voter])
        else:
            bar = "?" + " " * count
        lines.append(f"{bar} {acknowledged.get(voter, 0):5d}    (id={voter})")
    return "\n".join(lines) + "\n"
