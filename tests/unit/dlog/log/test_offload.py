"""Closed ledgers go to files; readers, shrinking and removal go through to them."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from unittest import mock

import pytest
from pyarrow.fs import LocalFileSystem

from raftwood.base.errors import InvalidConfiguration, NotFound, OutOfRange, StoreDamaged
from raftwood.base.position import Position
from raftwood.dlog.errors import NoSuchLedger
from raftwood.dlog.log.dlogs import Dlogs
from raftwood.dlog.log.meta import LogConfig
from raftwood.dlog.log.offload import ArrowOffloadStore, object_name
from raftwood.dlog.settings import DlogSettings
from tests.kits.dlog.logs import BEGIN, Kit, read_all, run_logs
from tests.kits.running import run

SMALL = LogConfig(entries_max=4, grace_ms=1)


class MemoryOffload:
    """An `OffloadStore` for simulations."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.flips = False

    async def write(self, name: str, parts: AsyncIterator[bytes]) -> None:
        data = bytearray()
        async for part in parts:
            data += part
        if self.flips:
            data[len(data) // 2] ^= 1
        self.objects[name] = bytes(data)

    async def rename(self, name: str, new: str) -> None:
        self.objects[new] = self.objects.pop(name)

    async def size(self, name: str) -> int:
        if name not in self.objects:
            raise NotFound(name)
        return len(self.objects[name])

    async def read(self, name: str, *, offset: int, length: int) -> bytes:
        await asyncio.sleep(0.001)
        if name not in self.objects:
            raise NotFound(name)
        return self.objects[name][offset : offset + length]

    async def delete(self, name: str) -> None:
        self.objects.pop(name, None)


def offloading(kit: Kit, store: MemoryOffload, settings: DlogSettings | None = None) -> Dlogs:
    return Dlogs(kit.environment, kit.metastore, kit.ledgers, settings, offload=store)


async def filled(dlogs: Dlogs) -> list[Position]:
    await dlogs.create("a", SMALL)
    writer = await dlogs.open_writer("a")
    positions = [await writer.append(b"%d" % n, producer="p", sequence=n) for n in range(40)]
    await writer.close()
    return positions


def test_an_offloaded_ledger_is_read_as_before() -> None:
    async def scenario(kit: Kit) -> None:
        store = MemoryOffload()
        dlogs = offloading(kit, store)
        positions = await filled(dlogs)
        reader = await dlogs.open_reader("a")
        before = await read_all(reader)
        done = await dlogs.offload("a")
        assert len(done) == len(store.objects) > 3
        left = [each async for each in kit.ledgers.ledgers()]
        assert not set(done) & set(left)
        # One reader had them open as ledgers, the other finds the copies.
        other = await offloading(kit, store).open_reader("a")
        assert await read_all(reader) == before
        assert await read_all(other) == before
        assert [each.position for each in before] == positions
        assert await dlogs.offload("a") == []
        assert await dlogs.shrink("a", positions[20]) == positions[20]
        assert len(store.objects) < len(done)
        await dlogs.remove("a")
        assert store.objects == {}
        await reader.close()
        await other.close()

    run_logs(scenario)


def test_a_reader_that_had_the_ledger_open_and_knows_the_new_record_finds_the_copy() -> None:
    async def scenario(kit: Kit) -> None:
        dlogs = offloading(kit, MemoryOffload(), DlogSettings(cache_bytes=0))
        positions = await filled(dlogs)
        reader = await dlogs.open_reader("a")
        await reader.read(positions[0], bytes_max=1)
        await dlogs.offload("a")
        await dlogs.metas.read("a")
        messages, _ = await reader.read(positions[1], bytes_max=1)
        assert messages[0].position == positions[1]
        await reader.close()

    run_logs(scenario)


def test_a_copy_that_was_freed_is_out_of_range_to_whoever_reads_it() -> None:
    async def scenario(kit: Kit) -> None:
        store = MemoryOffload()
        dlogs = offloading(kit, store, DlogSettings(cache_bytes=0))
        positions = await filled(dlogs)
        await dlogs.offload("a")
        for opens_before in (True, False):
            other = offloading(kit, store, DlogSettings(cache_bytes=0))
            reader = await other.open_reader("a")
            place = 0 if opens_before else 20
            if opens_before:
                await reader.read(positions[place], bytes_max=1)
            await dlogs.shrink("a", positions[place + 10])
            with pytest.raises(OutOfRange):
                await reader.read(positions[place + 1], bytes_max=1)
            await reader.close()

    run_logs(scenario)


def test_a_copy_that_is_not_the_same_leaves_the_ledger_where_it_is() -> None:
    async def scenario(kit: Kit) -> None:
        store = MemoryOffload()
        dlogs = offloading(kit, store)
        await filled(dlogs)
        store.flips = True
        with pytest.raises(StoreDamaged):
            await dlogs.offload("a")
        meta = (await dlogs.info("a")).meta
        assert not any(each.is_offloaded for each in meta.ledgers)
        assert len(await read_all(await dlogs.open_reader("a"))) == 40
        assert store.objects == {}
        with pytest.raises(InvalidConfiguration):
            await kit.dlogs().offload("a")

    run_logs(scenario)


def test_two_that_offload_the_same_log_at_once_leave_one_good_copy_of_each_ledger() -> None:
    async def scenario(kit: Kit) -> None:
        store = MemoryOffload()
        first, second = offloading(kit, store), offloading(kit, store)
        await filled(first)
        done = await asyncio.gather(first.offload("a"), second.offload("a"), return_exceptions=True)
        assert all(isinstance(each, list | NoSuchLedger) for each in done)
        for dlogs in (first, second):
            await dlogs.offload("a")
        meta = (await first.info("a")).meta
        names = {object_name(meta, each.ledger) for each in meta.ledgers if each.is_offloaded}
        assert set(store.objects) == names
        assert len(names) == len(meta.ledgers) - 2
        assert len(await read_all(await first.open_reader("a"))) == 40

    for seed in range(20):
        run_logs(scenario, seed=seed)


def test_who_was_not_told_where_ledgers_were_offloaded_to_says_so_and_frees_nothing() -> None:
    async def scenario(kit: Kit) -> None:
        store = MemoryOffload()
        positions = await filled(offloading(kit, store))
        await offloading(kit, store).offload("a")
        before = dict(store.objects)
        dlogs = kit.dlogs()
        reader = await dlogs.open_reader("a")
        with pytest.raises(InvalidConfiguration, match=r"set dlog\.offload"):
            await reader.read(positions[0], bytes_max=1)
        with pytest.raises(InvalidConfiguration, match=r"set dlog\.offload"):
            await dlogs.shrink("a", positions[20])
        with pytest.raises(InvalidConfiguration, match=r"set dlog\.offload"):
            await dlogs.remove("a")
        assert store.objects == before
        assert (await dlogs.info("a")).first == BEGIN
        await reader.close()

    run_logs(scenario)


def test_files_are_written_read_in_parts_and_deleted(tmp_path: Path) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"

    async def main() -> None:
        store = ArrowOffloadStore(LocalFileSystem(), str(tmp_path))
        synced: list[int] = []
        with mock.patch.object(os, "fsync", lambda file: synced.append(os.fstat(file).st_ino)):
            await store.write("log/1.dlof.new", parts())
            await store.rename("log/1.dlof.new", "log/1.dlof")
        durable = [tmp_path / "log/1.dlof", tmp_path / "log", tmp_path]
        assert synced == [each.stat().st_ino for each in durable]
        assert await store.size("log/1.dlof") == 6
        assert await store.read("log/1.dlof", offset=2, length=3) == b"etw"
        await store.delete("log/1.dlof")
        await store.delete("log/1.dlof")
        with pytest.raises(NotFound):
            await store.size("log/1.dlof")

    run(main())
