"""When a server is isolated, and when it comes back."""

import math

import pytest

from raftwood.clogs.configuration import HaRules, LogServer, RingConfiguration
from raftwood.clogs.health import Action, CheckState, Health, Isolate, Ping, Recover, ServerHealth

GAP = 5.0


def ring(
    *names: str,
    checks: int = 3,
    percent: int = 100,
    first_ms: int = 1_000,
    longest_ms: int = 300_000,
    gap_ms: int = 5_000,
) -> RingConfiguration:
    return RingConfiguration(
        servers=tuple(
            LogServer(host=name, port=100 + number, name=name) for number, name in enumerate(names)
        ),
        ha=HaRules(
            check_gap_ms=gap_ms,
            invalid_checks_max=checks,
            isolated_percent_max=percent,
            isolation_first_ms=first_ms,
            isolation_longest_ms=longest_ms,
        ),
    )


class Driver:
    """Ticks when it is due; those in `answering` answer at once."""

    def __init__(self, configuration: RingConfiguration, *, answering: str = "") -> None:
        self.health = Health(configuration, 0.0)
        self.now = 0.0
        self.answering = set(answering)
        self.actions: list[tuple[float, Action]] = []

    def run(self, until: float) -> list[Action]:
        """What was done but for pings."""
        seen = len(self.actions)
        while self.health.due <= until:
            self.now = max(self.now, self.health.due)
            self._take(self.health.tick(self.now))
        self.now = until
        return [each for _, each in self.actions[seen:] if not isinstance(each, Ping)]

    def _take(self, actions: list[Action]) -> None:
        for action in actions:
            self.actions.append((self.now, action))
            if isinstance(action, Ping) and action.server in self.answering:
                self._take(self.health.pong(action.server, action.ping_id + 1, self.now))

    def pings(self, server: str) -> list[tuple[float, int]]:
        return [
            (at, each.ping_id)
            for at, each in self.actions
            if isinstance(each, Ping) and each.server == server
        ]

    def of(self, server: str) -> ServerHealth:
        return next(each for each in self.health.snapshot() if each.server == server)


def test_a_server_is_pinged_once_a_gap_with_ids_that_go_up_by_two() -> None:
    driver = Driver(ring("a"), answering="a")
    driver.run(20.0)
    assert driver.pings("a") == [(0.0, 2), (5.0, 4), (10.0, 6), (15.0, 8), (20.0, 10)]
    assert driver.of("a").state is CheckState.PONG
    assert driver.of("a").round_trip_s == 0.0


def test_pings_are_spread_over_the_gap() -> None:
    driver = Driver(ring("a", "b", "c", "d"), answering="abcd")
    driver.run(4.9)
    assert [at for at, _ in driver.actions] == [0.0, 1.25, 2.5, 3.75]


def test_a_server_that_never_answers_is_isolated_after_three_checks() -> None:
    driver = Driver(ring("a", "b"), answering="a")
    assert driver.run(17.4) == []
    assert driver.of("b").invalid_checks == 2
    assert driver.run(17.5) == [Isolate("b")]
    assert driver.health.live() == ("a",)
    assert not driver.health.is_panic
    assert driver.of("b").isolated_since == 17.5
    assert driver.of("b").isolated_until == 18.5


def test_checks_that_failed_before_a_valid_pong_are_forgotten() -> None:
    driver = Driver(ring("a", "b"), answering="a")
    for _ in range(5):
        driver.answering = {"a"}
        assert driver.run(driver.now + 2 * GAP) == []
        driver.answering = {"a", "b"}
        assert driver.run(driver.now + GAP) == []
    assert driver.of("b").invalid_checks == 0


def test_an_isolated_server_is_pinged_and_comes_back_with_its_pong() -> None:
    driver = Driver(ring("a", "b"), answering="a")
    driver.run(60.0)
    assert len([at for at, _ in driver.pings("b") if at > 17.5]) == 8
    driver.answering.add("b")
    assert driver.run(65.0) == [Recover("b")]
    assert driver.health.live() == ("a", "b")
    assert driver.of("b").state is CheckState.PONG


def test_a_pong_that_is_read_when_the_next_check_is_due_recovers() -> None:
    health = Health(ring("a", "b", checks=1), 0.0)
    health.tick(0.0)
    health.tick(2.5)
    assert health.tick(5.0) == [Isolate("a"), Ping("a", 4)]
    health.pong("b", 3, 6.0)
    health.tick(7.5)
    health.pong("b", 5, 9.9)
    assert health.pong("a", 5, 10.0) == [Recover("a")]
    assert health.tick(10.0) == [Ping("a", 6)]
    assert health.live() == ("a", "b")


def test_a_pong_before_the_time_is_over_recovers_when_it_is() -> None:
    driver = Driver(ring("a", "b", first_ms=7_000), answering="a")
    assert driver.run(18.0) == [Isolate("b")]
    driver.answering.add("b")
    assert driver.run(24.4) == []
    assert driver.of("b").state is CheckState.PONG
    assert driver.health.due == 24.5
    assert driver.run(24.5) == [Recover("b")]


