"""A producer stores every record once and in order per key, through splits, merges and losses."""

from tests.kits.loghub.producer_model import run


def test_every_record_is_stored_once_and_in_order_per_key() -> None:
    for seed in range(30):
        world = run(seed, linger_s=0.05 * (seed % 2))
        assert {record.outcome for record in world.given} == {"stored"}
        assert sum(len(log.records) for log in world.logs.values()) == len(world.given)


def test_a_record_whose_time_is_over_is_told_so_truthfully() -> None:
    outcomes = set()
    for seed in range(30):
        outcomes |= {record.outcome for record in run(seed, deadlines=True).given}
    assert outcomes == {"stored", "not stored", "unknown"}
