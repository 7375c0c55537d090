"""Bookies that are away for long, or began anew, are repaired by one of the processes."""

import asyncio
from itertools import pairwise
from unittest import mock

from raftwood.base.metrics import Metrics
from raftwood.dlog.bookie import auditor as auditor_module
from raftwood.dlog.bookie.auditor import AUDITOR, LEASE_MS, Auditor, AuditRules
from raftwood.dlog.bookie.membership import bookies_in_limbo, note_limbo
from raftwood.dlog.bookie.metadata_store import MetaLedgers
from raftwood.dlog.ledgers.client import LedgerClient
from raftwood.dlog.ledgers.metadata import BookieId, LedgerConfig
from raftwood.dlog.ledgers.repair import RepairedLedger
from raftwood.metastore.file_store import FileMetaStore
from raftwood.testing import Simulation, simulate
from tests.kits.dlog.bookie_servers import BookieServers

A, B, C = (BookieId(each) for each in "abc")
AFTER_MS = 60_000


def test_a_bookie_is_due_once_it_was_away_at_every_look_for_long_enough() -> None:
    rules = AuditRules(after_ms=100)

    def look(now_ms: float, *running: BookieId, limbo: tuple[BookieId, ...] = ()) -> list[BookieId]:
        return rules.looked(now_ms=now_ms, known=[A, B, C], running=running, in_limbo=limbo)

    assert look(0, A, B) == []
    assert look(99, A, B) == []
    assert look(100, A, B) == [C]
    assert look(110, A, B, C) == []
    # It was there in between: its time begins anew.
    assert look(150, A, B) == []
    assert look(249, A, B) == []
    assert look(250, A, B) == [C]
    rules.repaired(C, now_ms=260, is_whole=True)
    assert look(359, A, B) == []
    assert look(360, A, B) == [C]
    # One that runs without what it had is due at once; one that does not run has its time.
    assert look(370, A, B, C, limbo=(B,)) == [B]
    assert look(380, A, C, limbo=(B,)) == []


def test_what_could_not_be_repaired_is_tried_again_soon_and_then_less_often() -> None:
    after_ms = 10 * LEASE_MS
    rules = AuditRules(after_ms=after_ms)
    now_ms, waits = 0, []
    for _ in range(6):
        rules.repaired(A, now_ms=now_ms, is_whole=False)
        before_ms = now_ms
        while not rules.looked(now_ms=now_ms, known=[A], running=[A], in_limbo=[A]):
            now_ms += 1_000
        waits.append((now_ms - before_ms) / LEASE_MS)
    assert waits == [1, 2, 4, 8, 10, 10]
    # It went well once: the next series begins as the first one did.
    rules.repaired(A, now_ms=now_ms, is_whole=True)
    rules.repaired(A, now_ms=now_ms, is_whole=False)
    now_ms += LEASE_MS
    assert rules.looked(now_ms=now_ms, known=[A], running=[A], in_limbo=[A]) == [A]


def test_a_repair_that_fails_in_any_way_is_logged_and_tried_again() -> None:
    async def scenario(simulation: Simulation) -> None:
        environment = simulation.environment
        store = await FileMetaStore.open(environment, "/meta")
        servers = BookieServers(environment, store, "/data", ["b1"], is_remote=False)
        await servers.start_all()
        (bookie,) = servers.ids
        await note_limbo(store, bookie, 1)
        times: list[float] = []

        async def repairing(_: BookieId) -> list[RepairedLedger]:
            times.append(asyncio.get_running_loop().time())
            if len(times) < 3:
                raise ValueError("a bug")
            return []

        auditor = Auditor(store, repairing, name="b1", after_ms=AFTER_MS)
        auditor.start()
        with mock.patch.object(auditor_module, "_log") as log:
            await asyncio.sleep(4 * AFTER_MS / 1000)
        told = [call.kwargs["reason"] for call in log.error.call_args_list]
        assert told == ["ValueError('a bug')"] * 2
        assert len(times) == 3
        assert min(after - before for before, after in pairwise(times)) >= LEASE_MS / 1000
        assert await bookies_in_limbo(store) == []
        await auditor.close()
        await servers.close()
        await store.close()

    simulate(1, scenario)


