"""`Delivery`: what a sender has taken and may not have stored yet, as its caller sees it."""

import asyncio
import threading
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final, Generic, TypeVar

from raftwood.base.errors import DeadlineExceeded, InvalidInput, RaftwoodError

WAIT_MS: Final = 60_000

Stored = TypeVar("Stored")
_creating: Final = threading.Lock()


class Delivery(Generic[Stored]):
    """Await it for the outcome, on any loop, or wait for it in any thread but the sender's own.

    This is the base of each sender's class. The subclass holds the outcome, and calls `_tell` as
    soon as it has one.
    """

    __slots__ = ()

    # Each subclass declares these as slots: a base with slots of its own could not be mixed into a
    # struct.
    _outcome: Stored | RaftwoodError
    # None until the first callback: most callers never ask about a single record.
    _callbacks: list[Callable[[], None]] | None

    @property
    def is_done(self) -> bool:
        raise NotImplementedError

    def result(self) -> Stored:
        """Returns where it is stored, or the error; valid only once `is_done`."""
        if not self.is_done:
            raise InvalidInput("it is still under way: await the delivery first")
        if isinstance(self._outcome, RaftwoodError):
            raise type(self._outcome)(self._outcome.message)
        return self._outcome

    def when_done(self, callback: Callable[[], None]) -> None:
        """Calls `callback` on the sender's loop once there is an outcome; at once if there is."""
        if self._callbacks is None:
            with _creating:
                if self._callbacks is None:
                    self._callbacks = []  # type: ignore[misc]
        self._callbacks.append(callback)
        # The outcome may have come in between, and then `_tell` does not call it.
        if self.is_done:
            self._tell()

    def _tell(self) -> None:
        # Threads share the callbacks without a lock: the thread that takes one out calls it, so
        # each is called once, whether it was added before or after the outcome.
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:
                return  # another thread has taken the last one
            callback()

    def __await__(self) -> Generator[Any, None, Stored]:
        if not self.is_done:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.when_done(partial(_wake_soon, future))
            yield from future
        return self.result()

    def wait(self, timeout_ms: int = WAIT_MS) -> Stored:
        """Waits in a thread other than the sender's; `DeadlineExceeded` after `timeout_ms`."""
        if not self.is_done:
            event = threading.Event()
            self.when_done(event.set)
            if not event.wait(timeout_ms / 1000):
                raise DeadlineExceeded(f"there is no outcome after {timeout_ms} ms: wait on")
        return self.result()


def _wake_soon(future: "asyncio.Future[None]") -> None:
    """Wakes a future that may belong to another loop than the sender's."""
    loop = future.get_loop()
    if loop is asyncio._get_running_loop():
        _wake(future)
    elif not loop.is_closed():
        loop.call_soon_threadsafe(_wake, future)


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