def test_a_server_that_answered_too_early_and_no_more_stays_isolated() -> None:
    driver = Driver(ring("a", "b", first_ms=16_000), answering="a")
    driver.run(18.0)
    driver.answering.add("b")
    driver.run(23.0)
    driver.answering.remove("b")
    assert driver.run(60.0) == []
    assert driver.of("b").is_isolated


@pytest.mark.parametrize("pong_id", [0, 1, 2, 4, 5, 2**64 - 1])
def test_only_the_id_after_that_of_the_ping_under_way_is_valid(pong_id: int) -> None:
    health = Health(ring("a", checks=2), 0.0)
    health.tick(0.0)
    assert health.pong("a", pong_id, 1.0) == []
    health.tick(5.0)
    # The right answer, but for the ping before.
    assert health.pong("a", 3, 5.5) == []
    assert Isolate("a") in health.tick(10.0)


def test_a_pong_counts_once_and_not_for_another_server() -> None:
    health = Health(ring("a", "b", checks=1), 0.0)
    health.tick(0.0)
    health.tick(2.5)
    assert health.pong("nobody", 3, 2.5) == []
    health.pong("a", 3, 2.5)
    health.tick(5.0)
    assert health.pong("a", 3, 5.0) == []
    assert [each.state for each in health.snapshot()] == [CheckState.PING, CheckState.PING]


def test_a_server_that_was_removed_and_came_back_takes_no_pong_of_its_earlier_time() -> None:
    health = Health(ring("a", "b"), 0.0, first_ping_id=1000)
    assert health.tick(0.0) == [Ping("a", 1002)]
    health.configure(ring("b"), 1.0)
    health.configure(ring("a", "b"), 2.0)
    assert Ping("a", 1004) in health.tick(2.0)
    health.pong("a", 1003, 2.1)
    assert health.snapshot()[0].state is CheckState.PING


def test_all_isolated_is_panic_and_the_full_ring_is_used() -> None:
    driver = Driver(ring("a", "b", "c"))
    done = driver.run(20.0)
    assert sorted(each.server for each in done if isinstance(each, Isolate)) == ["a", "b", "c"]
    assert driver.health.is_panic
    assert driver.health.live() == ("a", "b", "c")
    driver.answering.add("b")
    assert driver.run(26.0) == [Recover("b")]
    assert driver.health.live() == ("b",)
    assert [each.is_isolated for each in driver.health.snapshot()] == [True, False, True]


@pytest.mark.parametrize(
    ("percent", "isolated"), [(0, 1), (10, 1), (25, 1), (50, 2), (74, 2), (75, 3), (100, 4)]
)
def test_no_more_than_a_share_is_isolated_but_always_one(percent: int, isolated: int) -> None:
    driver = Driver(ring("a", "b", "c", "d", percent=percent))
    assert len(driver.run(300.0)) == isolated
    assert driver.health.is_panic is (isolated == 4)


def test_who_stayed_for_the_limit_is_isolated_when_there_is_room() -> None:
    driver = Driver(ring("a", "b", "c", percent=34))
    assert driver.run(40.0) == [Isolate("a")]
    driver.answering.add("a")
    assert driver.run(60.0)[:2] == [Recover("a"), Isolate("b")]


def test_fewer_servers_let_fewer_be_isolated() -> None:
    driver = Driver(ring("a", "b", "c", "d", percent=50), answering="cd")
    driver.run(20.0)
    assert driver.health.live() == ("c", "d")
    assert driver.health.configure(ring("a", "b", "c", percent=50), 20.0) == [Recover("b")]
    assert driver.health.live() == ("b", "c")


def test_each_isolation_takes_twice_as_long_up_to_the_longest() -> None:
    driver = Driver(ring("a", "b", first_ms=10_000, longest_ms=60_000), answering="a")
    times = []
    for _ in range(5):
        driver.answering.discard("b")
        while not driver.of("b").is_isolated:
            driver.run(driver.now + 1)
        since, until = driver.of("b").isolated_since, driver.of("b").isolated_until
        assert since is not None
        assert until is not None
        times.append(until - since)
        driver.answering.add("b")
        while driver.of("b").is_isolated:
            driver.run(driver.now + 1)
        assert driver.now >= until
    assert times == [10, 20, 40, 60, 60]


def test_a_healthy_time_makes_up_for_repeats() -> None:
    configuration = ring("a", "b", first_ms=10_000, longest_ms=60_000)
    driver = Driver(configuration, answering="a")
    for _ in range(3):
        driver.answering.discard("b")
        driver.run(driver.now + 30)
        assert driver.of("b").is_isolated
        driver.answering.add("b")
        driver.run(driver.now + 50)
    assert driver.of("b").repeats == 3
    driver.run(driver.now + 60)
    assert driver.of("b").repeats == 2
    driver.run(driver.now + 600)
    assert driver.of("b").repeats == 0


