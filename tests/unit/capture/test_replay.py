"""A stream that is applied to a table: in order, by its last owner alone."""

import random
from typing import Any, cast

import pytest

from raftwood.base.environment import Environment
from raftwood.base.errors import ProtocolError
from raftwood.base.position import Position
from raftwood.capture.events import (
    Stamp,
    encode_flush,
    encode_mark,
    encode_stamp,
    encode_write,
    slots_of,
    write_of,
)
from raftwood.capture.replay import WRITES_MAX, Apply, Clear, TableReplay, steps_of
from raftwood.disk.real_environment import end_process
from raftwood.loghub.client.pulled_batches import LogRecord, rows_of
from raftwood.loghub.consumer.checkpoints import AsyncCheckpointTracker
from raftwood.loghub.consumer.source import ShardBatch
from raftwood.zeppelin.client import AsyncKv
from raftwood.zeppelin.client.errors import ProducerFenced
from raftwood.zeppelin.records import KeyWrite
from raftwood.zeppelin.slots import slot_of
from tests.kits.zeppelin.command_kit import ManualClock
from tests.kits.zeppelin.static_cluster import StaticCluster
from tests.unit.zeppelin.client.test_async_kv import on_cluster

TIME_NS = 10**9
STAMP = Stamp(name="test", incarnation=1, partition=0, tenure=1, chunk=1)


class FakeBatch:
    """Some records of a shard."""

    def __init__(self, *encoded: bytes, is_captured: bool = True) -> None:
        shared = encode_stamp(STAMP, table="t") if is_captured else b""
        self._rows = rows_of(b"".join(encoded) + shared)

    def records(self) -> list[LogRecord]:
        rows = self._rows
        return [
            LogRecord(TIME_NS, each, "", "", rows.tags, 0, Position(0)) for each in rows.contents
        ]


class FakeTracker:
    """Counts checkpoints."""

    saved = 0

    async def save_checkpoint(self) -> None:
        self.saved += 1


def _set(key: bytes, data: bytes | None, expires_ms: int = 0) -> bytes:
    return encode_write(KeyWrite(key, data, expires_ms), {}, TIME_NS)


async def _process(replay: TableReplay, *batches: FakeBatch) -> None:
    tracker = FakeTracker()
    await replay.process(
        cast("list[ShardBatch]", list(batches)), cast("AsyncCheckpointTracker", tracker)
    )
    assert tracker.saved == 1


def _replay(kv: AsyncKv, seed: int = 1) -> TableReplay:
    environment = Environment(
        clock=ManualClock(),
        random=random.Random(seed),
        files=None,  # type: ignore[arg-type]
        end_process=end_process,
    )
    return TableReplay(environment, kv, group="copy")


@pytest.mark.parametrize(
    "write",
    [
        KeyWrite(b"k", b"v"),
        KeyWrite(b"k", None),
        KeyWrite(b"\xff", b"\x00\xfe", 17),
        KeyWrite("ä".encode(), b"", 5),
        KeyWrite(b"", b"x"),
    ],
)
def test_a_write_comes_back_as_it_was(write: KeyWrite) -> None:
    (contents,) = rows_of(encode_write(write, {"sequence": "1"}, TIME_NS)).contents
    assert write_of(contents) == write


def test_what_is_no_change_is_refused() -> None:
    for contents in ({"op": "set", "value": "1"}, {"op": "set", "key": "a"}):
        with pytest.raises(ProtocolError):
            write_of(contents)
    with pytest.raises(ProtocolError):
        slots_of({"op": "flush", "slots": "all"})


def test_the_last_write_of_a_key_counts_and_flushes_stand_between() -> None:
    parts = [_set(b"a", b"1"), _set(b"b", b"1"), _set(b"a", None)]
    parts += [encode_flush(range(5, 9), {}, TIME_NS), encode_mark("cut", {}, TIME_NS)]
    parts += [_set(b"b", b"2")]
    assert list(steps_of(rows_of(b"".join(parts)).contents)) == [
        Apply((KeyWrite(b"a", None), KeyWrite(b"b", b"1"))),
        Clear(range(5, 9)),
        Apply((KeyWrite(b"b", b"2"),)),
    ]
    many = [{"op": "delete", "key": f"k{number}"} for number in range(WRITES_MAX + 1)]
    counts = [len(step.writes) for step in steps_of(many) if isinstance(step, Apply)]
    assert counts == [WRITES_MAX, 1]


def test_a_stream_is_applied_and_slots_are_cleared_whoever_has_them() -> None:
    async def scenario(kv: AsyncKv, cluster: StaticCluster, *_: Any) -> None:
        keys = [b"key%d" % number for number in range(200)]
        await kv.set_many([(key, b"old") for key in keys])
        replay = _replay(kv)
        await replay.initialize("0")
        # 6 partitions: some of them are within these slots, two in part.
        slots = range(1_000, 9_000)
        await _process(
            replay,
            FakeBatch(_set(b"k", b"1"), encode_flush(slots, {}, TIME_NS)),
            FakeBatch(_set(b"foreign", b"1"), is_captured=False),
            FakeBatch(_set(keys[0], b"new", 10**15), _set(keys[1], None)),
        )
        kept = {key: b"old" for key in [*keys, b"k"] if slot_of(key) not in slots}
        kept.pop(keys[1], None)
        if b"k" in kept:
            kept[b"k"] = b"1"
        assert cluster.values() == {**kept, keys[0]: b"new"}

    on_cluster(scenario)


def test_an_owner_that_was_replaced_writes_nothing_any_more() -> None:
    async def scenario(kv: AsyncKv, cluster: StaticCluster, *_: Any) -> None:
        first, second = _replay(kv, 1), _replay(kv, 2)
        await first.initialize("0")
        await _process(first, FakeBatch(_set(b"a", b"1")))
        await second.initialize("0")
        await _process(second, FakeBatch(_set(b"a", b"1"), _set(b"a", b"2")))
        for late in (_set(b"a", b"1"), _set(b"b", b"1"), encode_flush(range(16_384), {}, TIME_NS)):
            with pytest.raises(ProducerFenced):
                await _process(first, FakeBatch(late))
        assert cluster.values() == {b"a": b"2"}
        other = _replay(kv, 3)
        await other.initialize("1")
        await _process(second, FakeBatch(_set(b"b", b"3")))
        assert cluster.values() == {b"a": b"2", b"b": b"3"}

    on_cluster(scenario)
