"""How a host writes what its groups want written in one turn."""

import asyncio

from tests.kits.raft.host_cluster import LOG_SETTINGS, Cluster, run_cluster


def test_what_many_groups_write_in_one_turn_may_be_more_than_one_write_takes() -> None:
    groups, line = range(1, 31), bytes(3_000)
    assert len(groups) * len(line) > 2 * LOG_SETTINGS.write_bytes_max

    async def scenario(cluster: Cluster) -> None:
        cluster.start(1)
        for group in groups:
            await cluster.wait_for_leader(group)
        host = cluster.hosts[1]
        proposals = [host.propose(group, line, timeout_ms=30_000) for group in groups]
        assert await asyncio.gather(*proposals) == [b"1"] * len(groups)

    run_cluster(scenario, groups=groups, members=(1,))
