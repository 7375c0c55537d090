"""Quorums against brute force, and membership changes against what must always hold."""

import random
from itertools import combinations

import pytest

from raftwood.raft.core import ChangeStep, InvalidChange, StepKind
from raftwood.raft.core.membership import Changer, restore
from raftwood.raft.core.messages import UNLIMITED
from raftwood.raft.core.quorum import (
    VoteResult,
    joint_committed,
    joint_vote,
    majority_committed,
    majority_vote,
)
from raftwood.raft.core.tracker import Tracker


def _committed_by_force(voters: list[int], acknowledged: dict[int, int]) -> int:
    """The highest index such that some majority has it all."""
    quorum = len(voters) // 2 + 1
    return max(
        min(acknowledged.get(voter, 0) for voter in chosen)
        for chosen in combinations(voters, quorum)
    )


def _vote_by_force(voters: list[int], votes: dict[int, bool]) -> VoteResult:
    """Try out every way in which those who have not voted could."""
    silent = [voter for voter in voters if voter not in votes]
    outcomes = set()
    for bits in range(1 << len(silent)):
        granted = sum(votes.get(voter, False) for voter in voters)
        granted += bits.bit_count()
        outcomes.add(granted * 2 > len(voters))
    if outcomes == {True}:
        return VoteResult.WON
    return VoteResult.LOST if outcomes == {False} else VoteResult.PENDING


def test_majorities_agree_with_brute_force() -> None:
    source = random.Random(1)
    for _ in range(2000):
        voters = source.sample(range(1, 10), source.randint(1, 7))
        known = [voter for voter in voters if source.random() < 0.7]
        acknowledged = {voter: source.randint(1, 6) for voter in known}
        votes = {voter: source.random() < 0.5 for voter in known}
        assert majority_committed(voters, acknowledged) == _committed_by_force(voters, acknowledged)
        assert majority_vote(voters, votes) is _vote_by_force(voters, votes)


def test_a_joint_quorum_decides_what_both_halves_decide() -> None:
    source = random.Random(2)
    for _ in range(2000):
        first = source.sample(range(1, 8), source.randint(1, 5))
        second = source.sample(range(1, 8), source.randint(0, 5))
        acknowledged = {voter: source.randint(1, 6) for voter in {*first, *second}}
        votes = {voter: source.random() < 0.5 for voter in acknowledged if source.random() < 0.6}
        committed = joint_committed(first, second, acknowledged)
        assert committed == joint_committed(second, first, acknowledged)
        halves = [_committed_by_force(half, acknowledged) for half in (first, second) if half]
        assert committed == min(halves)
        result = joint_vote(first, second, votes)
        assert result is joint_vote(second, first, votes)
        assert joint_vote(first, first, votes) is majority_vote(first, votes)
        results = {_vote_by_force(half, votes) for half in (first, second) if half}
        if result is VoteResult.WON:
            assert results == {VoteResult.WON}
        assert (result is VoteResult.LOST) == (VoteResult.LOST in results)


def test_the_empty_quorum_agrees_to_everything() -> None:
    assert majority_committed([], {}) == UNLIMITED
    assert majority_vote([], {}) is VoteResult.WON


def _random_steps(source: random.Random) -> list[ChangeStep]:
    count = source.choice((0, 1, 1, 1, 2, 3, 4))
    return [ChangeStep(source.choice(list(StepKind)), source.randint(0, 6)) for _ in range(count)]


@pytest.mark.parametrize("seed", range(20))
def test_random_changes_keep_majorities_overlapping(seed: int) -> None:
    source = random.Random(seed)
    tracker = Tracker(10)
    applied = 0
    for index in range(400):
        before = tracker.members.copy()
        progress_before = dict(tracker.progress)
        changer = Changer(tracker, last_index=index)
        steps = _random_steps(source)
        try:
            kind = source.randint(0, 2)
            if kind == 0:
                result = changer.simple(steps)
            elif kind == 1:
                result = changer.enter_joint(steps, auto_leave=source.random() < 0.5)
            else:
                result = changer.leave_joint()
        except InvalidChange:
            # A refused change has changed nothing.
            assert tracker.members.conf_state() == before.conf_state()
            assert tracker.progress == progress_before
            continue
        applied += 1
        tracker.adopt(*result)
        after = tracker.members
        assert after.incoming
        assert not after.learners & after.voters
        if before.incoming and not before.joint and not after.joint:
            assert len(before.incoming ^ after.incoming) <= 1
        elif after.joint:
            assert after.outgoing == before.incoming
        elif before.joint:
            assert after.incoming == before.incoming
        again = Tracker(10)
        restore(again, after.conf_state(), last_index=index)
        assert again.members.conf_state() == after.conf_state()
        assert list(again.progress) == list(tracker.progress)
    assert applied > 50
