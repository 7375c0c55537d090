"""Log stores set a cluster up together, whatever the order of their starts."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from raftwood.app.groups import METASTORE_SHARD, ZEPPELIN_SHARD
from raftwood.logservice.hakeeper.alarm import AlarmKind
from raftwood.logservice.hakeeper.state import Phase
from raftwood.logservice.hakeeper.views import ClusterView
from tests.kits.logservice.processes import log_stores, shard_of
from tests.kits.running import run


@pytest.mark.parametrize(
    ("first", "waves"),
    [
        (3, [[3], [1], [2]]),
        (4, [[1], [2, 4]]),
        (5, [[5, 4, 3, 2, 1]]),
        pytest.param(4, [[4, 2], [1, 3]], marks=pytest.mark.slow),
        pytest.param(5, [[3, 5], [1, 4]], marks=pytest.mark.slow),
    ],
    ids=["3", "4-but-one", "5", "4", "5-but-one"],
)
def test_stores_set_themselves_up_in_any_order(
    tmp_path: Path, first: int, waves: Sequence[Sequence[int]]
) -> None:
    async def body() -> None:
        async with log_stores(tmp_path, first=first, settings={"hakeeper.log_shards": 2}) as stores:
            for wave in waves:
                stores.launch(*wave)
                await asyncio.sleep(0.3)
            for wave in waves:
                for store in wave:
                    await stores.nodes[store].ready()
            view = await stores.runs()
            assert len(shard_of(view, 0).voters) == 3
            assert set(shard_of(view, 0).voters) <= {store for wave in waves for store in wave}
            for shard in (1, 2):
                assert len(shard_of(view, shard).voters) == 3
                client = await stores.client(shard)
                lsn = await client.append(b"the first")
                records, _ = await client.read(lsn)
                assert [record.payload for record in records] == [b"the first"]

    run(body())


def test_a_bootstrap_that_failed_is_reported_and_recovers(tmp_path: Path) -> None:
    """A lone store says so in its log; two can tell what is missing; three run."""
    settings = {"hakeeper.bootstrap_ticks": 5, "hakeeper.bootstrap_grace_ticks": 1000}

    def has_failed(view: ClusterView) -> bool:
        return view.phase is Phase.BOOTSTRAP_FAILED

    async def body() -> None:
        async with log_stores(tmp_path, settings=settings) as stores:
            await stores.start(2)
            await stores.nodes[2].says("HAKeeper does not answer")
            await stores.start(3)
            view = await stores.seen("a failed bootstrap", has_failed)
            assert "stores [1] have never reported" in view.reason
            homeless = [1, METASTORE_SHARD, ZEPPELIN_SHARD]
            assert f"too few stores for shards {homeless}" in view.reason
            assert AlarmKind.BOOTSTRAP_FAILED in [alarm.kind for alarm in view.alarms]
            await stores.start(1)
            await stores.runs()
            client = await stores.client()
            await client.append(b"after all")

    run(body())
