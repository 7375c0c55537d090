"""Snapshots from another store: in order, verified, one per group; a bad one never gets a name."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.kits.disk.log_in_memory import run
from tests.kits.fuzz.snapshots import container
from tests.kits.raft.snapshots import contents, meta_of, names, raw, receive, recover, save

from raftwood.base.errors import (
    AlreadyExists,
    Cancelled,
    DiskFull,
    OutOfRange,
    Overloaded,
    ProtocolError,
    RaftwoodError,
    TooLarge,
)
from raftwood.raft import snapshot_files
from raftwood.raft.snapshot_files import SnapshotFiles, SnapshotReceiver
from raftwood.testing import ImmediateFiles

CHUNKS = [b"first", b"", b"x" * 700, b"last"]
EXTRA = {"table.sst": [b"t" * 300, b"u" * 300], "empty": []}
DATA = container(meta_of(), CHUNKS, EXTRA)


def _scenario(body: Callable[[ImmediateFiles, SnapshotFiles], Any]) -> None:
    async def main() -> None:
        files = ImmediateFiles()
        await body(files, await recover(files))

    run(main())


async def _begin(snapshots: SnapshotFiles, group: int = 1, index: int = 10) -> SnapshotReceiver:
    return await snapshots.begin_receive(group=group, index=index, term=3, size=len(DATA), sender=2)


def test_a_sent_snapshot_is_the_same_on_the_other_store() -> None:
    async def scenario(files: ImmediateFiles, snapshots: SnapshotFiles) -> None:
        extra = {"a": b"a" * 500, "b": b""}
        stored = await save(snapshots, files, meta_of(), CHUNKS, extra)
        async with await snapshots.open(1, 10) as reader:
            data = await raw(reader, 333)
        for size in (1, 77, 5000):
            others = ImmediateFiles()
            other = await recover(others)
            await receive(other, meta_of(), data, size)
            assert other.stored() == (await recover(others)).stored() == [stored]
            async with await other.open(1, 10) as reader:
                assert await contents(reader, others) == (CHUNKS, extra)

    _scenario(scenario)


def test_pieces_come_in_order_and_the_last_one_may_come_twice() -> None:
    async def scenario(files: ImmediateFiles, snapshots: SnapshotFiles) -> None:
        receiver = await _begin(snapshots)
        await receiver.write(0, DATA[:100])
        await receiver.write(0, DATA[:100])
        for offset, data in ((101, DATA[101:]), (50, DATA[50:]), (0, DATA[:99]), (0, bytes(100))):
            with pytest.raises(OutOfRange, match="goes on at 100"):
                await receiver.write(offset, data)
        await receiver.write(100, DATA[100:])
        await receiver.write(100, DATA[100:])
        assert receiver.received == len(DATA)
        assert snapshots.stored() == []
        await receiver.finish()
        await receiver.finish()
        await receiver.abort()
        assert len(snapshots.stored()) == 1
        assert names(files) == ["1-10.snapshot"]
        with pytest.raises(AlreadyExists):
            await _begin(snapshots)

    _scenario(scenario)


def test_a_newer_receiver_of_a_group_aborts_the_older() -> None:
    async def scenario(files: ImmediateFiles, snapshots: SnapshotFiles) -> None:
        older = await _begin(snapshots)
        await older.write(0, DATA[:100])
        other = await _begin(snapshots, group=2)
        newer = await _begin(snapshots)
        assert len(names(files)) == 2
        with pytest.raises(Cancelled, match="begin it again"):
            await older.write(100, DATA[100:])
        with pytest.raises(Cancelled):
            await older.finish()
        await older.abort()
        await newer.write(0, DATA)
        await newer.finish()
        await other.abort()
        assert names(files) == ["1-10.snapshot"]

    _scenario(scenario)


def test_receivers_that_begin_at_once_leave_one() -> None:
    async def scenario(files: ImmediateFiles, snapshots: SnapshotFiles) -> None:
        tasks = [asyncio.create_task(_begin(snapshots)) for _ in range(5)]
        await asyncio.wait(tasks)
        assert len(names(files)) == 1
        receiver = await tasks[-1]
        await receiver.write(0, DATA)
        await receiver.finish()
        assert names(files) == ["1-10.snapshot"]
        assert [type(task.exception()) for task in tasks[:-1]].count(Cancelled) >= 1

    _scenario(scenario)


def test_a_transfer_that_is_too_short_too_long_or_another_is_dropped() -> None:
    async def refused(
        files: ImmediateFiles, snapshots: SnapshotFiles, data: bytes, match: str, **said: int
    ) -> None:
        announced = {"group": 1, "index": 10, "term": 3, "size": len(data), **said}
        receiver = await snapshots.begin_receive(**announced, sender=2)
        with pytest.raises((ProtocolError, TooLarge), match=match):
            await receiver.write(0, data)
            await receiver.finish()
        with pytest.raises(Cancelled):
            await receiver.finish()
        assert (names(files), snapshots.stored()) == ([], [])

    async def scenario(files: ImmediateFiles, snapshots: SnapshotFiles) -> None:
        await refused(files, snapshots, DATA[:-1], "too early")
        await refused(files, snapshots, b"", "too early")
        await refused(files, snapshots, DATA + b"x", "bytes follow its end")
        await refused(files, snapshots, DATA, "announced", size=len(DATA) + 1)
        await refused(files, snapshots, DATA, "larger than the announced", size=len(DATA) - 1)
        await refused(files, snapshots, DATA, "group 1 at 10, term 3", group=2)
        await refused(files, snapshots, DATA, "group 1 at 10, term 3", index=11)
        await refused(files, snapshots, DATA, "group 1 at 10, term 3", term=4)
        await refused(files, snapshots, b"x" * 500, "does not begin")
        await receive(snapshots, meta_of(), DATA, 100)

    _scenario(scenario)


def test_a_damaged_transfer_is_dropped_wherever_it_is_damaged() -> None:
    async def scenario(files: ImmediateFiles, snapshots: SnapshotFiles) -> None:
        rng = random.Random(1)
        for place in range(0, len(DATA), 7):
            bad = bytearray(DATA)
            bad[place] ^= 1 << rng.randrange(8)
            with pytest.raises(RaftwoodError) as raised:
                await receive(snapshots, meta_of(), bytes(bad), 1 + rng.randrange(400))
            assert isinstance(raised.value, ProtocolError)
            assert "store 2" in raised.value.message
        assert (names(files), snapshots.stored()) == ([], [])

    _scenario(scenario)


def test_a_full_disk_drops_the_transfer() -> None:
    async def scenario(files: ImmediateFiles, snapshots: SnapshotFiles) -> None:
        files.file_system.capacity_bytes = 500
        with pytest.raises(DiskFull):
            await receive(snapshots, meta_of(), DATA, 100)
        assert names(files) == []
        files.file_system.capacity_bytes = None
        await receive(snapshots, meta_of(), DATA, 100)

    _scenario(scenario)


def test_a_transfer_that_is_cancelled_or_aborted_at_any_moment_leaves_nothing_or_all() -> None:
    async def scenario(files: ImmediateFiles, snapshots: SnapshotFiles) -> None:
        kept = 0
        for turns in range(30):
            for with_abort in (False, True):
                meta = meta_of(index=1 + 2 * turns + with_abort)
                data = container(meta, CHUNKS, EXTRA)
                receiver = await snapshots.begin_receive(
                    group=1, index=meta.index, term=3, size=len(data), sender=2
                )
                task = asyncio.create_task(_send(receiver, data))
                for _ in range(turns):
                    await asyncio.sleep(0)
                if with_abort:
                    await receiver.abort()
                else:
                    task.cancel()
                await asyncio.wait([task])
                kept += not task.cancelled() and task.exception() is None
                await receiver.abort()
                assert len(snapshots.stored()) == len(names(files)) == kept
        assert 5 < kept < 55

    async def _send(receiver: SnapshotReceiver, data: bytes) -> None:
        for offset in range(0, len(data), 200):
            await receiver.write(offset, data[offset : offset + 200])
        await receiver.finish()

    _scenario(scenario)


def test_what_is_received_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(_: ImmediateFiles, snapshots: SnapshotFiles) -> None:
        monkeypatch.setattr(snapshot_files, "RECEIVERS_MAX", 2)
        with pytest.raises(TooLarge):
            await snapshots.begin_receive(
                group=1, index=1, term=1, size=snapshot_files.SNAPSHOT_BYTES_MAX + 1, sender=2
            )
        first, _second = await _begin(snapshots), await _begin(snapshots, group=2)
        with pytest.raises(Overloaded):
            await _begin(snapshots, group=3)
        await _begin(snapshots, group=2)
        await first.abort()
        await _begin(snapshots, group=3)

    _scenario(scenario)


def test_a_beginning_that_is_cancelled_leaves_no_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(files: ImmediateFiles, snapshots: SnapshotFiles) -> None:
        monkeypatch.setattr(snapshot_files, "RECEIVERS_MAX", 1)
        for turns in range(6):
            await _begin(snapshots)
            task = asyncio.create_task(_begin(snapshots))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            if not turns or not task.cancelled():
                await snapshots.remove_group(1)
            assert names(files) == []
            other = await _begin(snapshots, group=2)
            await other.abort()

    _scenario(scenario)
