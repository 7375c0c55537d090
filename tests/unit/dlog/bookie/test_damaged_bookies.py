"""A bookie that lost entries never makes a recovery cut off what was acked, and is repaired."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest import mock

import pytest

from raftwood.base import files as seam
from raftwood.base.environment import Environment
from raftwood.base.errors import RaftwoodError, StoreDamaged, Unavailable
from raftwood.base.files import perform
from raftwood.disk.segment_log.horizon import load_horizon
from raftwood.dlog.bookie import server as server_module
from raftwood.dlog.bookie.membership import end_limbo, limbo_version
from raftwood.dlog.bookie.metadata_store import MetaLedgers
from raftwood.dlog.errors import CannotRecover, EntryUnknown, NoSuchEntry
from raftwood.dlog.ledgers.client import LedgerClient
from raftwood.dlog.ledgers.metadata import BookieId, LedgerConfig
from raftwood.dlog.ledgers.repair import RepairedLedger, _Copy
from raftwood.dlog.ledgers.rules import BookieShare
from raftwood.metastore.file_store import FileMetaStore
from raftwood.testing import Simulation, simulate
from tests.kits.dlog.bookie_servers import BookieServers

ON_ALL, ACKED = 100, 140


class _Site:
    """Three bookies, of which the first and the second alone have the last entries of a ledger."""

    def __init__(self, environment: Environment, store: FileMetaStore) -> None:
        self.environment = environment
        self.store = store
        self.servers = BookieServers(
            environment, store, "/data", ["b1", "b2", "b3", "b4"], is_remote=False
        )
        self.b1, self.b2, self.b3, self.b4 = self.servers.ids

    @asynccontextmanager
    async def client(self) -> AsyncIterator[LedgerClient]:
        client = LedgerClient(
            self.servers.client(),
            MetaLedgers(self.store, self.environment.random),
            self.environment,
        )
        try:
            yield client
        finally:
            await client.close()

    async def write(self) -> int:
        """140 entries are acked, the last 40 by two bookies; then the writer and the third end."""
        for each in (self.b1, self.b2, self.b3):
            await self.servers.start(each)
        async with self.client() as client:
            writer = await client.create(LedgerConfig(ensemble=3, write_quorum=3, ack_quorum=2))
            for number in range(ON_ALL):
                await writer.append(b"%d" % number + bytes(2_000))
            await self.servers.stop(self.b3)
            for number in range(ON_ALL, ACKED):
                await writer.append(b"%d" % number + bytes(2_000))
            ledger = writer.ledger
            await writer.abandon()
        await self.servers.start(self.b3)
        return ledger

    async def read_all(self, ledger: int) -> None:
        async with self.client() as client:
            reader = await client.open(ledger, recover=True)
            assert reader.last_confirmed == ACKED - 1
            entries = await reader.read(first=0, last=ACKED - 1)
            assert [bytes(each.data).rstrip(b"\0") for each in entries] == [
                b"%d" % number for number in range(ACKED)
            ]

    async def remove_newest_segment(self, bookie: BookieId) -> None:
        """The newest that was begun: the log may have made the next one ahead of need."""
        folder = f"{self.servers.folder_of(bookie)}/log"
        horizon = await load_horizon(self.environment.files, folder)
        assert horizon is not None
        newest = f"{folder}/{horizon.begun:010}.segment"
        await perform(self.environment.files, seam.Unlink(newest))

    async def repair(self, bookie: BookieId) -> list[RepairedLedger]:
        async with self.client() as client:
            results = await client.repair(bookie)
        assert [each.problem for each in results if each.problem] == []
        return results

    async def is_unknown(self, bookie: BookieId, ledger: int) -> None:
        """It may have had each entry: neither there nor missing."""
        local = self.servers.local[bookie]
        for entry in (0, ACKED - 1, ACKED, -1):
            with pytest.raises(EntryUnknown):
                await local.read(ledger, entry)
        with pytest.raises(EntryUnknown):
            await local.read_last_confirmed(ledger)


@asynccontextmanager
async def _site(simulation: Simulation) -> AsyncIterator[_Site]:
    store = await FileMetaStore.open(simulation.environment, "/meta")
    site = _Site(simulation.environment, store)
    try:
        yield site
    finally:
        await site.servers.close()
        await store.close()


def test_a_bookie_that_lost_its_newest_segment_does_not_serve_and_is_repaired() -> None:
    async def scenario(simulation: Simulation) -> None:
        async with _site(simulation) as site:
            ledger = await site.write()
            for away in (site.b1, site.b2):
                await site.servers.stop(away)
            await site.remove_newest_segment(site.b1)
            with pytest.raises(StoreDamaged, match="raftwood bookie repair b1"):
                await site.servers.start(site.b1)
            # Two are away: nobody knows what the ledger holds.
            with pytest.raises(CannotRecover):
                await site.read_all(ledger)
            await site.servers.start_anew(site.b1)
            with pytest.raises(CannotRecover):
                await site.read_all(ledger)
            with pytest.raises(AssertionError, match="too few bookies"):
                await site.repair(site.b1)
            await site.servers.start(site.b2)
            (repaired,) = await site.repair(site.b1)
            assert (repaired.to, repaired.copied + repaired.intact) == ((site.b1,), ACKED)
            # With the entries back, the others may go.
            await site.servers.stop(site.b2)
            await site.servers.stop(site.b3)
            await site.read_all(ledger)

    simulate(1, scenario)


def test_a_bookie_that_began_anew_does_not_deny_what_it_may_have_had() -> None:
    async def scenario(simulation: Simulation) -> None:
        async with _site(simulation) as site:
            ledger = await site.write()
            for away in (site.b1, site.b2):
                await site.servers.stop(away)
            await site.servers.start_anew(site.b1)
            await site.is_unknown(site.b1, ledger)
            with pytest.raises(CannotRecover):
                await site.read_all(ledger)
            await site.servers.stop(site.b1)
            # It knows that it has forgotten, after a restart too.
            await site.servers.start(site.b1)
            await site.is_unknown(site.b1, ledger)
            with pytest.raises(CannotRecover):
                await site.read_all(ledger)
            await site.servers.start(site.b2)
            await site.read_all(ledger)
            # A ledger that is newer than its folder is its own.
            async with site.client() as client:
                writer = await client.create(LedgerConfig())
                await writer.append(b"new")
                await writer.close()
            bookie = site.servers.local[site.b1]
            assert await bookie.read(writer.ledger, 0)
            with pytest.raises(NoSuchEntry):
                await bookie.read(writer.ledger, 1)

    simulate(1, scenario)


def test_a_writer_that_was_fenced_is_not_acked_by_bookies_that_forgot_the_fence() -> None:
    async def scenario(simulation: Simulation) -> None:
        async with _site(simulation) as site:
            for each in (site.b1, site.b2, site.b3):
                await site.servers.start(each)
            async with site.client() as old, site.client() as new:
                writer = await old.create(LedgerConfig(ensemble=3, write_quorum=3, ack_quorum=2))
                await writer.append(b"first")
                await site.servers.stop(site.b3)
                reader = await new.open(writer.ledger, recover=True)
                assert reader.last_confirmed == 0
                for each in (site.b1, site.b2):
                    await site.servers.stop(each)
                await site.servers.start(site.b3)
                await site.servers.start_anew(site.b1)
                with pytest.raises(RaftwoodError):
                    await writer.append(b"too late")

    simulate(1, scenario)


def test_an_entry_without_an_intact_copy_is_named_and_its_ledger_is_left_as_it_is() -> None:
    async def scenario(simulation: Simulation) -> None:
        async with _site(simulation) as site:
            ledger = await site.write()
            await site.read_all(ledger)
            await site.servers.start(site.b4)
            async with site.client() as client:
                before = await client.info(ledger)
                for away in before.segments[0].bookies:
                    await site.servers.stop(away)
                await site.servers.start_anew(before.segments[0].bookies[1])
                (result,) = await client.repair(before.segments[0].bookies[0])
                assert "no intact copy of entry 0 can be read now" in result.problem
                assert await client.info(ledger) == before

    simulate(1, scenario)


def test_a_bookie_that_is_away_is_replaced_by_another_one() -> None:
    async def scenario(simulation: Simulation) -> None:
        async with _site(simulation) as site:
            ledger = await site.write()
            await site.servers.start(site.b4)
            await site.servers.stop(site.b1)
            (repaired,) = await site.repair(site.b1)
            assert repaired.to == (site.b4,)
            async with site.client() as client:
                metadata = await client.info(ledger)
                assert metadata.is_closed
                assert not any(site.b1 in each.bookies for each in metadata.segments)
            assert await site.repair(site.b1) == []
            await site.servers.stop(site.b2)
            await site.read_all(ledger)

    simulate(1, scenario)


def test_a_writer_has_time_to_replace_a_bookie_and_is_fenced_only_if_it_can_be_replaced() -> None:
    async def scenario(simulation: Simulation) -> None:
        async with _site(simulation) as site:
            for each in site.servers.ids:
                await site.servers.start(each)
            async with site.client() as client:
                writer = await client.create(LedgerConfig(ensemble=3, write_quorum=3, ack_quorum=2))
                for number in range(20):
                    await writer.append(b"%d" % number)
                away, *_ = writer.metadata.segments[0].bookies
                await site.servers.stop(away)
                repairing = asyncio.create_task(client.repair(away, grace_ms=5_000))
                for number in range(20, 40):
                    await writer.append(b"%d" % number)
                (repaired,) = await repairing
                assert (repaired.copied, repaired.problem) == (20, "")
                # It was not fenced, and goes on with the metadata that the repair has changed.
                await writer.append(b"40")
                second = writer.metadata.segments[-1].bookies[0]
                await site.servers.stop(second)
                problems = [each.problem for each in await client.repair(second)]
                assert problems
                assert all("start one more" in each for each in problems)
                await writer.append(b"41")
                await writer.close()
                reader = await client.open(writer.ledger, recover=False)
                assert len(await reader.read(first=0, last=41)) == 42

    simulate(1, scenario)


def test_a_repair_leaves_ledgers_alone_that_were_made_after_the_bookie_began_anew() -> None:
    async def scenario(simulation: Simulation) -> None:
        async with _site(simulation) as site:
            ledger = await site.write()
            await site.servers.stop(site.b1)
            await site.servers.start_anew(site.b1)
            async with site.client() as client:
                writer = await client.create(LedgerConfig(ensemble=3, write_quorum=3, ack_quorum=2))
                assert site.b1 in writer.metadata.segments[-1].bookies
                await writer.append(b"0")
                repairing = asyncio.create_task(client.repair(site.b1))
                for number in range(1, 50):
                    await writer.append(b"%d" % number)
                assert [each.ledger for each in await repairing] == [ledger]
                await writer.append(b"50")
                await writer.close()

    simulate(1, scenario)


def test_a_holder_that_begins_anew_during_the_copy_is_not_named_without_the_entries() -> None:
    async def scenario(simulation: Simulation) -> None:
        async with _site(simulation) as site:
            ledger = await site.write()
            await site.servers.start(site.b4)
            await site.servers.stop(site.b1)
            run = _Copy.run
            runs = 0

            async def run_and_lose_all(copy: _Copy, share: BookieShare) -> None:
                nonlocal runs
                runs += 1
                await run(copy, share)
                if runs == 1:
                    await site.servers.stop(site.b4)
                    await site.servers.start_anew(site.b4)

            with mock.patch.object(_Copy, "run", run_and_lose_all):
                (repaired,) = await site.repair(site.b1)
            # The last entry is in a segment of its own, which the recovery made without b1.
            assert (runs, repaired.to, repaired.copied) == (2, (site.b4,), ACKED - 1)
            await site.servers.stop(site.b2)
            await site.read_all(ledger)

    simulate(1, scenario)


def test_a_bookie_that_cannot_ask_whether_it_was_repaired_is_registered_all_the_same() -> None:
    async def scenario(simulation: Simulation) -> None:
        async with _site(simulation) as site:
            await site.write()
            await site.servers.stop(site.b1)
            server = await site.servers.start_anew(site.b1)
            asked = mock.AsyncMock(side_effect=Unavailable("away"))
            with mock.patch.object(server_module, "limbo_version", asked):
                await asyncio.sleep(10)
            assert asked.await_count > 1
            assert server.problem() == ""
            assert server.bookie.has_doubts
            await end_limbo(site.store, site.b1, version=await limbo_version(site.store, site.b1))
            await asyncio.sleep(10)
            assert not server.bookie.has_doubts

    simulate(1, scenario)
