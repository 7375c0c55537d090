"""A log from the outside: append, read, tail, rotate, take over, shrink, terminate."""

import asyncio
import gc
import warnings
from contextlib import suppress
from typing import Any
from unittest.mock import AsyncMock, patch

import pytest

from raftwood.base.errors import LogSealed, NotFound, OutOfRange, ShuttingDown, Unavailable
from raftwood.base.position import Position
from raftwood.dlog.errors import BookieUnavailable, CannotRecover, Fenced
from raftwood.dlog.ledgers.metadata import LedgerConfig
from raftwood.dlog.ledgers.seams import LedgerWriter
from raftwood.dlog.log import writer_driver
from raftwood.dlog.log.entries import DlogMessage
from raftwood.dlog.log.log_writer import LogWriter
from raftwood.dlog.log.meta import LogConfig
from raftwood.dlog.settings import DlogSettings
from tests.kits.dlog.logs import Kit, read_all, run_logs
from tests.kits.dlog.memory_ledgers import MemoryLedgerWriter

SMALL = LogConfig(entries_max=4)


def test_what_is_appended_is_read_in_order_across_ledgers() -> None:
    async def scenario(kit: Kit) -> None:
        dlogs = kit.dlogs()
        await dlogs.create("a", SMALL)
        writer = await dlogs.open_writer("a")
        positions = [await writer.append(b"%d" % n) for n in range(50)]
        message = DlogMessage(b"payload", b"key", ((b"h", b"1"), (b"h", b"2")), 3)
        positions.append(await writer.append(message))
        assert positions == sorted(set(positions))
        await asyncio.sleep(0.1)
        reader = await dlogs.open_reader("a")
        found = await read_all(reader)
        assert [each.position for each in found] == positions
        assert [bytes(each.message.payload) for each in found[:-1]] == [
            b"%d" % n for n in range(50)
        ]
        assert found[-1].message == message
        assert [each.position for each in await read_all(reader, positions[20])] == positions[20:]
        assert len((await dlogs.info("a")).meta.ledgers) > 5
        await reader.close()
        await writer.close()

    run_logs(scenario)


def test_appends_of_one_turn_share_an_entry() -> None:
    async def scenario(kit: Kit) -> None:
        dlogs = kit.dlogs()
        await dlogs.create("a")
        writer = await dlogs.open_writer("a")
        positions = await writer.append_all([b"%d" % n for n in range(100)])
        assert positions == [Position(positions[0] + n) for n in range(100)]
        await writer.close()
        found = await read_all(await dlogs.open_reader("a"))
        assert [bytes(each.message.payload) for each in found] == [b"%d" % n for n in range(100)]

    run_logs(scenario)


def test_opening_a_writer_fences_the_one_before() -> None:
    async def scenario(kit: Kit) -> None:
        dlogs = kit.dlogs()
        await dlogs.create("a")
        first = await dlogs.open_writer("a")
        before = await first.append(b"1", producer="p", sequence=1)
        second = await kit.dlogs().open_writer("a")
        with pytest.raises(Fenced):
            await first.append(b"2", producer="p", sequence=2)
        assert first.is_fenced
        assert await second.append(b"1", producer="p", sequence=1) == before
        after = await second.append(b"2", producer="p", sequence=2)
        assert after > before
        assert second.take_over.attempts == 1
        assert second.take_over.interruption_ms > 0
        await first.close()
        await second.close()
        found = await read_all(await dlogs.open_reader("a"))
        assert [each.position for each in found] == [before, after]

    run_logs(scenario)


def test_a_writer_that_is_abandoned_at_once_leaves_nothing_unawaited() -> None:
    async def scenario(kit: Kit) -> None:
        dlogs = kit.dlogs()
        await dlogs.create("log")
        writer = await dlogs.open_writer("log")
        await writer.append(b"first")
        await asyncio.sleep(1)
        rotation = writer.rotate()
        rotation.send(None)  # It has begun, and what it began has not.
        await writer.abandon()
        rotation.close()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_logs(scenario)
        gc.collect()
    assert [str(each.message) for each in caught] == []


def test_a_writer_that_is_closed_at_once_leaves_no_ledger_that_was_being_made() -> None:
    async def scenario(kit: Kit) -> None:
        make = kit.ledgers.create

        async def make_slowly(config: LedgerConfig, **options: Any) -> LedgerWriter:
            made = await make(config, **options)
            await asyncio.sleep(1)
            return made

        dlogs = kit.dlogs()
        await dlogs.create("a")
        with patch.object(kit.ledgers, "create", make_slowly):
            writer = await dlogs.open_writer("a")
            await writer.close()
        listed = [each.ledger for each in (await dlogs.info("a")).meta.ledgers]
        assert [each async for each in kit.ledgers.ledgers()] == listed

    run_logs(scenario)


