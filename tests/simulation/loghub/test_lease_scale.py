"""Many shards and workers balance in one round, with the fewest moves and few rows.

`python -m tests.kits.loghub.leases.scale` does so with 10,000 shards and 1,000 workers.
"""

from tests.kits.loghub.leases.scale import balance


def test_many_workers_balance_many_shards() -> None:
    balance(shards=600, first=20, workers=60)
