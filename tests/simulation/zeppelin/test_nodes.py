"""Whole nodes in virtual time, where one thing happens to them."""

import pytest

from tests.kits.zeppelin.simulation.mutants import LINK_LOST
from tests.kits.zeppelin.simulation.reading import run_reading
from tests.kits.zeppelin.simulation.steps import ONE_ACK, run_failures
from tests.kits.zeppelin.simulation.world import run_cut_off


def test_a_slave_follows_its_master_also_where_it_does_not_reach_the_meta_server() -> None:
    run_cut_off(1)


def test_what_one_replica_has_acked_is_handed_over_though_the_target_is_not_reached() -> None:
    assert run_failures([LINK_LOST] * 2, config=ONE_ACK, is_calm=True).result == 2


@pytest.mark.parametrize("seed", range(3))
def test_what_was_read_is_never_undone_and_reads_are_linearizable(seed: int) -> None:
    counts = run_reading(seed).result
    assert min(counts.values()) > 0, counts
