"""Lines on their way, as whoever gave them sees it."""

import asyncio
import threading

import pytest

from raftwood.base.errors import DeadlineExceeded, InvalidInput, Unavailable
from raftwood.clogs.client.batch_builder import LineDelivery
from raftwood.clogs.errors import LinesDropped


def test_all_lines_have_an_outcome_before_it_is_done_and_the_first_error_counts() -> None:
    delivery = LineDelivery(3)
    told: list[str] = []
    delivery.when_done(lambda: told.append("before"))
    delivery.settle(1, None)
    with pytest.raises(InvalidInput, match="still under way"):
        delivery.result()
    delivery.settle(1, LinesDropped("first"))
    delivery.settle(1, Unavailable("second"))
    assert delivery.is_done
    delivery.when_done(lambda: told.append("after"))
    assert told == ["before", "after"]
    with pytest.raises(LinesDropped, match="first"):
        delivery.result()
    with pytest.raises(LinesDropped, match="first"):
        delivery.wait(0)


def test_it_is_awaited_many_times_and_on_a_loop_that_is_not_the_shippers() -> None:
    async def main() -> None:
        delivery = LineDelivery(1)
        waiting = [asyncio.create_task(_awaited(delivery)) for _ in range(3)]
        given_up = asyncio.create_task(_awaited(delivery))
        await asyncio.sleep(0)
        given_up.cancel()
        thread = threading.Thread(target=delivery.settle, args=(1, None))
        thread.start()
        await asyncio.gather(*waiting)
        await delivery
        thread.join()

    asyncio.run(main())


async def _awaited(delivery: LineDelivery) -> None:
    await delivery


def test_waiting_has_an_end() -> None:
    with pytest.raises(DeadlineExceeded, match="5 ms"):
        LineDelivery(1).wait(5)


def test_callbacks_of_many_threads_are_each_called_once() -> None:
    for _ in range(200):
        delivery = LineDelivery(1)
        told: list[int] = []
        barrier = threading.Barrier(3)

        def ask(
            number: int,
            delivery: LineDelivery = delivery,
            told: list[int] = told,
            barrier: threading.Barrier = barrier,
        ) -> None:
            barrier.wait()
            delivery.when_done(lambda: told.append(number))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        barrier.wait()
        delivery.settle(1, None)
        for thread in threads:
            thread.join()
        assert sorted(told) == [0, 1]
