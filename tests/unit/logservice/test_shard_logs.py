"""The log service as the `Logs` seam, on stores in a simulation."""

import pytest

from raftwood.base.errors import InvalidInput, NotFound
from raftwood.base.seams import Logs
from raftwood.logservice.client import shard_logs
from raftwood.logservice.client.shard_logs import ShardLogs
from raftwood.net.stores import Stores
from tests.kits.base.logs_suite import LogsSuite, Scenario
from tests.kits.logservice.log_cluster import OPERATOR, LogCluster, address, run_log_cluster


class ShardLogsKit:
    def __init__(self, cluster: LogCluster) -> None:
        self._cluster = cluster
        self._opened: list[tuple[ShardLogs, Stores]] = []

    async def open(self) -> Logs:
        cluster = self._cluster
        known = {store: address(store) for store in cluster.machines}
        stores = Stores(cluster.environment, OPERATOR, known)
        logs = ShardLogs(cluster.environment, stores, replicas=3)
        self._opened.append((logs, stores))
        return logs

    async def close(self) -> None:
        for logs, stores in self._opened:
            await logs.close()
            await stores.close()


def run_shard_logs(scenario: Scenario) -> None:
    async def whole(cluster: LogCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader(1)
        kit = ShardLogsKit(cluster)
        try:
            await scenario(kit)
        finally:
            await kit.close()

    run_log_cluster(whole)


class TestShardLogs(LogsSuite):
    def run(self, scenario: Scenario) -> None:
        run_shard_logs(scenario)


def test_a_log_goes_on_when_more_were_opened_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_logs, "OPENED_MAX", 2)

    async def scenario(kit: object) -> None:
        assert isinstance(kit, ShardLogsKit)
        logs = await kit.open()
        names = [f"lh.{number}" for number in range(4)]
        for name in names:
            await logs.create(name)
        opened = [await logs.open(name) for name in names]
        for sequence in (1, 2):
            for log in opened:
                await log.append([b"one"], producer=b"p", sequence=sequence)
        assert await logs.open(names[3]) is opened[3]
        assert await logs.open(names[0]) is not opened[0]

    run_shard_logs(scenario)


def test_what_is_no_log_cannot_be_opened_or_removed_as_one() -> None:
    async def scenario(kit: object) -> None:
        assert isinstance(kit, ShardLogsKit)
        logs = await kit.open()
        with pytest.raises(NotFound):
            await logs.open("hakeeper")
        with pytest.raises(InvalidInput):
            await logs.remove("hakeeper")
        assert await logs.names("") == ["log-1"]

    run_shard_logs(scenario)
