"""The truncation worker: frees what may be freed and nothing else, wherever it is interrupted."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import pytest

from raftwood.logservice.server import truncation
from raftwood.logservice.server.truncation import TruncationStep, next_step
from tests.kits.logservice.log_cluster import SERVICE, LogCluster, run_log_cluster
from tests.kits.logservice.truncation_model import SETTINGS, SHARD, Course, ModelHost, run_course
from tests.kits.models import Mutant, replaced

SEEDS = range(60)


def test_the_largest_snapshot_at_or_below_what_may_be_freed_becomes_visible() -> None:
    def visible(snapshots: Sequence[int], freeable: int) -> int | None:
        step = next_step(
            snapshots, applied=200, freeable=freeable, entries_between=1000, kept_max=9
        )
        return step.visible

    assert visible([50, 100, 150], 100) == 100
    assert visible([50, 99, 150], 100) == 99
    assert visible([101, 150], 100) is None
    assert visible([], 100) is None


def test_what_is_thinned_is_never_the_first_nor_the_last() -> None:
    step = next_step([10, 20, 21, 30, 40], applied=41, freeable=0, entries_between=5, kept_max=3)
    assert sorted(step.dropped) == [20, 21]


def test_nothing_that_can_be_read_is_lost_in_any_course() -> None:
    async def all_courses() -> list[Course]:
        return [await run_course(seed) for seed in SEEDS]

    courses = asyncio.run(all_courses())
    assert sum(course.crashes for course in courses) > 300
    assert sum(course.cuts for course in courses) > 200


# Planted bugs of the rules


def _greater_than(snapshots: Sequence[int], **given: int) -> TruncationStep:
    """The smallest above what was truncated: it hides what must still be read."""
    above = [index for index in snapshots if index > given["freeable"]]
    step = next_step(snapshots, **given)
    return msgspec.structs.replace(step, visible=above[0] if above else step.visible, dropped=())


def _cuts_to_applied(snapshots: Sequence[int], **given: int) -> TruncationStep:
    return next_step(snapshots, **(given | {"freeable": given["applied"]}))


def _thins_the_visible_one(snapshots: Sequence[int], **given: int) -> TruncationStep:
    step = next_step(snapshots, **given)
    return msgspec.structs.replace(step, visible=None, dropped=tuple(snapshots[:1]))


def _keeps_all_snapshots(snapshots: Sequence[int], **given: int) -> TruncationStep:
    return msgspec.structs.replace(next_step(snapshots, **given), dropped=(), visible=None)


def _takes_no_snapshots(snapshots: Sequence[int], **given: int) -> TruncationStep:
    return msgspec.structs.replace(next_step(snapshots, **given), takes_snapshot=False)


MUTANTS = {
    rule.__name__.strip("_").replace("_", " "): Mutant(
        lambda seed: asyncio.run(run_course(seed)), replaced(truncation, next_step=rule)
    )
    for rule in (
        _greater_than,
        _cuts_to_applied,
        _thins_the_visible_one,
        _keeps_all_snapshots,
        _takes_no_snapshots,
    )
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_of_the_rules_is_caught(name: str) -> None:
    MUTANTS[name].catch()


# What cannot be freed


def _host(*, applied: int) -> ModelHost:
    host = ModelHost(random.Random(1))
    host.applied_index = applied
    return host


def test_a_disk_without_room_for_snapshots_is_freed_all_the_same() -> None:
    """Else it would stay full: what could be freed would wait for a snapshot that has no room."""

    async def scenario() -> None:
        host = _host(applied=100)
        worker = host.worker()
        await worker.work()
        host.applied_index = 130
        host.state_machine.state.truncated = 120
        host.has_room = False
        await worker.work()
        assert host.first_index == 101

    asyncio.run(scenario())


def test_a_shard_that_was_never_freed_is_alarmed_too() -> None:
    async def scenario() -> None:
        host = _host(applied=100)
        host.has_room = False
        host.state_machine.state.truncated = 90
        worker = host.worker()
        await worker.work()
        assert worker.alarms() == []
        host.now_ms += SETTINGS.stall_alarm_ms
        await worker.work()
        (alarm,) = worker.alarms()
        assert alarm.startswith("truncation-stalled: shard 1 was truncated up to")
        assert worker.shards[SHARD].retained_bytes == 10_000
        host.has_room = True
        await worker.work()  # the snapshot that is possible now is above what was truncated
        host.state_machine.state.truncated = 100
        await worker.work()
        assert worker.alarms() == []

    asyncio.run(scenario())


# What a start applies again


def test_a_log_that_grows_quickly_has_a_snapshot_soon_and_one_at_an_orderly_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(truncation, "REPLAYED_MAX", 50)
    settings = msgspec.structs.replace(SERVICE, truncation_ms=60_000, snapshot_entries=20)

    async def scenario(cluster: LogCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader(1)
        hosts = {store: each.host for store, each in cluster.stores.items()}
        for store in cluster.stores.values():
            await store.truncation.work()  # as it has once a minute
        async with await cluster.client() as client:
            await client.append_many([b"a record"] * 60)
            await cluster.until(
                lambda: all(
                    max(each.status(1).snapshots, default=0) >= 50 for each in hosts.values()
                )
            )
            await client.append_many([b"a record"] * 30)
            await cluster.until(lambda: all(each.applied(1) >= 90 for each in hosts.values()))
        await cluster.stop(1)
        cluster.start(1)
        await cluster.until(lambda: cluster.is_running(1))
        assert max(cluster.stores[1].host.status(1).snapshots) >= 90

    run_log_cluster(scenario, service=settings)


class _WorkBegins(Exception):
    pass


class _SlowWorker(truncation.TruncationWorker):
    looks = 0

    async def bound_replays(self, _: int) -> None:
        self.looks += 1
        await asyncio.sleep(0.05)

    async def work(self) -> None:
        raise _WorkBegins


def test_snapshots_that_take_long_do_not_hold_up_what_is_freed() -> None:
    async def scenario() -> None:
        settings = msgspec.structs.replace(SERVICE, truncation_ms=20)
        worker = _SlowWorker(cast("Any", None), cast("Any", None), settings)
        with pytest.raises(_WorkBegins):
            await worker.run()
        assert worker.looks == 1

    asyncio.run(scenario())
