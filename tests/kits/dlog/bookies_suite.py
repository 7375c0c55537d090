"""What every implementation of `Bookies` must do: one suite, on bookies that may be restarted."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from raftwood.base.errors import InvalidInput, PermissionDenied
from raftwood.dlog.errors import BookieUnavailable, Fenced, NoSuchEntry, NoSuchLedger
from raftwood.dlog.ledgers.metadata import BookieId
from raftwood.dlog.ledgers.seams import Bookies
from tests.kits.dlog.bookie_calls import KEY, Adding, packed
from tests.kits.dlog.bookie_servers import BookieServers

Scenario = Callable[[BookieServers, Bookies, BookieId], Awaitable[None]]


class BookiesSuite:
    def run(self, scenario: Scenario) -> None:
        """Run a scenario with two running bookies, a client of them, and the first one's id."""
        raise NotImplementedError

    def test_an_entry_that_was_added_is_read_as_it_was_packed(self) -> None:
        async def scenario(_: BookieServers, bookies: Bookies, bookie: BookieId) -> None:
            adding = Adding(bookies, bookie)
            for data in (b"", b"small", b"x" * 20_000):
                await adding.begin(7, len(data), data)
                found = await bookies.read(bookie, ledger=7, entry=len(data))
                assert bytes(found) == packed(7, len(data), data)

        self.run(scenario)

    def test_adds_are_answered_in_order_and_survive_a_restart(self) -> None:
        async def scenario(servers: BookieServers, bookies: Bookies, bookie: BookieId) -> None:
            adding = Adding(bookies, bookie)
            await asyncio.gather(*(adding.begin(1, n, b"%d" % n) for n in range(200)))
            assert adding.sink.heard == list(range(200))
            await servers.stop(bookie)
            await servers.start(bookie)
            again = servers.client()
            for n in (0, 57, 199):
                assert bytes(await again.read(bookie, ledger=1, entry=n)) == packed(1, n, b"%d" % n)
            assert bytes(await again.read(bookie, ledger=1, entry=-1)) == packed(1, 199, b"199")
            await again.close()

        self.run(scenario)

    def test_entries_come_with_gaps_and_in_any_order(self) -> None:
        async def scenario(servers: BookieServers, bookies: Bookies, bookie: BookieId) -> None:
            entries = [n for n in range(300) if n % 3]
            shuffled = sorted(entries, key=lambda n: n + random.Random(n).randrange(40))
            adding = Adding(bookies, bookie)
            await asyncio.gather(*(adding.begin(1, n, b"%d" % n) for n in shuffled))
            for _ in range(2):
                for n in range(300):
                    if n % 3:
                        found = await bookies.read(bookie, ledger=1, entry=n)
                        assert bytes(found) == packed(1, n, b"%d" % n)
                    else:
                        with pytest.raises(NoSuchEntry):
                            await bookies.read(bookie, ledger=1, entry=n)
                await servers.stop(bookie)
                await servers.start(bookie)
                await bookies.close()
                bookies = servers.client()
            await bookies.close()

        self.run(scenario)

    def test_the_same_entry_again_is_acked_and_stored_once(self) -> None:
        async def scenario(servers: BookieServers, bookies: Bookies, bookie: BookieId) -> None:
            adding = Adding(bookies, bookie)
            await asyncio.gather(*(adding.begin(1, 4, b"first") for _ in range(3)))
            await adding.begin(1, 4, b"later")
            assert bytes(await bookies.read(bookie, ledger=1, entry=4)) == packed(1, 4, b"first")
            assert servers.running[bookie].bookie.entry_count(1) == 1
            assert servers.running[bookie].bookie.counts.repeated == 3

        self.run(scenario)

    def test_what_is_not_there_is_said_so(self) -> None:
        async def scenario(_: BookieServers, bookies: Bookies, bookie: BookieId) -> None:
            with pytest.raises(NoSuchLedger):
                await bookies.read(bookie, ledger=1, entry=0)
            await Adding(bookies, bookie).begin(1, 0)
            with pytest.raises(NoSuchEntry):
                await bookies.read(bookie, ledger=1, entry=1)
            assert await bookies.read_last_confirmed(bookie, ledger=9) == (-1, b"")

        self.run(scenario)

    def test_a_fenced_ledger_refuses_its_writer_and_takes_a_recovery_s_entries(self) -> None:
        async def scenario(servers: BookieServers, bookies: Bookies, bookie: BookieId) -> None:
            adding = Adding(bookies, bookie)
            await adding.begin(1, 0)
            found = await bookies.read(bookie, ledger=1, entry=0, fence_key=KEY)
            assert bytes(found) == packed(1, 0)
            for _ in range(2):
                with pytest.raises(Fenced):
                    await adding.begin(1, 1)
                await servers.stop(bookie)
                await servers.start(bookie)
                await bookies.close()
                bookies = servers.client()
                adding = Adding(bookies, bookie)
            with pytest.raises(NoSuchEntry):
                await bookies.read(bookie, ledger=1, entry=1)
            await adding.begin(1, 1, is_recovery=True)
            assert bytes(await bookies.read(bookie, ledger=1, entry=1)) == packed(1, 1)
            await adding.begin(2, 0)  # another ledger's writer is not concerned
            await bookies.close()

        self.run(scenario)

    def test_a_ledger_of_which_nothing_is_there_is_fenced_as_well(self) -> None:
        async def scenario(_: BookieServers, bookies: Bookies, bookie: BookieId) -> None:
            with pytest.raises(NoSuchEntry):
                await bookies.read(bookie, ledger=1, entry=-1, fence_key=KEY)
            with pytest.raises(Fenced):
                await Adding(bookies, bookie).begin(1, 0)

        self.run(scenario)

    def test_adds_before_the_fence_are_there_when_it_is_answered(self) -> None:
        async def scenario(_: BookieServers, bookies: Bookies, bookie: BookieId) -> None:
            adding = Adding(bookies, bookie)
            await adding.begin(1, 0)
            added = [adding.begin(1, n) for n in range(1, 50)]
            await asyncio.sleep(0)
            await bookies.read(bookie, ledger=1, entry=0, fence_key=KEY)
            late = adding.begin(1, 50)
            answers = await asyncio.gather(*added, late, return_exceptions=True)
            highest = bytes(await bookies.read(bookie, ledger=1, entry=-1))
            taken = [n for n, answer in enumerate(answers, 1) if answer is None]
            assert highest == packed(1, max(taken, default=0))
            assert isinstance(answers[-1], Fenced)

        self.run(scenario)

    def test_another_master_key_is_refused(self) -> None:
        async def scenario(_: BookieServers, bookies: Bookies, bookie: BookieId) -> None:
            adding = Adding(bookies, bookie)
            await adding.begin(1, 0)
            with pytest.raises(PermissionDenied):
                await adding.begin(1, 1, key=b"wrong")
            with pytest.raises(PermissionDenied):
                await bookies.read(bookie, ledger=1, entry=0, fence_key=b"wrong")
            with pytest.raises(PermissionDenied):
                await bookies.write_last_confirmed(
                    bookie, ledger=1, last_confirmed=0, master_key=b"wrong", digest=b""
                )
            await adding.begin(1, 1)

        self.run(scenario)

    def test_one_refused_entry_does_not_concern_those_beside_it(self) -> None:
        async def scenario(_: BookieServers, bookies: Bookies, bookie: BookieId) -> None:
            adding = Adding(bookies, bookie)
            await adding.begin(1, 0)
            answers = await asyncio.gather(
                adding.begin(1, 1),
                adding.begin(1, 2, key=b"wrong"),
                adding.begin(1, 3),
                return_exceptions=True,
            )
            assert [type(each) for each in answers] == [type(None), PermissionDenied, type(None)]

        self.run(scenario)

    def test_what_is_published_is_durable_and_never_goes_back(self) -> None:
        async def scenario(servers: BookieServers, bookies: Bookies, bookie: BookieId) -> None:
            adding = Adding(bookies, bookie)
            await adding.begin(1, 9)
            for last_confirmed in (5, 8, 3):
                await bookies.write_last_confirmed(
                    bookie, ledger=1, last_confirmed=last_confirmed, master_key=KEY, digest=b"d"
                )
            await servers.stop(bookie)
            await servers.start(bookie)
            again = servers.client()
            published, highest = await again.read_last_confirmed(bookie, ledger=1)
            assert (published, bytes(highest)) == (8, packed(1, 9))
            await again.close()

        self.run(scenario)

    def test_whoever_waits_hears_of_what_is_confirmed(self) -> None:
        async def scenario(_: BookieServers, bookies: Bookies, bookie: BookieId) -> None:
            adding = Adding(bookies, bookie)

            async def wait(after: int, timeout_ms: int = 60_000) -> int:
                return await bookies.wait_last_confirmed(
                    bookie, ledger=1, after=after, timeout_ms=timeout_ms
                )

            early = asyncio.create_task(wait(-1))
            await asyncio.sleep(0.05)
            await adding.begin(1, 0)
            assert not early.done()
            await adding.begin(1, 1, last_confirmed=0)
            assert await early == 0
            assert await wait(-1) == 0
            assert await wait(0, timeout_ms=20) == 0
            later = asyncio.create_task(wait(0))
            await asyncio.sleep(0.05)
            await bookies.write_last_confirmed(
                bookie, ledger=1, last_confirmed=1, master_key=KEY, digest=b""
            )
            assert await later == 1

        self.run(scenario)

    def test_what_was_confirmed_is_known_after_a_restart(self) -> None:
        async def scenario(servers: BookieServers, bookies: Bookies, bookie: BookieId) -> None:
            adding = Adding(bookies, bookie)
            await adding.begin(1, 6, last_confirmed=5)
            await servers.stop(bookie)
            await servers.start(bookie)
            again = servers.client()
            found = await again.wait_last_confirmed(bookie, ledger=1, after=2, timeout_ms=10)
            assert found == 5
            await again.close()

        self.run(scenario)

    def test_a_bookie_that_is_away_is_unavailable_and_the_other_one_answers(self) -> None:
        async def scenario(servers: BookieServers, bookies: Bookies, bookie: BookieId) -> None:
            await servers.stop(bookie)
            with pytest.raises(BookieUnavailable):
                await Adding(bookies, bookie).begin(1, 0)
            with pytest.raises(BookieUnavailable):
                await bookies.read(bookie, ledger=1, entry=0)
            await Adding(bookies, servers.ids[1]).begin(1, 0)
            await servers.start(bookie)
            for _ in range(100):
                try:
                    await Adding(bookies, bookie).begin(1, 0)
                except BookieUnavailable:
                    await asyncio.sleep(0.1)
                else:
                    return
            pytest.fail("it did not come back")

        self.run(scenario)

    def test_a_pack_that_names_another_entry_is_refused(self) -> None:
        async def scenario(_: BookieServers, bookies: Bookies, _bookie: BookieId) -> None:
            for wrong in (packed(1, 1), packed(2, 0), b"short"):
                with pytest.raises(InvalidInput):
                    bookies.prepare_add(ledger=1, entry=0, packed=[wrong], master_key=KEY)

        self.run(scenario)

    def test_entries_larger_than_a_batch_travel(self) -> None:
        async def scenario(_: BookieServers, bookies: Bookies, bookie: BookieId) -> None:
            adding = Adding(bookies, bookie)
            data = b"y" * 30_000
            await asyncio.gather(*(adding.begin(3, n, data) for n in range(40)))
            for n in range(40):
                found = await bookies.read(bookie, ledger=3, entry=n)
                assert bytes(found) == packed(3, n, data)

        self.run(scenario)
