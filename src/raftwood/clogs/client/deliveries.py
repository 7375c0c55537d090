"""Lines on their way, as whoever gave them sees it: to be awaited, or asked later."""

import asyncio
import threading
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final

from raftwood.base.errors import DeadlineExceeded, InvalidInput, RaftwoodError

WAIT_MS: Final = 60_000


class Delivery:
    """Lines that were given at once; await it until all are stored, or the first error.

    It may be awaited on any loop, and waited for in any thread but the shipper's own.
    """

    __slots__ = ("_callbacks", "_error", "_left")

    def __init__(self, lines: int) -> None:
        self._left = lines
        self._error: RaftwoodError | None = None
        # Threads share it without a lock: who takes a callback out of it calls it, and so each is
        # called once, whether the lines had their outcome before or after it was put in.
        self._callbacks: list[Callable[[], None]] = []

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
        self._callbacks.append(callback)
        if self.is_done:
            self._tell()

    def settle(self, lines: int, error: RaftwoodError | None) -> None:
        """For the shipper: so many of the lines have an outcome."""
        if error is not None and self._error is None:
            self._error = error
        self._left -= lines
        if self._left <= 0:
            self._tell()

    def _tell(self) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:
                return  # another thread has taken the last one
            callback()

    def __await__(self) -> Generator[Any, None, None]:
        if not self.is_done:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.when_done(partial(_tell_loop, future))
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


def _tell_loop(future: "asyncio.Future[None]") -> None:
    """Whoever awaits may do so on another loop than the shipper's."""
    loop = future.get_loop()
    if loop is asyncio._get_running_loop():
        _wake(future)
    elif not loop.is_closed():
        loop.call_soon_threadsafe(_wake, future)


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