def test_a_tail_follows_a_live_writer_across_rotations_to_the_end() -> None:
    async def scenario(kit: Kit) -> None:
        dlogs = kit.dlogs()
        await dlogs.create("a", SMALL)
        reader = await kit.dlogs().open_reader("a")
        seen: list[bytes] = []

        async def follow() -> None:
            async for each in reader.tail(Position(0)):
                seen.append(bytes(each.message.payload))  # noqa: PERF401

        async with asyncio.TaskGroup() as group:
            group.create_task(follow())
            writer = await dlogs.open_writer("a")
            for n in range(30):
                await writer.append(b"%d" % n)
                await asyncio.sleep(0.01)
                assert len(seen) == n + 1
            await writer.terminate()
            await writer.close()
        assert seen == [b"%d" % n for n in range(30)]
        await reader.close()

    run_logs(scenario)


def test_what_is_acked_behind_a_rotation_is_read_though_closing_the_ledger_takes_long() -> None:
    async def scenario(kit: Kit) -> None:
        dlogs = kit.dlogs()
        await dlogs.create("a")
        writer = await dlogs.open_writer("a")
        close = MemoryLedgerWriter.close

        async def slowly(self: MemoryLedgerWriter) -> None:
            await asyncio.sleep(0.1)
            await close(self)

        reader = await kit.dlogs().open_reader("a")
        with patch.object(MemoryLedgerWriter, "close", slowly):
            for number in range(5):
                position = await writer.append(b"%d" % number)
                messages = await read_all(reader)
                assert [bytes(each.message.payload) for each in messages] == [
                    b"%d" % each for each in range(number + 1)
                ]
                assert messages[-1].position == position
                await writer.rotate()
        await reader.close()
        await writer.close()

    run_logs(scenario)


def test_a_terminated_log_takes_no_more_and_knows_what_it_took() -> None:
    async def scenario(kit: Kit) -> None:
        dlogs = kit.dlogs()
        await dlogs.create("a")
        writer = await dlogs.open_writer("a")
        position = await writer.append(b"1", producer="p", sequence=1)
        end = await dlogs.terminate("a")
        assert end > position
        assert await dlogs.terminate("a") == end
        with pytest.raises(Fenced):
            await writer.append(b"2")
        await writer.close()
        later = await dlogs.open_writer("a")
        assert await later.append(b"1", producer="p", sequence=1) == position
        with pytest.raises(LogSealed):
            await later.append(b"2", producer="p", sequence=2)
        assert await later.terminate() == end
        await later.close()

    run_logs(scenario)


def test_shrinking_frees_whole_ledgers_and_spares_the_last_two() -> None:
    async def scenario(kit: Kit) -> None:
        dlogs = kit.dlogs()
        await dlogs.create("a", SMALL)
        writer = await dlogs.open_writer("a")
        positions = [await writer.append(b"%d" % n, producer="p", sequence=n) for n in range(30)]
        await asyncio.sleep(0.1)
        ledgers = (await dlogs.info("a")).meta.ledgers
        assert await dlogs.shrink("a", positions[13]) == positions[13]
        info = await dlogs.info("a")
        assert info.first == positions[13]
        assert len(info.meta.ledgers) < len(ledgers)
        reader = await dlogs.open_reader("a")
        with pytest.raises(OutOfRange, match=str(positions[13])):
            await reader.read(positions[12], bytes_max=1000)
        assert [each.position for each in await read_all(reader, info.first)] == positions[13:]
        with pytest.raises(OutOfRange):
            await dlogs.shrink("a", Position(info.next + 1000))
        await dlogs.shrink("a", info.next)
        assert len((await dlogs.info("a")).meta.ledgers) == 2
        # The writer goes on, though others changed the record.
        again = await writer.append(b"3", producer="p", sequence=3)
        assert again == positions[3]
        for n in range(30, 40):
            await writer.append(b"%d" % n)
        assert not writer.is_fenced
        await reader.close()
        await writer.close()

    run_logs(scenario)


