"""Real bookies: kill -9, restarts, a wiped folder, SIGTERM, and the command line."""

import asyncio
import shutil
import signal
from pathlib import Path

import pytest

from raftwood.dlog.bookie.metadata_store import MetaLedgers
from raftwood.dlog.errors import BookieUnavailable, Fenced, NoSuchEntry
from raftwood.dlog.ledgers.metadata import LedgerConfig, LedgerMetadata, Segment
from tests.kits.dlog.bookie_calls import KEY, Adding, packed
from tests.kits.dlog.bookie_processes import BookieProcesses, bookie_processes
from tests.kits.running import run

_LOOKS_MAX = 1_200
"""A minute of them."""


def test_a_killed_bookie_comes_back_with_all_it_acked_and_its_fences(tmp_path: Path) -> None:
    with bookie_processes(tmp_path, 1) as processes:
        run(_kill_and_restart(processes))


async def _kill_and_restart(processes: BookieProcesses) -> None:
    await processes.start()
    (process,) = processes.all
    async with processes.client() as (environment, store, bookies):
        ledgers = MetaLedgers(store, environment.random)
        assert [each.id for each in await ledgers.bookies()] == [process.id]
        adding = Adding(bookies, process.id)
        await adding.begin(2, 0)
        with pytest.raises(NoSuchEntry):
            await bookies.read(process.id, ledger=2, entry=9, fence_key=KEY)
        acked = []
        for burst in range(5):
            under_way = [adding.begin(1, burst * 100 + n, b"%d" % n) for n in range(100)]
            if burst == 4:
                await asyncio.sleep(0.001)
                await process.kill()
            answers = await asyncio.gather(*under_way, return_exceptions=True)
            acked += [burst * 100 + n for n, answer in enumerate(answers) if answer is None]
            assert all(
                answer is None or isinstance(answer, BookieUnavailable) for answer in answers
            )
        assert len(acked) >= 400
        process.begin()
        await process.ready()
        await _until_it_answers(adding)
        for entry in acked:
            found = await bookies.read(process.id, ledger=1, entry=entry)
            assert bytes(found) == packed(1, entry, b"%d" % (entry % 100))
        with pytest.raises(Fenced):
            await adding.begin(2, 1)
        await ledgers.close()
        await _deleted_ledgers_are_dropped(processes, ledgers)


async def _deleted_ledgers_are_dropped(processes: BookieProcesses, ledgers: MetaLedgers) -> None:
    (process,) = processes.all
    process.signal(signal.SIGTERM)
    assert await process.ended() == 0
    assert await ledgers.bookies() == []
    segment = Segment(0, (process.id,))  # type: ignore[arg-type]
    config = LedgerConfig(ensemble=1, write_quorum=1, ack_quorum=1)
    await ledgers.create(1, LedgerMetadata(config=config, segments=(segment,)))
    process.begin("--set=bookie.garbage_interval_ms=100")
    await process.ready()
    async with processes.client() as (_, _, bookies):
        for _ in range(_LOOKS_MAX):
            _, highest = await bookies.read_last_confirmed(process.id, ledger=2)
            if not highest:
                break
            await asyncio.sleep(0.05)
        else:
            pytest.fail("ledger 2 was never dropped")
        assert bytes(await bookies.read(process.id, ledger=1, entry=5)) == packed(1, 5, b"5")


async def _until_it_answers(adding: Adding) -> None:
    for _ in range(_LOOKS_MAX):
        try:
            await adding.begin(3, 0)
        except BookieUnavailable:
            await asyncio.sleep(0.05)
        else:
            return
    pytest.fail("it does not answer")


def test_a_wiped_bookie_is_refused_until_it_is_told_to_begin_anew(tmp_path: Path) -> None:
    with bookie_processes(tmp_path, 1) as processes:
        run(_wipe(processes))
        (process,) = processes.all
        rows = processes.stores.rows("bookie", "list")
        assert rows == [{"id": process.id, "rack": "rack-1", "is_read_only": False}]
        assert process.stop() == 0


async def _wipe(processes: BookieProcesses) -> None:
    await processes.start()
    (process,) = processes.all
    await process.kill()
    shutil.rmtree(process.folder)
    process.begin()
    assert await process.ended() == 1
    told = process.tail()
    assert "it was wiped" in told
    assert "--begin-anew" in told
    process.begin("--begin-anew")
    await process.ready()
    await process.kill()
    process.begin()
    await process.ready()
