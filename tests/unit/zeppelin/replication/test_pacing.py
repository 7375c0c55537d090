"""Answers wait for the best slave where it falls behind, and for no other."""

from itertools import pairwise
from typing import Any

import pytest

from raftwood.zeppelin.model import Gap, NodeId, PartitionId, TableConfig
from raftwood.zeppelin.replication import master as master_module
from raftwood.zeppelin.replication.master import (
    HELD_MS_MAX,
    SLOWED_CLOSE,
    SLOWED_KEPT_MS,
    SLOWED_S,
    SLOWED_TO_LEAST,
    SLOWED_TO_MOST,
    STALLED_MS,
    AckPace,
    MasterReplication,
)
from raftwood.zeppelin.replication.sender import Feed, Rate
from tests.kits.models import Mutant, Violation, replaced
from tests.kits.zeppelin.far_links import FAR, RECORD_BYTES, FarMaster
from tests.kits.zeppelin.stores import Place, run_simulated

A, B = NodeId("a"), NodeId("b")
LAG_MAX = 100_000
RECORD = 100
STEP_MS = 10


class Master:
    """Clients in a closed loop write as fast as they are answered; slaves take so much a step."""

    def __init__(self, *rates: int, behind: int = 0) -> None:
        self.pace = AckPace(lag_max_bytes=LAG_MAX)
        self.last = behind
        self.told = behind
        self.now_ms = 0
        self.rates = dict(zip((A, B), rates, strict=False))
        self.feeds = {node: Feed(PartitionId(1, 0), session=1, first=1) for node in self.rates}

    def step(self, writes: int = 50, outstanding: int = 200) -> int:
        """How much was written."""
        self.now_ms += STEP_MS
        wrote = min(writes, max(0, self.told + outstanding - self.last))
        self.last += wrote
        for node, feed in self.feeds.items():
            unsent = self.last + 1 - feed.next
            if unsent:
                feed.sent(count=unsent, size=unsent * RECORD, now_ms=self.now_ms)
            has = min(self.last, feed.has + self.rates[node])
            feed.acked(has, arrived=has, now_ms=self.now_ms)
        self.told = self.tell()
        return wrote

    def tell(self) -> int:
        return self.pace.allowed(self.last, self.feeds, last=self.last, now_ms=self.now_ms)

    def lag_bytes(self, node: NodeId) -> int:
        return (self.last - self.feeds[node].has) * RECORD


def test_a_slave_that_keeps_up_holds_nothing_back() -> None:
    master = Master(60)
    for _ in range(1_000):
        assert master.step() == 50
        assert not master.pace.is_holding


def test_a_master_goes_on_at_the_pace_of_a_slower_slave() -> None:
    master = Master(20)
    steps = [master.step() for _ in range(3_000)]
    assert master.lag_bytes(A) <= LAG_MAX
    assert max(master.lag_bytes(A) for _ in [master.step() for _ in range(500)]) <= LAG_MAX
    assert 19 <= sum(steps[-1_000:]) / 1_000 <= 21, "no slower than the slave itself"


def test_the_best_slave_counts() -> None:
    master = Master(10, 60)
    for _ in range(1_000):
        assert master.step() == 50


def test_a_slave_that_catches_up_holds_nothing_back() -> None:
    master = Master(100, behind=20_000)
    for _ in range(100):
        assert master.step() == 50
    assert master.lag_bytes(A) > LAG_MAX