def test_one_process_audits_and_another_one_goes_on_where_it_ends() -> None:
    async def scenario(simulation: Simulation) -> None:
        store = await FileMetaStore.open(simulation.environment, "/meta")
        await note_limbo(store, A, 0)
        asked: list[tuple[str, BookieId]] = []

        def auditor(name: str) -> Auditor:
            async def repairing(bookie: BookieId) -> list[RepairedLedger]:
                asked.append((name, bookie))
                return [RepairedLedger(ledger=1, problem="no copy")]

            return Auditor(store, repairing, name=name, after_ms=AFTER_MS)

        first, second = auditor("first"), auditor("second")
        first.start()
        await asyncio.sleep(LEASE_MS / 1000)
        second.start()
        await asyncio.sleep(AFTER_MS / 1000)
        found = await store.get(AUDITOR)
        assert found is not None
        assert found.value == b"first"
        await first.close()
        assert await store.get(AUDITOR) is None
        await asyncio.sleep(LEASE_MS / 1000)
        found = await store.get(AUDITOR)
        assert found is not None
        assert found.value == b"second"
        await second.close()
        await store.close()
        assert asked == []  # The bookie does not run, and nothing is known of it.

    simulate(1, scenario)


def test_ledgers_that_nobody_can_take_over_are_counted_until_their_bookie_is_back() -> None:
    async def scenario(simulation: Simulation) -> None:
        environment = simulation.environment
        store = await FileMetaStore.open(environment, "/meta")
        servers = BookieServers(environment, store, "/data", ["b1", "b2", "b3"], is_remote=False)
        await servers.start_all()
        client = LedgerClient(servers.client(), MetaLedgers(store, environment.random), environment)
        metrics = Metrics()
        auditor = Auditor(store, client.repair, name="b2", after_ms=AFTER_MS, metrics=metrics)
        auditor.start()

        def counted() -> str:
            name = "raftwood_bookie_underreplicated_ledgers"
            lines = metrics.render().decode().splitlines()
            return next(line.split()[-1] for line in lines if line.startswith(name))

        writer = await client.create(LedgerConfig())
        await writer.append(b"x")
        await servers.stop(servers.ids[0])
        await asyncio.sleep(2 * AFTER_MS / 1000)
        assert counted() == "1.0"
        # Its writer was not fenced for nothing.
        await writer.append(b"y")
        await servers.start(servers.ids[0])
        await asyncio.sleep(AFTER_MS / 1000)
        assert counted() == "0.0"
        await auditor.close()
        await client.close()
        await servers.close()
        await store.close()

    simulate(1, scenario)


def test_the_ledgers_of_a_bookie_that_is_away_are_copied_to_another_one() -> None:
    async def scenario(simulation: Simulation) -> None:
        environment = simulation.environment
        store = await FileMetaStore.open(environment, "/meta")
        servers = BookieServers(
            environment, store, "/data", ["b1", "b2", "b3", "b4"], is_remote=False
        )
        await servers.start_all()
        client = LedgerClient(servers.client(), MetaLedgers(store, environment.random), environment)
        auditor = Auditor(store, client.repair, name="b2", after_ms=AFTER_MS)
        auditor.start()
        config = LedgerConfig(ensemble=3, write_quorum=2, ack_quorum=2)
        writers = [await client.create(config) for _ in range(3)]
        for writer in writers:
            for number in range(30):
                await writer.append(b"%d" % number)
        await writers[0].close()
        away = servers.ids[0]
        await servers.stop(away)
        await asyncio.sleep(3 * AFTER_MS / 1000)
        infos = [await client.info(writer.ledger) for writer in writers]
        assert not any(away in part.bookies for info in infos for part in info.segments)
        assert auditor.repaired_ledgers
        assert auditor.copied_entries
        # It comes back with nothing, and gets back whatever still counts on it.
        other = next(each for each in infos[0].segments[0].bookies)
        await servers.stop(other)
        await servers.start_anew(other)
        assert await bookies_in_limbo(store) == [other]
        await asyncio.sleep(AFTER_MS / 1000)
        assert await bookies_in_limbo(store) == []
        for each in servers.ids[1:]:
            if each != other:
                await servers.stop(each)
                reader = await client.open(writers[0].ledger, recover=False)
                assert len(await reader.read(first=0, last=29)) == 30
                await servers.start(each)
        await auditor.close()
        await client.close()
        await servers.close()
        await store.close()

    simulate(1, scenario)
