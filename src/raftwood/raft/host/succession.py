"""When the leader's process is gone for certain, or a group begins: the voters stand one by one.

A connection that breaks and is then refused tells it long before silence does. Nothing is at risk:
a vote is asked for only where a majority knows of no leader either. Those left take turns, another
one first in each group, so that they neither split the vote nor load one store with all groups.
"""

from typing import Final

from raftwood.raft.core import NOBODY, ConfState
from raftwood.raft.host.opening import FOUNDING_TERM
from raftwood.raft.host.replica import Replica

TICKS_APART: Final = 2
"""Enough for one election before the next voter stands."""


def turn_of(store: int, configuration: ConfState, *, lost: int, group: int) -> int | None:
    """How many stand before a store; None where it is no voter."""
    left = [voter for voter in sorted(configuration.voters) if voter != lost]
    if store not in left:
        return None
    return (left.index(store) + group) % len(left)


def stand_soon(replica: Replica, lost: int) -> None:
    """Forget the leader, and stand when it is this store's turn."""
    replica.wake()
    replica.node.forget_leader()
    raft = replica.node.raft
    turn = turn_of(raft.id, replica.configuration, lost=lost, group=replica.group)
    if turn is not None:
        elapsed = raft.election_timeout - 1 - turn * TICKS_APART
        raft.election_elapsed = max(raft.election_elapsed, elapsed)


def stand_first(replica: Replica) -> None:
    """The same for a group that begins, unless it has had an election."""
    if replica.node.raft.term == FOUNDING_TERM:
        stand_soon(replica, lost=NOBODY)
