"""What a stored partition must do, on any engine: one suite, run on RocksDB and in simulation."""

import asyncio
import random

import pytest
from msgspec.structs import replace

from raftwood.base.environment import Clock
from raftwood.base.errors import (
    InvariantViolated,
    OutOfRange,
    Overloaded,
    TooLarge,
    Unavailable,
)
from raftwood.zeppelin.model import PartitionId
from raftwood.zeppelin.node.engine import KEPT_OF_PRODUCER
from raftwood.zeppelin.node.stored_partition import StoredPartition
from raftwood.zeppelin.records import BinlogPosition, EpochStart, KeyWrite, Value, decode_record
from raftwood.zeppelin.settings import StoreSettings
from raftwood.zeppelin.slots import tag_of
from tests.kits.zeppelin.stores import (
    PARTITION,
    Place,
    Scenario,
    check_kept_up,
    commit,
    contents,
    put,
    write_one,
)

NOW = 1_000_000
REPLICA = PartitionId(7, 4)
KEYS = [b"a", b"b", b"{t}1", b"{t}2", b"{u}1", b"t", b"", b"\x00", b"\xff{t}"]


class _Later:
    """A clock that is ahead of another one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.hours = self.seconds = 0

    def wall_ns(self) -> int:
        return self._clock.wall_ns() + self.hours * 3_600_000_000_000

    def monotonic_ns(self) -> int:
        return self._clock.monotonic_ns() + self.seconds * 1_000_000_000


class PartitionSuite:
    def run(self, scenario: Scenario) -> None:
        raise NotImplementedError

    def test_what_is_committed_can_be_read_at_once_and_later(self) -> None:
        async def scenario(place: Place) -> None:
            node, store = await place.open_one()
            put(store, b"k", b"v")
            assert store.get(b"k", now_ms=NOW) == Value(b"v")
            assert (store.last_sequence, store.synced_sequence, store.applied_sequence) == (1, 0, 0)
            await store.settle()
            assert (store.written_sequence, store.synced_sequence, store.applied_sequence) == (
                (1, 1, 1)
            )
            assert store.get(b"k", now_ms=NOW) == Value(b"v")
            assert not store.overlay.unapplied
            put(store, b"k", None)
            assert store.get(b"k", now_ms=NOW) is None
            await node.close()
            node, store = await place.open_one()
            assert (store.last_sequence, store.epoch) == (2, 1)
            assert store.get(b"k", now_ms=NOW) is None
            await node.close()

        self.run(scenario)

    def test_it_behaves_as_a_dictionary(self) -> None:
        async def scenario(place: Place) -> None:
            rng = random.Random(5)
            node, store = await place.open_one(StoreSettings(cache_bytes=2_000))
            model: dict[bytes, tuple[bytes, int]] = {}
            for _ in range(400):
                await _change(rng, store, model)
                if rng.random() < 0.3:
                    await _compare(rng, store, model)
                if rng.random() < 0.02:
                    await node.close()
                    node, store = await place.open_one(StoreSettings(cache_bytes=2_000))
            await node.close()

        self.run(scenario)

    def test_what_has_expired_is_absent_and_is_found_to_be_removed(self) -> None:
        async def scenario(place: Place) -> None:
            node, store = await place.open_one()
            later = place.environment.clock.wall_ns() // 1_000_000 + 1_000_000
            put(store, b"k", b"v", later)
            put(store, b"stays", b"v")
            for _ in range(2):
                assert store.get(b"k", now_ms=later - 1) == Value(b"v", later)
                assert store.get(b"k", now_ms=later) is None
                assert await store.multi_get([b"k"], now_ms=later) == [None]
                assert contents(store, later) == {b"stays": b"v"}
                await store.settle()
            found = [store.expired(now_ms=later, keys_max=1) for _ in range(4)]
            assert sorted(found) == [[], [], [b"k"], [b"k"]]
            put(store, b"k", b"again")
            assert store.expired(now_ms=later, keys_max=10) == []
            await node.close()

        self.run(scenario)

    def test_a_record_that_is_expired_on_arrival_deletes(self) -> None:
        async def scenario(place: Place) -> None:
            node, store = await place.open_one()
            put(store, b"k", b"v")
            put(store, b"k", b"v", 5)
            await store.settle()
            assert store.engine.get(b"k") is None
            assert store.get(b"k", now_ms=4) == Value(b"v", 5), "by a clock that is behind"
            await node.close()

        self.run(scenario)

    def test_many_are_read_as_of_the_moment_of_the_call(self) -> None:
        async def scenario(place: Place) -> None:
            node, store = await place.open_one(StoreSettings(cache_bytes=0))
            keys = [b"%d" % number for number in range(50)]
            for key in keys:
                put(store, key, b"before")
            await store.settle()
            for flushes in (False, True):
                store.overlay.forget_all()
                assert store.multi_get_cached(keys, now_ms=NOW) is None
                async with asyncio.TaskGroup() as group:
                    reading = group.create_task(store.multi_get(keys, now_ms=NOW))
                    await asyncio.sleep(0)
                    writes = [KeyWrite(key, b"after") for key in keys[:25]]
                    commit(store, *writes, flushes=flushes)
                    await store.settle()
                assert reading.result() == [Value(b"before")] * 50
                expected = dict.fromkeys(keys[:25], b"after")
                if not flushes:
                    expected |= dict.fromkeys(keys[25:], b"before")
                assert contents(store) == expected
                found = await store.multi_get(keys, now_ms=NOW)
                assert [value and value.data for value in found] == [
                    expected.get(key) for key in keys
                ]
                for key in keys:
                    put(store, key, b"before")
                await store.settle()
            put(store, keys[0], b"new")
            assert store.multi_get_cached([keys[0]], now_ms=NOW) == [Value(b"new")]
            await node.close()

        self.run(scenario)

    def test_records_are_told_in_their_encoding(self) -> None:
        async def scenario(place: Place) -> None:
            node, store = await place.open_one()
            told: list[int] = []
            stop = store.listen(lambda: told.append(store.last_sequence))
            records = [put(store, b"k", b"%d" % number) for number in range(5)]
            assert told == []
            found = await store.records(first=1, bytes_max=1 << 20)
            assert [decode_record(each) for each in found] == records
            await store.settle()
            assert told
            records += [commit(store, KeyWrite(b"k", b"x"), epoch=4) for _ in range(3)]
            await store.settle()
            stop()
            found = await store.records(first=5, bytes_max=1)
            assert [decode_record(each) for each in found] == records[4:5]
            found = await store.records(first=5, bytes_max=1000)
            assert [decode_record(each) for each in found] == records[4:]
            assert await store.records(first=9, bytes_max=1000) == []
            for first in (0, 10):
                with pytest.raises(OutOfRange):
                    await store.records(first=first, bytes_max=1000)
            assert list(store.epochs) == [EpochStart(1, 1), EpochStart(4, 6)]
            await node.close()
            node, store = await place.open_one()
            assert list(store.epochs) == [EpochStart(1, 1), EpochStart(4, 6)]
            await node.close()

        self.run(scenario)

    def test_what_a_turn_writes_is_one_record(self) -> None:
        async def scenario(place: Place) -> None:
            node, store = await place.open_one()
            assert [write_one(store, KeyWrite(key, b"1")) for key in (b"a", b"b", b"a")] == [
                1,
                1,
                1,
            ]
            commit(store, flushes=True)
            assert write_one(store, KeyWrite(b"c", b"2")) == 3
            assert write_one(store, KeyWrite(b"d", b"3"), epoch=2) == 4
            assert (store.get(b"a", now_ms=NOW), store.get(b"c", now_ms=NOW)) == (None, Value(b"2"))
            with pytest.raises(TooLarge, match="a key of"):
                write_one(store, KeyWrite(b"k" * 20_000, b""), epoch=2)
            with pytest.raises(InvariantViolated, match="does not follow"):
                write_one(store, KeyWrite(b"e", b"4"), epoch=1)
            await asyncio.sleep(0)
            assert write_one(store, KeyWrite(b"d", None), epoch=2) == 5
            found = [decode_record(each) for each in await store.records(first=1, bytes_max=10_000)]
            assert [(each.epoch, each.sequence, each.writes) for each in found] == [
                (1, 1, (KeyWrite(b"a", b"1"), KeyWrite(b"b", b"1"))),
                (1, 2, ()),
                (1, 3, (KeyWrite(b"c", b"2"),)),
                (2, 4, (KeyWrite(b"d", b"3"),)),
                (2, 5, (KeyWrite(b"d", None),)),
            ]
            await node.close()
            node, store = await place.open_one()
            assert contents(store) == {b"c": b"2"}
            await node.close()

        self.run(scenario)

    def test_a_turn_that_writes_much_has_several_records(self) -> None:
        async def scenario(place: Place) -> None:
            node, store = await place.open_one(StoreSettings(unapplied_bytes_max=1 << 20))
            with pytest.raises(Overloaded, match="wait for the disk already"):
                for number in range(10_000):
                    write_one(store, KeyWrite(b"%d" % number, b"v" * 100))
            assert 2 <= store.last_sequence <= 8
            await store.settle()
            assert write_one(store, KeyWrite(b"k", b"v")) == store.last_sequence
            await node.close()

        self.run(scenario)

    def test_a_record_has_to_be_the_next_one(self) -> None:
        async def scenario(place: Place) -> None:
            node, store = await place.open_one(StoreSettings(value_bytes_max=100_000))
            first = commit(store, KeyWrite(b"k", b"v"), epoch=3)
            with pytest.raises(InvariantViolated, match="does not follow"):
                store.commit(first)
            with pytest.raises(InvariantViolated, match="does not follow"):
                commit(store, epoch=2)
            with pytest.raises(InvariantViolated, match="does not follow"):
                commit(store, epoch=0)
            with pytest.raises(TooLarge, match="a key of"):
                put(store, b"k" * 20_000, b"")
            with pytest.raises(TooLarge, match="a value of"):
                put(store, b"k", b"v" * 100_001)
            with pytest.raises(TooLarge, match="a write of"):
                commit(store, *(KeyWrite(b"%d" % number, b"v" * 100_000) for number in range(6)))
            assert store.last_sequence == 1
            await node.close()

        self.run(scenario)

    def test_more_than_the_engine_takes_is_refused(self) -> None:
        async def scenario(place: Place) -> None:
            node, store = await place.open_one(StoreSettings(unapplied_bytes_max=64 << 10))
            with pytest.raises(Overloaded, match="wait for the disk already"):
                for _ in range(1000):
                    put(store, b"k", b"v" * 1000)
            assert 40 < store.last_sequence < 64
            await store.settle()
            put(store, b"k", b"v")
            await node.close()

        self.run(scenario)

    def test_a_node_says_that_its_disk_is_behind_long_before_writes_are_refused(self) -> None:
        async def scenario(place: Place) -> None:
            node, store = await place.open_one(StoreSettings(unapplied_bytes_max=1 << 20))
            for number in range(500):
                write_one(store, KeyWrite(b"%d" % number, b"v" * 100))
            await asyncio.sleep(0)
            seen = [node.is_behind]
            for number in range(500):
                write_one(store, KeyWrite(b"%d" % number, b"v" * 100))
            await asyncio.sleep(0)
            seen.append(node.is_behind)
            assert store.backlog < 0.5
            # An engine that takes nothing does not catch up, however little is written.
            store._failure = Unavailable("the engine takes nothing")
            seen.append(node.is_behind)
            await store.maintain()
            await store.settle()
            seen.append(node.is_behind)
            assert seen == [False, True, False, False]
            await node.close()

        self.run(scenario)

    def test_a_producers_last_requests_are_known_again_however_much_is_purged(self) -> None:
        async def scenario(place: Place) -> None:
            node, store = await place.open_one()
            commit(store, KeyWrite(b"k", b"v"), origin=(b"quiet", 9))
            for number in range(KEPT_OF_PRODUCER + 4):
                commit(store, KeyWrite(b"k", b"v"), origin=(b"busy", number))
            await store.settle()
            assert store.sequence_of(b"busy", 2) == 4
            assert store.sequence_of(b"busy", KEPT_OF_PRODUCER + 4) is None
            await node.close()
            node, store = await place.open_one()
            assert store.sequence_of(b"busy", 2) == 4
            await store.purge(before=store.last_sequence + 1)
            for _ in range(2):
                assert store.first_sequence == store.last_sequence + 1
                assert store.sequence_of(b"quiet", 9) == 1
                assert [store.sequence_of(b"busy", number) for number in range(6)] == [
                    *[None] * 4,
                    6,
                    7,
                ]
                with pytest.raises(OutOfRange):
                    await store.records(first=2, bytes_max=1)
                await node.close()
                node, store = await place.open_one()
            await node.close()

        self.run(scenario)

    def test_what_the_engine_has_not_flushed_is_not_purged(self) -> None:
        async def scenario(place: Place) -> None:
            node, store = await place.open_one()
            put(store, b"k", b"1")
            await store.settle()
            await store.purge(before=2)
            assert store.first_sequence == 1
            await store.engine.flush()
            await store.purge(before=99)
            assert (store.first_sequence, store.last_sequence) == (2, 1)
            assert list(store.epochs) == [EpochStart(1, 1)]
            await node.close()
            node, store = await place.open_one()
            assert (store.first_sequence, store.last_sequence, store.epoch) == (2, 1, 1)
            put(store, b"k", b"2")
            await node.close()

        self.run(scenario)

    def test_a_rewind_waits_for_a_copy_that_is_being_made(self) -> None:
        """A master makes a copy for a slave, and meanwhile becomes a slave itself."""

        async def scenario(place: Place) -> None:
            node, store = await place.open_one()
            for number in range(4):
                put(store, b"k%d" % number, b"1")
            await store.settle()
            has_begun, may_end = asyncio.Event(), asyncio.Event()
            checkpoint = store.engine.checkpoint

            async def slow(folder: str) -> None:
                await checkpoint(folder)
                has_begun.set()
                await may_end.wait()

            store.engine.checkpoint = slow  # type: ignore[method-assign]
            copying = asyncio.ensure_future(store.checkpoint(place.engines.folder("copy")))
            async with asyncio.timeout(60):
                await has_begun.wait()
            until = BinlogPosition(2, 9)
            rewinding = asyncio.ensure_future(store.rewind(after=2, values=[], until=until))
            await asyncio.sleep(0.05)
            assert not rewinding.done()
            with pytest.raises(Unavailable, match="being replaced"):
                await store.checkpoint(place.engines.folder("copy"))
            may_end.set()
            assert await copying == 4
            await rewinding
            assert store.last_sequence == 2
            commit(store, KeyWrite(b"later", b"1"))
            async with asyncio.timeout(60):
                await store.settle()
            assert store.applied_sequence == 3
            await node.close()

        self.run(scenario)

    def test_old_records_go_and_the_least_stays(self) -> None:
        async def scenario(place: Place) -> None:
            node, store = await place.open_one(StoreSettings(flush_bytes=1, binlog_bytes_min=2_000))
            clock = _Later(store._clock)
            store._purging._clock = clock
            for number in range(60):
                if number == 10:
                    clock.hours += 700
                put(store, b"k", b"v" * 100)
                await store.settle()
            for hours, first in ((0, 1), (21, 11), (0, 11)):
                clock.hours += hours
                clock.seconds += 61
                await store.maintain()
                assert store.first_sequence == first
            clock.hours += 800
            clock.seconds += 61
            await store.maintain()
            assert 40 < store.first_sequence < 60
            await node.close()

        self.run(scenario)

    def test_upkeep_flushes_and_purges(self) -> None:
        async def scenario(place: Place) -> None:
            node, store = await place.open_one(
                StoreSettings(flush_bytes=1, binlog_bytes_min=2_000, binlog_bytes_max=4_000)
            )
            store.needed_from = 20
            for _ in range(60):
                put(store, b"k", b"v" * 100)
                await store.settle()
            await store.maintain()
            assert store.first_sequence == 20
            store._purging._settings = replace(store._settings, binlog_held_bytes_max=6_000)
            await store.maintain()
            assert 20 < store.first_sequence < 40, "a slave that is hopelessly behind"
            store.needed_from = None
            await store.maintain()
            assert 40 < store.first_sequence < 60
            await node.close()
            node, store = await place.open_one()
            assert contents(store) == {b"k": b"v" * 100}
            await node.close()

        self.run(scenario)

    @pytest.mark.parametrize("after", [3, 4, 5, 9, 10])
    def test_a_rewind_undoes_what_did_not_happen(self, after: int) -> None:
        async def scenario(place: Place) -> None:
            node, store = await place.open_one()
            for number in range(1, 11):
                if number == 4:
                    await store.settle()
                write = KeyWrite(b"%d" % (number % 6), b"old %d" % number)
                epoch = 1 if number <= 5 else 2
                commit(store, write, epoch=epoch, origin=(b"c", number))
            keys = await store.touched(after=after)
            assert keys == list(dict.fromkeys(b"%d" % (n % 6) for n in range(after + 1, 11)))
            until = BinlogPosition(3, 12)
            values = [KeyWrite(key, b"new" if key != b"5" else None) for key in keys]
            await store.rewind(after=after, values=values, until=until)
            expected = {b"%d" % (n % 6): b"old %d" % n for n in range(1, after + 1)}
            for write in values:
                expected.pop(write.key, None)
                if write.data is not None:
                    expected[write.key] = write.data
            for _ in range(2):
                assert contents(store) == expected
                assert (store.last_sequence, store.repairing) == (after, until)
                assert store.epoch == (1 if after <= 5 else 2)
                assert store.sequence_of(b"c", after) == after
                assert store.sequence_of(b"c", after + 1) is None
                await node.close()
                node, store = await place.open_one()
            while store.last_sequence < 12:
                assert store.repairing == until
                commit(store, KeyWrite(b"0", b"v"), epoch=3)
            assert store.repairing is None
            await node.close()
            node, store = await place.open_one()
            assert store.repairing is None
            assert store.last_sequence == 12
            await node.close()

        self.run(scenario)

    def test_a_flush_cannot_be_undone_by_keys(self) -> None:
        async def scenario(place: Place) -> None:
            node, store = await place.open_one()
            put(store, b"k", b"v")
            commit(store, flushes=True)
            put(store, b"l", b"v")
            assert await store.touched(after=1) is None
            assert await store.touched(after=2) == [b"l"]
            await node.close()

        self.run(scenario)

    def test_a_replica_that_gets_the_records_holds_the_same_bytes(self) -> None:
        async def scenario(place: Place) -> None:
            rng = random.Random(9)
            node = await place.open()
            await node.hold({PARTITION: "t", REPLICA: "t"}, epoch=7)
            master, slave = await node.partition(PARTITION), await node.partition(REPLICA)
            model: dict[bytes, tuple[bytes, int]] = {}
            for _ in range(150):
                await _change(rng, master, model)
                while rng.random() < 0.4 and slave.last_sequence < master.last_sequence:
                    await _follow(slave, master)
            while slave.last_sequence < master.last_sequence:
                await _follow(slave, master)
            await master.settle()
            await slave.settle()
            assert list(slave.engine.kv.scan()) == list(master.engine.kv.scan())
            first = [await store.records(first=1, bytes_max=1 << 20) for store in (master, slave)]
            assert first[0][:100] == first[1][:100]
            await node.close()

        self.run(scenario)

    def test_old_epochs_are_forgotten_with_their_records(self) -> None:
        async def scenario(place: Place) -> None:
            node, store = await place.open_one()
            for epoch in range(1, 101):
                commit(store, KeyWrite(b"k", b"v"), epoch=epoch)
            await store.settle()
            await store.engine.flush()
            assert len(store.epochs) == 100
            await store.purge(before=91)
            for _ in range(2):
                assert list(store.epochs) == [EpochStart(each, each) for each in range(90, 101)]
                put(store, b"k", b"later")
                await node.close()
                node, store = await place.open_one()
            await node.close()

        self.run(scenario)

    def test_a_copy_is_of_one_moment_and_takes_anothers_place(self) -> None:
        async def scenario(place: Place) -> None:
            node, store = await place.open_one()
            for number in range(20):
                commit(store, KeyWrite(b"%d" % number, b"copied"), origin=(b"c", number))
            folder = place.engines.folder("copy")
            async with asyncio.TaskGroup() as group:
                copying = group.create_task(store.checkpoint(folder))
                for number in range(30):
                    put(store, b"%d" % number, b"later")
                    await asyncio.sleep(0)
            sequence = copying.result()
            assert sequence >= 20
            expected = {b"%d" % number: b"copied" for number in range(20)}
            expected |= {b"%d" % number: b"later" for number in range(sequence - 20)}
            for number in range(5):
                put(store, b"%d" % number, b"of a past that is given up")
            await store.restore(folder, sequence=sequence, epochs=[EpochStart(5, 2)])
            for _ in range(2):
                assert contents(store) == expected
                assert (store.first_sequence, store.last_sequence) == (sequence + 1, sequence)
                assert (store.epoch, store.repairing) == (5, None)
                assert store.sequence_of(b"c", 19) == 20
                await node.close()
                node, store = await place.open_one()
            put(store, b"k", b"v")
            assert await place.engines.names() == ["copy"]
            await node.close()
            node, store = await place.open_one()
            assert contents(store) == expected | {b"k": b"v"}
            assert node.held() == {PARTITION: "t"}
            await node.close()

        self.run(scenario)


async def _follow(slave: StoredPartition, master: StoredPartition) -> None:
    for encoded in await master.records(first=slave.last_sequence + 1, bytes_max=500):
        slave.commit(decode_record(encoded), encoded)


async def _change(
    rng: random.Random, store: StoredPartition, model: dict[bytes, tuple[bytes, int]]
) -> None:
    draw = rng.random()
    if draw < 0.03:
        model.clear()
    writes = []
    for _ in range(rng.choice((0, 1, 1, 1, 2, 5))):
        key, data = rng.choice(KEYS), rng.choice((b"1", b"22", b"3" * 300))
        expires = rng.choice((0, 0, NOW * 2 + 10**13))
        if rng.random() < 0.3:
            writes.append(KeyWrite(key, None))
            model.pop(key, None)
        else:
            writes.append(KeyWrite(key, data, expires))
            model[key] = (data, expires)
    epoch = max(1, store.epoch + (draw > 0.97))
    if draw > 0.5:
        for write in writes:
            write_one(store, write, epoch=epoch)
    else:
        commit(store, *writes, epoch=epoch, flushes=draw < 0.03)
    if rng.random() < 0.3:
        await asyncio.sleep(0)
    elif rng.random() < 0.1:
        await store.settle()
    elif rng.random() < 0.05:
        await store.engine.flush()


async def _compare(
    rng: random.Random, store: StoredPartition, model: dict[bytes, tuple[bytes, int]]
) -> None:
    key = rng.choice(KEYS)
    expected = {each: Value(*value) for each, value in model.items()}
    assert store.get(key, now_ms=NOW) == expected.get(key)
    found = list(store.scan(after=None, now_ms=NOW))
    assert dict(found) == expected
    assert len(found) == len(expected)
    if found:
        place = rng.randrange(len(found))
        after = found[place][0]
        assert list(store.scan(after=after, now_ms=NOW)) == found[place + 1 :]
    tagged = {each: value for each, value in expected.items() if tag_of(each) == b"t"}
    assert dict(store.scan_tag(b"t", now_ms=NOW)) == tagged
    if rng.random() < 0.3:
        assert await store.count() == len(expected)
        check_kept_up(store.engine)
        chosen = store.random_key(rng, now_ms=NOW)
        assert chosen in expected if expected else chosen is None
    keys = rng.choices(KEYS, k=4)
    assert await store.multi_get(keys, now_ms=NOW) == [expected.get(each) for each in keys]
