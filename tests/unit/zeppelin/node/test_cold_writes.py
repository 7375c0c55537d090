"""Writes to keys that the disk alone knows: what they had is looked up beside the loop."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from raftwood.base.errors import StoreDamaged
from raftwood.zeppelin.node.engine import DATA_END, DATA_START, engine_key
from raftwood.zeppelin.node.store import NodeStore
from raftwood.zeppelin.node.stored_partition import StoredPartition
from raftwood.zeppelin.records import BinlogPosition, KeyWrite
from tests.kits.zeppelin.engines import FileEngine
from tests.kits.zeppelin.stores import (
    Place,
    check_kept_up,
    commit,
    contents,
    put,
    run_on_rocksdb,
    run_simulated,
)

LATER = 10**15
KEYS = [b"key%03d" % number for number in range(300)]


async def reopened(place: Place) -> tuple[NodeStore, StoredPartition]:
    """With all keys on the disk, none of them in memory."""
    node, store = await place.open_one()
    for number, key in enumerate(KEYS):
        put(store, key, b"old", LATER if number % 3 == 0 else 0)
    await store.settle()
    await node.close()
    return await place.open_one()


def never_read_on_the_loop(store: StoredPartition, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Answers how many keys were fetched at a time."""
    kv = store.engine.kv
    fetched: list[int] = []
    multi_get = kv.multi_get

    def get(key: bytes) -> bytes | None:
        pytest.fail(f"{key!r} was read on the loop")

    async def counted(keys: list[bytes]) -> list[bytes | None]:
        fetched.append(len(keys))
        return await multi_get(keys)

    monkeypatch.setattr(kv, "get", get)
    monkeypatch.setattr(kv, "multi_get", counted)
    return fetched


def is_fetching(store: StoredPartition) -> bool:
    return store._fetching is not None


def both(scenario: Callable[[Place], object], tmp_path: Path) -> None:
    run_simulated(scenario)  # type: ignore[arg-type]
    run_on_rocksdb(scenario, tmp_path)  # type: ignore[arg-type]


def test_what_cold_keys_had_is_fetched_beside_the_loop_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(place: Place) -> None:
        node, store = await reopened(place)
        fetched = never_read_on_the_loop(store, monkeypatch)
        writes = [KeyWrite(key, None if at % 5 == 0 else b"new") for at, key in enumerate(KEYS)]
        commit(store, *writes, KeyWrite(b"another", b"new"))
        await store.settle()
        assert fetched
        check_kept_up(store.engine)
        assert await store.count() == len(KEYS) - len(KEYS) // 5 + 1
        fetched.clear()
        commit(store, *[KeyWrite(key, b"newer") for key in KEYS])
        await store.settle()
        assert fetched == []  # memory has all of them now
        check_kept_up(store.engine)
        await node.close()

    both(scenario, tmp_path)


def test_writes_of_one_key_that_follow_each_other_stay_in_order(tmp_path: Path) -> None:
    async def scenario(place: Place) -> None:
        node, store = await reopened(place)
        rng = random.Random(7)
        expected = dict.fromkeys(KEYS, b"old")
        for number in range(120):
            for _ in range(rng.randrange(1, 40)):
                key = rng.choice(KEYS)
                if rng.random() < 0.3:
                    put(store, key, None)
                    expected.pop(key, None)
                else:
                    data = b"%d" % number
                    put(store, key, data, rng.choice((0, LATER)))
                    expected[key] = data
            await asyncio.sleep(rng.choice((0, 0, 0.001, 0.01)))
            if rng.random() < 0.1:
                commit(store, flushes=True)
                expected.clear()
            if rng.random() < 0.1:
                await store.settle()
                check_kept_up(store.engine)
        await store.settle()
        check_kept_up(store.engine)
        assert contents(store) == expected
        assert await store.count() == len(expected)
        await node.close()

    both(scenario, tmp_path)


