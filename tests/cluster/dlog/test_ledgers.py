"""Ledgers on four bookie processes: one is killed while entries are added, all is recovered."""

import asyncio
from pathlib import Path

import pytest

from raftwood.base.errors import Overloaded
from raftwood.dlog.bookie.metadata_store import MetaLedgers
from raftwood.dlog.errors import Fenced
from raftwood.dlog.ledgers.client import LedgerClient
from raftwood.dlog.ledgers.metadata import LedgerConfig
from tests.kits.dlog.bookie_processes import BookieProcesses, bookie_processes
from tests.kits.running import run

ENTRIES = 2_000


def test_a_ledger_outlives_a_bookie_and_its_writer(tmp_path: Path) -> None:
    with bookie_processes(tmp_path, 4) as processes:
        run(_write_kill_and_recover(processes))


async def _write_kill_and_recover(processes: BookieProcesses) -> None:
    await processes.start()
    async with processes.client() as (environment, store, bookies):
        client = LedgerClient(bookies, MetaLedgers(store, environment.random), environment)
        writer = await client.create(LedgerConfig(ensemble=3, write_quorum=3, ack_quorum=2))
        ensemble = (await client.info(writer.ledger)).segments[0].bookies
        victim = next(each for each in processes.all if each.id == ensemble[1])
        acked: list[int] = []
        for number in range(ENTRIES):
            if number == ENTRIES // 2:
                await victim.kill()
            while True:
                try:
                    appended = writer.append(b"entry %d" % number)
                    break
                except Overloaded:
                    await asyncio.sleep(0.01)
            if number % 50 == 49:
                acked.append(await appended)
        assert acked[-1] == ENTRIES - 1
        segments = (await client.info(writer.ledger)).segments
        assert len(segments) == 2
        assert victim.id not in segments[-1].bookies

        async with processes.client() as (other, other_store, other_bookies):
            successor = LedgerClient(other_bookies, MetaLedgers(other_store, other.random), other)
            reader = await successor.open(writer.ledger, recover=True)
            assert reader.is_closed
            assert reader.last_confirmed == ENTRIES - 1
            with pytest.raises(Fenced):
                await writer.append(b"too late")
            found = []
            for first in range(0, ENTRIES, 500):
                found += await reader.read(first=first, last=first + 499)
            assert [bytes(each.data) for each in found] == [
                b"entry %d" % number for number in range(ENTRIES)
            ]
            await reader.close()
            await successor.close()
        await client.close()
