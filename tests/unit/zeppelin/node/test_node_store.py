"""A node keeps the partitions that it was told to have, and nothing of others."""

import asyncio
from pathlib import Path
from typing import NoReturn

import pytest

from raftwood.base.errors import DiskFull, InvalidInput, NotFound, StoreDamaged, StoreError
from raftwood.base.seams import Put
from raftwood.disk.segment_log import TruncateHead
from raftwood.testing import SimulatedFiles
from raftwood.zeppelin.model import EPOCH_NONE, PartitionId
from raftwood.zeppelin.node.engine import STATE_KEY
from raftwood.zeppelin.node.engine_folders import OWN_GROUP, group_of, partition_of
from raftwood.zeppelin.records import PartitionStore, Value
from raftwood.zeppelin.settings import StoreSettings
from tests.kits.zeppelin.stores import (
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
    await node._remove_left()
    assert "5-0-5" not in await place.engines.names()
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


def test_a_partition_that_comes_back_has_nothing_of_the_time_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(place: Place) -> None:
        node, store = await place.open_one()
        put(store, b"k", b"old")
        await store.settle()
        remove, refusals = place.engines.remove, [1, 2]

        async def refuse(name: str) -> None:
            if refusals:
                refusals.pop()
                raise StoreError(f"{name} cannot be removed")
            await remove(name)

        with monkeypatch.context() as patched:
            patched.setattr(place.engines, "remove", refuse)
            await node.hold({}, epoch=8)
            await node._remove_left()
            await node.hold({PARTITION: "t"}, epoch=9)
            again = await node.partition(PARTITION)
            assert (contents(again), again.last_sequence, [*again.epochs]) == ({}, 0, [])
            put(again, b"k", b"new")
            await node._remove_left()
            assert len(await place.engines.names()) == 2
            await node._remove_left()
        assert await place.engines.names() == [f"{PARTITION.incarnation}-{PARTITION.number}-9"]
        await node.close()
        node = await place.open()
        assert contents(await node.partition(PARTITION)) == {b"k": b"new"}
        await node.close()

    run_on_rocksdb(scenario, tmp_path)


def test_an_epoch_in_which_a_node_has_what_it_had_does_not_wait_for_the_disk() -> None:
    async def scenario(place: Place) -> None:
        node, _ = await place.open_one()
        held = node.held()
        began = asyncio.get_running_loop().time()
        await node.hold(held, epoch=20)
        assert asyncio.get_running_loop().time() == began
        await node.close()
        node = await place.open()
        assert (node.epoch, node.held()) == (20, held)
        await node.close()

    run_simulated(scenario)


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


def test_what_a_full_disk_did_not_take_goes_there_later() -> None:
    async def scenario(place: Place) -> None:
        node, store = await place.open_one()
        files = place.environment.files
        assert isinstance(files, SimulatedFiles)
        files.disk.capacity_bytes = files.disk.file_system.used_bytes()
        with pytest.raises(DiskFull):
            for _ in range(2_000):
                put(store, b"k", b"v" * 1_000)
                await asyncio.sleep(0.001)
        committed, synced = store.last_sequence, store.synced_sequence
        assert store.get(b"k", now_ms=1) == Value(b"v" * 1_000)
        await asyncio.sleep(1)
        assert store.synced_sequence < committed
        files.disk.capacity_bytes = None
        await asyncio.sleep(5)
        assert store.synced_sequence == committed > synced
        put(store, b"k", b"goes on")
        await node.close()
        node, store = await place.open_one()
        assert (store.last_sequence, contents(store)) == (committed + 1, {b"k": b"goes on"})
        await node.close()

    run_simulated(scenario)


def test_records_are_synced_at_once_only_where_somebody_waits_for_it() -> None:
    async def scenario(place: Place) -> None:
        node, store = await place.open_one(StoreSettings(sync_interval_ms=1_000))
        for ack, is_synced in (("written", False), ("synced", True)):
            store.ack = ack  # type: ignore[assignment]
            put(store, b"k", b"v")
            await asyncio.sleep(0.1)
            assert store.written_sequence == store.last_sequence
            assert (store.synced_sequence == store.last_sequence) == is_synced
        store.ack = "memory"
        put(store, b"k", b"v")
        await asyncio.sleep(2)
        assert store.synced_sequence == store.last_sequence == store.applied_sequence
        await node.close()

    run_simulated(scenario)


def test_an_engine_that_fails_is_tried_again() -> None:
    async def scenario(place: Place) -> None:
        node, store = await place.open_one()
        apply = store.engine.apply

        def fail(*_: object, **__: object) -> NoReturn:
            raise StoreError("planted")

        store.engine.apply = fail  # type: ignore[method-assign]
        put(store, b"k", b"1")
        await asyncio.sleep(0.1)
        with pytest.raises(StoreError, match="planted"):
            put(store, b"k", b"2")
        store.engine.apply = apply  # type: ignore[method-assign]
        await asyncio.sleep(2)
        put(store, b"k", b"3")
        await store.settle()
        assert store.engine.get(b"k") == Value(b"3")
        await node.close()

    run_simulated(scenario)


def test_it_is_what_the_seam_says() -> None:
    async def scenario(place: Place) -> None:
        node, store = await place.open_one()
        seam: PartitionStore = store
        assert seam.last_sequence == 0
        await node.close()

    run_simulated(scenario)


def test_groups_tell_their_partitions() -> None:
    for partition in (PartitionId(0, 0), PARTITION, PartitionId(1 << 40, 4095)):
        assert partition_of(group_of(partition)) == partition
        assert group_of(partition) < OWN_GROUP
