"""What users of such services reported: each failure is provoked, and must not come about."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import msgspec
import pytest

from raftwood.base.environment import Environment
from raftwood.base.errors import ConnectionLost, DiskFull, RaftwoodError
from raftwood.logservice.client.log_client import AsyncLogClient
from raftwood.logservice.client.shard_link import LEARN_EVERY_S
from raftwood.logservice.errors import LsnTruncated, RecordTooLarge
from raftwood.logservice.log_state_machine import LogStateMachine
from raftwood.raft.node_host import NodeHost
from raftwood.raft.offline import recover_group
from raftwood.raft.snapshot_files import SnapshotFiles
from raftwood.testing import PROCESS, Simulation, simulate
from tests.kits.logservice.log_cluster import LogCluster, address
from tests.kits.logservice.readable import (
    SHARD,
    STORES,
    check_readable,
    fill,
    payload,
    restart,
)
from tests.kits.logservice.simulation.world import CALM_KEEPER, DISK_LOG, RAFT, SMALL


def new_cluster(simulation: Simulation, **service: Any) -> LogCluster:
    return LogCluster(
        simulation,
        service=msgspec.structs.replace(SMALL, **service),
        keeper=msgspec.structs.replace(CALM_KEEPER, zombie_ticks=20, moves_every_ticks=1_000),
        raft=RAFT,
        log=DISK_LOG,
    )


async def ready(cluster: LogCluster, **options: Any) -> AsyncLogClient:
    cluster.start(*STORES)
    await cluster.wait_for_leader(SHARD)
    return await cluster.client(**options)


async def alarms(cluster: LogCluster) -> list[str]:
    operator = cluster.operator()
    try:
        return [str(alarm) for alarm in (await operator.describe()).alarms]
    finally:
        await operator.close()


async def wait_for_alarm(cluster: LogCluster, text: str) -> None:
    for _ in range(100):
        if any(text in alarm for alarm in await alarms(cluster)):
            return
        await asyncio.sleep(0.5)
    raise AssertionError(f"no alarm {text!r}: {await alarms(cluster)}")


@contextmanager
def no_room_for_snapshots(*stores: str) -> Iterator[None]:
    original = SnapshotFiles._save

    async def save(files: SnapshotFiles, meta: Any, *rest: Any) -> Any:
        process = PROCESS.get()
        if process is not None and process.node.name in stores and meta.group == SHARD:
            raise DiskFull("no room for a snapshot")
        return await original(files, meta, *rest)

    with mock.patch.object(SnapshotFiles, "_save", save):
        yield


def test_truncation_goes_on_and_what_is_kept_stays_small() -> None:
    """Appends and truncations for long, with refused and repeated records among them."""

    async def scenario(simulation: Simulation) -> None:
        cluster = new_cluster(simulation)
        most = 0
        async with await ready(cluster) as client, await cluster.client() as stranger:
            await client.update_leaseholder_id(5)
            for _ in range(40):
                lsns = await client.append_many([b"x" * 200] * 30)
                with pytest.raises(RaftwoodError):
                    await stranger.append(b"refused")
                await client.truncate(lsns[-1])
                await asyncio.sleep(0.4)
                for store in STORES:
                    host = cluster.stores[store].host
                    most = max(most, sum(host.stored_bytes(SHARD)))
                    state = cluster.stores[store].host.machine(SHARD)
                    assert isinstance(state, LogStateMachine)
                    assert len(state.state.holes) <= 3
                    assert len(host.status(SHARD).snapshots) <= SMALL.snapshots_kept + 2
        assert most < 40_000  # of 280,000 that were appended
        await cluster.stop()

    simulate(1, scenario, virtual_seconds_max=600.0)


def test_a_snapshot_that_is_missing_at_a_restart_comes_from_the_peers() -> None:
    async def scenario(simulation: Simulation) -> None:
        cluster = new_cluster(simulation)
        lsns: list[int] = []
        async with await ready(cluster) as client:
            await fill(client, lsns, 100)
            await client.truncate(lsns[59])
            await asyncio.sleep(1.0)
            machine = cluster.machines[2]
            machine.power_off()
            paths = [path for path in machine.disk.file_system.files if "/1-" in path]
            assert paths
            for path in paths:
                machine.disk.lose(path)
            cluster.start(2)
            await cluster.until(
                lambda: cluster.is_running(2) and SHARD in cluster.stores[2].host.groups()
            )
            await cluster.until(lambda: cluster.stores[2].host.applied(SHARD) >= lsns[-1])
            # It had to join again; the two that stay must have heard of it.
            await cluster.until(
                lambda: all(
                    cluster.stores[store].host.status(SHARD).voters == (1, 2, 3) for store in (1, 2)
                )
            )
            cluster.machines[3].power_off()
            await check_readable(client, lsns, truncated=60)
        await cluster.stop()

    simulate(2, scenario, virtual_seconds_max=600.0)


def test_a_change_of_members_outlives_snapshots_and_the_restart_of_all() -> None:
    async def scenario(simulation: Simulation) -> None:
        cluster = new_cluster(simulation)
        lsns: list[int] = []
        async with await ready(cluster) as client:
            await fill(client, lsns, 60)
            cluster.start(4, joins=True)
            cluster.machines[3].power_off()
            await cluster.until(lambda: voters(cluster) == [1, 2, 4])
            await fill(client, lsns, 140)  # the change has ended by then, its second step too
            leader = cluster.leader(SHARD)
            epoch = cluster.stores[leader].host.status(SHARD).epoch
            await client.truncate(lsns[119])
            await cluster.until(
                lambda: all(
                    cluster.stores[store].host.status(SHARD).first_index > epoch
                    for store in (1, 2, 4)
                )
            )
            restart(cluster, 1, 2, 4)
            await cluster.wait_for_leader(SHARD)
            assert voters(cluster) == [1, 2, 4]
            for store in (1, 2, 4):
                assert cluster.stores[store].host.status(SHARD).epoch == epoch
            await check_readable(client, lsns, truncated=120)
        await cluster.stop()

    simulate(3, scenario, virtual_seconds_max=600.0)


def voters(cluster: LogCluster, shard: int = SHARD) -> list[int]:
    leader = cluster.leader(shard)
    return sorted(cluster.stores[leader].host.status(shard).voters) if leader else []


def test_truncation_that_stalls_raises_an_alarm_that_ends_when_it_goes_on() -> None:
    async def scenario(simulation: Simulation) -> None:
        cluster = new_cluster(simulation, stall_alarm_ms=3_000)
        lsns: list[int] = []
        async with await ready(cluster) as client:
            with no_room_for_snapshots("s2"):
                await fill(client, lsns, 100)
                await client.truncate(lsns[89])
                await wait_for_alarm(cluster, "truncation-stalled")
            await client.truncate(await client.append(b"the last"))
            for _ in range(40):
                if not await alarms(cluster):
                    break
                await asyncio.sleep(0.5)
                await client.truncate(await client.append(b"more"))
            assert await alarms(cluster) == []
        await cluster.close_clients()
        await cluster.stop()

    simulate(4, scenario, virtual_seconds_max=600.0)


def test_what_a_required_lsn_keeps_is_alarmed_when_it_is_much() -> None:
    async def scenario(simulation: Simulation) -> None:
        cluster = new_cluster(simulation, retained_alarm_bytes=8_000)
        lsns: list[int] = []
        async with await ready(cluster) as client:
            await client.set_required_lsn(await client.append(payload(0)))
            await fill(client, lsns, 200)
            await client.truncate(lsns[-1])
            await wait_for_alarm(cluster, "log-retained")
            await client.read(lsns[0])
            await client.set_required_lsn(0)
            with pytest.raises(LsnTruncated):
                await client.read(lsns[0])
        await cluster.close_clients()
        await cluster.stop()

    simulate(5, scenario, virtual_seconds_max=600.0)


def test_a_removed_replica_that_comes_back_disturbs_nobody_and_goes() -> None:
    """Its disk knows only of the old members; HAKeeper and the shard go on in their terms."""

    async def scenario(simulation: Simulation) -> None:
        cluster = new_cluster(simulation)
        lsns: list[int] = []
        async with await ready(cluster) as client:
            await fill(client, lsns, 20)
            cluster.start(4, joins=True)
            cluster.machines[3].power_off()
            await cluster.until(lambda: voters(cluster) == [1, 2, 4] == voters(cluster, 0))
            terms = [cluster.stores[1].host.status(shard).term for shard in (0, SHARD)]
            cluster.start(3)
            for _ in range(20):
                await asyncio.sleep(0.5)
                await client.append(b"goes on")
                assert voters(cluster) == [1, 2, 4] == voters(cluster, 0)
            assert terms == [cluster.stores[1].host.status(shard).term for shard in (0, SHARD)]
            await cluster.until(lambda: not cluster.stores[3].host.groups())
            restart(cluster, 3)
            await asyncio.sleep(5.0)
            assert not cluster.stores[3].host.groups()
            operator = cluster.operator()
            view = await operator.describe()
            await operator.close()
            assert len(view.stores) == 4
        await cluster.close_clients()
        await cluster.stop()

    simulate(6, scenario, virtual_seconds_max=600.0)


def test_a_record_larger_than_a_message_is_replicated_and_one_above_the_limit_refused() -> None:
    async def scenario(simulation: Simulation) -> None:
        cluster = new_cluster(simulation)
        largest = bytes(SMALL.record_bytes_max)
        assert len(largest) > RAFT.message_bytes_max
        async with await ready(cluster) as client:
            lsns = await client.append_many([largest] * 20)
            with pytest.raises(RecordTooLarge):
                client.append_soon(largest + b"x")
            # A client that goes by another limit: what it had under way is not called refused.
            client._pipeline.record_bytes_max *= 2
            before = [client.append_soon(b"before %d" % number) for number in range(5)]
            await asyncio.sleep(0)
            too_large = client.append_soon(largest + b"x")
            await asyncio.wait([*before, too_large])
            assert isinstance(too_large.exception(), RecordTooLarge)
            for each in before:
                assert each.exception() is None or isinstance(each.exception(), ConnectionLost)
            lsns.append(await client.append(b"after"))
            restart(cluster, *STORES)
            found = {}
            first = lsns[0]
            while first <= lsns[-1]:
                records, first = await client.read(first, bytes_max=1)
                found.update({record.lsn: bytes(record.payload) for record in records})
            assert [found[lsn] for lsn in lsns] == [largest] * 20 + [b"after"]
        await cluster.stop()

    simulate(7, scenario, virtual_seconds_max=600.0)


def test_a_disk_that_fills_up_refuses_appends_and_goes_on_after_a_truncation() -> None:
    async def scenario(simulation: Simulation) -> None:
        cluster = new_cluster(simulation, disk_refuse_bytes=600_000, disk_alarm_bytes=700_000)
        lsns: list[int] = []
        async with await ready(cluster, timeout_ms=3_000) as client:
            for machine in cluster.machines.values():
                used = machine.disk.file_system.used_bytes()
                machine.disk.capacity_bytes = used + 800_000
            with pytest.raises(DiskFull):
                while True:
                    lsns += await client.append_many([bytes(1_500)] * 20)
                    await asyncio.sleep(0.4)
            await wait_for_alarm(cluster, "disk-short")
            await client.truncate(lsns[-1])
            for _ in range(40):
                try:
                    await client.append(b"room again")
                    break
                except DiskFull:
                    await asyncio.sleep(0.5)
            else:
                raise AssertionError("no room after all was truncated")
        await cluster.close_clients()
        await cluster.stop()

    simulate(8, scenario, virtual_seconds_max=600.0)


def test_a_read_that_the_worker_overtakes_is_told_what_can_be_read() -> None:
    """No range of the raft log reaches the client: only LSNs that it can go on with."""
    original = NodeHost.read_log

    async def read_log(host: NodeHost, group: int, first_index: int, **options: Any) -> Any:
        await asyncio.sleep(5.0)
        return await original(host, group, first_index, **options)

    async def scenario(simulation: Simulation) -> None:
        cluster = new_cluster(simulation)
        lsns: list[int] = []
        async with await ready(cluster, timeout_ms=20_000) as client:
            await fill(client, lsns, 100)
            with mock.patch.object(NodeHost, "read_log", read_log):
                reading = asyncio.create_task(client.read(lsns[0], wait_ms=6_000))
                await asyncio.sleep(0.5)
                await client.truncate(lsns[-1])
                with pytest.raises(LsnTruncated) as told:
                    await reading
            assert told.value.first == lsns[-1] + 1
        await cluster.stop()

    simulate(10, scenario, virtual_seconds_max=600.0)


def test_a_reader_that_follows_an_idle_log_outlives_stores_that_stand_still() -> None:
    """First its leader alone, then all for so long that less time is left than it would wait."""

    async def scenario(simulation: Simulation) -> None:
        cluster = new_cluster(simulation)
        async with await ready(cluster) as client:
            first = await client.append(b"first")
            seen: list[bytes] = []

            async def follow() -> None:
                async for record in client.tail(first):
                    seen.append(bytes(record.payload))  # noqa: PERF401 (it never ends)

            following = asyncio.create_task(follow())
            for stores in ([await cluster.wait_for_leader(SHARD)], list(STORES)):
                await asyncio.sleep(1.0)
                for store in stores:
                    cluster.machines[store].pause()
                await asyncio.sleep(13.0)
                for store in stores:
                    cluster.machines[store].resume()
                await asyncio.sleep(13.0)
                assert not following.done(), following.exception()
            async with await cluster.client() as writer:
                await writer.append(b"last")
            await cluster.until(lambda: seen == [b"first", b"last"])
            following.cancel()
            await asyncio.wait([following])
        await cluster.stop()

    simulate(9, scenario, virtual_seconds_max=600.0)


def test_a_shard_that_lost_its_quorum_goes_on_with_all_that_can_be_read() -> None:
    """The operator names new members: that cuts nothing of the log that somebody may still read."""

    async def scenario(simulation: Simulation) -> None:
        cluster = new_cluster(simulation)
        lsns: list[int] = []
        async with await ready(cluster) as client:
            await fill(client, lsns, 100)
            await client.truncate(lsns[39])
            await asyncio.sleep(1.0)
        for store in STORES:
            cluster.machines[store].power_off()

        async def recover(environment: Environment) -> None:
            for shard in (0, SHARD):
                await recover_group(environment, "/data/store", shard, {1: address(1)})

        cluster.machines[1].start(recover)
        await cluster.until(lambda: not cluster.machines[1].running)
        cluster.start(1)
        await cluster.wait_for_leader(SHARD)
        async with await cluster.client() as client:
            await check_readable(client, lsns, truncated=40)
            # Also to those that join, and go on without the copy that was left.
            cluster.start(4, 5, joins=True)
            await cluster.until(lambda: voters(cluster) == [1, 4, 5] == voters(cluster, 0))
            await asyncio.sleep(LEARN_EVERY_S)
            await client.info()
            await asyncio.sleep(1.0)
            cluster.machines[1].power_off()
            await check_readable(client, lsns, truncated=40)
        await cluster.stop()

    simulate(11, scenario, virtual_seconds_max=600.0)


def test_a_client_outlives_all_stores_that_it_knew_when_they_are_replaced_one_by_one() -> None:
    """Its leader stays the same until the last one: nothing tells it of the others by itself."""

    async def scenario(simulation: Simulation) -> None:
        cluster = new_cluster(simulation)
        async with await ready(cluster) as client:
            leader = await cluster.wait_for_leader(SHARD)
            others = [store for store in STORES if store != leader]
            for gone, new in zip([*others, leader], (4, 5, 6), strict=True):
                for _ in range(12):
                    await client.append(b"a record")
                    await asyncio.sleep(1.0)
                cluster.start(new, joins=True)
                await asyncio.sleep(5.0)  # it asks those that it was told of
                cluster.machines[gone].power_off()
                await cluster.until(lambda new=new: new in voters(cluster))  # type: ignore[misc]
            await client.append(b"the last")
        await cluster.stop()

    simulate(12, scenario, virtual_seconds_max=600.0)
