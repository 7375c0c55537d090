"""A store's heartbeat fits what HAKeeper takes, however much is wrong on the store."""

import msgspec

from raftwood.logservice.hakeeper.commands import ALARMS_MAX, TEXT_MAX, HearStore, check_command
from raftwood.logservice.hakeeper.messages import StoreHeartbeat
from raftwood.logservice.server.heartbeats import limited_alarms
from tests.kits.logservice.log_cluster import KEEPER, SERVICE, LogCluster, run_log_cluster


def test_no_more_and_no_longer_alarms_are_told_than_hakeeper_takes() -> None:
    for count in (0, 1, ALARMS_MAX, ALARMS_MAX + 1, 5_000):
        told = limited_alarms(["x" * 5_000] * count)
        check_command(HearStore(StoreHeartbeat(1, "a:1", "", "i", "0", alarms=told)))
        assert len(told) == min(count, ALARMS_MAX)
    assert told[0] == "x" * TEXT_MAX
    assert "4901 more" in told[-1]


def test_a_store_with_very_many_alarms_is_not_taken_for_dead() -> None:
    async def scenario(cluster: LogCluster) -> None:
        cluster.start(1)
        await cluster.until(lambda: 1 in cluster.stores and cluster.stores[1].heartbeats.is_heard)
        await cluster.until(
            lambda: (
                len(cluster.stores[1].truncation.shards) > ALARMS_MAX
                and len(cluster.stores[1].alarms()) > ALARMS_MAX
            )
        )
        await cluster.stores[1].heartbeats.beat()
        assert cluster.stores[1].heartbeats.is_heard

    run_log_cluster(
        scenario,
        first=(1,),
        service=msgspec.structs.replace(SERVICE, retained_alarm_bytes=1),
        keeper=msgspec.structs.replace(KEEPER, log_shards=ALARMS_MAX + 5),
    )
