"""Appends to all followers at once are the appends that each of them would get alone."""

import copy
from random import Random

from raftwood.raft.core import ConfState, MemoryStorage, RaftSettings, RawNode, Snapshot
from raftwood.raft.core.raft import Raft
from raftwood.raft.core.replication import broadcast_append, send_append
from raftwood.raft.core.tracker import ProgressState

FOLLOWERS = (2, 3, 4, 5)


def leader(random: Random) -> Raft:
    """One with a log of some length, whose followers are anywhere."""
    storage = MemoryStorage()
    storage.apply_snapshot(Snapshot(3, 1, ConfState((1, *FOLLOWERS))))
    settings = RaftSettings(
        node=1,
        election_jitter=lambda _: 0,
        message_bytes_max=random.choice((20, 60, 1 << 20)),
        inflight_messages_max=2,
    )
    node = RawNode(settings, storage)
    raft = node.raft
    raft.become_candidate()
    raft.become_leader()
    for _ in range(random.randrange(4)):
        node.propose([random.randbytes(random.randrange(20)) for _ in range(3)])
        if random.random() < 0.5:
            storage.append(node.ready().entries)
            node.advance()
    for follower in FOLLOWERS:
        progress = raft.tracker.progress[follower]
        progress.match = random.choice((0, 3, 4))
        progress.recently_active = random.random() < 0.8
        state = random.choice((*ProgressState, ProgressState.REPLICATE, ProgressState.REPLICATE))
        if state is ProgressState.REPLICATE:
            progress.become_replicate()
            progress.next = random.choice((4, 5, raft.log.last_index + 1))
            for _ in range(random.choice((0, 0, 0, 1, 2))):
                progress.inflights.add(3, 1)
        elif state is ProgressState.SNAPSHOT:
            progress.become_snapshot(3)
        else:
            progress.become_probe()
        progress.flow_paused = random.random() < 0.1
    raft.messages = []
    return raft


def described(raft: Raft) -> object:
    followers = [raft.tracker.progress[each] for each in FOLLOWERS]
    return raft.messages, [
        (each.state, each.next, each.sent_commit, each.flow_paused, each.inflights.bytes_in_flight)
        for each in followers
    ]


def test_who_is_equally_far_gets_the_same_as_if_it_were_alone() -> None:
    shared = 0
    for seed in range(500):
        together = leader(Random(seed))
        apart = copy.deepcopy(together)
        broadcast_append(together)
        for follower in FOLLOWERS:
            send_append(apart, follower, apart.tracker.progress[follower])
        assert described(together) == described(apart), seed
        lists = [message.entries for message in together.messages if message.entries]
        shared += len(lists) - len({id(each) for each in lists})
    assert shared > 100
