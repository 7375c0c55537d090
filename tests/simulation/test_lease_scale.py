"""Many shards and workers balance in one round, with the fewest moves and few rows.

As a program it does so with 10,000 shards and 1,000 workers, which takes minutes and 1.5 GB.
"""

import pytest

from tests.kits.loghub.leases.scale import TIMES, ManyWorkers

T = TIMES.timeout_ms


@pytest.mark.parametrize(
    ("shards", "first", "workers"),
    [(600, 20, 60), pytest.param(3_000, 150, 200, marks=pytest.mark.slow)],
)
def test_many_workers_balance_many_shards(shards: int, first: int, workers: int) -> None:
    world = ManyWorkers(shards=shards)
    world.join(first)
    world.run_for(T)
    least, most = world.sizes()
    assert most - least <= 1
    assert world.starts == shards
    world.join(workers - first)
    world.run_for(T)
    least, most = world.sizes()
    assert most - least <= 1
    # Sticky quotas: what the new ones have is all that moved.
    joined = {agent.me.process for agent in world.agents[first:]}
    moved = sum(lease.lease_process in joined for lease in world.store.leases.values())
    assert world.starts == shards + moved
    world.tally.calls.clear()
    world.tally.rows.clear()
    world.run_for(T)
    calls, rows = world.tally.calls, world.tally.rows
    assert calls["AskTake"] == 0
    # At rest a scan by change shows workers, and no leases.
    assert rows["AskScan"] <= shards * workers * T // TIMES.scan_ms // 15
    print(f"{shards} shards, {workers} workers, {moved} moved; in one T: {calls} {rows}")


if __name__ == "__main__":
    test_many_workers_balance_many_shards(10_000, 900, 1_000)
