"""Answers wait for the best slave where it falls behind, and for no other."""

from raftwood.zeppelin.model import NodeId, PartitionId
from raftwood.zeppelin.replication.pacing import HELD_MS_MAX, STALLED_MS, Pace
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
        self.told = self.pace.allowed(self.last, self.feeds, last=self.last, now_ms=self.now_ms)
        return wrote

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
