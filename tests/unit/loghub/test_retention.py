"""What is freed of shards and what is not: age, size, readers; and hot shards."""

from pathlib import Path

import pytest

from raftwood.base.position import Position
from raftwood.loghub.controls import LogstoreOptions
from raftwood.loghub.cursors import encode_cursor
from raftwood.loghub.server.gateway import Gateway
from raftwood.loghub.settings import LogHubSettings
from tests.running import run
from tests.unit.loghub.kit import gateway_kit, log_group
from tests.unit.loghub.test_streams import read_all, stream

DAY_MS = 86_400_000


class Clock:
    """What a gateway takes for now."""

    def __init__(self, gateway: Gateway) -> None:
        self._began = gateway.streams.now_ms()
        self.days = 0.0
        gateway.streams.now_ms = self.now_ms  # type: ignore[method-assign]

    def now_ms(self) -> int:
        return self._began + int(self.days * DAY_MS)


async def fill(gateway: Gateway, clock: Clock, count: int, *, days_each: float) -> list[Position]:
    positions = []
    for number in range(count):
        put = await gateway.streams.put("p", "s", log_group(str(number)), shard=0)
        positions.append(put.position)
        clock.days += days_each
    return positions


async def read_up_to(gateway: Gateway, position: int) -> None:
    await gateway.groups.set_checkpoint(
        "p",
        "s",
        "g",
        shard=0,
        checkpoint=encode_cursor(position),
        consumer="",
        is_forced=True,
    )


@pytest.mark.parametrize("days", [0.5, 1.0, 3.5, 9.5, 13.0, 19.5])
def test_what_is_too_old_is_freed_and_nothing_else(tmp_path: Path, days: float) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            gateway = await kit.gateway()
            await stream(gateway, shards=1)
            await gateway.catalog.update_logstore("p", "s", LogstoreOptions(ttl_days=5))
            clock = Clock(gateway)
            await fill(gateway, clock, 20, days_each=1.0)
            clock.days = days + 5
            await gateway.retention.work()
            left = [str(number) for number in range(20) if number >= days]
            assert await read_all(gateway, 0) == left

    run(body())


def test_the_age_of_what_a_reader_needs_counts_unless_readers_are_spared(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            gateway = await kit.gateway()
            await stream(gateway, shards=1)
            options = LogstoreOptions(ttl_days=1, ttl_spares_readers=True)
            await gateway.catalog.update_logstore("p", "s", options)
            await gateway.groups.create("p", "s", "g", timeout_s=60, is_ordered=True)
            clock = Clock(gateway)
            positions = await fill(gateway, clock, 10, days_each=1.0)
            clock.days = 30
            await gateway.retention.work()
            assert len(await read_all(gateway, 0)) == 10
            await read_up_to(gateway, positions[4])
            await gateway.retention.work()
            assert await read_all(gateway, 0) == [str(number) for number in range(4, 10)]
            assert gateway.metrics.overridden_positions == 0
            options = LogstoreOptions(ttl_spares_readers=False)
            await gateway.catalog.update_logstore("p", "s", options)
            await gateway.retention.work()
            assert await read_all(gateway, 0) == []
            assert gateway.metrics.overridden_positions > 0

    run(body())


def test_what_is_too_much_is_freed_but_for_what_a_reader_needs(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            gateway = await kit.gateway()
            await stream(gateway, shards=1)
            options = LogstoreOptions(retained_bytes_max=1000)
            await gateway.catalog.update_logstore("p", "s", options)
            await gateway.groups.create("p", "s", "g", timeout_s=60, is_ordered=True)
            clock = Clock(gateway)
            positions = []
            for _ in range(60):
                positions += await fill(gateway, clock, 1, days_each=0.0)
                await gateway.retention.work()
            assert len(await read_all(gateway, 0)) == 60
            await read_up_to(gateway, positions[10])
            await gateway.retention.work()
            assert len(await read_all(gateway, 0)) == 50
            await gateway.groups.delete("p", "s", "g")
            await gateway.retention.work()
            (shard,) = await gateway.streams.shards("p", "s")
            bounds = await gateway.streams.bounds(shard)
            pulled = await gateway.streams.pull("p", "s", 0, bounds.first)
            assert 1000 <= sum(len(each.data) for each in pulled.batches) <= 1100

    run(body())


def test_a_shard_that_was_split_goes_away_once_all_of_it_is_too_old(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            gateway = await kit.gateway()
            await stream(gateway, shards=1)
            options = LogstoreOptions(ttl_days=1, ttl_spares_readers=True)
            await gateway.catalog.update_logstore("p", "s", options)
            await gateway.groups.create("p", "s", "g", timeout_s=60, is_ordered=True)
            clock = Clock(gateway)
            await fill(gateway, clock, 3, days_each=0.0)
            await gateway.streams.split("p", "s", 0)
            await gateway.retention.work()
            clock.days = 3
            await gateway.retention.work()
            assert len(await gateway.streams.shards("p", "s")) == 3
            end = await gateway.streams.cursor("p", "s", 0, "end")
            await read_up_to(gateway, end)
            for _ in range(2):  # what was in it, then the shard itself
                await gateway.retention.work()
            assert [each.id for each in await gateway.streams.shards("p", "s")] == [1, 2]
            assert len(await kit.logs.names("loghub-")) == 2

    run(body())


def test_a_hot_shard_is_split_where_its_logstore_says_so(tmp_path: Path) -> None:
    async def body() -> None:
        loghub = LogHubSettings(hot_bytes_per_s=1, hot_rounds=2)
        async with gateway_kit(tmp_path, loghub=loghub) as kit:
            gateway = await kit.gateway()
            await stream(gateway, shards=1)
            options = LogstoreOptions(auto_split=True, shards_split_max=2)

            async def rounds() -> int:
                for _ in range(6):
                    await gateway.streams.put("p", "s", log_group("x" * 1000))
                    await gateway.retention.work()
                return len(await gateway.streams.shards("p", "s"))

            assert await rounds() == 1
            await gateway.catalog.update_logstore("p", "s", options)
            assert await rounds() == 3
            assert await rounds() == 3
            assert gateway.metrics.automatic_splits == 1

    run(body())


def test_one_gateway_at_a_time_frees(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            one, two = await kit.gateway(), await kit.gateway()
            assert await one.retention._has_turn()
            assert not await two.retention._has_turn()
            assert await one.retention._has_turn()
            await one.retention.close()
            assert await two.retention._has_turn()

    run(body())