def test_what_is_written_beside_a_fetch_makes_it_void(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(place: Place) -> None:
        node, store = await reopened(place)
        engine = store.engine
        multi_get, has_read, is_written = engine.kv.multi_get, asyncio.Event(), asyncio.Event()

        async def read_before(keys: list[bytes]) -> list[bytes | None]:
            found = await multi_get(keys)
            has_read.set()
            await is_written.wait()
            return found

        monkeypatch.setattr(engine.kv, "multi_get", read_before)
        cold = engine.look_up(KEYS)
        assert cold == [engine_key(key) for key in KEYS]
        fetching = asyncio.create_task(engine.fetch(cold))
        await has_read.wait()
        engine.trim(range(0), start=DATA_START, pairs_max=10_000)
        is_written.set()
        await fetching
        assert engine.look_up(KEYS) == []  # gone, and looked up anew
        commit(store, *[KeyWrite(key, b"new") for key in KEYS])
        await store.settle()
        check_kept_up(engine)
        assert engine.state.keys == len(KEYS)
        await node.close()

    run_simulated(scenario)


def test_a_start_and_a_rewind_read_beside_the_loop_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(place: Place) -> None:
        node, store = await reopened(place)
        # The binlog alone keeps what is written now.
        with monkeypatch.context() as patch:
            patch.setattr(FileEngine, "_saving", lambda *_: [])
            commit(store, *[KeyWrite(key, b"new") for key in KEYS])
            await store.settle()
            last = store.last_sequence
            await node.close()
        get = FileEngine.get

        def get_but_no_data(engine: FileEngine, key: bytes) -> bytes | None:
            assert not DATA_START <= key < DATA_END, f"{key!r} was read on the loop"
            return get(engine, key)

        with monkeypatch.context() as patch:
            patch.setattr(FileEngine, "get", get_but_no_data)
            node, store = await place.open_one()
        assert store.engine.state.sequence == last
        assert contents(store) == dict.fromkeys(KEYS, b"new")
        check_kept_up(store.engine)
        await node.close()
        node, store = await place.open_one()
        values = [KeyWrite(key, b"old" if at % 2 else None) for at, key in enumerate(KEYS)]
        with monkeypatch.context() as patch:
            patch.setattr(FileEngine, "get", get_but_no_data)
            await store.engine.rewind(last - 1, values, BinlogPosition(8, last))
        check_kept_up(store.engine)
        assert store.engine.state.keys == len(KEYS) // 2
        await node.close()

    run_simulated(scenario)


def test_large_values_are_fetched_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(place: Place) -> None:
        node, store = await reopened(place)
        fetched = never_read_on_the_loop(store, monkeypatch)
        multi_get = store.engine.kv.multi_get

        async def large(keys: list[bytes]) -> list[bytes | None]:
            return [bytes(1 << 20) for _ in await multi_get(keys)]

        monkeypatch.setattr(store.engine.kv, "multi_get", large)
        await store.engine.fetch([engine_key(key) for key in KEYS[:30]])
        assert fetched == [16, 4, 4, 4, 2]
        await node.close()

    run_simulated(scenario)


def test_damage_that_a_fetch_finds_is_told_as_that_of_a_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(place: Place) -> None:
        node, store = await reopened(place)

        async def damaged(_keys: list[bytes]) -> list[bytes | None]:
            raise StoreDamaged("a block is damaged")

        with monkeypatch.context() as patch:
            patch.setattr(store.engine.kv, "multi_get", damaged)
            put(store, KEYS[0], b"new")
            with pytest.raises(StoreDamaged):
                await store.settle()
            assert store.engine.damage is not None
            assert not store.is_well
        await store.maintain()  # tries again
        await store.settle()
        assert contents(store)[KEYS[0]] == b"new"
        await node.close()

    run_simulated(scenario)


def test_a_partition_that_is_given_up_leaves_no_fetch_behind() -> None:
    async def scenario(place: Place) -> None:
        node, store = await reopened(place)
        commit(store, *[KeyWrite(key, b"new") for key in KEYS])
        kv = store.engine.kv
        assert isinstance(kv, FileEngine)
        await store._binlog.sync()
        store.apply_some(1_000)
        assert is_fetching(store)
        assert store.unapplied_count == 0  # nothing can be given to the engine meanwhile
        await node.hold({}, epoch=8)
        assert not is_fetching(store)
        await node.close()

    run_simulated(scenario)
