"""Copies are as fast as clients do not notice, and never too slow to end."""

import random

import pytest

from raftwood.zeppelin.replication.copy_pace import LOOK_MS, CopyLimits, CopyPace

MB = 1 << 20
LIMITS = CopyLimits(latency_ms=10, bytes_per_s_min=2 * MB, bytes_per_s_max=256 * MB)


class Node:
    """Clients wait for longer the closer all the work comes to what the machine can do."""

    def __init__(
        self, *, room: float, quiet_ms: float, pace: CopyPace | None = None, seed: int = 0
    ) -> None:
        self.pace = pace or CopyPace(LIMITS)
        self.room = room
        self.quiet_ms = quiet_ms
        self.random = random.Random(seed)
        for _ in range(50):
            self.pace.looked_without_copies(self._noisy(quiet_ms))

    def _noisy(self, latency_ms: float) -> float:
        return latency_ms * self.random.uniform(0.8, 1.2)

    def step(self) -> float:
        used = min(self.pace.bytes_per_s / self.room, 0.99)
        latency_ms = self._noisy(self.quiet_ms / (1 - used))
        self.pace.looked(latency_ms)
        return latency_ms


@pytest.mark.parametrize("seed", range(10))
def test_copies_use_the_room_that_there_is_and_clients_hardly_notice(seed: int) -> None:
    node = Node(room=100 * MB, quiet_ms=8, seed=seed)
    latencies = [node.step() for _ in range(200)]
    rates = []
    for _ in range(1_000):
        latencies.append(node.step())
        rates.append(node.pace.bytes_per_s)
    assert 25 * MB < sum(rates) / len(rates) < 75 * MB
    assert sum(latencies) / len(latencies) < 2 * 8
    assert sorted(latencies)[len(latencies) * 95 // 100] < 3 * 8


def test_what_clients_may_always_wait_is_no_reason_to_slow_down() -> None:
    pace = CopyPace(LIMITS)
    pace.looked_without_copies(0.1)
    for _ in range(100):
        pace.looked(9.9)
    assert pace.bytes_per_s == LIMITS.bytes_per_s_max
    pace.looked(10.1)
    assert pace.bytes_per_s == LIMITS.bytes_per_s_max / 2


def test_where_clients_wait_for_long_anyhow_copies_come_to_their_end() -> None:
    pace = CopyPace(LIMITS)
    for _ in range(100):
        pace.looked(1_000)
    assert pace.bytes_per_s == LIMITS.bytes_per_s_min


def test_where_there_are_no_clients_copies_are_fast_at_once() -> None:
    pace = CopyPace(LIMITS)
    for _ in range(6):
        pace.looked(None)
    assert pace.bytes_per_s == LIMITS.bytes_per_s_max


def test_what_clients_wait_amid_copies_is_not_taken_for_their_quiet() -> None:
    pace = CopyPace(LIMITS)
    for _ in range(50):
        pace.looked_without_copies(20)
    for _ in range(100):
        pace.looked(100)
    assert pace.quiet_ms == pytest.approx(20, rel=0.01)
    before = pace.bytes_per_s
    pace.looked(39)
    assert pace.bytes_per_s > before
    pace.looked(41)
    assert pace.bytes_per_s < before + LIMITS.bytes_per_s_max / 64


def test_bytes_go_on_at_the_pace_and_time_that_was_not_used_is_gone() -> None:
    pace = CopyPace(LIMITS)
    pace.bytes_per_s = 10.0 * MB
    now_s, sent = 100.0, 0
    while sent < 50 * MB:
        now_s += pace.wait_s(MB // 4, now_s)
        sent += MB // 4
    assert now_s - 100 == pytest.approx(5, rel=0.02)
    now_s += 60
    begun_s = now_s
    for _ in range(8):
        now_s += pace.wait_s(MB // 4, now_s)
    assert now_s - begun_s == pytest.approx(0.2, abs=0.03)
    assert LOOK_MS < 1_000
