"""Rules of servers' health and of shipping under seeded failures; planted bugs are found."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.kits.clogs.health_model import run as run_health
from tests.kits.clogs.health_model.mutants import MUTANTS as OF_HEALTH
from tests.kits.clogs.shipping_model import run as run_shipping
from tests.kits.clogs.shipping_model.mutants import MUTANTS as OF_SHIPPING


@pytest.mark.parametrize("run", [run_health, run_shipping], ids=["health", "shipping"])
def test_two_hundred_thousand_events_break_no_promise(run: Callable[[int, int], Any]) -> None:
    assert sum(run(seed, 20_000).events for seed in range(1_000, 1_010)) >= 200_000


@pytest.mark.parametrize("name", OF_HEALTH)
def test_a_planted_bug_of_health_is_caught(name: str) -> None:
    OF_HEALTH[name].catch()


@pytest.mark.parametrize("name", OF_SHIPPING)
def test_a_planted_bug_of_shipping_is_caught(name: str) -> None:
    OF_SHIPPING[name].catch()
