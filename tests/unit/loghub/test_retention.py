"""Retention: by age and by size, what readers need, hot shards, turns, strays."""

from pathlib import Path

import pytest

from raftwood.loghub.errors import ShardNotFound
from raftwood.loghub.model import ShardStatus
from raftwood.loghub.server.gateway import Gateway
from raftwood.loghub.server.retention import (
    MARKS_MAX,
    TURN_KEY,
    Heat,
    RetentionMarks,
    freeable,
    hottest,
    position_of_bytes,
    with_mark,
    without_freed,
)
from raftwood.loghub.settings import LogHubSettings
from raftwood.loghub.wire import LogstoreOptions, encode_cursor
from tests.kits.loghub.streams import gateway_kit, log_group
from tests.kits.running import run
from tests.unit.loghub.test_streams import read_all

DAY_MS = 86_400_000


class Clock:
    """The wall clock of a gateway's streams, as a test sets it."""

    def __init__(self, gateway: Gateway) -> None:
        self.now_ms = gateway.streams.now_ms()
        gateway.streams.now_ms = lambda: self.now_ms  # type: ignore[method-assign]

    def days_pass(self, days: float) -> None:
        self.now_ms += int(days * DAY_MS)


async def stream(gateway: Gateway, **options: object) -> None:
    await gateway.catalog.create_project("p")
    await gateway.catalog.create_logstore(
        "p",
        "s",
        shard_count=1,
        options=LogstoreOptions(**options),  # type: ignore[arg-type]
    )


async def put(gateway: Gateway, *values: str) -> int:
    position = 0
    for value in values:
        position = (await gateway.streams.put("p", "s", log_group(value))).position
    return position


async def register(gateway: Gateway, position: int, group: str = "g") -> None:
    """A reader that has read up to a position."""
    groups = gateway.groups
    await groups.create("p", "s", group, timeout_s=60, is_ordered=True)
    await groups.set_checkpoint(
        "p",
        "s",
        group,
        shard=0,
        checkpoint=encode_cursor(position),
        consumer="",
        is_forced=True,
    )


# By age


