"""Keys are counted, and found by when they end and by chance, also where 0.1.0 wrote them."""

import random
from collections import Counter
from pathlib import Path

import msgspec

from raftwood.base.seams import Put
from raftwood.zeppelin.node.engine import (
    DATA_START,
    STATE_KEY,
    EngineState,
    PartitionEngine,
    encode_state,
    ending,
    landmark,
)
from raftwood.zeppelin.records import KeyWrite
from tests.kits.zeppelin.stores import (
    Place,
    check_kept_up,
    commit,
    put,
    run_on_rocksdb,
    run_simulated,
)

NOW = 1
LATER = 10**15


def test_an_engine_of_the_first_release_is_counted_bit_by_bit_and_over_restarts(
    tmp_path: Path,
) -> None:
    async def scenario(place: Place) -> None:
        node, store = await place.open_one()
        keys = [b"%04d" % number for number in range(300)]
        for number, key in enumerate(keys):
            put(store, key, b"v", LATER + number if number % 3 == 0 else 0)
        await store.settle()
        _forget_counts(store.engine)
        rubbish = [ending(5, b"\x10gone"), b"\x03" + bytes(8) + b"\x10gone"]
        store.engine.kv.write_batch([Put(each, b"") for each in rubbish])
        assert await store.count() is None
        rng = random.Random(3)
        while not store.engine.is_counted:
            store.engine.count_some(rng.choice((1, 20, 40)))
            check_kept_up(store.engine)
            for _ in range(3):
                key = b"%04d" % rng.randrange(320)
                data = None if rng.random() < 0.4 else rng.randbytes(4)
                put(store, key, data, rng.choice((0, LATER)))
            await store.settle()
            check_kept_up(store.engine)
            if rng.random() < 0.3:
                await node.close()
                node, store = await place.open_one()
                check_kept_up(store.engine)
        assert await store.count() == len(list(store.scan(after=None, now_ms=NOW)))
        await node.close()

    run_simulated(scenario)
    run_on_rocksdb(scenario, tmp_path)


def test_a_partition_counts_by_itself_when_it_is_looked_after() -> None:
    async def scenario(place: Place) -> None:
        node, store = await place.open_one()
        for number in range(50):
            put(store, b"%d" % number, b"v")
        await store.settle()
        _forget_counts(store.engine)
        await store.maintain()
        assert await store.count() == 50
        _forget_counts(store.engine)
        commit(store, KeyWrite(b"k", b"v"), flushes=True)
        assert await store.count() == 1  # what is empty is counted
        await node.close()

    run_simulated(scenario)


def test_the_first_release_reads_a_state_that_tells_of_counts() -> None:
    told = encode_state(EngineState(sequence=7, keys=5, counted_to=b"\x12"))
    state = msgspec.convert(msgspec.msgpack.decode(told), _StateOfBefore)
    assert (state.sequence, state.is_trimmed) == (7, False)


def test_a_sweep_looks_at_what_ends_alone() -> None:
    async def scenario(place: Place) -> None:
        node, store = await place.open_one()
        for number in range(2_000):
            put(store, b"stays%d" % number, b"v")
        assert store.next_ending_ms == 0
        await store.settle()
        assert store.expired(now_ms=LATER, keys_max=10) == []
        assert store.next_ending_ms > LATER
        put(store, b"ends", b"v", LATER + 5)
        await store.settle()
        assert store.next_ending_ms == LATER + 5
        put(store, b"ends", b"v", LATER + 9)
        await store.settle()
        assert store.expired(now_ms=LATER + 8, keys_max=10) == []
        assert store.next_ending_ms == LATER + 9
        assert store.expired(now_ms=LATER + 9, keys_max=10) == [b"ends"]
        await node.close()

    run_simulated(scenario)


def test_a_random_key_is_about_as_likely_as_any_other(tmp_path: Path) -> None:
    async def scenario(place: Place) -> None:
        node, store = await place.open_one()
        keys = [b"user:%08d" % number for number in range(4_000)]
        for first in range(0, len(keys), 500):
            commit(store, *(KeyWrite(key, b"v") for key in keys[first : first + 500]))
        assert await store.count() == len(keys)
        rng = random.Random(7)
        found = Counter(store.random_key(rng, now_ms=NOW) for _ in range(4_000))
        # Of 4,000 choices among as many, 63 % are different; near that is near uniform.
        assert len(found) > 2_100
        assert max(found.values()) < 16
        parts = Counter(key[9:10] for key in found.elements() if key is not None)
        assert min(parts.values()) > 700
        await node.close()

    run_on_rocksdb(scenario, tmp_path)


def test_one_of_a_few_keys_is_found_wherever_they_are() -> None:
    async def scenario(place: Place) -> None:
        node, store = await place.open_one()
        rng = random.Random(7)
        assert store.random_key(rng, now_ms=NOW) is None
        put(store, b"a", b"v")
        assert store.random_key(rng, now_ms=NOW) == b"a"  # before the engine has it
        await store.settle()
        put(store, b"b", b"v" * 200_000)
        await store.settle()
        assert {store.random_key(rng, now_ms=NOW) for _ in range(40)} == {b"a", b"b"}
        put(store, b"a", None)
        assert {store.random_key(rng, now_ms=NOW) for _ in range(40)} == {b"b"}
        await node.close()

    run_simulated(scenario)


def test_landmarks_are_few_and_by_chance() -> None:
    marks = sum(landmark(DATA_START + b"%d" % number) is not None for number in range(32_000))
    assert 800 < marks < 1_200


def test_a_count_waits_for_what_is_on_its_way() -> None:
    async def scenario(place: Place) -> None:
        node, store = await place.open_one()
        for number in range(10):
            put(store, b"%d" % number, b"v")
            put(store, b"%d" % (number - 1), None)
        assert await store.count() == 1
        await node.close()

    run_simulated(scenario)


def _forget_counts(engine: PartitionEngine) -> None:
    """As release 0.1.0 leaves it."""
    state = msgspec.structs.replace(engine.state, keys=0, counted_to=b"")
    engine.kv.write_batch([Put(STATE_KEY, encode_state(state))])
    engine.state = state


class _StateOfBefore(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Of 0.1.0."""

    version: int = 1
    sequence: int = 0
    epochs: tuple[object, ...] = ()
    repairing: object = None
    flushed: int = 0
    slots: tuple[int, int] | None = None
    is_trimmed: bool = False
