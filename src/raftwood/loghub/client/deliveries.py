"""Records on their way, as the sender sees them: to be awaited, or asked later."""

import asyncio
from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from raftwood.base.errors import InvalidInput, RaftwoodError
from raftwood.base.position import Position
from raftwood.loghub.client.lanes import Record

RECORD_OVERHEAD_BYTES: Final = 256
"""What a record takes in memory beside its bytes."""


class Delivered(msgspec.Struct, frozen=True, gc=False):
    """Where a record stands, with the rest of its batch."""

    shard: int
    position: Position


class Delivery(Record, gc=False, eq=False):
    """Await it for a `Delivered`, or the error that says whether the record may be stored."""

    _outcome: Delivered | RaftwoodError | None = None
    _callbacks: list[Callable[[], None]] | None = None

    @property
    def is_done(self) -> bool:
        return self._outcome is not None

    def result(self) -> Delivered:
        """The outcome, once it is there."""
        outcome = self._outcome
        if isinstance(outcome, Delivered):
            return outcome
        if outcome is None:
            raise InvalidInput("the record is still under way: await its delivery first")
        raise type(outcome)(outcome.message)

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call it once the outcome is there, on the producer's loop; at once where it is."""
        if self._callbacks is None:
            self._callbacks = []
        callbacks = self._callbacks
        callbacks.append(callback)
        # Another thread may have come in between, and then has not seen the callback.
        if self._outcome is not None and self._callbacks is callbacks:
            self._callbacks = None
            callback()

    def __await__(self) -> Generator[Any, None, Delivered]:
        if self._outcome is None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.when_done(partial(_wake, future))
            yield from future
        return self.result()


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


class BatchDelivery(Delivery, gc=False, eq=False):
    """Of many records that stay together: an Arrow batch."""

    is_whole = True


AnyDelivery = TypeVar("AnyDelivery", bound=Delivery)


def is_settled(record: Record) -> bool:
    assert isinstance(record, Delivery)
    return record._outcome is not None


def settle_all(records: Iterable[Record], outcome: Delivered | RaftwoodError) -> tuple[int, int]:
    """For the producer; only a record's first outcome counts. How many were settled, and their
    bytes in memory."""
    count = size = 0
    for record in records:
        assert isinstance(record, Delivery)
        if record._outcome is None:
            record._outcome = outcome
            count += record.count
            size += record.size + RECORD_OVERHEAD_BYTES
            if record._callbacks:
                callbacks, record._callbacks = record._callbacks, None
                for callback in callbacks:
                    callback()
    return count, size
