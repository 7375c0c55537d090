"""Log stores set a cluster up together, whatever the order of their starts."""

from pathlib import Path

from raftwood.logservice.hakeeper.commands import ClusterView
from raftwood.logservice.hakeeper.messages import AlarmKind
from raftwood.logservice.hakeeper.state import ClusterPhase
from raftwood.server.cluster import METASTORE_SHARD, ZEPPELIN_SHARD
from tests.kits.logservice.processes import log_stores, shard_of
from tests.kits.running import run


def test_stores_set_themselves_up_one_after_the_other_though_one_is_missing(
    tmp_path: Path,
) -> None:
    """Simulations begin in any order; here processes begin apart, and one never does."""

    async def body() -> None:
        settings = {"hakeeper.log_shards": 2}
        async with log_stores(tmp_path, first=4, settings=settings) as stores:
            await stores.start(4)
            stores.launch(2, 1)
            for store in (2, 1):
                await stores.nodes[store].ready()
            view = await stores.runs()
            assert shard_of(view, 0).voters == (1, 2, 4)
            for shard in (1, 2):
                assert shard_of(view, shard).voters == (1, 2, 4)
                client = await stores.client(shard)
                lsn = await client.append(b"the first")
                records, _ = await client.read(lsn)
                assert [record.payload for record in records] == [b"the first"]

    run(body())


def test_a_bootstrap_that_failed_is_reported_and_recovers(tmp_path: Path) -> None:
    """A lone store says so in its log; two can tell what is missing; three run."""
    settings = {"hakeeper.bootstrap_ticks": 5, "hakeeper.bootstrap_grace_ticks": 1000}

    def has_failed(view: ClusterView) -> bool:
        return view.phase is ClusterPhase.BOOTSTRAP_FAILED

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


def test_a_record_limit_that_the_log_cannot_hold_is_refused_at_the_start(tmp_path: Path) -> None:
    async def body() -> None:
        settings = {"logservice.record_bytes_max": 1 << 20, "log.segment_bytes": 1 << 20}
        async with log_stores(tmp_path, first=1, settings=settings) as stores:
            stores.launch(1)
            assert await stores.nodes[1].ended() != 0
            told = stores.nodes[1].log.read_text()
            assert "logservice.record_bytes_max" in told
            assert "Traceback" not in told
            stores.nodes[1].log.unlink()

    run(body())
