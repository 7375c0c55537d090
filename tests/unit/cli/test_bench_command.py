"""`raftwood bench`: what it computes, without a cluster."""

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from tests.kits.running import run

from raftwood.base.errors import InvalidInput, NotFound, Unavailable
from raftwood.cli.bench import Latencies, Load, Measured, measure

LOAD = Load(seconds=0.3, in_flight=4, batch=10, record_bytes=100)


@pytest.mark.parametrize("largest_s", [5e-6, 1e-3, 0.2, 900.0])
def test_percentiles_are_those_of_all_values_to_two_percent(largest_s: float) -> None:
    values = [random.Random(number).uniform(0, largest_s) for number in range(5_000)]
    latencies = Latencies()
    for value in values:
        latencies.add(value)
    ordered = sorted(values)
    for percent in (1, 50, 99, 99.9, 100):
        exact = ordered[math.ceil(len(values) * percent / 100) - 1]
        found = latencies.percentile_s(percent)
        assert found is not None
        assert exact - 1e-6 <= found <= exact * 1.016 + 1e-6


def test_every_latency_has_a_bucket_and_buckets_do_not_overlap() -> None:
    latencies = Latencies()
    places = [latencies._place(value) for value in range(100_000)]
    assert sorted(places) == places
    for value in (*range(100_000), (1 << 36) - 1):
        largest = latencies._largest(latencies._place(value))
        assert value <= largest <= value * 1.016
        assert latencies._place(largest) == latencies._place(value)
    for value in (-1.0, 0.0, 1e9):
        latencies.add(value)
    assert latencies.percentile_s(100) == pytest.approx((1 << 36) / 1e6)


def test_without_a_latency_there_is_no_percentile() -> None:
    assert Latencies().percentile_s(50) is None
    row = Measured(seconds=1.0).row("set", "bench-1:", LOAD)
    assert (row["p50_ms"], row["records_per_s"]) == (None, 0)


def test_operations_are_due_as_the_rate_says() -> None:
    assert LOAD.due_s(7) is None
    paced = msgspec.structs.replace(LOAD, rate=1_000.0)
    assert [paced.due_s(number) for number in (0, 1, 50)] == [0.0, 0.01, 0.5]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"seconds": 0.0}, "--seconds"),
        ({"seconds": 1e6}, "--seconds"),
        ({"in_flight": 0}, "1 or more"),
        ({"batch": 0}, "1 or more"),
        ({"record_bytes": 0}, "1 or more"),
        ({"in_flight": 10_000, "batch": 10_000}, "256 MiB"),
        ({"rate": 0.0}, "--rate"),
    ],
)
def test_a_load_is_bounded(changes: dict[str, float], why: str) -> None:
    values = msgspec.structs.asdict(LOAD)
    with pytest.raises(InvalidInput, match=why):
        Load(**values | changes)


def measured(
    operation: Callable[[int], Awaitable[tuple[int, int]]],
    load: Load = LOAD,
    *,
    stop: asyncio.Event | None = None,
) -> Measured:
    shown: list[str] = []
    found = run(measure(operation, load, stop or asyncio.Event(), shown.append))
    assert "records/s" in shown[-1] or stop is not None
    return found


def test_operations_run_side_by_side_and_are_counted() -> None:
    under_way = most = 0

    async def operation(_: int) -> tuple[int, int]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.005)
        under_way -= 1
        return 10, 1_000

    found = measured(operation)
    assert most == LOAD.in_flight
    assert found.bytes == 100 * found.records > 0
    assert found.seconds >= LOAD.seconds
    assert found.latencies.percentile_s(1) >= 0.004  # type: ignore[operator]


def test_at_a_rate_no_more_is_sent_and_a_late_operation_is_measured_from_when_it_was_due() -> None:
    numbers: list[int] = []

    async def operation(number: int) -> tuple[int, int]:
        numbers.append(number)
        if number == 0:
            # The whole process stands still, and nothing is begun meanwhile.
            time.sleep(0.2)  # noqa: ASYNC251
        return 10, 1_000

    found = measured(operation, msgspec.structs.replace(LOAD, rate=500.0))
    assert numbers == [*range(len(numbers))]
    assert len(numbers) <= 15
    assert found.seconds >= LOAD.seconds
    # Ten were due within those 0.2 s.
    slow = found.latencies.percentile_s(60)
    assert slow is not None
    assert slow > 0.02


def test_what_fails_is_counted_and_repeated_no_faster_than_it_should_be() -> None:
    calls = 0

    async def operation(_: int) -> tuple[int, int]:
        nonlocal calls
        calls += 1
        raise Unavailable("no leader")

    found = measured(operation)
    assert found.errors == calls
    assert calls <= LOAD.in_flight * 4
    assert (found.records, found.last_error) == (0, "no leader")


def test_what_cannot_succeed_ends_the_benchmark() -> None:
    async def operation(_: int) -> tuple[int, int]:
        raise NotFound("there is no project web")

    with pytest.raises(NotFound):
        measured(operation, msgspec.structs.replace(LOAD, seconds=3_600.0))


def test_a_stop_ends_it_with_what_was_measured() -> None:
    stop = asyncio.Event()

    async def operation(number: int) -> tuple[int, int]:
        if number == 3:
            stop.set()
            await asyncio.sleep(3_600)
        return 10, 1_000

    found = measured(operation, msgspec.structs.replace(LOAD, seconds=3_600.0), stop=stop)
    assert found.records >= 30
