"""The store of ledgers in memory keeps the promises of the seam."""

import asyncio

import pytest

from raftwood.dlog.errors import Fenced, LedgerClosed
from raftwood.dlog.ledgers.metadata import LedgerConfig
from raftwood.dlog.ledgers.seams import LedgerStore
from tests.kits.dlog.memory_ledgers import MemoryLedgerStore
from tests.kits.running import in_virtual_time

CONFIG = LedgerConfig()


def _as_seam(store: LedgerStore) -> LedgerStore:
    return store


def test_what_was_acked_is_read_in_order() -> None:
    async def scenario() -> None:
        store = _as_seam(MemoryLedgerStore())
        writer = await store.create(CONFIG)
        acks = [writer.append(b"%d" % each) for each in range(5)]
        assert await asyncio.gather(*acks) == [0, 1, 2, 3, 4]
        reader = await store.open(writer.ledger, recover=False)
        assert await reader.wait(after=3, timeout_ms=1000) == (4, False)
        await writer.close()
        assert await reader.wait(after=4, timeout_ms=1000) == (4, True)
        entries = await reader.read(first=1, last=4)
        assert [(entry.id, entry.data) for entry in entries] == [
            (each, b"%d" % each) for each in range(1, 5)
        ]
        assert [each async for each in store.ledgers()] == [0]

    in_virtual_time(scenario())


def test_a_fenced_writer_never_acks_again() -> None:
    async def scenario() -> None:
        store = MemoryLedgerStore(delay_ms=1)
        writer = await store.create(CONFIG)
        assert await writer.append(b"a") == 0
        opening = asyncio.create_task(store.open(writer.ledger, recover=True))
        await asyncio.sleep(0)
        store.delay_ms = 20
        under_way = writer.append(b"b")
        reader = await opening
        with pytest.raises(Fenced):
            await under_way
        with pytest.raises(Fenced):
            await writer.append(b"c")
        with pytest.raises(Fenced):
            await writer.close()
        assert reader.is_closed
        assert reader.last_confirmed in (0, 1)

    in_virtual_time(scenario())


def test_a_closed_ledger_takes_no_more() -> None:
    async def scenario() -> None:
        store = MemoryLedgerStore()
        writer = await store.create(CONFIG)
        await writer.close()
        await writer.close()
        with pytest.raises(LedgerClosed):
            await writer.append(b"late")
        assert (await store.info(writer.ledger)).is_closed

    in_virtual_time(scenario())
