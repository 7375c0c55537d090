"""Real bookies that hang, lie damaged or come back empty: what was acked stays, and no damage is
taken for an entry that never was.
"""

import asyncio
import signal
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from raftwood.base.errors import RaftwoodError
from raftwood.dlog.bookkeeper.bookies import BookKeeperBookies
from raftwood.dlog.bookkeeper.connection import BookKeeperSettings
from raftwood.dlog.bookkeeper.metadata_store import BookKeeperMetadataStore
from raftwood.dlog.errors import CannotRecover
from raftwood.dlog.ledgers.context import LedgerSettings
from raftwood.dlog.ledgers.digests import EntryDigest, master_key
from raftwood.dlog.ledgers.metadata import BookieId, Digest, LedgerConfig
from tests.kits.running import run
from tests.kits.servers.bookkeeper import Bookie, BookKeeperCluster
from tests.kits.servers.bookkeeper_clients import opened

pytestmark = pytest.mark.needs("bookkeeper")

COUNT = 20
WORK_S_MAX = 60
"""The bookie hangs for as long as the work takes."""
HASTY = LedgerSettings(add_timeout_ms=500, read_timeout_ms=1500)
ENTRIES = [b"MARK%02d" % number + bytes(200) for number in range(COUNT)]


@contextmanager
def stopped(bookie: Bookie) -> Iterator[None]:
    """Stopped in order, and started again."""
    bookie.kill(signal.SIGTERM)
    try:
        yield
    finally:
        bookie.restart()


def log_with(bookie: Bookie, ledger: int, entry: int) -> tuple[Path, int] | None:
    """The entry log that has an entry, and where it has it."""
    for file in sorted(bookie.ledgers.glob("*.log")):
        at = file.read_bytes().find(struct.pack(">qq", ledger, entry))
        if at >= 0:
            return file, at
    return None


def corrupt(bookie: Bookie, ledger: int) -> None:
    """Entry 5 has another byte in its data, entry 10 another number, and the rest is cut off."""
    for _ in range(3):
        with stopped(bookie):
            found = log_with(bookie, ledger, 15)
            if found is not None:
                file, end = found
                data = bytearray(file.read_bytes()[: end + 50])
                data[data.find(b"MARK05") + 50] ^= 0xFF
                data[data.find(struct.pack(">qq", ledger, 10)) + 15] ^= 0xFF
                file.write_bytes(data)
                return
    raise AssertionError(f"bookie {bookie.id} keeps ledger {ledger} in its journal alone")


async def answers(cluster: BookKeeperCluster, bookie: Bookie, ledger: int) -> list[str]:
    """What a bookie says of entries, by either protocol and with a fence."""
    store = await BookKeeperMetadataStore.open(cluster.address)
    digest = EntryDigest(ledger, Digest.CRC32C, b"")
    said = []
    for fence_key in (None, master_key(b"")):
        for use_v3_alone in (False, True):
            bookies = BookKeeperBookies(
                store.address_of, BookKeeperSettings(use_v3_alone=use_v3_alone)
            )
            names = []
            for entry in (0, 5, 10, 15, 19, 20):
                try:
                    packed = await bookies.read(
                        BookieId(bookie.id), ledger=ledger, entry=entry, fence_key=fence_key
                    )
                    digest.unpack(packed, entry=entry)
                    names.append("ok")
                except RaftwoodError as error:
                    names.append(type(error).__name__)
            said.append(" ".join(names))
            await bookies.close()
    await store.close()
    return said