def test_a_reload_keeps_what_is_known_of_servers() -> None:
    driver = Driver(ring("a", "b", "c"), answering="ac")
    driver.run(20.0)
    before = {each.server: each for each in driver.health.snapshot()}
    assert before["b"].is_isolated
    assert driver.health.configure(ring("d", "c", "b"), 20.0) == []
    assert driver.health.live() == ("d", "c")
    after = {each.server: each for each in driver.health.snapshot()}
    assert after["b"] == before["b"]
    assert after["c"] == before["c"]
    assert after["d"] == ServerHealth(server="d", state=CheckState.PONG, invalid_checks=0)
    driver.answering = {"b", "c", "d"}
    assert driver.run(26.0) == [Recover("b")]
    assert driver.health.live() == ("d", "c", "b")
    assert not [at for at, each in driver.actions if each.server == "a" and at > 20.0]


def test_a_shorter_gap_counts_from_the_reload_on() -> None:
    driver = Driver(ring("a", gap_ms=3_600_000), answering="a")
    driver.run(10.0)
    driver.health.configure(ring("a", gap_ms=1_000), 10.0)
    driver.run(12.0)
    assert [at for at, _ in driver.pings("a")] == [0.0, 10.5, 11.5]


def test_a_pause_of_minutes_isolates_nobody_and_counts_one_check() -> None:
    driver = Driver(ring("a", "b", checks=2), answering="ab")
    driver.run(20.1)
    driver.answering = set()
    driver.run(26.0)
    # Both pings were answered, but the process is stopped before it reads that.
    driver.now = 400.0
    assert driver.run(401.0) == []
    assert [each.invalid_checks for each in driver.health.snapshot()] == [0, 0]
    assert driver.health.pong("b", driver.pings("b")[-1][1] + 1, 401.0) == []
    # The one that still does not answer fails one check, half a gap later.
    driver.run(402.6)
    assert [each.invalid_checks for each in driver.health.snapshot()] == [1, 0]


def test_ticks_that_always_come_late_still_find_the_dead() -> None:
    driver = Driver(ring("a", "b"), answering="a")
    done: list[Action] = []
    for number in range(20):
        driver.now = number * 4 * GAP
        done += driver.run(driver.now)
    assert Isolate("b") in done
    assert Isolate("a") not in done


def test_after_a_pause_not_all_are_pinged_at_once() -> None:
    driver = Driver(ring("a", "b", "c", "d"), answering="abcd")
    driver.run(20.0)
    driver.now = 500.0
    driver.run(520.0)
    later = [at for at, _ in driver.actions if at >= 500.0]
    assert later[:4] == [502.5, 503.75, 505.0, 506.25]


def test_sends_make_the_checks_that_are_due_and_no_others() -> None:
    health = Health(ring("a", "b"), 0.0)
    assert health.sent("a", 0.1) == [Ping("a", 2)]
    assert health.sent("a", 0.2) == []
    assert health.sent("b", 0.2) == []
    assert health.sent("nobody", 0.2) == []
    assert health.sent("b", 2.6) == [Ping("b", 2)]
    assert health.tick(2.6) == []


def test_a_lost_connection_is_one_failed_check_and_isolates_nobody() -> None:
    health = Health(ring("a", checks=1), 0.0)
    health.tick(0.0)
    health.pong("a", 3, 1.0)
    assert health.connection_lost("a", 2.0) == []
    assert health.connection_lost("a", 2.1) == []
    assert health.connection_lost("nobody", 2.1) == []
    assert health.tick(5.0) == [Ping("a", 4)]
    assert health.snapshot()[0].invalid_checks == 1
    assert health.pong("a", 5, 6.0) == []
    assert health.snapshot()[0].invalid_checks == 0


def test_a_lost_connection_shows_the_dead_one_check_sooner() -> None:
    driver = Driver(ring("a", "b"), answering="ab")
    driver.run(8.0)
    driver.answering.remove("b")
    driver.health.connection_lost("b", 8.0)
    assert driver.run(22.4) == []
    assert driver.run(22.5) == [Isolate("b")]


def test_who_lost_its_connection_after_its_pong_does_not_come_back() -> None:
    driver = Driver(ring("a", "b", first_ms=7_000), answering="a")
    driver.run(18.0)
    driver.answering.add("b")
    driver.run(23.0)
    driver.answering.remove("b")
    driver.health.connection_lost("b", 23.1)
    assert driver.run(60.0) == []


def test_what_is_due_stays_small_in_memory() -> None:
    health = Health(ring("a", "b", checks=1, first_ms=3_600_000, longest_ms=3_600_000), 0.0)
    for number in range(10_000):
        now = number * 5.0
        health.tick(now)
        for each in ("a", "b"):
            health.pong(each, health._servers[each].ping_id + 1, now)
            health.connection_lost(each, now)
    assert len(health._wakes) <= 24


def test_a_ring_without_servers_has_nothing_due() -> None:
    health = Health(ring("a"), 0.0)
    health.configure(ring(), 1.0)
    assert health.due == math.inf
    assert health.live() == ()
    assert not health.is_panic
