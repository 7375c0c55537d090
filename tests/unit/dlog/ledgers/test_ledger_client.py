"""The quorum client over bookies in memory, in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest import mock

import pytest

from raftwood.base.environment import Environment
from raftwood.base.errors import (
    OutOfRange,
    Overloaded,
    PermissionDenied,
    RaftwoodError,
    Unavailable,
)
from raftwood.dlog.errors import (
    BadDigest,
    BookieUnavailable,
    CannotRecover,
    Fenced,
    LedgerClosed,
    NoSuchEntry,
    NoSuchLedger,
    NotEnoughBookies,
)
from raftwood.dlog.ledgers.client import LedgerClient
from raftwood.dlog.ledgers.context import LedgerSettings
from raftwood.dlog.ledgers.digests import master_key
from raftwood.dlog.ledgers.metadata import BookieId, Digest, LedgerConfig, LedgerState
from raftwood.dlog.ledgers.seams import LedgerReader, LedgerStore
from raftwood.testing import Simulation, simulate
from tests.kits.dlog.memory_bookies import MemoryBookie, MemoryBookies, MemoryCluster, Weather

CONFIG = LedgerConfig()


class World:
    """A cluster and its clients."""

    def __init__(self, environment: Environment, bookies: int) -> None:
        self.environment = environment
        self.cluster = MemoryCluster(bookies, weather=Weather(delay_ms_max=2))
        self._clients: list[LedgerClient] = []

    def client(self, settings: LedgerSettings | None = None) -> LedgerClient:
        seed = len(self._clients)
        client = LedgerClient(
            self.cluster.bookies(seed), self.cluster.metadata(seed), self.environment, settings
        )
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


def run(scenario: Callable[[World], Awaitable[None]], *, bookies: int = 4) -> None:
    async def main(simulation: Simulation) -> None:
        world = World(simulation.environment, bookies)
        await scenario(world)
        await world.close()

    simulate(1, main)


def data(number: int) -> bytes:
    return b"entry %d" % number


async def read_all(reader: LedgerReader) -> list[bytes]:
    if reader.last_confirmed < 0:
        return []
    entries = await reader.read(first=0, last=reader.last_confirmed)
    assert [entry.id for entry in entries] == list(range(len(entries)))
    return [bytes(entry.data) for entry in entries]


@pytest.mark.parametrize("digest", Digest)
def test_what_was_acked_is_read_in_order(digest: Digest) -> None:
    async def scenario(world: World) -> None:
        store: LedgerStore = world.client()
        writer = await store.create(LedgerConfig(digest=digest, password=b"secret"))
        assert await asyncio.gather(*[writer.append(data(each)) for each in range(200)]) == list(
            range(200)
        )
        await writer.close()
        await writer.close()
        reader = await store.open(writer.ledger, recover=False, password=b"secret")
        assert reader.is_closed
        assert await read_all(reader) == [data(each) for each in range(200)]
        assert reader.length_bytes == writer.length_bytes
        with pytest.raises(LedgerClosed):
            await writer.append(b"late")
        with pytest.raises(OutOfRange):
            await reader.read(first=0, last=200)
        with pytest.raises(PermissionDenied):
            await store.open(writer.ledger, recover=False)

    run(scenario)


def test_a_recovery_fences_the_writer_and_keeps_what_was_acked() -> None:
    async def scenario(world: World) -> None:
        store, other = world.client(), world.client()
        writer = await store.create(CONFIG)
        await asyncio.gather(*[writer.append(data(each)) for each in range(50)])
        reader = await other.open(writer.ledger, recover=True)
        assert await read_all(reader) == [data(each) for each in range(50)]
        with pytest.raises(Fenced):
            await writer.append(b"late")
        with pytest.raises(Fenced):
            await writer.close()

    run(scenario)


@pytest.mark.parametrize("fault", ["is_down", "is_hanging", "is_read_only"])
def test_a_bookie_that_fails_is_replaced(fault: str) -> None:
    async def scenario(world: World) -> None:
        store = world.client()
        writer = await store.create(CONFIG)
        await asyncio.gather(*[writer.append(data(each)) for each in range(10)])
        first = (await store.info(writer.ledger)).segments[0].bookies
        setattr(world.cluster.bookies_by_id[first[0]], fault, True)
        for each in range(10, 20):
            await writer.append(data(each))
        await asyncio.sleep(5)
        await asyncio.gather(*[writer.append(data(each)) for each in range(20, 30)])
        segments = (await store.info(writer.ledger)).segments
        assert len(segments) == 2
        assert first[0] not in segments[1].bookies
        await writer.close()
        reader = await store.open(writer.ledger, recover=False)
        assert await read_all(reader) == [data(each) for each in range(30)]

    run(scenario)


def test_a_change_before_the_first_ack_replaces_the_first_segment() -> None:
    async def scenario(world: World) -> None:
        store = world.client()
        for each in range(2):
            world.cluster[each].is_down = True
        writer = await store.create(CONFIG)
        assert await writer.append(b"a") == 0
        assert len((await store.info(writer.ledger)).segments) == 1
        await writer.close()
        assert await read_all(await store.open(writer.ledger, recover=False)) == [b"a"]

    run(scenario, bookies=5)


def test_without_a_replacement_the_ack_quorum_goes_on() -> None:
    async def scenario(world: World) -> None:
        store = world.client()
        writer = await store.create(CONFIG)
        await writer.append(data(0))
        world.cluster[0].is_down = True
        assert await asyncio.gather(*[writer.append(data(each)) for each in range(1, 20)])
        world.cluster[0].is_down = False
        await asyncio.sleep(2)
        for each in range(20, 40):
            await writer.append(data(each))
            await asyncio.sleep(0.1)
        assert 39 in world.cluster[0].ledgers[writer.ledger].entries
        await writer.close()
        assert len(await read_all(await store.open(writer.ledger, recover=False))) == 40

    run(scenario, bookies=3)


def test_too_few_bookies_fail_appends_after_a_while() -> None:
    async def scenario(world: World) -> None:
        store = world.client()
        writer = await store.create(CONFIG)
        await writer.append(data(0))
        world.cluster[0].is_down = world.cluster[1].is_down = True
        with pytest.raises(NotEnoughBookies):
            await writer.append(data(1))
        with pytest.raises(NotEnoughBookies):
            await writer.append(data(2))
        await writer.close()
        assert await read_all(await store.open(writer.ledger, recover=False)) == [data(0)]
        with pytest.raises(NotEnoughBookies):
            await store.create(LedgerConfig(ensemble=4))

    run(scenario, bookies=3)


def test_bookies_that_hang_and_stay_registered_fail_appends_after_a_while() -> None:
    async def scenario(world: World) -> None:
        world.cluster.weather.timeout_ms = 3_600_000
        store = world.client()
        writer = await store.create(CONFIG)
        await writer.append(data(0))
        world.cluster[0].is_hanging = world.cluster[1].is_hanging = True
        async with asyncio.timeout(60):
            with pytest.raises(NotEnoughBookies):
                await writer.append(data(1))
        world.cluster[0].is_hanging = world.cluster[1].is_hanging = False

    run(scenario, bookies=3)


def test_a_writer_may_be_closed_by_two_at_once() -> None:
    async def scenario(world: World) -> None:
        store = world.client()
        writer = await store.create(CONFIG)
        ack = writer.append(data(0))
        async with asyncio.timeout(60):
            await asyncio.gather(writer.close(), writer.close())
        assert await ack == 0
        assert await read_all(await store.open(writer.ledger, recover=False)) == [data(0)]

    run(scenario)


def test_a_bookie_with_too_much_to_do_is_not_dead() -> None:
    async def scenario(world: World) -> None:
        store = world.client()
        writer = await store.create(CONFIG)
        for each in range(3):
            world.cluster[each].overloads = 5
        assert await asyncio.gather(*[writer.append(data(each)) for each in range(20)]) == list(
            range(20)
        )
        assert len((await store.info(writer.ledger)).segments) == 1
        assert world.cluster.compared_and_set == 0

    run(scenario, bookies=3)


def test_too_much_under_way_is_overloaded() -> None:
    async def scenario(world: World) -> None:
        store = world.client(LedgerSettings(entries_under_way_max=2, bytes_under_way_max=100))
        writer = await store.create(CONFIG)
        kept = [writer.append(b"x" * 200)]
        with pytest.raises(Overloaded):
            await writer.append(b"y")
        await asyncio.gather(*kept)
        kept = [writer.append(b"x"), writer.append(b"x")]
        with pytest.raises(Overloaded):
            await writer.append(b"y")
        assert await asyncio.gather(*kept) == [1, 2]

    run(scenario)


def test_one_hanging_bookie_does_not_block_recovery() -> None:
    async def scenario(world: World) -> None:
        store, other = world.client(), world.client()
        writer = await store.create(CONFIG)
        await asyncio.gather(*[writer.append(data(each)) for each in range(300)])
        await writer.abandon()
        world.cluster[0].is_hanging = True
        begun = asyncio.get_running_loop().time()
        reader = await other.open(writer.ledger, recover=True)
        assert asyncio.get_running_loop().time() - begun < 1
        assert await read_all(reader) == [data(each) for each in range(300)]

    run(scenario, bookies=3)


def test_a_recovery_that_cannot_store_what_it_found_closes_nothing() -> None:
    async def scenario(world: World) -> None:
        writer = await world.client().create(CONFIG)
        for number in range(10):
            await writer.append(data(number))
        await writer.abandon()
        # All disks are full: what is behind the last confirmed entry cannot be added again.
        for bookie in world.cluster.bookies_by_id.values():
            bookie.is_read_only = True
        with pytest.raises(CannotRecover):
            await world.client().open(writer.ledger, recover=True)
        for bookie in world.cluster.bookies_by_id.values():
            bookie.is_read_only = False
        reader = await world.client().open(writer.ledger, recover=True)
        assert await read_all(reader) == [data(number) for number in range(10)]

    run(scenario)


def test_a_damaged_entry_is_not_a_missing_one() -> None:
    async def scenario(world: World) -> None:
        store = world.client()
        writer = await store.create(CONFIG)
        await asyncio.gather(*[writer.append(data(each)) for each in range(10)])
        await asyncio.sleep(1)
        await writer.abandon()
        for each in range(3):
            world.cluster[each].corrupt(writer.ledger, 9)
        # Nobody published it: it lies behind what recovery knows to be confirmed.
        with pytest.raises(CannotRecover):
            await store.open(writer.ledger, recover=True)
        assert (await store.info(writer.ledger)).state is LedgerState.IN_RECOVERY
        world.cluster[1].corrupt(writer.ledger, 9)
        reader = await store.open(writer.ledger, recover=True)
        assert await read_all(reader) == [data(each) for each in range(10)]
        for each in range(3):
            if each != 1:
                # The recovery has mended the others; damage again what one has.
                world.cluster[each].corrupt(writer.ledger, 4)
        assert await read_all(reader) == [data(each) for each in range(10)]
        world.cluster[1].corrupt(writer.ledger, 4)
        with pytest.raises(BadDigest):
            await reader.read(first=4, last=4)

    run(scenario, bookies=3)


def test_a_tailing_reader_hears_of_each_entry_soon() -> None:
    async def scenario(world: World) -> None:
        store, other = world.client(), world.client()
        loop = asyncio.get_running_loop()
        world.cluster.weather.delay_ms_max = 0.1
        writer = await store.create(CONFIG)
        reader = await other.open(writer.ledger, recover=False)
        for each in range(20):
            waiting = asyncio.create_task(reader.wait(after=each - 1, timeout_ms=60_000))
            await asyncio.sleep(0.5)
            assert await writer.append(data(each)) == each
            acked = loop.time()
            assert await waiting == (each, False)
            assert loop.time() - acked < 0.003
            assert (await reader.read(first=each, last=each))[0].data == data(each)
        waiting = asyncio.create_task(reader.wait(after=19, timeout_ms=60_000))
        await asyncio.sleep(0.5)
        await writer.close()
        assert await waiting == (19, True)
        assert await reader.wait(after=19, timeout_ms=60_000) == (19, True)

    run(scenario)


def test_a_reader_waits_no_longer_than_asked() -> None:
    async def scenario(world: World) -> None:
        store = world.client()
        writer = await store.create(CONFIG)
        reader = await store.open(writer.ledger, recover=False)
        begun = asyncio.get_running_loop().time()
        assert await reader.wait(after=-1, timeout_ms=700) == (-1, False)
        assert 0.6 < asyncio.get_running_loop().time() - begun < 0.9
        await writer.append(b"a")
        assert await reader.wait(after=-1, timeout_ms=700) == (0, False)
        with pytest.raises(OutOfRange):
            await reader.read(first=0, last=1)
        await writer.append(b"b")
        reader.confirm(1)
        assert len(await reader.read(first=0, last=1)) == 2
        await writer.append(b"c")
        assert await reader.wait(after=1, timeout_ms=0) == (2, False)
        await writer.close()
        assert await reader.wait(after=2, timeout_ms=0) == (2, True)

    run(scenario)


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 3, 1), (3, 2, 2), (5, 3, 2), (4, 4, 3)])
def test_what_was_acked_is_seen_by_whoever_opens_the_ledger_next(
    quorums: tuple[int, int, int],
) -> None:
    ensemble, write_quorum, ack_quorum = quorums
    config = LedgerConfig(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum)

    async def scenario(world: World) -> None:
        writing, reading = world.client(), world.client()
        missed = 0
        for _ in range(20):
            writer = await writing.create(config)
            kept = await reading.open(writer.ledger, recover=False)
            for each in range(10):
                assert await writer.append(data(each)) == each
                anew = await reading.open(writer.ledger, recover=False)
                missed += anew.last_confirmed != each
                missed += await kept.wait(after=each - 1, timeout_ms=0) != (each, False)
            await writer.append(data(10))
            await writer.abandon()
            await asyncio.sleep(0.5)
            missed += (await reading.open(writer.ledger, recover=False)).last_confirmed != 10
        assert missed == 0

    run(scenario, bookies=ensemble)


def test_a_reader_that_waits_for_a_millisecond_lets_time_pass() -> None:
    async def scenario(world: World) -> None:
        store = world.client()
        writer = await store.create(CONFIG)
        reader = await store.open(writer.ledger, recover=False)
        loop = asyncio.get_running_loop()
        for _ in range(20):
            begun = loop.time()
            await reader.wait(after=-1, timeout_ms=1)
            assert loop.time() >= begun + 0.001

    run(scenario)


def test_a_lost_answer_makes_no_second_ledger() -> None:
    async def scenario(world: World) -> None:
        store = world.client(LedgerSettings(metadata_tries=50))
        world.cluster.weather.lost_answers = 0.5
        for each in range(10):
            writer = await store.create(CONFIG)
            await writer.append(data(each))
            await writer.close()
        world.cluster.weather.lost_answers = 0
        assert len([each async for each in store.ledgers()]) == 10

    run(scenario)


def test_a_deleted_ledger_is_gone() -> None:
    async def scenario(world: World) -> None:
        store = world.client()
        writer = await store.create(CONFIG)
        await writer.append(b"a")
        await writer.close()
        reader = await store.open(writer.ledger, recover=False)
        await store.delete(writer.ledger)
        await store.delete(writer.ledger)
        with pytest.raises(NoSuchLedger):
            await store.info(writer.ledger)
        with pytest.raises(NoSuchLedger):
            await reader.read(first=0, last=0)

    run(scenario)


def test_every_read_of_a_recovery_fences() -> None:
    async def scenario(world: World) -> None:
        store = world.client()
        writer = await store.create(CONFIG)
        await asyncio.gather(*[writer.append(data(each)) for each in range(10)])
        await writer.abandon()
        asked: list[tuple[int, bytes | None]] = []
        read = MemoryBookie.read

        def spy(self: MemoryBookie, ledger: int, entry: int, fence_key: bytes | None) -> bytes:
            asked.append((entry, fence_key))
            return read(self, ledger, entry, fence_key)

        with mock.patch.object(MemoryBookie, "read", spy):
            await store.open(writer.ledger, recover=True)
        assert {entry for entry, _ in asked} >= {-1, 9, 10}
        assert {key for _, key in asked} == {master_key(b"")}

    run(scenario)


def test_a_ledger_that_nobody_wrote_to_is_recovered_as_empty() -> None:
    async def scenario(world: World) -> None:
        store = world.client()
        writer = await store.create(CONFIG)
        reader = await store.open(writer.ledger, recover=True)
        assert (reader.last_confirmed, reader.is_closed, reader.length_bytes) == (-1, True, 0)

    run(scenario)


@pytest.mark.parametrize("error", [NoSuchLedger, NoSuchEntry])
def test_an_open_ledger_without_entries_is_read_as_empty(error: type[RaftwoodError]) -> None:
    """Our bookies do not know such a ledger; BookKeeper's say that they have no entry."""

    async def scenario(world: World) -> None:
        writer = await world.client().create(CONFIG)
        answer = mock.Mock(side_effect=error("nothing"))
        with mock.patch.object(MemoryBookie, "read_last_confirmed", answer):
            reader = await world.client().open(writer.ledger, recover=False)
            assert await reader.wait(after=-1, timeout_ms=0) == (-1, False)
        await writer.close()

    run(scenario)


