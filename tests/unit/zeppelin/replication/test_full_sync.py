"""Whole copies between nodes on a real disk and real sockets."""

import asyncio
import random
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from raftwood.base.backoff import Backoff
from raftwood.base.errors import ShuttingDown
from raftwood.zeppelin.model import NodeId
from raftwood.zeppelin.records import KeyWrite
from raftwood.zeppelin.replication import full_sync, replicator, slave
from raftwood.zeppelin.replication.progress import PartitionReport
from raftwood.zeppelin.replication.wire import CopyChunk
from tests.kits.zeppelin.real_nodes import RealNode, run_pair, topology, until


async def write_and_purge(one: RealNode, *, count: int = 500, size: int = 1_000) -> None:
    """So much that a new slave needs a copy of it."""
    for number in range(count):
        one.write(KeyWrite(b"key%d" % number, b"v" * size))
        if number % 50 == 0:
            # Another run of the binlog, which is purged by runs.
            await asyncio.sleep(0)
    await until(lambda: one.store.applied_sequence == one.store.last_sequence)
    await one.store.engine.flush()
    await one.store.purge(before=count - 100)
    assert one.store.first_sequence > count - 200


def test_a_slave_whose_records_are_purged_takes_a_whole_copy(tmp_path: Path) -> None:
    async def scenario(one: RealNode, two: RealNode) -> None:
        told = topology(1, [one, two])
        await one.apply(told)
        await write_and_purge(one)
        await two.apply(told)
        one.write(KeyWrite(b"later", b"1"))
        await until(lambda: one.replica.acks.reached == one.store.last_sequence)
        assert two.store.first_sequence > 500
        assert two.contents() == one.contents()
        assert not [*(tmp_path / "one/engines").glob("out-*/*")]

    run_pair(tmp_path, scenario)


def test_a_slave_tells_how_far_its_copy_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[PartitionReport] = []
    totals: list[int] = []

    async def scenario(one: RealNode, two: RealNode) -> None:
        told = topology(1, [one, two])
        await one.apply(told)
        await write_and_purge(one)
        came = slave.SlaveReplication._came

        def look(self: slave.SlaveReplication, master: NodeId, chunk: CopyChunk) -> None:
            came(self, master, chunk)
            reports.append(two.replica.report())

        monkeypatch.setattr(slave.SlaveReplication, "_came", look)
        await two.apply(told)
        await until(lambda: two.replica.report().is_streaming)
        reports.append(two.replica.report())
        totals.append(two.replicator.slave_world.copied_bytes)
        one.write(KeyWrite(b"later", b"1"))
        await until(lambda: two.replicator.slave_world.streamed_bytes > 0)

    run_pair(tmp_path, scenario)
    *amid, last = reports
    assert len(amid) > 1
    assert not any(each.is_streaming for each in amid)
    assert {each.copy_bytes for each in amid} == {amid[-1].copied_bytes}
    progress = [each.copied_bytes for each in amid]
    assert progress == sorted(progress)
    assert (last.copied_bytes, last.copy_bytes, last.is_streaming) == (0, 0, True)
    assert totals == [amid[-1].copied_bytes]


def breaking_after(count: int, breaks: int, sent: list[int]) -> Any:
    """Copies that break off behind some chunks, so often."""
    honest, left = full_sync.copy_items, [breaks]

    async def items(*arguments: Any, **named: Any) -> AsyncGenerator[bytes, None]:
        sent.append(0)
        async for item in honest(*arguments, **named):
            if sent[-1] == count and left[0]:
                left[0] -= 1
                raise ShuttingDown("the master is stopped")
            yield item
            sent[-1] += 1

    return items


def test_a_copy_that_breaks_off_goes_on_with_the_files_that_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    monkeypatch.setattr(full_sync, "CHUNK_BYTES", 4 << 10)
    monkeypatch.setattr(replicator, "copy_items", breaking_after(150, 1, sent))

    async def scenario(one: RealNode, two: RealNode) -> None:
        told = topology(1, [one, two])
        await one.apply(told)
        for part in range(3):
            # Values that cannot be made smaller, in files that stay as they are.
            for number in range(250):
                one.write(
                    KeyWrite(b"%d-%d" % (part, number), random.Random(number).randbytes(1_000))
                )
            await until(lambda: one.store.applied_sequence == one.store.last_sequence)
            await one.store.engine.flush()
        await one.store.purge(before=one.store.last_sequence)
        await two.apply(told)
        await until(lambda: two.replica.report().is_streaming)
        await until(lambda: two.store.last_sequence == one.store.last_sequence)
        assert two.contents() == one.contents()

    run_pair(tmp_path, scenario)
    broken, whole = sent
    assert broken == 150
    assert whole < 750_000 / (4 << 10) - 100, "two of three files are there"


def test_what_has_come_of_a_copy_is_removed_with_the_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    monkeypatch.setattr(replicator, "copy_items", breaking_after(3, 1_000, sent))

    async def scenario(one: RealNode, two: RealNode) -> None:
        told = topology(1, [one, two])
        await one.apply(told)
        await write_and_purge(one)
        await two.apply(told)
        await until(lambda: len(sent) > 2)
        assert [*(tmp_path / "two/engines").glob("in-*/*")]
        await two.apply(topology(2, [one], min_replicas=1))
        assert not [*(tmp_path / "two/engines").glob("in-*/*")]

    run_pair(tmp_path, scenario)


def test_files_of_another_engine_are_not_taken_for_those_of_the_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have the name and the size of its own."""

    async def scenario(one: RealNode, two: RealNode) -> None:
        told = topology(1, [one, two])
        await one.apply(told)
        await write_and_purge(one)
        folder = tmp_path / "copy"
        await one.store.checkpoint(str(folder))
        sizes = {each.name: each.stat().st_size for each in folder.iterdir()}
        wrong = {name: (size, 12345) for name, size in sizes.items()}
        honest = full_sync.IncomingCopy

        class Deceived(honest):  # type: ignore[misc, valid-type]
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                self.whole.update(wrong)

        monkeypatch.setattr(slave, "IncomingCopy", Deceived)
        await two.apply(told)
        await until(lambda: two.replica.report().is_streaming)
        await until(lambda: two.store.last_sequence == one.store.last_sequence)
        assert two.contents() == one.contents()

    run_pair(tmp_path, scenario)


def test_slaves_whose_master_sends_enough_copies_wait_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slave, "COPY_PAUSE", Backoff(first_ms=50))
    told_of: list[str] = []
    monkeypatch.setattr(slave._log, "info", lambda text, **_: told_of.append(text), raising=False)

    async def scenario(one: RealNode, two: RealNode) -> None:
        told = topology(1, [one, two])
        await one.apply(told)
        await write_and_purge(one)
        one.replicator._copies = replicator.COPIES_MAX
        await two.apply(told)
        await asyncio.sleep(0.3)
        assert not two.replica.report().is_streaming
        assert told_of.count("a slave takes a whole copy") == 1
        assert told_of[-1] == "a slave takes a whole copy"
        one.replicator._copies = 0
        await until(lambda: two.replica.report().is_streaming)

    run_pair(tmp_path, scenario)
