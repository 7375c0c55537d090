"""A client that was idle for so long that its shard forgot it just goes on."""

import asyncio

import pytest

from raftwood.logservice import log_rules
from tests.kits.logservice.log_cluster import LogCluster, run_log_cluster


def test_a_client_that_was_forgotten_while_it_was_idle_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_rules, "PRODUCERS_MAX", 2)

    async def scenario(cluster: LogCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader(1)
        idle = await cluster.client()
        first = await idle.append(b"0")
        await idle.append(b"1")
        for _ in range(4):
            async with await cluster.client() as other:
                await other.append(b"other")
        rest = await asyncio.gather(*(idle.append(b"%d" % each) for each in range(2, 40)))
        assert rest == sorted(rest)
        records, _ = await idle.read(first)
        assert [bytes(each.payload) for each in records if bytes(each.payload) != b"other"] == [
            b"%d" % each for each in range(40)
        ]
        await idle.close()

    run_log_cluster(scenario)
