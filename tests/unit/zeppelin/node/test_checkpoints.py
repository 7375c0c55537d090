"""A checkpoint is its partition as it was at one moment, and nothing else, until it ends."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from raftwood.base.errors import Overloaded, ShuttingDown, Unavailable
from raftwood.zeppelin.model import NodeId, Parent, Partition, Table, TableConfig, Topology
from raftwood.zeppelin.node import checkpoints as subject
from raftwood.zeppelin.node.checkpoints import (
    PageRequest,
    PartitionCheckpoint,
    PartitionCheckpoints,
)
from raftwood.zeppelin.node.readable_partition import shares_of
from raftwood.zeppelin.pages import Page
from raftwood.zeppelin.records import BinlogPosition, KeyWrite
from raftwood.zeppelin.slots import slot_of
from tests.kits.zeppelin.stores import (
    PARTITION,
    Place,
    commit,
    contents,
    position,
    put,
    run_on_rocksdb,
    run_simulated,
)

TTL_MS = 60_000
ALL = PageRequest()
TABLE = Table(
    name="t",
    incarnation=PARTITION.incarnation,
    config=TableConfig(partitions=4),
    partitions=(Partition(epoch=7, master=NodeId("alone")),) * 4,
)


class _View:
    node_id = NodeId("alone")
    has_lease = True

    def __init__(self) -> None:
        self.topology = Topology(epoch=7, tables={"t": TABLE})

    def copies(self, _: str) -> list[None]:
        return []

    async def wait_for_news(self, timeout_s: float) -> None:
        await asyncio.sleep(timeout_s)


def kept(place: Place, view: _View | None = None) -> PartitionCheckpoints:
    return PartitionCheckpoints(view or _View(), place.environment, place.engines)


async def all_of(
    checkpoints: PartitionCheckpoints,
    one: PartitionCheckpoint,
    wanted: PageRequest = ALL,
    *,
    bytes_max: int = 1 << 20,
) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    cursor = b""
    while True:
        read = await checkpoints.read(one, wanted, cursor=cursor, bytes_max=bytes_max)
        assert read == await checkpoints.read(one, wanted, cursor=cursor, bytes_max=bytes_max)
        page = Page.decoded(read.page)
        pairs = dict(zip(page.keys(), page.values(), strict=True))
        assert not pairs.keys() & found.keys()
        found |= pairs
        cursor = read.cursor
        if not cursor:
            return found


async def stays_as_it_was(place: Place) -> None:
    node, store = await place.open_one()
    checkpoints = kept(place)
    for number in range(1200):
        key = b"{tag%d}%d" % (number % 7, number) if number % 2 else b"plain%d" % number
        put(store, key, b"v%d" % number)
    before, at = contents(store), position(store)
    one = await checkpoints.begin(store, TABLE, PARTITION.number, ttl_ms=TTL_MS)
    assert (one.position, one.slots) == (at, TABLE.slots_of(PARTITION.number))
    put(store, b"plain0", b"later")
    commit(store, flushes=True)
    another = await checkpoints.begin(store, TABLE, PARTITION.number, ttl_ms=TTL_MS)
    commit(store, KeyWrite(b"behind", b"x"), epoch=9)
    await store.rewind(after=at.sequence - 1, values=(), until=BinlogPosition(9, 5))
    assert await all_of(checkpoints, one) == before
    assert await all_of(checkpoints, one, bytes_max=700) == before
    assert await all_of(checkpoints, another) == {}
    assert another.position.sequence == at.sequence + 2
    await checkpoints.close()
    await node.close()


def test_a_checkpoint_stays_as_it_was_though_its_partition_goes_on(tmp_path: Path) -> None:
    run_on_rocksdb(stays_as_it_was, tmp_path)
    run_simulated(stays_as_it_was)


def test_keys_are_told_by_tag_prefix_and_slot() -> None:
    async def scenario(place: Place) -> None:
        node, store = await place.open_one()
        checkpoints = kept(place)
        keys = [b"user:1", b"user:\xff", b"user;", b"user:{a}1", b"{a}1", b"{a}2", b"{ab}1", b"z"]
        for key in keys:
            put(store, key, b"of " + key)
        one = await checkpoints.begin(store, TABLE, PARTITION.number, ttl_ms=TTL_MS)

        async def told(wanted: PageRequest) -> list[bytes]:
            return sorted(await all_of(checkpoints, one, wanted, bytes_max=10))

        assert await told(ALL) == sorted(keys)
        assert await told(PageRequest(tag=b"a")) == [b"user:{a}1", b"{a}1", b"{a}2"]
        assert await told(PageRequest(tag=b"a", prefix=b"{a}")) == [b"{a}1", b"{a}2"]
        assert await told(PageRequest(prefix=b"user:")) == [b"user:1", b"user:{a}1", b"user:\xff"]
        assert await told(PageRequest(prefix=b"user:\xff")) == [b"user:\xff"]
        assert await told(PageRequest(prefix=b"user:{a}")) == [b"user:{a}1"]
        assert await told(PageRequest(prefix=b"none")) == []
        await checkpoints.close()
        await node.close()

    run_simulated(scenario)


def test_what_has_expired_is_left_out_and_what_ends_says_when() -> None:
    async def scenario(place: Place) -> None:
        node, store = await place.open_one()
        checkpoints = kept(place)
        now_ms = place.environment.clock.wall_ns() // 1_000_000
        put(store, b"a", b"stays")
        put(store, b"b", b"ends", now_ms + 5_000)
        put(store, b"c", b"ended", now_ms + 1)
        put(store, b"d", b"stays")
        await asyncio.sleep(1)
        one = await checkpoints.begin(store, TABLE, PARTITION.number, ttl_ms=TTL_MS)
        await asyncio.sleep(10)
        read = await checkpoints.read(one, ALL, cursor=b"", bytes_max=1000)
        page = Page.decoded(read.page)
        assert page.keys() == [b"a", b"b", b"d"]
        assert list(page.ends()) == [0, now_ms + 5_000, 0]
        await checkpoints.close()
        await node.close()

    run_simulated(scenario)


async def ends(place: Place) -> None:
    node, store = await place.open_one()
    view = _View()
    checkpoints = kept(place, view)
    put(store, b"a", b"1")
    ended, old, read, of_table = [
        await checkpoints.begin(store, TABLE, PARTITION.number, ttl_ms=1500) for _ in range(4)
    ]
    assert len(await place.engines.names()) == 5
    await checkpoints.end(ended)
    await checkpoints.end(ended)
    for _ in range(3):
        await asyncio.sleep(1)
        assert checkpoints.find(read.id, TABLE.incarnation) is read
        assert checkpoints.find(of_table.id, TABLE.incarnation) is of_table
    assert checkpoints.find(old.id, TABLE.incarnation) is None
    assert checkpoints.find(read.id, TABLE.incarnation + 1) is None
    with pytest.raises(ShuttingDown):
        await checkpoints.read(old, ALL, cursor=b"", bytes_max=1)
    assert len(await place.engines.names()) == 3
    view.topology = Topology(epoch=8)
    await asyncio.sleep(1.1)
    assert len(await place.engines.names()) == 1
    assert checkpoints.of_table(TABLE.incarnation) == []
    view.topology = Topology(epoch=7, tables={"t": TABLE})
    again = await checkpoints.begin(store, TABLE, PARTITION.number, ttl_ms=1500)
    assert await all_of(checkpoints, again) == {b"a": b"1"}
    await checkpoints.close()
    with pytest.raises(ShuttingDown):
        await checkpoints.begin(store, TABLE, PARTITION.number, ttl_ms=1500)
    await node.close()


def test_a_checkpoint_ends_on_demand_by_its_time_and_with_its_table() -> None:
    run_simulated(ends)


def test_a_checkpoint_is_gone_when_its_node_is_started_again(tmp_path: Path) -> None:
    async def scenario(place: Place) -> None:
        node, store = await place.open_one()
        put(store, b"a", b"1")
        left = await kept(place).begin(store, TABLE, PARTITION.number, ttl_ms=TTL_MS)
        await left.engine.close()
        await node.close()
        assert len(await place.engines.names()) == 2
        node, store = await place.open_one()
        assert len(await place.engines.names()) == 1
        assert contents(store) == {b"a": b"1"}
        await node.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    run_on_rocksdb(scenario, tmp_path)


def test_so_many_checkpoints_are_kept_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "CHECKPOINTS_OF_TABLE_MAX", 2)

    async def scenario(place: Place) -> None:
        node, store = await place.open_one()
        checkpoints = kept(place)

        async def begin() -> PartitionCheckpoint:
            return await checkpoints.begin(store, TABLE, PARTITION.number, ttl_ms=TTL_MS)

        begun = await asyncio.gather(*(begin() for _ in range(3)), return_exceptions=True)
        taken = [each for each in begun if isinstance(each, PartitionCheckpoint)]
        assert len(taken) == 2
        assert [type(each) for each in begun if each not in taken] == [Overloaded]
        await checkpoints.end(taken[0])
        await begin()
        await checkpoints.close()
        await node.close()

    run_simulated(scenario)


def test_keys_that_went_with_a_split_are_not_told_until_they_are_taken_out_nor_then(
    tmp_path: Path,
) -> None:
    halves = Table(
        name="t",
        incarnation=PARTITION.incarnation,
        config=TableConfig(partitions=8),
        partitions=(
            *TABLE.partitions,
            Partition(
                epoch=8,
                master=NodeId("alone"),
                parent=Parent(number=PARTITION.number, epoch=1, sequence=100),
            ),
        ),
    )

    async def scenario(place: Place) -> None:
        node, store = await place.open_one()
        checkpoints = kept(place)
        slots = TABLE.slots_of(PARTITION.number)
        keys = [key for key in (b"key%d" % each for each in range(2_000)) if slot_of(key) in slots]
        for key in keys:
            put(store, key, b"1")
        mine = halves.slots_of(PARTITION.number)
        assert mine != slots
        expected = dict.fromkeys((key for key in keys if slot_of(key) in mine), b"1")
        store.own(shares_of(halves)[PARTITION.number])
        for is_trimmed in (False, True):
            one = await checkpoints.begin(store, halves, PARTITION.number, ttl_ms=TTL_MS)
            assert (one.told is None) is is_trimmed
            assert await all_of(checkpoints, one) == expected
            async with asyncio.timeout(60):
                while not store.engine.state.is_trimmed:
                    await store.maintain()
        await checkpoints.close()
        await node.close()

    run_on_rocksdb(scenario, tmp_path)


async def ends_with_its_partition(place: Place) -> None:
    for turns in range(0, 24, 2):
        node, store = await place.open_one()
        checkpoints = kept(place)
        for number in range(50):
            put(store, b"k%d" % number, b"v")
        task = asyncio.create_task(
            checkpoints.begin(store, TABLE, PARTITION.number, ttl_ms=TTL_MS), name="taken"
        )
        for _ in range(turns):
            await asyncio.sleep(0)
        await node.hold({}, epoch=8)
        async with asyncio.timeout(60):
            with suppress(Unavailable):
                await task
            await checkpoints.close()
        await node.close()


def test_one_that_is_being_made_ends_when_its_partition_leaves_the_node() -> None:
    run_simulated(ends_with_its_partition)


async def goes_though_its_reader_leaves(place: Place) -> None:
    node, store = await place.open_one()
    checkpoints = kept(place)
    put(store, b"k", b"v")
    for turns in range(6):
        one = await checkpoints.begin(store, TABLE, PARTITION.number, ttl_ms=TTL_MS)
        ending = asyncio.create_task(checkpoints.end(one))
        for _ in range(turns):
            await asyncio.sleep(0)
        ending.cancel()
        await asyncio.wait([ending])
    await checkpoints.close()
    assert [name for name in await place.engines.names() if "checkpoint" in name] == []
    await node.close()


def test_one_that_is_ended_goes_though_its_reader_leaves_meanwhile(tmp_path: Path) -> None:
    run_on_rocksdb(goes_though_its_reader_leaves, tmp_path)
    run_simulated(goes_though_its_reader_leaves)


async def is_not_begun_at_the_end(place: Place) -> None:
    node, store = await place.open_one()
    checkpoints = kept(place)
    begun = [
        asyncio.create_task(
            checkpoints.begin(store, TABLE, PARTITION.number, ttl_ms=TTL_MS), name=f"taken {number}"
        )
        for number in range(5)
    ]
    await asyncio.sleep(0)
    await checkpoints.close()
    outcomes = await asyncio.gather(*begun, return_exceptions=True)
    assert sum(isinstance(each, ShuttingDown) for each in outcomes) >= 4
    await node.close()


def test_those_that_wait_for_their_turn_do_not_hold_up_the_end_of_a_node() -> None:
    run_simulated(is_not_begun_at_the_end)