def test_damage_in_an_entry_log_is_not_an_entry_that_never_was(
    breakable_bookkeeper: BookKeeperCluster,
) -> None:
    bookies = {bookie.id: bookie for bookie in breakable_bookkeeper.bookies}

    async def write() -> tuple[int, tuple[BookieId, ...]]:
        async with opened(breakable_bookkeeper) as client:
            writer = await client.create(LedgerConfig(ensemble=3, write_quorum=3, ack_quorum=2))
            for data in ENTRIES:
                await writer.append(data)
            await writer.abandon()
            return writer.ledger, writer.metadata.segments[0].bookies

    ledger, ensemble = run(write())
    damaged, other, _ = (bookies[each] for each in ensemble)
    corrupt(damaged, ledger)
    away = "BookieUnavailable"
    says = f"ok BadDigest {away} {away} {away} NoSuchEntry"
    # By the third protocol an answer carries the last confirmed entry, and that can't be read.
    by_v3 = f"{away} {away} {away} {away} {away} NoSuchEntry"
    assert run(answers(breakable_bookkeeper, damaged, ledger)) == [says, by_v3, says, says]

    async def recover() -> None:
        async with opened(breakable_bookkeeper, ledgers=HASTY) as client:
            reader = await client.open(ledger, recover=True)
            assert reader.last_confirmed == COUNT - 1
            entries = await reader.read(first=0, last=COUNT - 1)
            assert [bytes(each.data) for each in entries] == ENTRIES

    other.kill()
    try:
        # One that answers is too few to tell, for what is damaged counts as no answer.
        with pytest.raises(CannotRecover):
            run(recover())
    finally:
        other.restart()
    run(recover())


def test_a_bookie_that_lost_its_data_is_kept_out_and_says_nothing(
    breakable_bookkeeper: BookKeeperCluster,
) -> None:
    bookies = {bookie.id: bookie for bookie in breakable_bookkeeper.bookies}

    async def write() -> tuple[int, tuple[BookieId, ...]]:
        async with opened(breakable_bookkeeper) as client:
            writer = await client.create(LedgerConfig(ensemble=2, write_quorum=2, ack_quorum=2))
            for data in ENTRIES:
                await writer.append(data)
            await writer.abandon()
            return writer.ledger, writer.metadata.segments[0].bookies

    async def recover(*, is_enough: bool) -> None:
        async with opened(breakable_bookkeeper, ledgers=HASTY) as client:
            if not is_enough:
                with pytest.raises(CannotRecover):
                    await client.open(ledger, recover=True)
                return
            reader = await client.open(ledger, recover=True)
            assert reader.last_confirmed == COUNT - 1

    ledger, ensemble = run(write())
    wiped, other = (bookies[each] for each in ensemble)
    wiped.kill()
    wiped.lose_data()
    try:
        # Under its old name and without its data BookKeeper itself refuses to start it: its cookie
        # is gone.
        wiped.launch()
        assert wiped.ended(timeout_s=30) != 0
        assert "Cookie" in wiped.output()
        other.kill()
        run(recover(is_enough=False))
        other.restart()
        run(recover(is_enough=True))
    finally:
        wiped.find_data()
        wiped.restart()


def test_one_bookie_that_hangs_blocks_neither_appends_nor_reads_nor_recovery(
    breakable_bookkeeper: BookKeeperCluster,
) -> None:
    bookies = {bookie.id: bookie for bookie in breakable_bookkeeper.bookies}

    async def main() -> None:
        async with opened(breakable_bookkeeper, ledgers=HASTY) as client:
            writer = await client.create(LedgerConfig())
            for data in ENTRIES:
                await writer.append(data)
            hanging = bookies[writer.metadata.segments[0].bookies[0]]
            hanging.pause()
            try:
                await asyncio.gather(*(writer.append(data) for data in ENTRIES))
                await writer.abandon()
                async with opened(breakable_bookkeeper, ledgers=HASTY) as another:
                    reader = await another.open(writer.ledger, recover=True)
                    assert reader.last_confirmed == 2 * COUNT - 1
                    entries = await reader.read(first=0, last=2 * COUNT - 1)
                    assert [bytes(each.data) for each in entries] == ENTRIES * 2
            finally:
                hanging.resume()

    run(asyncio.wait_for(main(), WORK_S_MAX))
