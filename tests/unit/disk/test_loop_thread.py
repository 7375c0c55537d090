"""A loop's thread that several clients share."""

import asyncio
import signal
from collections.abc import AsyncGenerator

import pytest

from raftwood.base.errors import InvalidInput, Unavailable
from raftwood.disk.loop_thread import LoopThread


async def answer() -> int:
    return 42


def test_a_client_that_shares_the_thread_ends_alone() -> None:
    owner = LoopThread("owner")
    one, two = owner.shared(), owner.shared()
    ended: list[str] = []

    async def end() -> None:
        ended.append("one")

    assert one.call(answer()) == two.call(answer()) == 42
    assert one.environment is owner.environment
    one.stop(end)
    one.stop(end)
    assert ended == ["one"]
    with pytest.raises(Unavailable, match="the client is closed"):
        one.call(answer())
    with pytest.raises(Unavailable, match="the client is closed"):
        one.soon(lambda: None)
    assert two.call(answer()) == owner.call(answer()) == 42
    owner.stop()
    with pytest.raises(Unavailable):
        two.call(answer())
    two.stop(end)  # its client ended with the owner
    assert ended == ["one"]


def test_a_shared_thread_does_not_wait_for_itself() -> None:
    owner = LoopThread("owner")
    shared = owner.shared()

    async def inside() -> bool:
        with pytest.raises(InvalidInput):
            shared.call(answer())
        return shared.is_current

    assert owner.call(inside())
    assert not shared.is_current
    owner.stop()


def test_items_come_one_by_one_and_a_generator_that_was_left_is_closed() -> None:
    owner = LoopThread("owner")
    closed = asyncio.Event()

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            for number in range(1, 10):
                yield number
        finally:
            closed.set()

    assert list(owner.each_of(numbers())) == list(range(1, 10))
    closed.clear()
    items = owner.each_of(numbers())
    assert next(items) == 1
    items.close()
    assert closed.is_set()
    owner.stop()


def test_a_signal_may_come_while_work_is_begun() -> None:
    """Its handler hands something to the loop; the thread holds the lock already."""
    owner = LoopThread("owner")
    handled: list[int] = []
    before = signal.signal(
        signal.SIGUSR1, lambda number, _: owner.soon(lambda: handled.append(number))
    )
    try:
        with owner._lock:
            signal.raise_signal(signal.SIGUSR1)
        assert owner.call(answer()) == 42
        assert handled == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)
        owner.stop()
