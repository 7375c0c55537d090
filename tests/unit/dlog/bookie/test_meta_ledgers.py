"""Ledgers' metadata on a metastore, and who is a bookie."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from raftwood.base.environment import Environment
from raftwood.base.errors import AlreadyExists, PermissionDenied, StoreDamaged, UnsupportedVersion
from raftwood.base.seams import RemoveKey
from raftwood.dlog.bookie.membership import BookieAdmission, WrongFolder, admission
from raftwood.dlog.bookie.metadata_store import (
    MetaLedgers,
    decode_metadata,
    encode_metadata,
    ledger_key,
)
from raftwood.dlog.bookie.remote_bookies import RemoteBookies
from raftwood.dlog.bookie.server import GarbageCollector
from raftwood.dlog.errors import NoSuchLedger
from raftwood.dlog.ledgers.metadata import (
    BookieId,
    EntryId,
    LedgerConfig,
    LedgerMetadata,
    LedgerState,
    Segment,
)
from raftwood.metastore.file_store import FileMetaStore
from raftwood.net.identity import READER_ROLE
from raftwood.testing import Simulation, simulate
from tests.kits.dlog.bookie_calls import KEY, Adding
from tests.kits.dlog.bookie_servers import READER_SECRET, BookieServers, client_network

METADATA = LedgerMetadata(
    config=LedgerConfig(password=b"\x00secret\xff"),
    segments=(Segment(EntryId(0), (BookieId("a:1"), BookieId("b:2"), BookieId("c:3"))),),
    properties={"of": b"\x80"},
    creation_token=1 << 62,
)
CLOSED = LedgerMetadata(
    config=METADATA.config,
    segments=METADATA.segments,
    state=LedgerState.CLOSED,
    last_entry=EntryId(4),
    length_bytes=10,
)


def run(scenario: Callable[[Environment, FileMetaStore, MetaLedgers], Awaitable[None]]) -> None:
    async def main(simulation: Simulation) -> None:
        store = await FileMetaStore.open(simulation.environment, "/data/meta")
        ledgers = MetaLedgers(store, random.Random(1))
        try:
            await scenario(simulation.environment, store, ledgers)
        finally:
            await ledgers.close()
            await store.close()

    simulate(1, main)


def test_metadata_come_back_as_they_were_and_newer_ones_are_refused() -> None:
    for metadata in (METADATA, CLOSED):
        assert decode_metadata(encode_metadata(metadata), ledger=1) == metadata
    newer = encode_metadata(METADATA).replace(b'"version":1', b'"version":2')
    with pytest.raises(UnsupportedVersion):
        decode_metadata(newer, ledger=1)
    for bad in (b"", b"{}", b'{"version":1,"ledger":{}}', b"\xff"):
        with pytest.raises(StoreDamaged):
            decode_metadata(bad, ledger=1)


def test_ids_rise_however_many_ask_at_once() -> None:
    async def scenario(_: Environment, store: FileMetaStore, ledgers: MetaLedgers) -> None:
        others = MetaLedgers(store, random.Random(2))
        asked = [each.new_ledger_id() for each in (ledgers, others) for _ in range(15)]
        found = await asyncio.gather(*asked)
        assert sorted(found) == list(range(30))
        assert await others.new_ledger_id() == 30
        await others.close()

    run(scenario)


def test_metadata_change_by_compare_and_set_alone() -> None:
    async def scenario(_: Environment, _store: FileMetaStore, ledgers: MetaLedgers) -> None:
        version = await ledgers.create(7, METADATA)
        with pytest.raises(AlreadyExists):
            await ledgers.create(7, METADATA)
        changed = await ledgers.compare_and_set(7, CLOSED, version=version)
        assert changed is not None
        assert await ledgers.compare_and_set(7, METADATA, version=version) is None
        found = await ledgers.get(7)
        assert (found.metadata, found.version) == (CLOSED, changed)
        await ledgers.delete(7)
        await ledgers.delete(7)
        with pytest.raises(NoSuchLedger):
            await ledgers.get(7)
        with pytest.raises(NoSuchLedger):
            await ledgers.compare_and_set(7, CLOSED, version=changed)

    run(scenario)


def test_ledgers_are_listed_in_order_from_a_number_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftwood.dlog.bookie.metadata_store._PAGE", 3)

    async def scenario(_: Environment, _store: FileMetaStore, ledgers: MetaLedgers) -> None:
        numbers = [2, 9, 10, 11, 100, 1_000, (1 << 63) - 2]
        for number in reversed(numbers):
            await ledgers.create(number, METADATA)
        assert [each async for each in ledgers.ledgers()] == numbers
        assert [each async for each in ledgers.ledgers(first=10)] == numbers[2:]

    run(scenario)


def test_who_waits_hears_of_a_change_a_deletion_or_the_end_of_the_time() -> None:
    async def scenario(_: Environment, store: FileMetaStore, ledgers: MetaLedgers) -> None:
        version = await ledgers.create(7, METADATA)
        other = await ledgers.create(8, METADATA)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await ledgers.wait_changed(7, version=version, timeout_ms=500)
        assert loop.time() - began >= 0.5
        many = [
            asyncio.create_task(ledgers.wait_changed(7, version=version, timeout_ms=60_000))
            for _ in range(50)
        ]
        bystander = asyncio.create_task(ledgers.wait_changed(8, version=other, timeout_ms=60_000))
        await asyncio.sleep(0.1)
        began = loop.time()
        changed = await ledgers.compare_and_set(7, CLOSED, version=version)
        assert changed is not None
        await asyncio.gather(*many)
        await ledgers.wait_changed(7, version=version, timeout_ms=60_000)
        assert not bystander.done()
        await store.transact((), (RemoveKey(ledger_key(8)),))
        await bystander
        assert loop.time() - began < 5
        await ledgers.wait_changed(9, version=1, timeout_ms=60_000)

    run(scenario)


def test_a_folder_belongs_to_one_id_and_an_id_to_one_folder() -> None:
    def decide(registered: str | None, *, holds: bool, anew: bool) -> BookieAdmission:
        return admission(
            registered=registered, instance="new", holds_ledgers=holds, begins_anew=anew
        )

    assert decide("new", holds=True, anew=False) is BookieAdmission.KNOWN
    assert decide("new", holds=True, anew=True) is BookieAdmission.KNOWN
    assert decide(None, holds=False, anew=False) is BookieAdmission.BIND
    assert decide(None, holds=True, anew=False) is BookieAdmission.UNKNOWN
    assert decide("old", holds=False, anew=False) is BookieAdmission.WIPED
    assert decide("old", holds=True, anew=False) is BookieAdmission.WIPED
    assert decide("old", holds=False, anew=True) is BookieAdmission.BIND
    assert decide("old", holds=True, anew=True) is BookieAdmission.NOT_EMPTY
    assert decide(None, holds=True, anew=True) is BookieAdmission.NOT_EMPTY


def test_running_bookies_are_listed_with_rack_and_state_until_they_stop() -> None:
    async def scenario(
        environment: Environment, store: FileMetaStore, ledgers: MetaLedgers
    ) -> None:
        servers = BookieServers(environment, store, "/data", ["b", "a"], is_remote=False)
        await servers.start_all()
        found = [(each.id, each.rack, each.is_read_only) for each in await ledgers.bookies()]
        assert found == [("a", "rack-1", False), ("b", "rack-0", False)]
        await asyncio.sleep(10)  # several leases
        assert len(await ledgers.bookies()) == 2
        # A lease that was lost, as after a long pause, is taken anew.
        registration = servers.running[servers.ids[0]]._registration
        await store.revoke_lease(registration._lease)
        assert len(await ledgers.bookies()) == 1
        await asyncio.sleep(3)
        assert len(await ledgers.bookies()) == 2
        servers.running[servers.ids[0]].bookie._damage = StoreDamaged("found by a test")
        await asyncio.sleep(1)
        assert [each.is_read_only for each in await ledgers.bookies()] == [False, True]
        assert "takes no entries" in servers.running[servers.ids[0]].problem()
        await servers.close()
        assert await ledgers.bookies() == []

    run(scenario)


def test_a_wiped_folder_is_refused_under_its_old_id_until_it_may_begin_anew() -> None:
    async def scenario(
        environment: Environment, store: FileMetaStore, _ledgers: MetaLedgers
    ) -> None:
        servers = BookieServers(environment, store, "/data", ["a"], is_remote=False)
        (id_,) = servers.ids
        await servers.start(id_)
        await servers.stop(id_)
        wiped = BookieServers(environment, store, "/data/wiped", ["a"], is_remote=False)
        for _ in range(2):
            with pytest.raises(WrongFolder, match="--begin-anew"):
                await wiped.start(id_)
        await wiped.start(id_, begins_anew=True)
        await wiped.stop(id_)
        await wiped.start(id_)
        await wiped.close()
        with pytest.raises(WrongFolder):
            await servers.start(id_)

    run(scenario)


def test_what_a_bookie_has_of_deleted_ledgers_goes_and_the_rest_stays() -> None:
    async def scenario(
        environment: Environment, store: FileMetaStore, ledgers: MetaLedgers
    ) -> None:
        servers = BookieServers(environment, store, "/data", ["a"], is_remote=False)
        bookie = (await servers.start(servers.ids[0])).bookie
        adding = Adding(servers.client(), servers.ids[0])
        for ledger in (1, 2, 3):
            await ledgers.create(ledger, METADATA)
            await adding.begin(ledger, 0)
        await ledgers.delete(2)
        collector = GarbageCollector(bookie, ledgers, interval_ms=1_000)
        assert await collector.look() == []
        assert await collector.look() == [2]
        assert bookie.ledgers() == [1, 3]
        await bookie.fence(3, KEY)
        collector.start()
        await ledgers.delete(3)
        await asyncio.sleep(3)
        assert bookie.ledgers() == [1]
        await collector.close()
        await servers.close()

    run(scenario)


def test_whoever_may_only_read_neither_adds_nor_fences() -> None:
    async def scenario(
        environment: Environment, store: FileMetaStore, _ledgers: MetaLedgers
    ) -> None:
        servers = BookieServers(environment, store, "/data", ["127.0.0.1:3181"], is_remote=True)
        (id_,) = servers.ids
        await servers.start(id_)
        writer = servers.client()
        await Adding(writer, id_).begin(1, 0)
        network = client_network(role=READER_ROLE, secret=READER_SECRET)
        reader = RemoteBookies(environment, network)
        assert await reader.read(id_, ledger=1, entry=0)
        with pytest.raises(PermissionDenied):
            await Adding(reader, id_).begin(1, 1)
        with pytest.raises(PermissionDenied):
            await reader.read(id_, ledger=1, entry=0, fence_key=KEY)
        await Adding(writer, id_).begin(1, 1)
        await reader.close()
        await writer.close()
        await servers.close()

    run(scenario)
