"""One log has one owner that all agree on, whatever comes in between."""

from tests.kits.dlog.ownership_model import play


def test_contending_processes_end_with_one_owner_that_all_know() -> None:
    assert sum(play(seed).takeovers for seed in range(100)) > 300
