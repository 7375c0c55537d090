"""Reading: by time, within bounds, as Arrow; cursors, retention and properties."""

import asyncio
from unittest import mock

import pytest

from raftwood.base.compression import Codec
from raftwood.base.errors import Conflict, InvalidInput, NotFound, OutOfRange, Overloaded, TooLarge
from raftwood.base.position import Position
from raftwood.dlog.log.meta import LogConfig, meta_key
from raftwood.dlog.settings import DlogSettings
from tests.kits.dlog.logs import Kit, read_all, run_logs
from tests.kits.dlog.memory_ledgers import MemoryLedgerWriter


def test_a_position_is_found_by_time() -> None:
    async def scenario(kit: Kit) -> None:
        dlogs = kit.dlogs()
        await dlogs.create("a", LogConfig(entries_max=5))
        writer = await dlogs.open_writer("a")
        appended = []
        for number in range(33):
            await asyncio.sleep(0.05)
            now_ms = kit.environment.clock.wall_ns() // 1_000_000
            appended.append((now_ms, await writer.append(b"%d" % number)))
        await asyncio.sleep(0.1)
        reader = await dlogs.open_reader("a")
        for time_ms, position in appended:
            assert await reader.find_time(time_ms) == position
            assert await reader.find_time(time_ms - 10) == position
        assert await reader.find_time(0) == appended[0][1]
        assert await reader.find_time(appended[-1][0] + 1) > appended[-1][1]
        await reader.close()
        await writer.close()

    run_logs(scenario)


def test_reads_keep_to_their_bounds_and_refuse_what_is_behind_the_end() -> None:
    async def scenario(kit: Kit) -> None:
        dlogs = kit.dlogs(DlogSettings(cache_bytes=5_000, read_ahead_bytes=2_000))
        await dlogs.create("a", LogConfig(entries_max=50, compression=Codec.ZSTD))
        writer = await dlogs.open_writer("a")
        positions: list[Position] = []
        for _ in range(20):
            positions += await writer.append_all([b"x" * 100] * 10)
        await writer.close()
        reader = await dlogs.open_reader("a")
        start, found = Position(0), []
        while True:
            messages, following = await reader.read(start, bytes_max=250)
            assert len(messages) <= 2
            found += [each.position for each in messages]
            if following == start:
                break
            start = following
        assert found == positions
        for far in (Position(start + 1), Position(start + (5 << 64))):
            with pytest.raises(OutOfRange):
                await reader.read(far, bytes_max=250)
        await reader.close()

    run_logs(scenario)


def test_appends_keep_to_their_bounds() -> None:
    async def scenario(kit: Kit) -> None:
        dlogs = kit.dlogs(DlogSettings(message_bytes_max=100, messages_in_flight_max=3))
        await dlogs.create("a")
        writer = await dlogs.open_writer("a")
        with pytest.raises(TooLarge):
            await writer.append(b"x" * 100)
        waiting = [writer.submit(b"x") for _ in range(3)]
        with pytest.raises(Overloaded):
            writer.submit(b"x")
        await asyncio.gather(*waiting)
        await writer.append(b"x")
        with pytest.raises(InvalidInput):
            await writer.append(b"x", producer="p" * 256, sequence=1)
        with pytest.raises(InvalidInput):
            await writer.append(b"x", producer="p", sequence=-1)
        await writer.close()

    run_logs(scenario)


def test_retention_frees_old_ledgers_but_for_what_a_cursor_needs() -> None:
    async def scenario(kit: Kit) -> None:
        dlogs = kit.dlogs()
        await dlogs.create("a", LogConfig(entries_max=4, retention_ms=1_000))
        writer = await dlogs.open_writer("a")
        positions = [await writer.append(b"%d" % n) for n in range(40)]
        await asyncio.sleep(5)
        cursors = dlogs.cursors("a")
        cursor = await cursors.move("slow", positions[17], retains=True)
        await cursors.move("fast", positions[30])
        first = await dlogs.retain("a")
        assert positions[10] < first <= positions[17]
        assert [each.name for each in await cursors.all()] == ["fast", "slow"]
        with pytest.raises(Conflict):
            await cursors.move("slow", positions[20], version=cursor.version - 1)
        await cursors.move("slow", positions[39], retains=True, version=cursor.version)
        assert await dlogs.retain("a") > positions[17]
        await cursors.remove("slow")
        with pytest.raises(NotFound):
            await cursors.get("slow")
        reader = await dlogs.open_reader("a")
        info = await dlogs.info("a")
        left = await read_all(reader, info.first)
        assert [each.position for each in left] == [
            each for each in positions if each >= info.first
        ]
        await reader.close()
        await writer.close()

    run_logs(scenario)


