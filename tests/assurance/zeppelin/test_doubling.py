"""Tables that double: nothing that was done is lost, and each key is where it belongs."""

import pytest

from raftwood.zeppelin.model import TableConfig
from tests.kits.zeppelin.simulation.doubling import run_behind, run_doubling
from tests.kits.zeppelin.simulation.world import FAST, SAFE


@pytest.mark.parametrize(("seed", "config"), [(1, SAFE), (5, FAST)])
def test_a_table_doubles_twice_whatever_happens(seed: int, config: TableConfig) -> None:
    assert run_doubling(seed, config=config).done


def test_a_slave_that_hears_late_of_a_split_keeps_what_is_split_off() -> None:
    run_behind(2)