def test_a_slave_that_stands_still_is_not_waited_for() -> None:
    master = Master(20)
    for _ in range(1_000):
        master.step()
    assert master.pace.is_holding
    master.rates[A] = 0
    for _ in range(STALLED_MS // STEP_MS + 1):
        master.step()
    for _ in range(100):
        assert master.step() == 50


def test_no_answer_waits_for_long() -> None:
    master = Master(20)
    for _ in range(1_000):
        master.step()
    master.rates[A] = 1
    told, since_ms = master.told, master.now_ms
    while master.told < told + 200:
        master.step()
    assert master.now_ms - since_ms <= HELD_MS_MAX + 10 * STEP_MS


def test_a_slave_that_is_gone_is_not_waited_for() -> None:
    master = Master(20)
    for _ in range(1_000):
        master.step()
    master.feeds.clear()
    assert master.step() > 0
    assert master.told == master.last


def test_a_master_that_is_very_fast_is_not_far_ahead_when_it_is_first_held() -> None:
    """The bound of the lag does not depend on how often slaves are looked at."""
    master = Master(20)
    for _ in range(100):
        master.step(writes=2_000)
        assert master.lag_bytes(A) <= LAG_MAX


class SlowedMaster(Master):
    """One that moves to `a`, in a table whose other slaves do not matter."""

    def __init__(self, *rates: int, behind: int = 0, is_of_slaves: bool = False) -> None:
        super().__init__(*rates, behind=behind)
        self.pace = AckPace(lag_max_bytes=LAG_MAX, is_of_slaves=is_of_slaves)
        self.target: NodeId | None = A

    def tell(self) -> int:
        return self.pace.allowed(
            self.last, self.feeds, last=self.last, now_ms=self.now_ms, target=self.target
        )


@pytest.mark.parametrize("is_of_slaves", [True, False])
def test_a_target_that_is_slower_catches_up_once_its_master_is_slowed_down(
    *, is_of_slaves: bool
) -> None:
    master = SlowedMaster(20, 100, behind=20_000, is_of_slaves=is_of_slaves)
    written, lags = 0, []
    while not master.feeds[A].gap(master.last).is_within(SLOWED_CLOSE):
        written += master.step()
        lags.append(master.lag_bytes(A))
        assert len(lags) < 3_000, "half of the target's pace closes the gap in twice the time"
    assert all(later <= earlier for earlier, later in pairwise(lags[100:]))
    assert written >= 8 * len(lags), "clients go on meanwhile, at half the target's pace"


def test_a_target_that_nobody_waits_for_does_not_catch_up() -> None:
    master = SlowedMaster(20, 100, behind=20_000)
    master.target = None
    before = master.lag_bytes(A)
    for _ in range(1_000):
        assert master.step() == 50
    assert master.lag_bytes(A) > before


def test_a_target_that_is_close_or_stands_still_holds_nobody_back() -> None:
    master = SlowedMaster(60)
    for _ in range(1_000):
        assert master.step() == 50
    master = SlowedMaster(20, behind=20_000)
    for _ in range(100):
        master.step()
    assert master.pace.is_holding
    master.rates[A] = 0
    for _ in range(STALLED_MS // STEP_MS + 1):
        master.step()
    for _ in range(100):
        assert master.step() == 50


def test_no_answer_waits_for_long_while_a_target_catches_up() -> None:
    master = SlowedMaster(1, behind=20_000)
    for _ in range(100):
        master.step()
    told, since_ms = master.told, master.now_ms
    while master.told < told + 200:
        master.step()
    assert master.now_ms - since_ms <= HELD_MS_MAX + 10 * STEP_MS


def test_a_master_that_is_slowed_down_no_more_answers_all() -> None:
    master = SlowedMaster(20, 60, behind=20_000)
    for _ in range(100):
        master.step()
    assert master.told < master.last
    master.target = None
    assert master.tell() == master.last
    assert not master.pace.is_holding


def test_what_clients_did_not_write_is_not_made_up_for_later() -> None:
    master = SlowedMaster(20, behind=20_000)
    for _ in range(200):
        assert master.step(writes=2) == 2
    before = master.last
    for _ in range(100):
        master.step(writes=1_000, outstanding=500)
    steps = 100 + 2 * SLOWED_KEPT_MS // STEP_MS
    assert master.last - before <= steps * 20 * SLOWED_TO_MOST + 600


FREEZE = Gap(queued_bytes=1 << 20, drain_ms=500)
"""What the meta server asks for, by its settings as they are."""


def check_far_move(
    round_trip_ms: int,
    bytes_per_s: int,
    *,
    clients: int,
    backlog_s: float = 5,
    lump_ms: int = 50,
) -> None:
    """A target behind a link that is slower than its master's clients comes close while they are
    slowed down, wherever it is, and they go on meanwhile and afterwards.
    """
    master = FarMaster(round_trip_ms=round_trip_ms, bytes_per_s=bytes_per_s, lump_ms=lump_ms)
    rate, seen_s = bytes_per_s / RECORD_BYTES, 8
    master.last = master.told = int((seen_s + backlog_s) * rate)
    master.run(seen_s)
    master.clients = clients
    if master.gap.is_within(FREEZE):
        raise Violation("a target is close that is not", master.gap)
    master.target, master.longest_ms, needed_s = FAR, 0, master.drain_ms / 1_000
    steps = answered = 0
    while not master.gap.is_within(FREEZE):
        # Meanwhile an epoch may begin.
        master.is_beginning = steps % 70 == 30
        answered += master.run(0.1)
        master.is_beginning = False
        steps += 1
        if steps > 10 * max(1.4 * needed_s, SLOWED_S) + 50:
            raise Violation("the target does not come close", master.gap)
    if master.drain_ms > FREEZE.drain_ms + round_trip_ms:
        raise Violation("the target is not close", master.gap, master.drain_ms)
    if answered < min(steps / 10 * rate * SLOWED_TO_LEAST / 2, steps * clients):
        raise Violation("clients do not go on", answered, steps)
    if master.longest_ms > HELD_MS_MAX + 200:
        raise Violation("an answer waits for long", master.longest_ms)
    # Until the meta server has heard of it, which may be with any heartbeat.
    after, close = 0, 0
    for _ in range(100):
        after += master.run(0.1)
        close += master.gap.is_within(FREEZE)
    if close < 25:
        raise Violation("the target does not stay close", close)
    if after < 10 * rate * SLOWED_TO_LEAST:
        raise Violation("clients are held back for a target that is close", after)


@pytest.mark.parametrize(
    ("round_trip_ms", "bytes_per_s"),
    [
        (1, 20 << 20),
        (120, 5 << 20),
        (240, 2 << 20),
        (300, 10 << 20),
        (300, 850_000),
        (300, 250_000),
    ],
)
@pytest.mark.parametrize("clients", [20, 100])
def test_a_target_that_is_far_comes_close(
    round_trip_ms: int, bytes_per_s: int, clients: int
) -> None:
    # More clients than are answered within the bound of a hold cannot be slowed down to it.
    check_far_move(round_trip_ms, bytes_per_s, clients=min(clients, bytes_per_s // 12_000))


def test_a_far_target_that_keeps_up_is_close_though_much_is_under_way() -> None:
    master = FarMaster(round_trip_ms=300, bytes_per_s=20 << 20, clients=10)
    master.run(10)
    for _ in range(500):
        master.step()
        assert master.feed.lag_bytes(master.last) > 2 << 20
        assert master.gap.is_within(FREEZE)


def test_a_single_client_goes_on_though_acks_come_in_lumps() -> None:
    check_far_move(300, 850_000, clients=1, lump_ms=300)


def test_so_many_are_answered_that_a_large_backlog_is_caught_up_with_in_time() -> None:
    """Within the minute that the meta server allows."""
    check_far_move(300, 1 << 20, clients=20, backlog_s=45)


def by_bytes(gap: Gap, most: Gap) -> bool:
    return gap.queued_bytes <= most.queued_bytes


def from_nothing(self: AckPace, done: int, *args: Any, **more: Any) -> int:
    """As if what is done when an epoch begins were all that ever was."""
    if not done and self._slowed is not None:
        self._slowed.end = 0
    return ALLOWED(self, done, *args, **more)


ALLOWED = AckPace.allowed
MUTANTS = {
    "close is by bytes alone": Mutant(
        lambda _: check_far_move(300, 100_000, clients=8),
        replaced(Gap, is_within=by_bytes),
        harm="is not",
    ),
    "what the link holds has to be gone": Mutant(
        lambda _: check_far_move(300, 10 << 20, clients=100),
        replaced(Rate, in_flight_bytes=0),
        harm="held back",
    ),
    "an epoch begins with nothing answered": Mutant(
        lambda _: check_far_move(300, 850_000, clients=20),
        replaced(AckPace, allowed=from_nothing),
        harm="do not go on|held back",
    ),
    "a lump counts for its moment": Mutant(
        lambda _: check_far_move(300, 850_000, clients=1, lump_ms=300),
        replaced(master_module, SLOWED_KEPT_MS=0),
        harm="do not go on|held back",
    ),
    "half is answered, however much there is": Mutant(
        lambda _: check_far_move(300, 1 << 20, clients=20, backlog_s=45),
        replaced(master_module, SLOWED_TO_LEAST=SLOWED_TO_MOST),
        harm="does not come close",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    MUTANTS[name].catch(seeds_max=1)


def test_a_master_that_waits_for_nobody_any_more_answers_at_once_again() -> None:
    async def scenario(place: Place) -> None:
        node, store = await place.open_one()
        config = TableConfig(partitions=1, replicas=1, ack="memory")
        leading = MasterReplication(
            PartitionId(1, 0), store, config, sender_of=lambda _: None, may_tell=lambda: True
        )
        leading.begin(store.epoch + 1, ())
        leading.tell()
        seen = [leading.acks.is_immediate]
        leading.begin(store.epoch + 1, (NodeId("n2"),), slowed_for=NodeId("n2"))
        leading.tell()
        seen.append(leading.acks.is_immediate)
        leading.begin(store.epoch + 1, ())
        leading.tell()
        seen.append(leading.acks.is_immediate)
        assert seen == [True, False, True]
        leading.end()
        await store.settle()
        await node.close()

    run_simulated(scenario)
