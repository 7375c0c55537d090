"""A client reads partitions as they were at one moment, wherever they are by then."""

import asyncio
from typing import Any

import pytest
import redis

from raftwood.base.errors import InvalidInput, Unavailable
from raftwood.zeppelin.client import AsyncKv, CheckpointGone, CommandRefused, Kv
from raftwood.zeppelin.client.checkpoints import AsyncCheckpoint
from raftwood.zeppelin.records import BinlogPosition
from raftwood.zeppelin.slots import slot_of
from tests.kits.running import in_virtual_time
from tests.kits.zeppelin.data_node import data_node
from tests.kits.zeppelin.static_cluster import StaticCluster
from tests.kits.zeppelin.static_view import PASSWORD, READER, WRITER
from tests.unit.zeppelin.client.test_async_kv import connected, on_cluster

KEYS = [f"key{number}" for number in range(2_000)]


async def pairs_of(checkpoint: AsyncCheckpoint, **options: Any) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    async for page in checkpoint.pages(**options):
        found |= zip(page.keys(), page.values(), strict=True)
    return found


def test_all_partitions_together_are_the_table_as_it_was() -> None:
    async def scenario(kv: AsyncKv, cluster: StaticCluster, *_: Any) -> None:
        await kv.set_many((key, key) for key in KEYS)
        places = await kv.partitions()
        assert [each.number for each in places] == list(range(6))
        assert [slot for each in places for slot in each.slots] == list(range(16_384))
        found: dict[bytes, bytes] = {}
        for place in places:
            async with await kv.checkpoint(place.number) as checkpoint:
                await kv.set_many((key, "later") for key in KEYS[:100])
                assert checkpoint.slots == place.slots
                assert checkpoint.about.address == place.master
                pairs = await pairs_of(checkpoint, bytes_max=1_000)
                store = cluster.stores[place.number]
                assert checkpoint.position.sequence < store.last_sequence
                assert all(slot_of(key) in place.slots for key in pairs)
                found |= pairs
            await kv.set_many((key, key) for key in KEYS[:100])
        assert found == {key.encode(): key.encode() for key in KEYS}
        assert cluster.engines.folders == {}

    on_cluster(scenario)


def test_a_checkpoint_is_read_where_it_was_begun_though_the_master_is_another() -> None:
    async def scenario(kv: AsyncKv, cluster: StaticCluster, *_: Any) -> None:
        await kv.set_many((key, key) for key in KEYS)
        cluster.promote(0, "b")  # the client has not heard of it: it is told where to go
        checkpoint = await kv.checkpoint(0)
        cluster.promote(0, "c")
        first = await checkpoint.read(bytes_max=500)
        rest = await pairs_of(kv.checkpoint_of(checkpoint.about), cursor=first.next_cursor)
        expected = {key for key in map(str.encode, KEYS) if slot_of(key) in checkpoint.slots}
        assert expected == {*first.keys(), *rest}
        await checkpoint.renew()
        await checkpoint.end()
        await checkpoint.end()
        with pytest.raises(CheckpointGone, match="begin another one"):
            await checkpoint.renew()
        with pytest.raises(CheckpointGone):
            await checkpoint.read(first.next_cursor)

    on_cluster(scenario)


def test_who_may_only_read_may_have_checkpoints_and_slaves_make_them_too() -> None:
    async def scenario(kv: AsyncKv, cluster: StaticCluster, *_: Any) -> None:
        place = (await kv.partitions())[1]
        async with await kv.checkpoint(1) as checkpoint:
            assert checkpoint.about.address != place.master
            assert await pairs_of(checkpoint) == {}
        cluster.stores[1].repairing = BinlogPosition(9, 9)
        async with await kv.checkpoint(1) as checkpoint:
            assert checkpoint.about.address == place.master  # no other is whole

    on_cluster(scenario, user=READER, read_from="replicas")


def test_a_node_that_is_gone_takes_its_checkpoints_along() -> None:
    async def main() -> None:
        async with connected(timeout_ms=600) as (kv, cluster, servers):
            checkpoint = await kv.checkpoint(0)
            await servers["a"].close()
            cluster.fail_over("a")
            with pytest.raises(Unavailable, match="not answered"):
                await checkpoint.read()
            async with await kv.checkpoint(0) as another:
                assert another.about.address != checkpoint.about.address

    in_virtual_time(main())


def test_a_frozen_partition_is_waited_for() -> None:
    async def scenario(kv: AsyncKv, cluster: StaticCluster, *_: Any) -> None:
        await kv.set_many((key, key) for key in KEYS)
        cluster.frozen.add(0)
        asyncio.get_running_loop().call_later(0.1, cluster.frozen.clear)
        async with await kv.checkpoint(0) as checkpoint:
            assert checkpoint.position.sequence > 0

    on_cluster(scenario)


def test_what_cannot_be_is_refused() -> None:
    async def scenario(kv: AsyncKv, *_: Any) -> None:
        with pytest.raises(InvalidInput, match="no partition 6"):
            await kv.checkpoint(6)
        with pytest.raises(CommandRefused, match="lives for"):
            await kv.checkpoint(0, ttl_ms=1)
        async with await kv.checkpoint(0) as checkpoint:
            with pytest.raises(CommandRefused, match="a page has"):
                await checkpoint.read(bytes_max=0)

    on_cluster(scenario)


def test_pages_are_read_without_a_loop_and_as_columns() -> None:
    with data_node() as node:
        address = f"127.0.0.1:{node.port}"
        with Kv.connect(address, user=WRITER, password=PASSWORD) as kv:
            kv.set_many((key, key) for key in KEYS)
            found: dict[bytes, bytes] = {}
            for place in kv.partitions():
                with kv.checkpoint(place.number) as checkpoint:
                    for page in checkpoint.pages(bytes_max=2_000):
                        found |= zip(page.keys(), page.values(), strict=True)
                    batches = list(kv.checkpoint_of(checkpoint.about).arrow_pages())
                    rows = sum(batch.num_rows for batch in batches)
                    assert rows == sum(slot_of(key.encode()) in place.slots for key in KEYS)
            assert found == {key.encode(): key.encode() for key in KEYS}


def test_redis_py_lists_the_checkpoints_of_its_table() -> None:
    with (
        data_node() as node,
        Kv.connect(f"127.0.0.1:{node.port}", user=WRITER, password=PASSWORD) as kv,
        redis.Redis(port=node.port, username=READER, password=PASSWORD) as client,
    ):
        assert client.execute_command("CHECKPOINT LIST") == []
        with kv.checkpoint(2, ttl_ms=5_000) as checkpoint:
            ((identity, partition, *_, left_ms),) = client.execute_command("CHECKPOINT LIST")
            assert (identity.decode(), partition) == (checkpoint.about.id, 2)
            assert 0 < left_ms <= 5_000
        assert {"checkpoint", "partitions"} <= client.command().keys()
