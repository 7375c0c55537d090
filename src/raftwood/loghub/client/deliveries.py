"""Records on their way, as the sender sees them: to be awaited, or asked later."""

import asyncio
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import msgspec

from raftwood.base.errors import InvalidInput, RaftwoodError
from raftwood.base.position import Position
from raftwood.loghub.client.lanes import SHARED_NONE, Record


class Delivered(msgspec.Struct, frozen=True, gc=False):
    """Where a record stands, with the rest of its batch."""

    shard: int
    position: Position


class Delivery(Record):
    """Await it for a `Delivered`, or the error that says whether the record may be stored."""

    __slots__ = ("_callbacks", "_outcome")

    def __init__(
        self, data: bytes, route: str | None, deadline: float, shared: bytes = SHARED_NONE
    ) -> None:
        # As the one above; a call of it would cost as much as all the rest.
        self.data = data
        self.size = len(data)
        self.route = route
        self.deadline = deadline
        self.shared = shared
        self._outcome: Delivered | RaftwoodError | None = None
        self._callbacks: list[Callable[[], None]] | None = None

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

    def settle(self, outcome: Delivered | RaftwoodError) -> bool:
        """For the producer; only the first outcome counts."""
        if self._outcome is not None:
            return False
        self._outcome = outcome
        if self._callbacks:
            callbacks, self._callbacks = self._callbacks, None
            for callback in callbacks:
                callback()
        return True

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


class BatchDelivery(Delivery):
    """Of many records that stay together: an Arrow batch."""

    __slots__ = ("count",)
    is_whole = True

    def __init__(self, data: bytes, route: str | None, deadline: float, *, count: int) -> None:
        super().__init__(data, route, deadline)
        self.count = count
