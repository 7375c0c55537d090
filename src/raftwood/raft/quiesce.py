"""Idle groups, and groups whose leader is gone: sleep, waking, and early elections.

An idle group has no ticks and no heartbeats until there is work or its leader's store is lost: a
store with ten thousand idle groups would else do nothing but send heartbeats. A leader lets its
group sleep when all followers have all its entries. Stores ping one another, so that one store's
loss wakes the groups that it led; a store that starts anew wakes its groups itself by asking who
leads. A sleeping leader serves nothing without being woken: a proposal or a read sends messages,
which wake the others. Test:
test_host::test_an_idle_group_sleeps_and_wakes_for_work_and_for_a_lost_leader

When the leader's process is gone for certain, or a group begins, the voters stand one by one
(decision 0010). A connection that breaks and is then refused shows it long before silence does.
Nothing is at risk: pre-votes find out whether a majority has lost the leader too, so a follower
that is mistaken changes nothing. The voters that are left take turns, another one first in each
group, so that they neither split the vote nor load one store with all groups. Tests:
test_succession,
test_succession_mistakes::test_one_follower_that_is_mistaken_again_and_again_disturbs_nobody
"""

from typing import Final

import msgspec

from raftwood.raft.bootstrap import FOUNDING_TERM
from raftwood.raft.core import NOBODY, ConfState
from raftwood.raft.core.tracker import ProgressState
from raftwood.raft.membership import members_of
from raftwood.raft.replica import Replica


class SleepNotice(msgspec.Struct, frozen=True, array_like=True):
    """Groups that their leader lets sleep: number, term and last index of each."""

    groups: list[tuple[int, int, int]]


def may_sleep(replica: Replica, idle_ticks_min: int) -> bool:
    """Whether a leader's group has nothing to do, and every member has all entries and knows that
    they are committed.

    A follower that lacked one would get it from no heartbeat any more. In a joint configuration the
    leader still has to leave it.
    """
    raft = replica.node.raft
    if (
        replica.idle_ticks < idle_ticks_min
        or not replica.is_leader
        or replica.proposals
        or replica.reads
        or replica.tickets
        or replica.backlog
        or raft.transferee
        or raft.log.applied != raft.log.last_index
        or raft.tracker.members.outgoing
    ):
        return False
    last = raft.log.last_index
    return all(
        node == raft.id
        or (
            progress.match == last
            and progress.sent_commit >= last
            and progress.state is ProgressState.REPLICATE
        )
        for node, progress in raft.tracker.progress.items()
    )


def fall_asleep(replica: Replica, leader: int, term: int, last_index: int) -> bool:
    """A leader lets its group sleep; returns whether this replica agrees.

    The notice may be late. A replica that has a newer term or another leader, or that lacks an
    entry, must stay awake, or it would wait for messages that no store sends.
    """
    raft = replica.node.raft
    agrees = (
        raft.term == term
        and raft.lead == leader
        and raft.log.last_index == last_index
        and raft.log.applied == last_index
        and not replica.reads
        and not replica.proposals
    )
    if agrees:
        replica.sleep()
    return agrees


def wake_without_leader(replica: Replica) -> None:
    """Wakes up because the leader's store is lost.

    The pings were silent for long already, so only the random part of the timeout is left to wait.
    """
    replica.is_asleep = False
    replica.idle_ticks = 0
    raft = replica.node.raft
    raft.election_elapsed = max(raft.election_elapsed, raft.settings.election_ticks)


class SleepNotices:
    """The groups that a host lets sleep in one tick, by the stores that have to know."""

    def __init__(self) -> None:
        self._groups: dict[int, list[tuple[int, int, int]]] = {}

    def add(self, replica: Replica) -> None:
        raft = replica.node.raft
        replica.sleep()
        for store in members_of(replica.configuration):
            if store != raft.id:
                said = (replica.group, raft.term, raft.log.last_index)
                self._groups.setdefault(store, []).append(said)

    def messages(self) -> list[tuple[int, bytes]]:
        return [
            (store, msgspec.msgpack.encode(SleepNotice(groups)))
            for store, groups in self._groups.items()
        ]


TICKS_APART: Final = 2
"""Enough for one election before the next voter stands."""


def turn_of(store: int, configuration: ConfState, *, lost: int, group: int) -> int | None:
    """How many voters stand before a store; None if it is no voter.

    Test: test_succession::test_voters_take_turns_and_groups_begin_with_different_ones
    """
    left = [voter for voter in sorted(configuration.voters) if voter != lost]
    if store not in left:
        return None
    return (left.index(store) + group) % len(left)


def stand_soon(replica: Replica, lost: int) -> None:
    """Forgets the leader, and stands when it is this store's turn."""
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
