"""A leader whose disk is far slower than the others' hands over, and no other one does."""

import asyncio
from collections import Counter

import msgspec
import pytest
from tests.kits.raft.host_cluster import GROUP, Cluster, run_cluster

from raftwood.disk.segment_log import SyncTime
from raftwood.raft.leadership import HOLD_ELECTIONS, REST_ELECTIONS, SlowLeader
from raftwood.raft.sessions import command_name
from raftwood.raft.transport import SYNC_MS_MAX, Introduction, decode_ping, encode_ping
from raftwood.testing import DiskProfile

ELECTION = 10
HOLD = int(HOLD_ELECTIONS * ELECTION)
REST = REST_ELECTIONS * ELECTION
SLOW = 1500
QUICK: dict[int, int | None] = {2: 5, 3: 8}


def rule() -> SlowLeader:
    return SlowLeader(election_ticks=ELECTION, slow_ms=500)


def ticks_until(leader: SlowLeader, own: int, others: dict[int, int | None], *, now: int) -> int:
    """How many ticks it leads on; raises where it does for ever."""
    for tick in range(now, now + 10_000):
        if leader.tick(tick, own, others):
            return tick - now + 1
    raise AssertionError("it leads on")


def test_a_slow_leader_names_the_fast_ones_once_it_was_slow_for_long() -> None:
    leader = rule()
    for now in range(HOLD - 1):
        assert leader.tick(now, SLOW, QUICK) == ()
    assert leader.tick(HOLD, SLOW, QUICK) == (2, 3)


@pytest.mark.parametrize(
    ("own", "others"),
    [
        (499, {2: 1, 3: 1}),
        (1500, {2: 400, 3: 1}),
        (1500, {2: None, 3: 1}),
        (1500, {2: None, 3: None}),
        (1500, {2: 1}),
        (1500, {2: 1, 3: 1, 4: 1500, 5: 1500}),
        (1500, {}),
        (None, {2: 1, 3: 1}),
    ],
    ids=[
        "not slow by itself",
        "no quorum is four times faster",
        "one says nothing, as release 0.1.0",
        "none says anything",
        "of two stores both are needed",
        "three of five are slow",
        "alone",
        "not known",
    ],
)
def test_a_leader_stays(own: int | None, others: dict[int, int | None]) -> None:
    leader = rule()
    assert not any(leader.tick(now, own, others) for now in range(1_000))


def test_a_limit_of_zero_turns_it_off() -> None:
    leader = SlowLeader(election_ticks=ELECTION, slow_ms=0)
    assert not any(leader.tick(now, SLOW, QUICK) for now in range(1_000))


def test_a_stall_is_no_slow_disk() -> None:
    leader = rule()
    for now in range(1_000):
        own = SLOW if now % HOLD else 5
        assert leader.tick(now, own, QUICK) == ()


def test_a_group_rests_for_longer_after_each_change_and_for_less_when_it_was_calm() -> None:
    leader = rule()
    now, rests = 0, []
    for _ in range(6):
        leader.leader_changed(now)
        rests.append(ticks_until(leader, SLOW, QUICK, now=now))
        now += rests[-1]
    assert rests == sorted(rests)
    assert rests[-1] == 32 * ELECTION + 1
    now += 10_000
    leader.leader_changed(now)
    assert ticks_until(leader, SLOW, QUICK, now=now) == REST + 1


def test_a_hand_over_that_fails_is_not_tried_again_at_once() -> None:
    leader = rule()
    leader.leader_changed(0)
    now = ticks_until(leader, SLOW, QUICK, now=0)
    leader.tried(now)
    assert ticks_until(leader, SLOW, QUICK, now=now) > REST
    # The change of leader that it leads to is no second one.
    leader.leader_changed(now + 5)
    assert ticks_until(leader, SLOW, QUICK, now=now) <= 2 * REST + 1


def test_a_sync_that_has_not_ended_counts_for_as_long_as_it_takes() -> None:
    sync_time = SyncTime()
    assert sync_time.estimate_ms(0.0) is None
    sync_time.began(1.0)
    sync_time.began(1.5)
    assert sync_time.estimate_ms(3.0) == 2_000
    sync_time.ended(3.0)
    # The second one waited for the first, and began when that had ended.
    sync_time.ended(3.1)
    assert sync_time.estimate_ms(3.1) == 1_050
    assert sync_time.estimate_ms(13.1) == 525
    assert sync_time.estimate_ms(1e6) == 0
    assert not sync_time.is_under_way
    assert sync_time.count == 2


class IntroductionOf010(msgspec.Struct, frozen=True, array_like=True):
    incarnation: str
    epoch: int
    address: str


def test_stores_of_before_are_told_nothing_new_and_are_understood() -> None:
    old = msgspec.msgpack.encode(IntroductionOf010("folder", 7, "a:1"))
    assert not msgspec.msgpack.decode(old, type=Introduction).knows_sync_times
    new = msgspec.msgpack.encode(Introduction("folder", 7, "a:1", knows_sync_times=True))
    assert msgspec.msgpack.decode(new, type=IntroductionOf010).address == "a:1"
    assert encode_ping(None) == b""
    assert decode_ping(b"") is None
    assert decode_ping(encode_ping(1_500)) == 1_500
    assert decode_ping(encode_ping(SYNC_MS_MAX + 1)) == SYNC_MS_MAX


def test_only_stores_that_know_of_sync_times_are_told() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader()
        peers = cluster.hosts[1]._peers
        await cluster.until(lambda: None not in (peers.sync_ms(2), peers.sync_ms(3)))
        known = cluster.hosts[2]._peers.get(1)
        assert known is not None
        known.knows_sync_times = False
        await cluster.until(lambda: peers.sync_ms(2) is None)
        assert peers.sync_ms(3) is not None

    run_cluster(scenario)


@pytest.mark.parametrize("seed", range(2))
def test_a_session_command_that_is_sent_again_comes_into_the_log_once(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        leader = await cluster.wait_for_leader()
        async with cluster.client() as client:
            await client.propose(GROUP, b"before", timeout_ms=10_000)
            for machine in cluster.machines.values():
                machine.disk.profile = DiskProfile(sync_s=(2.5, 2.5))
            await asyncio.gather(
                *(client.propose(GROUP, b"%d" % each, timeout_ms=60_000) for each in range(5))
            )
        leader = await cluster.wait_for_leader()
        entries, _ = await cluster.hosts[leader].read_log(GROUP, 1)
        names = Counter(command_name(bytes(each.payload)) for each in entries)
        assert [count for name, count in names.items() if name] == [1] * 6

    run_cluster(scenario, seed=seed)
