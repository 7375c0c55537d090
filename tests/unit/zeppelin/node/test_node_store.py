"""A node keeps the partitions that it was told to have, and nothing of others."""

from pathlib import Path

import pytest

from raftwood.base.errors import InvalidInput, NotFound, StoreDamaged
from raftwood.base.seams import Put
from raftwood.disk.segment_log import TruncateHead
from raftwood.zeppelin.model import EPOCH_NONE, PartitionId
from raftwood.zeppelin.node.engine_home import OWN_GROUP, group_of, partition_of
from raftwood.zeppelin.node.values import STATE_KEY
from tests.zeppelin_kit.stores import (
    PARTITION,
    Place,
    contents,
    put,
    run_on_rocksdb,
    run_simulated,
)


async def drops_and_makes_anew(place: Place) -> None:
    node = await place.open()
    assert (node.epoch, node.held()) == (EPOCH_NONE, {})
    old, other = PartitionId(5, 0), PartitionId(5, 1)
    await node.hold({old: "t", other: "t"}, epoch=5)
    for partition in (old, other):
        put(await node.partition(partition), b"k", b"old")
    put(await node.partition(old), b"k", b"on its way")
    id_ = node.id
    new = PartitionId(9, 0)
    await node.hold({new: "t", other: "t"}, epoch=9)
    with pytest.raises(NotFound, match="no partition 0 of table 5"):
        await node.partition(old)
    assert contents(await node.partition(new)) == {}
    assert "5-0-0" not in await place.engines.names()
    await node.close()
    node = await place.open()
    assert (node.id, node.epoch, node.held()) == (id_, 9, {other: "t", new: "t"})
    assert contents(await node.partition(other)) == {b"k": b"old"}
    assert contents(await node.partition(new)) == {}
    assert await node.partition(new) is await node.partition(new)
    await node.close()


def test_a_table_that_is_made_anew_has_nothing_of_the_old_one(tmp_path: Path) -> None:
    run_on_rocksdb(drops_and_makes_anew, tmp_path)
    run_simulated(drops_and_makes_anew)


def test_a_folder_that_is_nobodys_is_removed() -> None:
    async def scenario(place: Place) -> None:
        engine = await place.engines.open(place.engines.folder("in-5-0-1234"))
        await engine.close()
        node = await place.open()
        assert await place.engines.names() == []
        await node.close()

    run_simulated(scenario)


def test_an_engine_that_does_not_fit_its_binlog_is_damage() -> None:
    async def scenario(place: Place) -> None:
        node, store = await place.open_one()
        put(store, b"k", b"v")
        await store.settle()
        await node._store.log.commit(TruncateHead(group_of(PARTITION), 5))
        await node.close()
        node = await place.open()
        with pytest.raises(StoreDamaged, match="the engine ends at record 1"):
            await node.partition(PARTITION)
        await node.close()

    run_simulated(scenario)


def test_a_copy_that_is_not_what_was_promised_changes_nothing() -> None:
    async def scenario(place: Place) -> None:
        node, store = await place.open_one()
        put(store, b"k", b"v")
        folder = place.engines.folder("copy")
        assert await store.checkpoint(folder) == 1
        put(store, b"k", b"later")
        with pytest.raises(StoreDamaged, match="up to 1, not 2"):
            await store.restore(folder, sequence=2, epochs=[])
        with pytest.raises(InvalidInput, match="not where engines are"):
            await store.restore("/data/elsewhere/copy", sequence=1, epochs=[])
        assert contents(store) == {b"k": b"later"}
        put(store, b"k", b"still going")
        await node.close()

    run_simulated(scenario)


def test_an_engine_of_another_format_is_refused() -> None:
    async def scenario(place: Place) -> None:
        node, store = await place.open_one()
        store.engine.kv.write_batch([Put(STATE_KEY, b"\xc1")])
        await node.close()
        node = await place.open()
        with pytest.raises(StoreDamaged, match="cannot be read"):
            await node.partition(PARTITION)
        await node.close()

    run_simulated(scenario)


def test_groups_tell_their_partitions() -> None:
    for partition in (PartitionId(0, 0), PARTITION, PartitionId(1 << 40, 4095)):
        assert partition_of(group_of(partition)) == partition
        assert group_of(partition) < OWN_GROUP