def test_a_ledger_that_fails_is_recovered_and_nobody_notices() -> None:
    async def scenario(kit: Kit) -> None:
        dlogs = kit.dlogs()
        await dlogs.create("a")
        writer = await dlogs.open_writer("a")
        first = await writer.append(b"first")
        appends = [
            asyncio.create_task(writer.append(b"%d" % n, producer="p", sequence=n))
            for n in range(40)
        ]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        kit.ledgers.refused_creates = 2
        kit.ledgers.refused_recoveries = 1
        kit.ledgers.break_writer(first >> 64)
        positions = await asyncio.gather(*appends)
        assert len(set(positions)) == 40
        again = [await writer.append(b"%d" % n, producer="p", sequence=n) for n in range(40)]
        assert again == list(positions)
        await writer.close()
        found = await read_all(await dlogs.open_reader("a"))
        assert [each.position for each in found] == [first, *sorted(positions)]

    run_logs(scenario)


@pytest.mark.parametrize("seed", range(6))
def test_what_failed_in_one_ledger_and_the_next_is_not_taken_for_stored(seed: int) -> None:
    async def scenario(kit: Kit) -> None:
        dlogs = kit.dlogs(DlogSettings(entry_bytes=1))
        await dlogs.create("a")
        writer = await dlogs.open_writer("a")
        ledger = (await writer.append(b"first")) >> 64
        futures = [writer.submit(b"%d" % n, producer=f"p{n}", sequence=0) for n in range(10)]
        await asyncio.sleep(0)
        kit.ledgers.break_writer(ledger)
        while (successor := writer.meta.last_ledger) == ledger:  # noqa: ASYNC110
            await asyncio.sleep(0.0001)
        await asyncio.sleep(0.0005)  # Its entries are under way.
        kit.ledgers.break_writer(successor)
        await writer.abandon()
        await asyncio.gather(*futures, return_exceptions=True)
        writer = await dlogs.open_writer("a")
        for n in range(10):
            await writer.append(b"%d" % n, producer=f"p{n}", sequence=0)
        await writer.close()
        found = await read_all(await dlogs.open_reader("a"))
        payloads = sorted(bytes(each.message.payload) for each in found[1:])
        assert payloads == [b"%d" % n for n in range(10)]

    run_logs(scenario, seed=seed)


def test_an_entry_that_the_ledger_refuses_leaves_its_number_to_nobody() -> None:
    async def scenario(kit: Kit) -> None:
        dlogs = kit.dlogs(DlogSettings(entry_bytes=1))
        await dlogs.create("a")
        writer = await dlogs.open_writer("a")
        kit.ledgers.refused_append = b"message 3"
        positions = await writer.append_all([b"message %d" % n for n in range(10)])
        await writer.close()
        found = await read_all(await dlogs.open_reader("a"))
        assert [bytes(each.message.payload) for each in found] == [
            b"message %d" % n for n in range(10)
        ]
        assert [each.position for each in found] == positions

    run_logs(scenario)


@pytest.mark.parametrize("seed", [1, 2])
def test_none_of_five_that_contend_for_a_log_waits_for_long(seed: int) -> None:
    async def scenario(kit: Kit) -> None:
        await kit.dlogs().create("a")
        loop = asyncio.get_running_loop()
        waited: list[float] = []

        async def contend() -> None:
            dlogs = kit.dlogs()
            for _ in range(20):
                begun = loop.time()
                writer = await dlogs.open_writer("a")
                waited.append(loop.time() - begun)
                with suppress(Fenced):
                    await writer.append(b"x")
                await writer.abandon()

        await asyncio.gather(*[contend() for _ in range(5)])
        # With pauses that grow with each defeat, one of them waits for 7 s.
        assert max(waited) < 3

    run_logs(scenario, seed=seed, delay_ms=30)


def test_what_is_tried_again_is_logged_once_and_then_in_sum() -> None:
    async def scenario(kit: Kit) -> None:
        dlogs = kit.dlogs()
        await dlogs.create("a")
        await (await dlogs.open_writer("a")).abandon()
        kit.ledgers.refused_recoveries = 7
        with patch.object(writer_driver._log, "warning") as warning:
            writer = await dlogs.open_writer("a")
        first, last = warning.call_args_list
        assert first.args == ("ledger_not_recovered",)
        assert (last.args, last.kwargs["failures"]) == (("log_retries_ended",), 7)
        await writer.close()

    run_logs(scenario)


def test_too_few_bookies_for_a_new_ledger_delay_the_rotation_alone() -> None:
    async def scenario(kit: Kit) -> None:
        dlogs = kit.dlogs()
        await dlogs.create("a", SMALL)
        writer = await dlogs.open_writer("a")
        kit.ledgers.refused_creates = 5
        positions = [await writer.append(b"%d" % n) for n in range(500)]
        assert len({each >> 64 for each in positions}) > 1
        await writer.close()

    run_logs(scenario)


