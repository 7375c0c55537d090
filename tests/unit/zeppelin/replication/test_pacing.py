"""Answers wait for the best slave where it falls behind, and for no other."""

from itertools import pairwise

import pytest

from raftwood.zeppelin.model import NodeId, PartitionId
from raftwood.zeppelin.replication.pacing import (
    HELD_MS_MAX,
    SLOWED_CLOSE_BYTES,
    SLOWED_TO,
    STALLED_MS,
    Pace,
)
from raftwood.zeppelin.replication.sender_rules import Feed

A, B = NodeId("a"), NodeId("b")
LAG_MAX = 100_000
RECORD = 100
STEP_MS = 10


class Master:
    """Clients in a closed loop write as fast as they are answered; slaves take so much a step."""

    def __init__(self, *rates: int, behind: int = 0) -> None:
        self.pace = Pace(lag_max_bytes=LAG_MAX)
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
                feed.sent(count=unsent, size=unsent * RECORD)
            feed.acked(min(self.last, feed.has + self.rates[node]))
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
        self.pace = Pace(lag_max_bytes=LAG_MAX, is_of_slaves=is_of_slaves)
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
    while master.lag_bytes(A) > SLOWED_CLOSE_BYTES:
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
    assert master.last - before <= 100 * 20 / SLOWED_TO + 600
