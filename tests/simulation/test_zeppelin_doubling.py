"""Tables that double: nothing that was done is lost, and each key is where it belongs."""

import pytest

from raftwood.zeppelin.model import TableConfig
from tests.kits.zeppelin.simulation.doubling import MUTANTS, run_behind, run_doubling
from tests.kits.zeppelin.simulation.world import FAST, SAFE
from tests.kits.zeppelin.split_images import SplitImages
from tests.kits.zeppelin.violations import Broken, Harm

IMAGES = 150
MUTANT_SEEDS = 20


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "config"), [(1, SAFE), (5, FAST)])
def test_a_table_doubles_twice_whatever_happens(seed: int, config: TableConfig) -> None:
    assert run_doubling(seed, config=config).done


@pytest.mark.slow
def test_a_split_without_a_freeze_is_caught() -> None:
    for seed in range(MUTANT_SEEDS):
        try:
            with MUTANTS["a split without a freeze"]():
                run_doubling(seed, config=SAFE)
        except Broken as broken:
            assert broken.harm is Harm.LOST
            return
    pytest.fail("not caught")


@pytest.mark.slow
def test_a_slave_that_hears_late_of_a_split_keeps_what_is_split_off() -> None:
    run_behind(2)


@pytest.mark.slow
def test_a_trimmed_copy_that_is_taken_for_whole_is_caught() -> None:
    for seed in (3, *range(MUTANT_SEEDS)):
        try:
            with MUTANTS["a trimmed copy is taken for whole"]():
                run_behind(seed)
        except Broken as broken:
            assert broken.harm is Harm.GHOST
            return
    pytest.fail("not caught")


@pytest.mark.slow
def test_a_split_is_there_or_can_be_made_again_in_every_crash_image() -> None:
    assert SplitImages(1).check(limit=IMAGES) > IMAGES // 2