def test_a_log_is_found_by_its_name_and_removed_with_all_it_has() -> None:
    async def scenario(kit: Kit) -> None:
        dlogs = kit.dlogs()
        for name in ("a/1", "a/2", "b"):
            await dlogs.create(name)
        assert await dlogs.names("a/") == ["a/1", "a/2"]
        writer = await dlogs.open_writer("a/1")
        await writer.append(b"1")
        await dlogs.cursors("a/1").move("c", Position(7), retains=True)
        await dlogs.remove("a/1")
        await dlogs.remove("a/1")
        with pytest.raises((Fenced, NotFound)):
            await writer.append(b"2")
        await writer.close()
        with pytest.raises(NotFound):
            await dlogs.open_writer("a/1")
        with pytest.raises(NotFound):
            await dlogs.open_reader("a/1")
        assert await dlogs.names() == ["a/2", "b"]
        assert [each async for each in kit.ledgers.ledgers()] == []

    run_logs(scenario)


def test_the_store_of_ledgers_may_be_short_of_bookies_for_ever() -> None:
    async def scenario(kit: Kit) -> None:
        dlogs = kit.dlogs()
        await dlogs.create("a")
        kit.ledgers.refused_creates = 1_000_000
        with pytest.raises(CannotRecover):
            await dlogs.open_writer("a")

    run_logs(scenario)


def test_a_rotation_and_the_end_do_not_wait_for_bookies_for_ever() -> None:
    async def scenario(kit: Kit) -> None:
        dlogs = kit.dlogs(DlogSettings(open_timeout_ms=5_000, preallocates=False))
        loop = asyncio.get_running_loop()
        for name in ("a", "b"):
            await dlogs.create(name)
            writer = await dlogs.open_writer(name)
            await writer.append(b"1")
            kit.ledgers.refused_creates = kit.ledgers.refused_recoveries = 1_000_000
            with pytest.raises(Unavailable, match="no new ledger after 5000 ms"):
                await writer.rotate()
            kit.ledgers.break_writer(writer.meta.last_ledger)
            unacked = writer.submit(b"2")
            began = loop.time()
            if name == "a":
                with pytest.raises(Unavailable, match="not known to have ended"):
                    await writer.terminate()
            await writer.close()
            assert 4.9 < loop.time() - began < 6
            assert isinstance(unacked.exception(), ShuttingDown)
            kit.ledgers.refused_creates = kit.ledgers.refused_recoveries = 0
            assert await dlogs.terminate(name) > Position(0)

    run_logs(scenario)


def test_bytes_whose_ack_is_held_when_the_log_is_rotated_are_counted() -> None:
    async def scenario(kit: Kit) -> None:
        dlogs = kit.dlogs()
        await dlogs.create("a")
        writer = await dlogs.open_writer("a")
        got = kit.metastore.get

        async def slowly(key: str) -> Any:
            await asyncio.sleep(0.01)
            return await got(key)

        with (
            patch.object(LogWriter, "_is_valid", lambda _: False),
            patch.object(kit.metastore, "get", slowly),
        ):
            held = writer.submit(b"x" * 1_000)
            await writer.rotate()
            await asyncio.sleep(0.1)
            assert not held.done()
        await held
        await writer.append(b"y" * 500)
        assert writer.appended_bytes == 1_500
        reader = await dlogs.open_reader("a")
        await asyncio.sleep(0.1)
        assert await reader.appended_bytes() == 1_500
        await reader.close()
        await writer.close()

    run_logs(scenario)


def test_how_much_was_appended_is_as_new_as_the_end_or_not_known() -> None:
    async def scenario(kit: Kit) -> None:
        dlogs = kit.dlogs()
        await dlogs.create("a")
        writer = await dlogs.open_writer("a")
        reader = await dlogs.open_reader("a")
        await writer.append(b"x" * 1_000)
        await writer.rotate()
        for size in (1_500, 2_000):
            await writer.append(b"y" * 500)
            assert await reader.appended_bytes() == size
        (last,) = (each for each, _ in reader._opened._found.values() if not each.is_closed)
        away = AsyncMock(side_effect=BookieUnavailable("too few bookies answer"))
        with patch.object(last, "wait", away), pytest.raises(BookieUnavailable):
            await reader.appended_bytes()
        await reader.close()
        await writer.close()

    run_logs(scenario)
