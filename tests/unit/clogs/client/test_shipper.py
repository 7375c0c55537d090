"""The shipper as a whole, with receivers in the same process."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
import pytest

from raftwood.base.environment import Environment
from raftwood.base.errors import Overloaded, ShuttingDown, TooLarge
from raftwood.clogs.client import spool
from raftwood.clogs.client.shipper import AsyncShipper
from raftwood.disk.real_environment import real_environment
from tests.kits.clogs.memory_sink import MemorySink, MemoryStorage
from tests.kits.clogs.ring import ACCESS, Ring, StaticSource, settings_of
from tests.kits.running import until

NAMES = [f"/var/log/app{number}.log" for number in range(12)]


def scene(body: Callable[[Environment, Ring], Awaitable[None]], servers: int = 3) -> None:
    async def run() -> None:
        with real_environment() as environment:
            ring = Ring(environment)
            for number in range(servers):
                await ring.start(f"log-{number}")
            try:
                async with asyncio.timeout(60):
                    await body(environment, ring)
            finally:
                await ring.close()

    asyncio.run(run())


def given(name: str, first: int, last: int) -> list[bytes]:
    return [f"{name} line {number}".encode() for number in range(first, last)]


def test_lines_are_stored_in_order_per_file() -> None:
    async def body(environment: Environment, ring: Ring) -> None:
        source = StaticSource(ring.configuration())
        async with await AsyncShipper.start(environment, settings_of(), ACCESS, source) as shipper:
            for first in range(0, 100, 10):
                for name in NAMES:
                    shipper.send(name, given(name, first, first + 10))
                await asyncio.sleep(0.005)
            await shipper.flush()
            for name in NAMES:
                assert ring.storage.lines(name) == given(name, 0, 100)
            counters = shipper.counters
            assert (counters.taken, counters.acked, counters.dropped) == (1200, 1200, 0)
            assert sum(each.acked for each in counters.servers.values()) == 1200
            assert len([each for each in counters.servers.values() if each.sent]) > 1

    scene(body)


def test_a_server_that_is_gone_is_isolated_and_its_files_go_elsewhere() -> None:
    async def body(environment: Environment, ring: Ring) -> None:
        source = StaticSource(ring.configuration())
        async with await AsyncShipper.start(environment, settings_of(), ACCESS, source) as shipper:
            for name in NAMES:
                await shipper.send(name, given(name, 0, 5))
            await ring.stop("log-1")
            deliveries = [shipper.send(name, given(name, 5, 10)) for name in NAMES]
            for delivery in deliveries:
                await delivery
            assert [each.server for each in shipper.status().servers if each.is_isolated] == [
                "log-1"
            ]
            await ring.start("log-1")
            await until(lambda: not any(each.is_isolated for each in shipper.status().servers))
            for name in NAMES:
                await shipper.send(name, given(name, 10, 15))
                assert ring.storage.lines(name) == given(name, 0, 15)

    scene(body)


def test_all_servers_gone_lose_nothing() -> None:
    async def body(environment: Environment, ring: Ring) -> None:
        source = StaticSource(ring.configuration())
        async with await AsyncShipper.start(environment, settings_of(), ACCESS, source) as shipper:
            await ring.stop("log-0")
            await ring.stop("log-1")
            deliveries = [shipper.send(name, given(name, 0, 7)) for name in NAMES]
            await until(lambda: shipper.status().is_panic)
            assert not any(each.is_done for each in deliveries)
            await ring.start("log-0")
            await ring.start("log-1")
            for delivery in deliveries:
                await delivery
            for name in NAMES:
                assert ring.storage.lines(name) == given(name, 0, 7)

    scene(body, servers=2)


@pytest.mark.parametrize("moves", [1, 3])
def test_a_place_that_takes_no_more_is_left_for_the_next(moves: int) -> None:
    async def body(environment: Environment, ring: Ring) -> None:
        source = StaticSource(ring.configuration())
        async with await AsyncShipper.start(environment, settings_of(), ACCESS, source) as shipper:
            for turn in range(moves + 1):
                await shipper.send("a.log", given("a.log", turn, turn + 1))
                ring.storage.move("a.log")
            assert ring.storage.lines("a.log") == given("a.log", 0, moves + 1)

    scene(body)


def test_what_is_in_the_spool_is_shipped_by_the_next_life(tmp_path: object) -> None:
    async def body(environment: Environment, ring: Ring) -> None:
        settings = settings_of(when_full="spool", spool_folder=f"{tmp_path}/spool")
        await ring.stop("log-0")
        shipper = await AsyncShipper.start(
            environment, settings, ACCESS, StaticSource(ring.configuration())
        )
        for name in NAMES:
            shipper.send(name, given(name, 0, 20))
        await shipper.close(wait_ms=50)
        assert shipper.counters.dropped == 0
        await ring.start("log-0")
        async with await AsyncShipper.start(
            environment, settings, ACCESS, StaticSource(ring.configuration())
        ) as second:
            for name in NAMES:
                second.send(name, given(name, 20, 25))
            await second.flush()
        for name in NAMES:
            assert ring.storage.lines(name) == given(name, 0, 25)

    scene(body, servers=1)


def _has_spooled(shipper: AsyncShipper, held_bytes: int) -> bool:
    return shipper.status().spool_bytes >= held_bytes


@pytest.mark.parametrize("mode", ["overflow", "always"])
def test_all_goes_to_the_spool_though_it_is_more_than_may_wait_for_the_disk_at_once(
    tmp_path: object, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = msgspec.structs.replace(spool._SETTINGS, pending_bytes_max=64 << 10)
    monkeypatch.setattr(spool, "_SETTINGS", few)
    lines = [b"%d %s" % (number, b"x" * 1000) for number in range(500)]

    async def body(environment: Environment, ring: Ring) -> None:
        settings = settings_of(
            spool_folder=f"{tmp_path}/spool", spool=mode, batch_lines_max=10, compression="none"
        )
        await ring.stop("log-0")
        for is_synced in (False, True):
            shipper = await AsyncShipper.start(
                environment, settings, ACCESS, StaticSource(ring.configuration())
            )
            shipper.send("a.log", lines)
            if mode == "always":  # without being asked
                held_bytes = sum(map(len, lines)) * (1 + is_synced)
                await until(partial(_has_spooled, shipper, held_bytes))
            elif is_synced:
                await shipper.sync()
            await shipper.close(wait_ms=0)
            assert shipper.counters.dropped == 0
        await ring.start("log-0")
        async with await AsyncShipper.start(
            environment, settings, ACCESS, StaticSource(ring.configuration())
        ) as last:
            await last.flush()
        assert ring.storage.lines("a.log") == lines * 2

    scene(body, servers=1)


class _Placeless(MemorySink):
    """Does not tell where files go, for a while."""

    def __init__(self, storage: MemoryStorage) -> None:
        super().__init__(storage)
        self.asked_at: list[float] = []
        self.is_silent = True

    async def locate(self, key: str, name: str) -> str:
        self.asked_at.append(asyncio.get_running_loop().time())
        return "" if self.is_silent else await super().locate(key, name)


def test_a_server_that_tells_no_place_is_not_asked_all_the_time() -> None:
    async def body(environment: Environment, ring: Ring) -> None:
        sink = _Placeless(ring.storage)
        await ring.start("log-0", sink)
        source = StaticSource(ring.configuration())
        async with await AsyncShipper.start(environment, settings_of(), ACCESS, source) as shipper:
            delivery = shipper.send("a.log", given("a.log", 0, 3))
            await until(lambda: len(sink.asked_at) >= 4)
            assert sink.asked_at[-1] - sink.asked_at[0] >= 0.04
            sink.is_silent = False
            await delivery

    scene(body, servers=0)


def test_flushes_that_were_given_up_do_not_pile_up() -> None:
    async def body(environment: Environment, ring: Ring) -> None:
        await ring.stop("log-0")
        source = StaticSource(ring.configuration())
        async with await AsyncShipper.start(environment, settings_of(), ACCESS, source) as shipper:
            delivery = shipper.send("a.log", given("a.log", 0, 3))
            for _ in range(3_000):
                flushing = asyncio.create_task(shipper.flush())
                await asyncio.sleep(0)
                flushing.cancel()
            waiting = [asyncio.create_task(shipper.flush()) for _ in range(3)]
            await ring.start("log-0")
            await delivery
            await asyncio.gather(*waiting)

    scene(body, servers=1)


def test_a_batch_that_no_server_reads_is_refused_and_the_next_one_goes_on() -> None:
    async def body(environment: Environment, ring: Ring) -> None:
        source = StaticSource(ring.configuration())
        settings = settings_of(compression="none")
        async with await AsyncShipper.start(environment, settings, ACCESS, source) as shipper:
            await shipper.send("a.log", [b"small"])
            (connection,) = [each._connection for each in shipper._links._channels.values()]
            assert connection is not None
            connection._frame_bytes_max = 1_000
            large = shipper.send("a.log", [b"x" * 2_000])
            with pytest.raises(TooLarge):
                await large
            await shipper.send("a.log", [b"also small"])
            assert shipper.counters.refused == 1
        assert ring.storage.lines("a.log") == [b"small", b"also small"]

    scene(body, servers=1)


@pytest.mark.parametrize("block_ms", [0, 100])
def test_whoever_waits_for_room_for_too_long_is_told(block_ms: int) -> None:
    async def body(environment: Environment, ring: Ring) -> None:
        await ring.stop("log-0")
        source = StaticSource(ring.configuration())
        settings = settings_of(
            when_full="block", block_ms=block_ms, memory_bytes_max=64 << 10, compression="none"
        )
        shipper = await AsyncShipper.start(environment, settings, ACCESS, source)
        shipper.send("a.log", [b"x" * (64 << 10)])
        with pytest.raises(Overloaded):
            await shipper.put("a.log", [b"one more"])
        await ring.start("log-0")
        await until(lambda: shipper.has_room)
        await shipper.put("a.log", [b"another"])
        await shipper.close(wait_ms=5_000)
        assert len(ring.storage.lines("a.log")) == 2

    scene(body, servers=1)


def test_lines_of_a_shipper_that_ends_at_once_are_dropped_and_counted() -> None:
    async def body(environment: Environment, ring: Ring) -> None:
        source = StaticSource(ring.configuration())
        shipper = await AsyncShipper.start(environment, settings_of(), ACCESS, source)
        delivery = shipper.send("a.log", [b"one", b"two"])
        await shipper.close(wait_ms=0)
        with pytest.raises(ShuttingDown):
            await delivery
        assert shipper.counters.dropped == 2

    scene(body, servers=1)


def test_two_who_close_a_shipper_both_wait_for_one_end() -> None:
    async def body(environment: Environment, ring: Ring) -> None:
        source = StaticSource(ring.configuration())
        shipper = await AsyncShipper.start(environment, settings_of(), ACCESS, source)
        shipper.send("a.log", given("a.log", 0, 3))
        await asyncio.gather(shipper.close(), shipper.close())
        await shipper.close()
        assert ring.storage.lines("a.log") == given("a.log", 0, 3)

    scene(body)
