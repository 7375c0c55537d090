"""Consumer groups of several gateways: one reader for a shard, nothing lost, keys in order."""

from tests.kits.loghub.groups import Weather, run_groups


def test_faults_break_no_promise() -> None:
    reports = [run_groups(seed) for seed in range(2)]
    assert sum(report.put for report in reports) > 1_000
    assert sum(report.consumers for report in reports) > 6


def test_nothing_is_read_twice_where_nobody_crashes() -> None:
    calm = Weather(slow=0.02, join=0.2, leave=0.15, reshard=0.2)
    assert run_groups(200, calm).doubles == 0
