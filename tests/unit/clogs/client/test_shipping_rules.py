"""Rules of shipping, one by one; `tests/simulation/clogs_shipping_model` has them all at once."""

import pytest

from raftwood.base.backoff import Backoff
from raftwood.base.compression import Codec
from raftwood.base.errors import InvariantViolated
from raftwood.clogs.client import shipping_rules
from raftwood.clogs.client.shipping_rules import (
    Action,
    LoadBatch,
    LocateFile,
    QueuedBatch,
    ShipBatch,
    ShippingLimits,
    ShippingRules,
)
from raftwood.clogs.frames import LineBatch
from raftwood.delivery.pump import NEVER

LIMITS = ShippingLimits(in_flight_max=1, retry=Backoff(first_ms=1_000, longest_ms=8_000))


def entry_of(name: str, sequence: int = 1, *, is_resumed: bool = False) -> QueuedBatch:
    batch = LineBatch(
        name=name,
        producer=bytes(16),
        sequence=sequence,
        count=1,
        raw_bytes=0,
        codec=Codec.NONE,
        body=b"",
        is_resumed=is_resumed,
    )
    return QueuedBatch(batch, lambda _: None)


class Ring:
    """One server for all files, unless a test says otherwise."""

    def __init__(self, limits: ShippingLimits = LIMITS) -> None:
        self.servers = {"": "one"}
        self.rules = ShippingRules(limits, lambda name: self.servers.get(name, self.servers[""]))

    def only(self, now: float = 0.0) -> Action:
        (action,) = self.rules.actions(now)
        return action

    def sent(self, entry: QueuedBatch, now: float = 0.0) -> ShipBatch:
        """The entry, on its way to its file's place."""
        self.rules.add(entry)
        action = self.only(now)
        if isinstance(action, LocateFile):
            self.rules.located(action.lane, action.attempt, "place")
            action = self.only(now)
        assert isinstance(action, ShipBatch)
        return action


def test_a_place_is_asked_once_and_kept_until_it_takes_no_more() -> None:
    ring = Ring()
    first = ring.sent(entry_of("a", 1))
    assert ring.rules.acked(first.lane, first.entry, "place")
    ring.rules.add(entry_of("a", 2))
    second = ring.only()
    assert isinstance(second, ShipBatch)
    assert second.place == "place"
    ring.rules.moved(second.lane, second.entry, second.attempt, now=0.0)
    assert not ring.rules.actions(0.0)
    assert isinstance(ring.only(ring.rules.due), LocateFile)


def test_a_batch_in_doubt_is_sent_to_the_same_place_by_another_server() -> None:
    ring = Ring()
    first = ring.sent(entry_of("a"))
    ring.servers[""] = "two"
    ring.rules.servers_changed(["two"])
    again = ring.only()
    assert isinstance(again, ShipBatch)
    assert (again.server, again.place, again.is_repeat) == ("two", "place", True)
    # What the first server says now is too late, unless it says that the batch is stored.
    ring.rules.moved(first.lane, first.entry, first.attempt, now=0.0)
    ring.rules.failed(first.lane, first.entry, first.attempt, now=0.0)
    assert ring.rules.in_flight == 1
    assert ring.rules.acked(first.lane, first.entry, "place")
    assert not ring.rules.acked(again.lane, again.entry, "place")
    assert ring.rules.in_flight == 0


def test_a_resumed_batch_names_no_place() -> None:
    ring = Ring()
    ring.rules.add(entry_of("a", is_resumed=True))
    action = ring.only()
    assert isinstance(action, ShipBatch)
    assert action.place == ""


def test_waits_grow_and_have_a_bound() -> None:
    ring = Ring()
    action: Action = ring.sent(entry_of("a"))
    now, waits = 0.0, []
    for _ in range(6):
        assert isinstance(action, ShipBatch)
        ring.rules.failed(action.lane, action.entry, action.attempt, now=now)
        assert not ring.rules.actions(now)
        waits.append(ring.rules.due - now)
        now = ring.rules.due
        action = ring.only(now)
    assert waits[1:4] == [2 * wait for wait in waits[:3]]
    assert waits[4] == waits[5] <= LIMITS.retry.longest_ms / 1000


