"""A DLOG as the `Log` and `Logs` seams: the suites that every log passes, on several processes."""

import asyncio

import pytest
from msgspec.structs import replace

from raftwood.base.position import Position
from raftwood.base.seams import Log, Logs
from raftwood.dlog.log.meta import LogConfig
from raftwood.dlog.log.writer_driver import LOG_PROPERTY
from raftwood.dlog.settings import SharedDlogSettings
from raftwood.loghub.server.streams import next_batch
from tests.kits.base import logs_suite
from tests.kits.base.log_suite import LogSuite, Scenario
from tests.kits.base.logs_suite import LogsSuite
from tests.kits.dlog.shared_world import SETTINGS, SharedWorld, run_shared


class _LogKit:
    """Each client is a process of its own, any of which may be the owner."""

    def __init__(self, world: SharedWorld) -> None:
        self._world = world
        self._opened = 0

    async def open(self) -> Log:
        self._opened += 1
        logs = await self._world.start(f"g{self._opened}")
        await logs.create("log")
        return await logs.open("log")

    async def fail_over(self) -> None:
        """The owner stops as if it was stopped: its writer is gone at once, its record stays."""
        owner = self._world.owner("log")
        self._world.logs[owner].seats._tenure._end()


class TestSharedLog(LogSuite):
    def run(self, scenario: Scenario) -> None:
        async def whole(world: SharedWorld) -> None:
            await scenario(_LogKit(world))

        run_shared(whole)


class _LogsKit:
    def __init__(self, world: SharedWorld) -> None:
        self._world = world
        self._opened = 0

    async def open(self) -> Logs:
        self._opened += 1
        return await self._world.start(f"g{self._opened}")


class TestSharedLogs(LogsSuite):
    def run(self, scenario: logs_suite.Scenario) -> None:
        async def whole(world: SharedWorld) -> None:
            await scenario(_LogsKit(world))

        run_shared(whole)