def test_that_there_is_nothing_more_to_read_is_said_by_enough_bookies_or_not_at_all() -> None:
    async def scenario(world: World) -> None:
        writer = await world.client().create(CONFIG)
        await writer.append(b"a")
        for each in range(2):
            world.cluster[each].is_down = True
        reader = await world.client().open(writer.ledger, recover=False)
        assert await reader.wait(after=-1, timeout_ms=0) == (0, False)
        for timeout_ms in (0, 100):
            with pytest.raises(BookieUnavailable, match="too few bookies"):
                await reader.wait(after=0, timeout_ms=timeout_ms)
        assert await read_all(reader) == [b"a"]
        world.cluster[0].is_down = False
        assert await reader.wait(after=0, timeout_ms=0) == (0, False)

    run(scenario, bookies=3)


def test_a_recovery_that_cannot_store_what_it_found_does_not_close_the_ledger() -> None:
    async def scenario(world: World) -> None:
        writer = await world.client().create(CONFIG)
        entries = [data(each) for each in range(5)]
        await asyncio.gather(*[writer.append(each) for each in entries])
        await writer.abandon()
        store = world.client(LedgerSettings(change_timeout_ms=1_000))
        for each in range(3):
            world.cluster[each].is_read_only = True
        with pytest.raises(CannotRecover, match="take entries"):
            await store.open(writer.ledger, recover=True)
        assert (await store.info(writer.ledger)).state is LedgerState.IN_RECOVERY
        for each in range(3):
            world.cluster[each].is_read_only = False
        assert await read_all(await store.open(writer.ledger, recover=True)) == entries

    run(scenario, bookies=3)