def test_a_lane_that_is_held_goes_on_though_the_one_before_it_was_dropped() -> None:
    ring = Ring()
    under_way = ring.sent(entry_of("a"))
    before, behind = entry_of("b"), entry_of("c")
    ring.rules.add(before)
    ring.rules.add(behind)
    assert not ring.rules.actions(0.0)
    ring.rules.dropped(before)
    ring.rules.acked(under_way.lane, under_way.entry, "place")
    assert ring.only().lane.name == "c"


def test_a_lane_that_is_held_goes_on_though_the_one_before_it_was_acked_late() -> None:
    ring = Ring()
    late = ring.sent(entry_of("a"))
    ring.rules.failed(late.lane, late.entry, late.attempt, now=0.0)
    under_way = ring.sent(entry_of("b"))
    now = ring.rules.due
    ring.rules.add(entry_of("c"))
    assert not ring.rules.actions(now)  # now the first one is held as well
    ring.rules.acked(late.lane, late.entry, "place")
    ring.rules.acked(under_way.lane, under_way.entry, "place")
    assert ring.only(now).lane.name == "c"
    assert ring.rules.due == NEVER


def test_a_batch_that_was_sent_is_not_dropped_but_one_that_could_not_be_is() -> None:
    ring = Ring()
    action = ring.sent(entry_of("a"))
    with pytest.raises(InvariantViolated):
        ring.rules.dropped(action.entry)
    ring.rules.not_sent(action, now=0.0)
    ring.rules.dropped(action.entry)
    assert ring.rules.is_idle("a")
    assert not ring.rules.entries()


def test_a_file_is_idle_when_all_that_waits_was_dropped_though_its_place_is_asked_for() -> None:
    ring = Ring()
    entry = entry_of("a")
    ring.rules.add(entry)
    asked = ring.only()
    ring.rules.dropped(entry)
    assert ring.rules.is_idle("a")
    ring.rules.located(asked.lane, asked.attempt, "place")
    assert not ring.rules.actions(0.0)
    assert ring.rules.in_flight == 0


def test_a_batch_that_is_read_back_and_dropped_meanwhile_is_not_refused() -> None:
    ring = Ring()
    entry = entry_of("a")
    entry.batch = None
    ring.rules.add(entry)
    action = ring.only()
    assert isinstance(action, LoadBatch)
    ring.rules.dropped(entry)
    assert not ring.rules.refused(action.lane, entry, action.attempt)
    assert ring.rules.in_flight == 0


def test_a_lane_that_was_forgotten_does_not_take_its_successor_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shipping_rules, "LANES_MAX", 0)
    ring = Ring()
    under_way = ring.sent(entry_of("a"))
    dropped, successor = entry_of("b", 1), entry_of("b", 2)
    ring.rules.add(dropped)
    assert not ring.rules.actions(0.0)
    ring.rules.dropped(dropped)
    ring.rules.add(successor)
    ring.rules.acked(under_way.lane, under_way.entry, "place")
    assert ring.only().lane.name == "b"
    assert ring.rules.entries() == [successor]


def test_nothing_goes_before_a_server_is_known() -> None:
    ring = Ring()
    del ring.servers[""]
    rules = ShippingRules(LIMITS, ring.servers.get)
    rules.add(entry_of("a"))
    assert not rules.actions(0.0)
    assert rules.due == NEVER
    ring.servers["a"] = "one"
    rules.servers_changed(["one"])
    assert len(rules.actions(0.0)) == 1


WIDE = ShippingLimits(in_flight_max=20, file_in_flight_max=4, retry=Backoff(first_ms=1_000))