def test_a_read_may_begin_at_any_position_between_the_first_and_the_last() -> None:
    async def scenario(world: SharedWorld) -> None:
        one, two = await world.start("g1"), await world.start("g2")
        await one.create("log")
        log, other = await one.open("log"), await two.open("log")
        positions = [await log.append([b"%d" % n], producer=b"a", sequence=n) for n in range(120)]
        assert len({each >> 64 for each in positions}) > 1
        bounds = await other.bounds()
        began = world.simulation.now
        starts = [
            *range(bounds.first, bounds.next, (bounds.next - bounds.first) // 50),
            *(each + 1 for each in positions),
            bounds.next - 1,
        ]
        for start in starts:
            expected = [each for each in positions if each >= start][:1]
            batches, following = await other.read(Position(start), bytes_max=1)
            while not batches and following < bounds.next:
                batches, following = await other.read(following, bytes_max=1)
            assert [each.position for each in batches] == expected
        assert world.simulation.now - began < 5
        # Halving over positions with such gaps finds what it looks for.
        assert await next_batch(other, Position(positions[49] + 1), bounds.next) is not None

    run_shared(scenario)


def test_who_waits_at_the_end_hears_of_what_was_under_way_already() -> None:
    async def scenario(world: SharedWorld) -> None:
        logs = await world.start("g1")
        await logs.create("log")
        log = await logs.open("log")
        end = await log.append([b"first"], producer=b"a", sequence=1)
        _, end = await log.read(end, bytes_max=1)
        append = asyncio.create_task(log.append([b"second"], producer=b"a", sequence=2))
        await asyncio.sleep(0.01)
        began = world.simulation.now
        batches, _ = await log.read(end, bytes_max=1, wait_ms=20_000)
        assert [bytes(each.data) for each in batches] == [b"second"]
        assert world.simulation.now - began < 1
        await append

    run_shared(scenario, delay_ms=50)


def test_an_append_waits_where_the_lease_is_over_and_nobody_has_been_told_yet() -> None:
    async def scenario(world: SharedWorld) -> None:
        logs = await world.start("g1")
        await logs.create("log")
        log = await logs.open("log")
        await log.append([b"first"], producer=b"a", sequence=1)
        logs.seats._tenure._until = 0.0  # the timer comes later
        await log.append([b"second"], producer=b"a", sequence=2)
        batches, _ = await log.read(Position(0), bytes_max=100)
        assert [bytes(each.data) for each in batches] == [b"first", b"second"]

    run_shared(scenario)


def test_a_producers_name_is_the_same_text_for_a_log_and_for_its_writer() -> None:
    """As release 0.1.0 named it: what that stored is known again."""

    async def scenario(world: SharedWorld) -> None:
        logs, other = await world.start("g1"), await world.start("g2")
        await logs.create("log")
        log, name = await logs.open("log"), "000102030405060708090a0b0c0d0e0f"
        await log.append([b"first"], producer=b"a", sequence=1)
        writer = logs.seats.seat("log").writer
        assert writer is not None
        position = await writer.append(b"one", producer=name, sequence=7)
        for each in (log, await other.open("log")):
            assert await each.append([b"o", b"ne"], producer=name.encode(), sequence=7) == position

    run_shared(scenario)


@pytest.mark.parametrize("name", ["g1", "g2"])
def test_the_log_of_one_that_was_started_anew_at_its_address_is_taken_at_once(name: str) -> None:
    async def scenario(world: SharedWorld) -> None:
        logs, other = await world.start("g1"), await world.start("g2")
        await logs.create("log")
        await (await logs.open("log")).append([b"first"], producer=b"a", sequence=1)
        await (await other.open("log")).append([b"second"], producer=b"b", sequence=1)
        world.machines["g1"].kill()
        await world.start("g1")  # the record of the one that died is still there
        began = world.simulation.now
        log = await world.logs[name].open("log")
        await log.append([b"third"], producer=b"a", sequence=2)
        assert world.simulation.now - began < 0.5
        batches, following = await log.read(Position(0), bytes_max=100)
        batches += (await log.read(following, bytes_max=100))[0]
        assert [bytes(each.data) for each in batches] == [b"first", b"second", b"third"]

    run_shared(scenario)


def test_who_waits_longer_than_a_call_may_take_does_not_notice_that_the_owner_dies() -> None:
    async def scenario(world: SharedWorld) -> None:
        one, two = await world.start("g1"), await world.start("g2")
        await one.create("log")
        log, other = await one.open("log"), await two.open("log")
        await log.append([b"first"], producer=b"a", sequence=1)
        end = (await other.bounds()).next
        waiting = asyncio.create_task(other.read(end, bytes_max=1, wait_ms=20_000))
        await asyncio.sleep(10)
        world.machines["g1"].kill()
        await asyncio.sleep(5)
        await other.append([b"second"], producer=b"a", sequence=2)
        batches, following = await waiting
        batches += (await other.read(following, bytes_max=1))[0]
        assert bytes(batches[0].data) == b"second"

    run_shared(scenario, settings=SharedDlogSettings(lease_ms=2_000, timeout_ms=3_000))


def test_a_process_that_owns_under_one_lease_after_another_takes_one_connection() -> None:
    async def scenario(world: SharedWorld) -> None:
        one, two = await world.start("g1"), await world.start("g2")
        await one.create("log")
        log, other = await one.open("log"), await two.open("log")
        for sequence in range(1, 5):
            await log.append([b"here"], producer=b"a", sequence=sequence)
            assert world.owner("log") == "g1"
            await other.append([b"there"], producer=b"b", sequence=sequence)
            one.seats._tenure._end()
            await asyncio.sleep(3)  # the record is gone
        assert len(two.seats.peers._channels) == 1

    run_shared(scenario)


def test_what_is_retained_no_longer_and_ledgers_that_were_lost_are_freed() -> None:
    async def scenario(world: SharedWorld) -> None:
        first = await world.start("a")
        dlogs = first._dlogs
        config = LogConfig(retention_ms=60_000, entries_max=10, grace_ms=1_000)
        await dlogs.create("short", config)
        log = await first.open("short")
        positions = [
            await log.append([b"%d" % each], producer=b"p", sequence=each) for each in range(100)
        ]
        token = (await dlogs.metas.read("short")).meta.token
        lost = await world.ledgers.create(config.ledger, properties={LOG_PROPERTY: token})
        await lost.abandon()
        for each in range(100, 130):
            await log.append([b"%d" % each], producer=b"p", sequence=each)
        held = [each async for each in world.ledgers.ledgers()]
        assert lost.ledger in held
        await asyncio.sleep(600)
        left = [each async for each in world.ledgers.ledgers()]
        assert lost.ledger not in left
        assert len(left) <= len(held) - 8
        assert (await log.bounds()).first > positions[80]
        assert await log.append([b"on"], producer=b"p", sequence=130) > positions[-1]

    run_shared(scenario, settings=replace(SETTINGS, upkeep_ms=60_000))


def test_a_log_that_was_taken_over_and_left_empty_is_read_without_waiting() -> None:
    async def scenario(world: SharedWorld) -> None:
        first = await world.start("a")
        for name in ("other", "log"):  # whose ledger is not the first of all
            await first.create(name)
            await (await first._dlogs.open_writer(name)).close()
        log = await first.open("log")
        loop = asyncio.get_running_loop()
        began = loop.time()
        bounds = await log.bounds()
        found, following = await log.read(bounds.first, bytes_max=1 << 20)
        assert (found, following) == ([], bounds.next)
        assert loop.time() - began < 1

    run_shared(scenario)
