"""A partition that is split off has what the one had; each tells and keeps its own keys."""

from pathlib import Path
from unittest.mock import patch

from raftwood.zeppelin.model import PartitionId
from raftwood.zeppelin.node.engine import DATA_END, DATA_START, EngineState
from raftwood.zeppelin.node.readable_partition import KeyShare
from raftwood.zeppelin.node.store import NodeStore, Split
from raftwood.zeppelin.node.stored_partition import StoredPartition
from raftwood.zeppelin.records import BinlogPosition, KeyWrite
from raftwood.zeppelin.slots import SLOTS, slot_of
from tests.kits.zeppelin.stores import (
    Place,
    check_kept_up,
    commit,
    contents,
    position,
    put,
    run_on_rocksdb,
    run_simulated,
)

PARENT, CHILD = PartitionId(7, 0), PartitionId(7, 1)
LOWER, UPPER = range(SLOTS // 2), range(SLOTS // 2, SLOTS)
KEYS = [b"key%d" % number for number in range(40)]


def of(slots: range, data: bytes = b"1") -> dict[bytes, bytes]:
    return {key: data for key in KEYS if slot_of(key) in slots}


async def filled(place: Place) -> tuple[NodeStore, StoredPartition]:
    """With all keys, and a request that has a name."""
    node = await place.open()
    await node.hold({PARENT: "t"}, epoch=1)
    parent = await node.partition(PARENT)
    for key in KEYS:
        put(parent, key, b"1")
    commit(parent, KeyWrite(KEYS[0], b"1"), epoch=2, origin=(b"client", 5))
    return node, parent


async def split(node: NodeStore, at: BinlogPosition) -> StoredPartition:
    splits = {CHILD: Split(PARENT, at, UPPER)}
    assert await node.hold({PARENT: "t", CHILD: "t"}, epoch=2, splits=splits) == {}
    (await node.partition(PARENT)).own(KeyShare(LOWER, at.sequence))
    child = await node.partition(CHILD)
    child.own(KeyShare(UPPER, at.sequence))
    return child


def stored(store: StoredPartition) -> int:
    """How many keys its engine has, whosever they are."""
    return len(list(store.engine.scan(DATA_START, DATA_END)))


async def goes_on_as_two(place: Place) -> None:
    node, parent = await filled(place)
    at = position(parent)
    child = await split(node, at)
    assert contents(parent) == of(LOWER)
    assert contents(child) == of(UPPER)
    assert position(child) == at
    assert child.epochs == parent.epochs
    assert child.first_sequence == at.sequence + 1
    assert child.sequence_of(b"client", 5) == at.sequence
    later = next(iter(of(UPPER)))
    put(child, later, b"2")
    put(parent, next(iter(of(LOWER))), b"2")
    await node.close()
    node = await place.open()
    assert sorted(node.held()) == [PARENT, CHILD]
    parent, child = await node.partition(PARENT), await node.partition(CHILD)
    for store, slots in ((parent, LOWER), (child, UPPER)):
        store.own(KeyShare(slots, at.sequence))
        await store.settle()
        await store.maintain()
        assert store.engine.state.is_trimmed
        check_kept_up(store.engine)
        assert await store.count() == len(of(slots))
        assert stored(store) == len(of(slots)) == len(contents(store))
    assert contents(child) == of(UPPER) | {later: b"2"}
    assert child.sequence_of(b"client", 5) == at.sequence
    await node.close()


def test_a_partition_goes_on_as_two_that_have_what_it_had(tmp_path: Path) -> None:
    run_on_rocksdb(goes_on_as_two, tmp_path)
    run_simulated(goes_on_as_two)


def test_expired_keys_of_others_are_left_alone() -> None:
    async def scenario(place: Place) -> None:
        node, parent = await filled(place)
        for key in KEYS:
            put(parent, key, b"1", 10**15)
        child = await split(node, position(parent))
        await parent.settle()
        assert set(parent.expired(now_ms=10**15, keys_max=100)) == set(of(LOWER))
        assert set(child.expired(now_ms=10**15, keys_max=100)) == set(of(UPPER))
        await node.close()

    run_simulated(scenario)


def test_a_replica_that_is_further_already_gives_what_there_was_at_the_split() -> None:
    async def scenario(place: Place) -> None:
        node, parent = await filled(place)
        at = position(parent)
        lower = next(iter(of(LOWER)))
        commit(parent, KeyWrite(lower, b"2"), epoch=3, origin=(b"client", 6))
        child = await split(node, at)
        assert position(child) == at
        assert contents(child) == of(UPPER)
        assert child.sequence_of(b"client", 5) == at.sequence
        assert child.sequence_of(b"client", 6) is None
        assert contents(parent) == of(LOWER) | {lower: b"2"}
        await node.close()

    run_simulated(scenario)


def test_a_replica_that_is_behind_gives_one_that_is_so_too() -> None:
    async def scenario(place: Place) -> None:
        node, parent = await filled(place)
        at = BinlogPosition(4, parent.last_sequence + 3)
        child = await split(node, at)
        assert position(child) == position(parent)
        assert child.repairing is None
        # Records from before the split are still to come, with keys of both.
        upper = next(iter(of(UPPER)))
        for _ in range(2):
            put(parent, upper, b"2")
            await parent.settle()
            await parent.maintain()
            assert not parent.engine.state.is_trimmed
        put(parent, upper, b"3")
        await parent.settle()
        await parent.maintain()
        assert stored(parent) == len(of(LOWER))
        await node.close()

    run_simulated(scenario)


def test_what_a_flush_behind_the_split_took_along_is_not_taken_for_empty() -> None:
    async def scenario(place: Place) -> None:
        node, parent = await filled(place)
        at = position(parent)
        commit(parent, epoch=3, flushes=True)
        child = await split(node, at)
        assert child.repairing == at
        assert child.last_sequence == 0
        await node.close()

    run_simulated(scenario)


def test_what_was_trimmed_is_not_taken_for_whole() -> None:
    async def scenario(place: Place) -> None:
        node, parent = await filled(place)
        at = position(parent)
        await split(node, at)
        await parent.settle()
        await parent.maintain()
        # It leaves the node, and comes back.
        await node.hold({PARENT: "t"}, epoch=3)
        child = await split(node, at)
        assert child.repairing == at, "it takes a whole copy first"
        await node.hold({PARENT: "t"}, epoch=5)
        with patch.object(EngineState, "has_all_of", lambda _state, _slots: True):
            child = await split(node, at)
        assert child.repairing is None
        assert contents(child) == {}, "what is lost where nobody looks"
        await node.close()

    run_simulated(scenario)


def test_a_copy_of_a_trimmed_one_says_so_too() -> None:
    async def scenario(place: Place) -> None:
        node, parent = await filled(place)
        at = position(parent)
        await split(node, at)
        await parent.settle()
        await parent.maintain()
        folder = place.engines.folder("copy")
        sequence = await parent.checkpoint(folder)
        await parent.restore(folder, sequence=sequence, epochs=parent.epochs)
        assert parent.engine.state.is_trimmed
        assert not parent.engine.state.has_all_of(UPPER)
        await node.close()

    run_simulated(scenario)


def test_keys_of_others_that_are_repaired_are_left_alone() -> None:
    async def scenario(place: Place) -> None:
        node, parent = await filled(place)
        at = position(parent)
        lower, upper = next(iter(of(LOWER))), next(iter(of(UPPER)))
        commit(parent, KeyWrite(lower, b"2"), KeyWrite(upper, b"2"))
        await split(node, at)
        await parent.settle()
        await parent.maintain()
        values = [KeyWrite(lower, b"3"), KeyWrite(upper, b"3")]
        await parent.rewind(after=at.sequence, values=values, until=at)
        assert contents(parent) == of(LOWER) | {lower: b"3"}
        assert stored(parent) == len(of(LOWER))
        await node.close()

    run_simulated(scenario)