def test_properties_are_set_one_by_one() -> None:
    async def scenario(kit: Kit) -> None:
        dlogs = kit.dlogs()
        await dlogs.create("a")
        assert await dlogs.set_properties("a", {"x": "1", "y": "2"}) == {"x": "1", "y": "2"}
        assert await dlogs.set_properties("a", {"x": None}) == {"y": "2"}
        with pytest.raises(InvalidInput):
            await dlogs.set_properties("a", {"z": "v" * (1 << 20)})
        assert (await dlogs.info("a")).meta.properties == {"y": "2"}

    run_logs(scenario)


def test_a_large_table_of_producers_is_found_by_the_next_writer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(kit: Kit) -> None:
        dlogs = kit.dlogs()
        await dlogs.create("a")
        first = await dlogs.open_writer("a")
        positions = await asyncio.gather(
            *(first.append(b"x", producer=f"p{n}", sequence=1) for n in range(300))
        )
        for number in range(40):
            await first.append(b"y", producer="z", sequence=number)
        await first.rotate()
        for _ in range(3):
            second = await dlogs.open_writer("a")
            again = await asyncio.gather(
                *(second.append(b"x", producer=f"p{n}", sequence=1) for n in range(300))
            )
            assert again == positions
            await second.append(b"z")
        await first.close()
        await second.close()

    monkeypatch.setattr("raftwood.dlog.log.entry_builder.SNAPSHOT_PIECE_BYTES", 2_000)
    monkeypatch.setattr("raftwood.dlog.log.entry_builder.SNAPSHOT_EVERY_ENTRIES", 5)
    monkeypatch.setattr("raftwood.dlog.log.entry_builder.SNAPSHOT_SHARE", 0)
    run_logs(scenario)


def test_a_tail_waits_at_a_log_that_was_closed_long_ago() -> None:
    async def scenario(kit: Kit) -> None:
        dlogs = kit.dlogs()
        await dlogs.create("a")
        writer = await dlogs.open_writer("a")
        await writer.append(b"1")
        await writer.close()
        reader = await dlogs.open_reader("a")
        end = await reader.end()
        for number in range(20):  # More than the metastore remembers.
            version = await kit.metastore.compare_and_set(
                f"{meta_key('a')}/{number}", b"", version=0
            )
            assert version is not None
            await kit.metastore.compare_and_set(f"{meta_key('a')}/{number}", None, version=version)
        assert await reader.read(end, bytes_max=1, wait_ms=50) == ([], end)
        waiting = asyncio.create_task(reader.read(end, bytes_max=1, wait_ms=60_000))
        await asyncio.sleep(0.1)
        writer = await dlogs.open_writer("a")
        await writer.append(b"2")
        messages, _ = await waiting
        assert [bytes(each.message.payload) for each in messages] == [b"2"]
        await writer.close()
        await reader.close()

    run_logs(scenario, removals_kept=5)


def test_a_position_that_was_acked_is_waited_for_until_readers_hear_of_it() -> None:
    async def scenario(kit: Kit) -> None:
        dlogs = kit.dlogs(DlogSettings(entry_bytes=1))
        await dlogs.create("a")
        writer = await dlogs.open_writer("a")
        kit.ledgers.publish_ms = 100
        positions = await writer.append_all([b"%d" % n for n in range(5)])
        reader = await dlogs.open_reader("a")
        assert await reader.read(positions[3], bytes_max=1) == ([], positions[3])
        messages, _ = await reader.read(positions[3], bytes_max=1, wait_ms=1_000)
        assert [each.position for each in messages] == [positions[3]]
        await writer.close()
        with pytest.raises(OutOfRange):
            await reader.read(Position(positions[4] + (1 << 20)), bytes_max=1)
        await reader.close()

    run_logs(scenario)


def test_a_message_that_no_ledger_takes_fails_and_is_not_waited_for() -> None:
    async def scenario(kit: Kit) -> None:
        dlogs = kit.dlogs()
        await dlogs.create("a")
        writer = await dlogs.open_writer("a")
        with mock.patch.object(MemoryLedgerWriter, "append", side_effect=TooLarge("an add")):
            async with asyncio.timeout(10):
                with pytest.raises(TooLarge):
                    await writer.append(b"1")
        assert writer.has_given_up
        await writer.close()

    run_logs(scenario)