class Window(Ring):
    """A server that keeps four batches of a file in order, and five of them given."""

    def __init__(self) -> None:
        super().__init__(WIDE)
        self.rules.told("one", 16)
        self.entries = [entry_of("a", sequence) for sequence in range(1, 6)]
        for entry in self.entries:
            self.rules.add(entry)
        asked = self.only()
        self.rules.located(asked.lane, asked.attempt, "place")
        self.lane = asked.lane

    def sends(self, now: float = 0.0) -> list[ShipBatch]:
        actions = self.rules.actions(now)
        assert all(isinstance(each, ShipBatch) for each in actions)
        return [each for each in actions if isinstance(each, ShipBatch)]

    def acked(self, *sends: ShipBatch, place: str = "place") -> list[QueuedBatch]:
        return [entry for each in sends for entry in self.rules.acked(self.lane, each.entry, place)]


def test_as_many_follow_as_the_server_keeps_in_order() -> None:
    ring = Window()
    sends = ring.sends()
    assert [each.follows for each in sends] == [False, True, True, True]
    assert ring.acked(sends[0]) == ring.entries[:1]
    (fifth,) = ring.sends()
    assert fifth.follows
    # Answers come in any order; what is over is told in order.
    assert ring.acked(sends[2], fifth, sends[3]) == []
    assert ring.acked(sends[1]) == ring.entries[1:]
    assert ring.rules.in_flight == 0


@pytest.mark.parametrize("window", [0, 1])
def test_a_server_that_keeps_none_in_order_gets_one_at_a_time(window: int) -> None:
    ring = Window()
    ring.rules.told("one", window)
    (first,) = ring.sends()
    assert not first.follows
    ring.acked(first)
    (second,) = ring.sends()
    assert not second.follows


def test_what_follows_a_failure_waits_for_those_in_front_and_begins_anew() -> None:
    ring = Window()
    sends = ring.sends()
    ring.rules.out_of_order(ring.lane, sends[2].entry, sends[2].attempt, now=0.0)
    ring.rules.failed(ring.lane, sends[1].entry, sends[1].attempt, now=0.0)
    assert not ring.sends(), "the first one is under way"
    assert ring.acked(sends[0]) == ring.entries[:1]
    (second,) = ring.sends()
    assert (second.entry, second.follows, second.is_repeat) == (ring.entries[1], False, True)
    # It failed: how many it keeps in order has to be told again.
    ring.rules.told("one", 16)
    ring.acked(second)
    assert [each.follows for each in ring.sends()] == [False, True, True]


def test_a_place_that_ended_without_a_batch_has_none_behind_it_but_may_have_those_before() -> None:
    ring = Window()
    sends = ring.sends()
    ring.rules.moved(ring.lane, sends[1].entry, sends[1].attempt, now=0.0)
    assert [each.place for each in ring.entries] == ["place", "", "", "", ""]
    ring.acked(sends[0], place="next")
    assert [each.place for each in ring.sends()] == ["next"] * 4


def test_a_batch_in_doubt_goes_to_its_own_place_when_the_file_goes_elsewhere() -> None:
    ring = Window()
    sends = ring.sends()
    ring.servers[""] = "two"
    ring.rules.servers_changed(["two"])
    ring.rules.told("two", 16)
    ring.acked(sends[0], place="next")
    again = ring.sends()
    assert [each.place for each in again] == ["place"] * 3, "the fifth was never sent"
    ring.acked(*again, place="next")
    assert [each.place for each in ring.sends()] == ["next"]


def test_what_somebody_else_keeps_is_given_back_behind_a_refused_batch() -> None:
    ring = Window()
    for entry in ring.entries:
        entry.is_keepable = False
    sends = ring.sends()
    assert ring.rules.refused(ring.lane, sends[1].entry, sends[1].attempt) == ring.entries[1:]
    assert ring.acked(sends[0]) == ring.entries[:1]
    assert ring.rules.is_idle("a")


def test_a_batch_of_another_producer_or_behind_a_gap_does_not_follow() -> None:
    ring = Ring(WIDE)
    ring.rules.told("one", 16)
    ring.rules.add(entry_of("a", 1))
    ring.rules.add(entry_of("a", 3))
    asked = ring.only()
    ring.rules.located(asked.lane, asked.attempt, "place")
    assert isinstance(ring.only(), ShipBatch)
    assert not ring.rules.actions(0.0)
