"""Lines on their way, as whoever gave them sees it: to be awaited, or asked later."""

import asyncio
import threading
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final

from raftwood.base.errors import DeadlineExceeded, InvalidInput, RaftwoodError

WAIT_MS: Final = 60_000


class Delivery:
    """Lines that were given at once; await it until all are stored, or the first error."""

    __slots__ = ("_callbacks", "_error", "_left")

    def __init__(self, lines: int) -> None:
        self._left = lines
        self._error: RaftwoodError | None = None
        self._callbacks: list[Callable[[], None]] | None = None

    @property
    def is_done(self) -> bool:
        return self._left <= 0

    def result(self) -> None:
        """Nothing where all lines are stored; else raises why some never will be."""
        if not self.is_done:
            raise InvalidInput("the lines are still under way: await their delivery first")
        if self._error is not None:
            raise type(self._error)(self._error.message)

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call it once all lines have an outcome, on the shipper's loop; at once where they do."""
        if self._callbacks is None:
            self._callbacks = []
        callbacks = self._callbacks
        callbacks.append(callback)
        # Another thread may have come in between, and then has not seen the callback.
        if self.is_done and self._callbacks is callbacks:
            self._callbacks = None
            callback()

    def settle(self, lines: int, error: RaftwoodError | None) -> None:
        """For the shipper: so many of the lines have an outcome."""
        if error is not None and self._error is None:
            self._error = error
        self._left -= lines
        if self._left <= 0 and self._callbacks:
            callbacks, self._callbacks = self._callbacks, None
            for callback in callbacks:
                callback()

    def __await__(self) -> Generator[Any, None, None]:
        if not self.is_done:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.when_done(partial(_wake, future))
            yield from future
        self.result()

    def wait(self, timeout_ms: int = WAIT_MS) -> None:
        """From another thread than the shipper's; `DeadlineExceeded` where it takes longer."""
        if not self.is_done:
            event = threading.Event()
            self.when_done(event.set)
            if not event.wait(timeout_ms / 1000):
                raise DeadlineExceeded(f"the lines have no outcome after {timeout_ms} ms: wait on")
        self.result()


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