def test_what_is_too_old_is_freed_and_nothing_else(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            gateway = await kit.gateway()
            clock = Clock(gateway)
            await stream(gateway, ttl_days=2)
            await put(gateway, "a", "b")
            clock.days_pass(1)
            await put(gateway, "c")
            await gateway.retention.work()
            assert await read_all(gateway, 0) == ["a", "b", "c"]
            clock.days_pass(1.5)
            await gateway.retention.work()
            assert await read_all(gateway, 0) == ["c"]
            clock.days_pass(1)
            await gateway.retention.work()
            assert await read_all(gateway, 0) == []
            await put(gateway, "d")
            assert await read_all(gateway, 0) == ["d"]

    run(body())


def test_without_a_time_to_live_nothing_gets_too_old(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            gateway = await kit.gateway()
            clock = Clock(gateway)
            await stream(gateway, ttl_days=0)
            await put(gateway, "a")
            clock.days_pass(4000)
            await gateway.retention.work()
            assert await read_all(gateway, 0) == ["a"]

    run(body())


def test_an_ended_shard_of_which_all_is_too_old_goes_away(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            gateway = await kit.gateway()
            clock = Clock(gateway)
            await stream(gateway, ttl_days=2)
            await put(gateway, "a")
            await gateway.streams.split("p", "s", 0)
            clock.days_pass(1)
            await gateway.streams.put("p", "s", log_group("b"), shard=1)
            await gateway.retention.work()
            assert [each.id for each in await gateway.streams.shards("p", "s")] == [0, 1, 2]
            clock.days_pass(1.5)
            for _ in range(2):  # what is in it goes first, then the shard
                await gateway.retention.work()
            shards = await gateway.streams.shards("p", "s")
            assert [each.id for each in shards] == [1, 2]
            assert {each.status for each in shards} == {ShardStatus.READWRITE}
            assert len(await kit.logs.names("loghub-")) == 2
            with pytest.raises(ShardNotFound):
                await gateway.streams.pull("p", "s", 0, 0)
            assert await read_all(gateway, 1) == ["b"]

    run(body())


def test_an_ended_shard_that_never_held_anything_goes_away_by_its_own_age(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            gateway = await kit.gateway()
            clock = Clock(gateway)
            await stream(gateway, ttl_days=2)
            await gateway.streams.split("p", "s", 0)
            await gateway.retention.work()
            assert len(await gateway.streams.shards("p", "s")) == 3
            clock.days_pass(3)
            await gateway.retention.work()
            assert [each.id for each in await gateway.streams.shards("p", "s")] == [1, 2]

    run(body())


def test_age_frees_what_readers_need_and_says_how_much(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            gateway = await kit.gateway()
            clock = Clock(gateway)
            await stream(gateway, ttl_days=2)
            await put(gateway, "a")
            needed = await put(gateway, "b")
            await put(gateway, "c")
            await register(gateway, needed)
            clock.days_pass(3)
            await put(gateway, "d")
            await gateway.retention.work()
            assert await read_all(gateway, 0) == ["d"]
            assert gateway.metrics.overridden_positions > 0
            before = gateway.metrics.overridden_positions
            await gateway.retention.work()
            assert gateway.metrics.overridden_positions == before  # only once

    run(body())


def test_a_logstore_may_spare_its_readers_of_the_time_to_live(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            gateway = await kit.gateway()
            clock = Clock(gateway)
            await stream(gateway, ttl_days=2, ttl_spares_readers=True)
            await put(gateway, "a")
            needed = await put(gateway, "b")
            await register(gateway, needed)
            clock.days_pass(3)
            await gateway.retention.work()
            assert await read_all(gateway, 0) == ["b"]
            assert gateway.metrics.overridden_positions == 0
            await gateway.groups.delete("p", "s", "g")
            await gateway.retention.work()
            assert await read_all(gateway, 0) == []

    run(body())


# By size


def test_of_too_much_the_oldest_is_freed(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            gateway = await kit.gateway()
            await stream(gateway, ttl_days=0, retained_bytes_max=10_000)
            for number in range(40):
                await put(gateway, f"{number:03}" + "x" * 997)
                await gateway.retention.work()
            left = [value[:3] for value in await read_all(gateway, 0)]
            assert left[-1] == "039"
            assert 10 <= len(left) <= 12
            size = (await gateway.streams.bounds((await gateway.streams.shards("p", "s"))[0])).first
            assert size > 0

    run(body())


def test_size_never_frees_what_a_reader_needs(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            gateway = await kit.gateway()
            await stream(gateway, ttl_days=0, retained_bytes_max=2_000)
            await put(gateway, "first")
            needed = await put(gateway, "needed")
            await register(gateway, needed)
            for _ in range(20):
                await put(gateway, "x" * 1000)
                await gateway.retention.work()
            left = await read_all(gateway, 0)
            assert left[0] == "needed"
            assert len(left) == 21
            assert gateway.metrics.overridden_positions == 0
            await gateway.groups.delete("p", "s", "g")
            await gateway.retention.work()
            assert len(await read_all(gateway, 0)) < 5

    run(body())


def test_marks_outlive_the_gateway_that_made_them_and_go_with_the_logstore(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            one, two = await kit.gateway(), await kit.gateway()
            await stream(one, ttl_days=0, retained_bytes_max=5_000)
            for _ in range(10):
                await put(one, "x" * 1000)
                await one.retention.work()
            for _ in range(3):
                await put(two, "y" * 1000)
            await two.retention.work()
            assert len(await read_all(two, 0)) <= 7
            await two.catalog.delete_logstore("p", "s")
            page = await kit.store.range(prefix="loghub/retention/marks/")
            assert page.entries == ()

    run(body())


# Hot shards


def test_a_hot_shard_is_split_after_some_rounds_and_up_to_a_bound(tmp_path: Path) -> None:
    async def body() -> None:
        loghub = LogHubSettings(hot_bytes_per_s=1, hot_rounds=3)
        async with gateway_kit(tmp_path, loghub=loghub) as kit:
            gateway = await kit.gateway()
            await stream(gateway, auto_split=True, shards_split_max=3)
            for _ in range(3):
                await gateway.retention.work()
                await put(gateway, "x" * 1000)
            assert len(await gateway.streams.shards("p", "s")) == 1
            await gateway.retention.work()
            shards = await gateway.streams.shards("p", "s")
            assert [each.status for each in shards] == ["readonly", "readwrite", "readwrite"]
            assert gateway.metrics.automatic_splits == 1
            for _ in range(12):
                for shard in (1, 2, 3, 4):
                    key = f"{(shard - 1) * 4:x}" + "0" * 31
                    await gateway.streams.put("p", "s", log_group("x" * 1000), key=key)
                await gateway.retention.work()
            found = await gateway.streams.shards("p", "s")
            assert sum(each.status is ShardStatus.READWRITE for each in found) == 3
            assert gateway.metrics.automatic_splits == 2

    run(body())


def test_a_shard_is_left_alone_where_nobody_asked_for_splits_or_it_is_not_hot(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        loghub = LogHubSettings(hot_bytes_per_s=1, hot_rounds=1)
        async with gateway_kit(tmp_path, loghub=loghub) as kit:
            gateway = await kit.gateway()
            await stream(gateway)
            for _ in range(5):
                await put(gateway, "x" * 1000)
                await gateway.retention.work()
            assert len(await gateway.streams.shards("p", "s")) == 1
            await gateway.catalog.update_logstore("p", "s", LogstoreOptions(auto_split=True))
            for _ in range(5):
                await gateway.retention.work()  # nothing is put
            assert len(await gateway.streams.shards("p", "s")) == 1

    run(body())


# Turns


def test_one_gateway_at_a_time_has_the_turn_and_hands_it_over_when_it_is_closed(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            one, two = await kit.gateway(), await kit.gateway()
            assert await one.retention._has_turn()
            assert not await two.retention._has_turn()
            assert await one.retention._has_turn()
            await one.retention.close()
            assert await kit.store.get(TURN_KEY) is None
            assert await two.retention._has_turn()
            assert not await one.retention._has_turn()

    run(body())


def test_a_logstore_that_cannot_be_looked_at_keeps_nobody_from_the_others(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            gateway = await kit.gateway()
            clock = Clock(gateway)
            await stream(gateway, ttl_days=2)
            await put(gateway, "a")
            await gateway.catalog.create_logstore("p", "broken", shard_count=1)
            broken = await gateway.catalog.logstore("p", "broken")
            await kit.logs.remove(broken.shards[0].log)
            clock.days_pass(3)
            await gateway.retention.work()
            assert await read_all(gateway, 0) == []

    run(body())


def test_a_shard_whose_log_is_away_keeps_nobody_from_the_others(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            gateway = await kit.gateway()
            clock = Clock(gateway)
            await stream(gateway, ttl_days=2)
            await gateway.streams.split("p", "s", 0)
            await gateway.streams.put("p", "s", log_group("x"), shard=2)
            first = await gateway.catalog.logstore("p", "s")
            await kit.logs.remove(first.shards[1].log)
            clock.days_pass(3)
            await gateway.retention.work()
            assert await read_all(gateway, 2) == []

    run(body())


@pytest.mark.parametrize("days", [0.5, 1.0, 3.5, 9.5, 13.0, 19.5])
def test_of_many_ages_none_is_freed_too_early(tmp_path: Path, days: float) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            gateway = await kit.gateway()
            clock = Clock(gateway)
            await stream(gateway, ttl_days=5)
            began_ms = clock.now_ms
            for number in range(20):
                await put(gateway, str(number))
                clock.days_pass(1)
            clock.now_ms = began_ms + int((5 + days) * DAY_MS)
            await gateway.retention.work()
            left = [str(number) for number in range(20) if number >= days]
            assert await read_all(gateway, 0) == left

    run(body())


# Rules


def test_marks_stay_bounded_and_never_free_too_much() -> None:
    marks, appended = RetentionMarks(), 0
    for number in range(1000):
        appended += 100
        marks = with_mark(marks, position=number, appended_bytes=appended, limit=10_000)
    assert len(marks.marks) <= MARKS_MAX
    position = position_of_bytes(marks, appended_bytes=appended, limit=10_000)
    kept = appended - (position + 1) * 100
    assert 10_000 <= kept <= 10_000 + 2 * 10_000 // 64 + 200
    thinned = without_freed(marks, position)
    assert position_of_bytes(thinned, appended_bytes=appended, limit=10_000) == position
    assert len(thinned.marks) < len(marks.marks)


@pytest.mark.parametrize(
    ("old", "much", "required", "spares", "before", "overridden"),
    [
        (0, 0, None, False, 10, 0),
        (50, 0, None, False, 50, 0),
        (0, 60, None, False, 60, 0),
        (50, 60, 30, False, 50, 20),
        (50, 60, 30, True, 30, 0),
        (20, 60, 30, False, 30, 0),
        (50, 0, 5, True, 10, 0),
        (50, 0, 5, False, 50, 40),
        (5, 5, None, False, 10, 0),
    ],
)
def test_what_may_go(
    old: int, much: int, required: int | None, spares: bool, before: int, overridden: int
) -> None:
    found = freeable(
        first=10,
        too_old_before=old,
        too_much_before=much,
        required=required,
        ttl_spares_readers=spares,
    )
    assert (found.before, found.overridden) == (before, overridden)


def test_heat_counts_rounds_in_a_row() -> None:
    heat = Heat(appended_bytes=0, time_ms=0)
    assert heat.observe(appended_bytes=2_000, time_ms=1000, limit_per_s=1_000) == 1
    assert heat.observe(appended_bytes=4_000, time_ms=2000, limit_per_s=1_000) == 2
    assert heat.observe(appended_bytes=4_500, time_ms=3000, limit_per_s=1_000) == 0
    assert hottest([(0, 3), (1, 5), (2, 5)], needed=4) == 1
    assert hottest([(0, 3)], needed=4) is None