def test_readers_hear_of_the_last_ack_although_bookies_were_away_when_it_was_published() -> None:
    async def scenario(world: World) -> None:
        away = {bookie.info.id: 2 for bookie in map(world.cluster.__getitem__, range(3))}
        told = MemoryBookies.write_last_confirmed

        async def tell(self: MemoryBookies, bookie: BookieId, **what: Any) -> None:
            away[bookie] -= 1
            if away[bookie] >= 0:
                raise BookieUnavailable(f"{bookie} is away")
            await told(self, bookie, **what)

        with mock.patch.object(MemoryBookies, "write_last_confirmed", tell):
            writer = await world.client().create(CONFIG)
            reader = await world.client().open(writer.ledger, recover=False)
            assert await writer.append(b"the last for long") == 0
            assert await reader.wait(after=-1, timeout_ms=5_000) == (0, False)
        await writer.close()

    run(scenario, bookies=3)


def test_a_close_that_fails_leaves_no_append_waiting_and_may_be_done_again() -> None:
    async def scenario(world: World) -> None:
        client = world.client()
        writer = await client.create(CONFIG)
        await writer.append(data(0))
        metadata = client._context.metadata
        # Bookies store entries, and take no word of what is confirmed.
        silent = mock.patch.object(
            MemoryBookies, "write_last_confirmed", mock.AsyncMock(side_effect=Overloaded("later"))
        )
        away = mock.patch.object(
            metadata, "compare_and_set", mock.AsyncMock(side_effect=Unavailable("away"))
        )
        with silent, away:
            unseen = writer.append(data(1))
            await asyncio.sleep(0.1)
            assert (writer.last_confirmed, unseen.done()) == (1, False)
            with pytest.raises(Unavailable):
                await writer.close()
        with pytest.raises(Unavailable):
            await unseen
        assert writer.has_ended()
        await writer.close()
        reader = await client.open(writer.ledger, recover=False)
        assert await read_all(reader) == [data(0), data(1)]

    run(scenario)
