"""A shard as the `Log` seam: the suite that every log passes, on stores in a simulation."""

import pytest

from raftwood.base.errors import SequenceForgotten
from raftwood.base.seams import Log
from raftwood.logservice.client.log_client import AsyncLogClient
from raftwood.logservice.client.shard_logs import ShardLog
from raftwood.logservice.errors import NotLeaseholder, ReadOnlyClient
from raftwood.logservice.log_rules import WINDOW
from raftwood.logservice.wire import APPEND, decode_lsns, encode_append
from tests.kits.base.log_suite import LogSuite, Scenario, read_all
from tests.kits.logservice.log_cluster import LogCluster, run_log_cluster


class ShardKit:
    def __init__(self, cluster: LogCluster) -> None:
        self._cluster = cluster
        self._clients: list[AsyncLogClient] = []

    async def open(self) -> Log:
        client = await self._cluster.client(timeout_ms=60_000)
        self._clients.append(client)
        return ShardLog(client)

    async def fail_over(self) -> None:
        leader = await self._cluster.wait_for_leader(1)
        self._cluster.machines[leader].power_off()
        await self._cluster.wait_for_leader(1)
        self._cluster.start(leader)

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


class TestShardLog(LogSuite):
    def run(self, scenario: Scenario) -> None:
        async def whole(cluster: LogCluster) -> None:
            cluster.start(1, 2, 3)
            await cluster.wait_for_leader(1)
            kit = ShardKit(cluster)
            await scenario(kit)
            await kit.close()

        run_log_cluster(whole)


def test_a_sequence_too_far_behind_is_refused_and_a_reader_may_not_append() -> None:
    async def scenario(cluster: LogCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader(1)
        async with await cluster.client() as client:
            log = ShardLog(client)
            await log.append([b""], producer=b"a", sequence=1)
            await log.append([b""], producer=b"a", sequence=1 + WINDOW)
            with pytest.raises(SequenceForgotten):
                await log.append([b""], producer=b"a", sequence=1)
        async with await cluster.client(is_read_only=True) as reader:
            with pytest.raises(ReadOnlyClient):
                await ShardLog(reader).append([b""], producer=b"a", sequence=2)

    run_log_cluster(scenario)


def test_a_batch_that_release_0_1_0_stored_is_known_again() -> None:
    entry = bytes.fromhex(
        "0100df4ef938f733e92001225b5f829b56cb00000000000000070000000200000000000000006f6e65"
    )
    """Of producer 000102030405060708090a0b0c0d0e0f: as that release's own code made it."""

    async def scenario(cluster: LogCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader(1)
        async with await cluster.client() as client:
            request = encode_append(client.config.shard, [entry])
            answer = await client._link.ask_raw(APPEND, request, timeout_ms=10_000)
            (lsn,) = decode_lsns(answer, 1)
            log, name = ShardLog(client), bytes(range(16)).hex()
            assert await log.append([b"o", b"ne"], producer=name.encode(), sequence=7) == lsn
            assert await client.append_once(b"one", producer=name, sequence=7) == lsn
            assert await read_all(log) == [(lsn, b"one")]

    run_log_cluster(scenario)


def test_under_a_lease_only_its_holder_appends() -> None:
    async def scenario(cluster: LogCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader(1)
        async with await cluster.client() as old, await cluster.client() as new:
            await old.update_leaseholder_id(5)
            first = await ShardLog(old).append([b"one"], producer=b"a", sequence=1)
            await new.update_leaseholder_id(6)
            with pytest.raises(NotLeaseholder):
                await ShardLog(old).append([b"two"], producer=b"a", sequence=2)
            # What was written stays written, whoever asks.
            assert await ShardLog(old).append([b"one"], producer=b"a", sequence=1) == first

    run_log_cluster(scenario)
