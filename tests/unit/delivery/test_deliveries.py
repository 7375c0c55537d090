"""What senders give back for what they took: of lines, and of records."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial

import pytest

from raftwood.base.errors import DeadlineExceeded
from raftwood.base.position import Position
from raftwood.clogs.client.batch_builder import LineDelivery
from raftwood.delivery.deliveries import Delivery
from raftwood.loghub.client.producer import Delivered, RecordDelivery, settle_all
from tests.kits.models import replaced

AnyDelivery = Delivery[None] | Delivery[Delivered]
Made = tuple[AnyDelivery, Callable[[], object]]
"""A delivery, and what brings its outcome."""


def of_lines() -> Made:
    delivery = LineDelivery(1)
    return delivery, partial(delivery.settle, 1, None)


def of_a_record() -> Made:
    delivery = RecordDelivery(b"data", 4, None)
    return delivery, partial(settle_all, [delivery], Delivered(1, Position(7)))


@pytest.fixture(params=[of_lines, of_a_record])
def make(request: pytest.FixtureRequest) -> Callable[[], Made]:
    made: Callable[[], Made] = request.param
    return made


def test_it_is_awaited_many_times_and_on_a_loop_that_is_not_the_senders(
    make: Callable[[], Made],
) -> None:
    async def main() -> None:
        delivery, settle = make()
        waiting = [asyncio.create_task(_awaited(delivery)) for _ in range(3)]
        given_up = asyncio.create_task(_awaited(delivery))
        await asyncio.sleep(0)
        given_up.cancel()
        thread = threading.Thread(target=settle)
        thread.start()
        await asyncio.gather(*waiting)
        await delivery
        thread.join()

    asyncio.run(main())


async def _awaited(delivery: AnyDelivery) -> None:
    await delivery


def test_waiting_has_an_end(make: Callable[[], Made]) -> None:
    with pytest.raises(DeadlineExceeded, match="5 ms"):
        make()[0].wait(5)


def test_callbacks_of_many_threads_are_each_called_once(make: Callable[[], Made]) -> None:
    for _ in range(200):
        delivery, settle = make()
        told: list[int] = []
        barrier = threading.Barrier(3)
        threads = [
            threading.Thread(target=_ask, args=(number, delivery, told, barrier))
            for number in range(2)
        ]
        for thread in threads:
            thread.start()
        barrier.wait()
        settle()
        for thread in threads:
            thread.join()
        assert sorted(told) == [0, 1]


def _ask(number: int, delivery: AnyDelivery, told: list[int], barrier: threading.Barrier) -> None:
    barrier.wait()
    delivery.when_done(lambda: told.append(number))


class _Settling(list[Callable[[], None]]):
    """The outcome comes from another thread while a callback is put in."""

    def __init__(self, settle: Callable[[], object], *, first: bool) -> None:
        self._settle = settle
        self._first = first

    def append(self, callback: Callable[[], None]) -> None:
        if self._first:
            self._settle()
        super().append(callback)
        if not self._first:
            self._settle()


def _told(make: Callable[[], Made], *, first: bool) -> int:
    delivery, settle = make()
    delivery._callbacks = _Settling(settle, first=first)
    told: list[int] = []
    delivery.when_done(lambda: told.append(1))
    return len(told)


@pytest.mark.parametrize("first", [True, False])
def test_an_outcome_that_comes_meanwhile_is_told_once(
    make: Callable[[], Made], *, first: bool
) -> None:
    assert _told(make, first=first) == 1


def _look_first(delivery: Delivery[None], callback: Callable[[], None]) -> None:
    if delivery.is_done:
        callback()
    elif delivery._callbacks is not None:
        delivery._callbacks.append(callback)


def test_a_look_before_the_callback_is_put_in_is_caught(make: Callable[[], Made]) -> None:
    with replaced(Delivery, when_done=_look_first)():
        assert _told(make, first=True) == 0
