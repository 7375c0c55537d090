"""`Connect` checks that a shard can be read and written, and for whoever only reads, the first."""

import pytest

from raftwood.base.errors import DiskFull, RaftwoodError
from raftwood.raft.node_host import NodeHost
from tests.kits.logservice.log_cluster import LogCluster, run_log_cluster


def test_connecting_commits_an_entry_for_a_writer_and_none_for_a_reader() -> None:
    async def scenario(cluster: LogCluster) -> None:
        cluster.start(1, 2, 3)
        leader = await cluster.wait_for_leader(1)
        await (await cluster.client()).close()
        before = cluster.stores[leader].host.applied(1)
        await (await cluster.client(is_read_only=True)).close()
        assert cluster.stores[leader].host.applied(1) == before
        await (await cluster.client()).close()
        assert cluster.stores[leader].host.applied(1) == before + 1

    run_log_cluster(scenario)


def test_a_shard_that_takes_no_write_is_connected_to_for_reading_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise DiskFull("no room")

    async def scenario(cluster: LogCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader(1)
        monkeypatch.setattr(NodeHost, "propose", refuse)
        with pytest.raises(RaftwoodError):
            await cluster.client(timeout_ms=3_000)
        reader = await cluster.client(is_read_only=True)
        await reader.close()
        monkeypatch.undo()

    run_log_cluster(scenario)
