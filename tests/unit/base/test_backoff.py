"""Pauses between attempts: they double, have a bound, and differ from client to client."""

import random

import pytest

from raftwood.base.backoff import Backoff


@pytest.mark.parametrize("jitter", [0.0, 0.5, 1.0])
def test_a_pause_doubles_up_to_the_longest(jitter: float) -> None:
    backoff = Backoff(first_ms=10, longest_ms=100, jitter=jitter)
    source = random.Random(1)
    for failures, longest_s in enumerate([0.01, 0.02, 0.04, 0.08, 0.1, 0.1]):
        pauses = [backoff.delay_s(failures, source) for _ in range(200)]
        assert max(pauses) <= longest_s
        assert min(pauses) >= longest_s * (1 - jitter) - 1e-9
        spread = max(pauses) - min(pauses)
        assert spread >= 0.9 * longest_s * jitter


def test_any_number_of_failures_has_a_bounded_pause() -> None:
    assert Backoff().delay_s(1_000_000, random.Random(1)) <= 5
