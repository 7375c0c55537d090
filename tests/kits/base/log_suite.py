"""What every `Log` must do: one suite, run by each implementation with a kit of its own."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Protocol

import pytest

from raftwood.base.errors import InvalidInput, LogSealed, OutOfRange
from raftwood.base.files import Buffer
from raftwood.base.position import Position
from raftwood.base.seams import Log


class LogKit(Protocol):
    """One log, and what may happen to it."""

    async def open(self) -> Log:
        """The log, through a client that shares nothing with those before."""
        ...

    async def fail_over(self) -> None:
        """Whoever takes the appends is gone at once; it comes back later, and others go on."""
        ...


Scenario = Callable[[LogKit], Awaitable[None]]


async def read_all(log: Log, start: Position | None = None) -> list[tuple[Position, bytes]]:
    """All batches from a position, or from the first, up to the end."""
    position = (await log.bounds()).first if start is None else start
    found: list[tuple[Position, bytes]] = []
    while True:
        batches, following = await log.read(position, bytes_max=1 << 20)
        found += [(each.position, bytes(each.data)) for each in batches]
        if following == position:
            return found
        assert following > position
        position = following


class LogSuite:
    def run(self, scenario: Scenario) -> None:
        """Run a scenario on a new, empty log."""
        raise NotImplementedError

    def test_what_is_appended_is_read_in_order_with_its_positions(self) -> None:
        async def scenario(kit: LogKit) -> None:
            log = await kit.open()
            rng = random.Random(1)
            batches = [rng.randbytes(rng.randrange(0, 300)) for _ in range(50)]
            positions = [
                await log.append([batch], producer=b"a", sequence=number)
                for number, batch in enumerate(batches)
            ]
            assert positions == sorted(set(positions))
            assert await read_all(log) == list(zip(positions, batches, strict=True))
            assert await read_all(await kit.open(), positions[20]) == list(
                zip(positions[20:], batches[20:], strict=True)
            )
            bounds = await log.bounds()
            assert bounds.first <= positions[0]
            assert positions[-1] < bounds.next

        self.run(scenario)

    def test_a_batch_in_pieces_is_read_as_one(self) -> None:
        async def scenario(kit: LogKit) -> None:
            log, other = await kit.open(), await kit.open()
            large = random.Random(3).randbytes(12_000)
            pieces: list[Buffer] = [b"one", memoryview(b"-two-")[1:], b"", large, bytearray(b"end")]
            first = await log.append(pieces, producer=b"a", sequence=1)
            assert await log.append([b"".join(pieces)], producer=b"a", sequence=1) == first
            second = await other.append(pieces[::-1], producer=b"a", sequence=2)
            third = await other.append([], producer=b"a", sequence=3)
            assert await read_all(log) == [
                (first, b"onetwo-" + large + b"end"),
                (second, b"end" + large + b"two-one"),
                (third, b""),
            ]

        self.run(scenario)

    def test_a_buffer_may_be_reused_as_soon_as_append_returns(self) -> None:
        async def scenario(kit: LogKit) -> None:
            log = await kit.open()
            buffer = bytearray(b"first")
            await log.append([memoryview(buffer)], producer=b"a", sequence=1)
            buffer[:] = b"later"
            assert [data for _, data in await read_all(log)] == [b"first"]

        self.run(scenario)

    def test_a_read_gives_one_batch_at_least_and_not_much_more_than_asked(self) -> None:
        async def scenario(kit: LogKit) -> None:
            log = await kit.open()
            for number in range(10):
                await log.append([b"%d" % number * 100], producer=b"a", sequence=number)
            position = (await log.bounds()).first
            seen = []
            while True:
                batches, following = await log.read(position, bytes_max=1)
                assert len(batches) <= 1
                seen += [bytes(each.data) for each in batches]
                if following == position:
                    break
                position = following
            assert seen == [b"%d" % number * 100 for number in range(10)]

        self.run(scenario)

    def test_at_the_end_a_read_waits_for_what_comes(self) -> None:
        async def scenario(kit: LogKit) -> None:
            log, other = await kit.open(), await kit.open()
            end = (await log.bounds()).next
            assert await log.read(end, bytes_max=1000) == ([], end)
            reading = asyncio.create_task(log.read(end, bytes_max=1000, wait_ms=20_000))
            await asyncio.sleep(1.0)
            assert not reading.done()
            position = await other.append([b"came"], producer=b"a", sequence=1)
            batches, following = await reading
            assert [(each.position, bytes(each.data)) for each in batches] == [(position, b"came")]
            assert await log.read(following, bytes_max=1000, wait_ms=500) == ([], following)

        self.run(scenario)

    def test_the_same_sequence_again_stores_nothing_twice(self) -> None:
        async def scenario(kit: LogKit) -> None:
            log, other = await kit.open(), await kit.open()
            first = await log.append([b"one"], producer=b"a", sequence=7)
            assert await log.append([b"one"], producer=b"a", sequence=7) == first
            assert await other.append([b"one"], producer=b"a", sequence=7) == first
            second = await other.append([b"two"], producer=b"a", sequence=8)
            third = await log.append([b"one"], producer=b"b", sequence=7)
            assert len({first, second, third}) == 3
            assert await log.append([b"one"], producer=b"a", sequence=7) == first
            assert await read_all(log) == [(first, b"one"), (second, b"two"), (third, b"one")]

        self.run(scenario)

    def test_sequences_may_come_in_any_order_and_at_once(self) -> None:
        async def scenario(kit: LogKit) -> None:
            log, other = await kit.open(), await kit.open()
            numbers = list(range(100, 130)) * 2
            random.Random(5).shuffle(numbers)
            positions = await asyncio.gather(
                *(
                    (log if place % 2 else other).append([b"%d" % n], producer=b"a", sequence=n)
                    for place, n in enumerate(numbers)
                )
            )
            written = dict(await read_all(log))
            assert sorted(written.values()) == [b"%d" % n for n in range(100, 130)]
            assert all(
                written[position] == b"%d" % n
                for n, position in zip(numbers, positions, strict=True)
            )

        self.run(scenario)

    def test_what_was_appended_is_there_after_a_failover_and_not_twice(self) -> None:
        async def scenario(kit: LogKit) -> None:
            log = await kit.open()
            before = [await log.append([b"%d" % n], producer=b"a", sequence=n) for n in range(20)]
            await kit.fail_over()
            other = await kit.open()
            again = [await other.append([b"%d" % n], producer=b"a", sequence=n) for n in range(20)]
            assert again == before
            last = await log.append([b"20"], producer=b"a", sequence=20)
            assert last > before[-1]
            assert [data for _, data in await read_all(other)] == [b"%d" % n for n in range(21)]

        self.run(scenario)

    def test_appends_that_a_failover_meets_are_stored_once(self) -> None:
        async def scenario(kit: LogKit) -> None:
            log = await kit.open()
            await log.append([b"0"], producer=b"a", sequence=0)
            appends = [
                asyncio.create_task(log.append([b"%d" % n], producer=b"a", sequence=n))
                for n in range(1, 50)
            ]
            await asyncio.sleep(0)
            await kit.fail_over()
            positions = await asyncio.gather(*appends)
            written = dict(await read_all(log))
            assert len(written) == 50
            assert [written[each] for each in positions] == [b"%d" % n for n in range(1, 50)]

        self.run(scenario)

    def test_what_is_below_the_truncation_is_refused_and_the_rest_stays(self) -> None:
        async def scenario(kit: LogKit) -> None:
            log = await kit.open()
            positions = [
                await log.append([b"%d" % n], producer=b"a", sequence=n) for n in range(10)
            ]
            await log.truncate(positions[4])
            bounds = await log.bounds()
            assert positions[3] < bounds.first <= positions[4]
            assert [data for _, data in await read_all(log)] == [b"%d" % n for n in range(4, 10)]
            with pytest.raises(OutOfRange):
                await log.read(positions[3], bytes_max=1000)
            await log.truncate(positions[2])
            await log.truncate(Position(0))
            assert (await log.bounds()).first == bounds.first
            # A retry is still known though its batch is gone.
            assert await log.append([b"3"], producer=b"a", sequence=3) == positions[3]
            await log.truncate((await log.bounds()).next)
            assert await read_all(log) == []
            assert await log.append([b"10"], producer=b"a", sequence=10) > positions[-1]
            assert [data for _, data in await read_all(log)] == [b"10"]

        self.run(scenario)

    def test_what_is_past_the_end_is_refused(self) -> None:
        async def scenario(kit: LogKit) -> None:
            log = await kit.open()
            await log.append([b"one"], producer=b"a", sequence=1)
            bounds = await log.bounds()
            far = Position(bounds.next + 1000)
            with pytest.raises(OutOfRange):
                await log.read(far, bytes_max=1000)
            with pytest.raises(OutOfRange):
                await log.truncate(far)
            assert (await log.bounds()).first == bounds.first

        self.run(scenario)

    def test_a_sealed_log_takes_nothing_more_and_shows_all_that_it_took(self) -> None:
        async def scenario(kit: LogKit) -> None:
            log, other = await kit.open(), await kit.open()
            positions = [await log.append([b"%d" % n], producer=b"a", sequence=n) for n in range(5)]
            assert not (await log.bounds()).is_sealed
            end = await other.seal()
            assert end > positions[-1]
            for sequence, producer in ((5, "a"), (5, "a"), (0, "b")):
                with pytest.raises(LogSealed):
                    await log.append([b"late"], producer=producer.encode(), sequence=sequence)
            # What was stored before is answered as ever, and by everybody.
            assert await other.append([b"4"], producer=b"a", sequence=4) == positions[-1]
            assert [data for _, data in await read_all(log)] == [b"%d" % n for n in range(5)]
            assert await log.seal() == await other.seal() == end
            bounds = await log.bounds()
            assert (bounds.next, bounds.is_sealed) == (end, True)

        self.run(scenario)

    def test_at_the_end_of_a_sealed_log_there_is_nothing(self) -> None:
        async def scenario(kit: LogKit) -> None:
            log = await kit.open()
            await log.append([b"one"], producer=b"a", sequence=1)
            start = (await log.bounds()).next
            reading = asyncio.create_task(log.read(start, bytes_max=1000, wait_ms=20_000))
            await asyncio.sleep(0.5)
            end = await (await kit.open()).seal()
            assert await asyncio.wait_for(reading, 60) == ([], end)
            with pytest.raises(LogSealed):
                await log.append([b"late"], producer=b"a", sequence=2)
            assert await log.read(end, bytes_max=1000) == ([], end)
            assert await log.read(end, bytes_max=1000, wait_ms=50) == ([], end)
            with pytest.raises(OutOfRange):
                await log.read(Position(end + 1), bytes_max=1000)

        self.run(scenario)

    def test_a_sealed_log_stays_sealed_when_all_of_it_is_truncated_and_after_a_failover(
        self,
    ) -> None:
        async def scenario(kit: LogKit) -> None:
            log = await kit.open()
            positions = [
                await log.append([b"%d" % n], producer=b"a", sequence=n) for n in range(40)
            ]
            end = await log.seal()
            await log.truncate(positions[30])
            assert [data for _, data in await read_all(log)] == [b"%d" % n for n in range(30, 40)]
            await log.truncate(end)
            await kit.fail_over()
            other = await kit.open()
            await asyncio.sleep(2.0)  # so that what was truncated may be freed
            assert await other.read(end, bytes_max=1000) == ([], end)
            with pytest.raises(LogSealed):
                await other.append([b"late"], producer=b"a", sequence=40)
            bounds = await other.bounds()
            assert (bounds.first, bounds.next, bounds.is_sealed) == (end, end, True)
            assert await other.seal() == end

        self.run(scenario)

    def test_appends_that_a_seal_meets_are_stored_before_it_or_never(self) -> None:
        async def scenario(kit: LogKit) -> None:
            log, other = await kit.open(), await kit.open()
            appends = [
                asyncio.create_task(log.append([b"%d" % n], producer=b"a", sequence=n))
                for n in range(40)
            ]
            await asyncio.sleep(0)
            end = await other.seal()
            results = await asyncio.gather(*appends, return_exceptions=True)
            stored = {each: b"%d" % n for n, each in enumerate(results) if isinstance(each, int)}
            assert all(isinstance(each, int | LogSealed) for each in results)
            assert dict(await read_all(other)) == stored
            assert all(position < end for position in stored)

        self.run(scenario)

    def test_the_bytes_that_were_ever_appended_are_counted_once(self) -> None:
        async def scenario(kit: LogKit) -> None:
            log = await kit.open()
            assert (await log.bounds()).appended_bytes == 0
            for number in range(10):
                position = await log.append([b"x" * number], producer=b"a", sequence=number)
                await log.append([b"x" * number], producer=b"a", sequence=number)
            await log.append([b"y" * 100], producer=b"b", sequence=77)
            await log.truncate(position)
            await kit.fail_over()
            await log.seal()
            with pytest.raises(LogSealed):
                await log.append([b"late"], producer=b"a", sequence=10)
            assert (await log.bounds()).appended_bytes == 45 + 100

        self.run(scenario)

    def test_a_producer_has_a_name_and_its_sequences_are_not_negative(self) -> None:
        async def scenario(kit: LogKit) -> None:
            log = await kit.open()
            with pytest.raises(InvalidInput):
                await log.append([b""], producer=b"", sequence=1)
            with pytest.raises(InvalidInput):
                await log.append([b""], producer=b"a", sequence=-1)
            assert await read_all(log) == []

        self.run(scenario)
