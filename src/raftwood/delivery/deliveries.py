"""`Delivery`: what a sender took and has not stored yet, as its caller sees it."""

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

    The base of each sender's class, which has the outcome and calls `_tell` once it is there.
    """

    __slots__ = ()

    # Slots of each subclass: a base with slots of its own could not be mixed into a struct.
    _outcome: Stored | RaftwoodError
    # None until the first one: most records of a stream are never asked about one by one.
    _callbacks: list[Callable[[], None]] | None

    @property
    def is_done(self) -> bool:
        raise NotImplementedError

    def result(self) -> Stored:
        """The outcome, once it is there: where it is stored, or the error why it may not be."""
        if not self.is_done:
            raise InvalidInput("it is still under way: await the delivery first")
        if isinstance(self._outcome, RaftwoodError):
            raise type(self._outcome)(self._outcome.message)
        return self._outcome

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call it once the outcome is there, on the sender's loop; at once where it is."""
        if self._callbacks is None:
            with _creating:
                if self._callbacks is None:
                    self._callbacks = []  # type: ignore[misc]
        self._callbacks.append(callback)
        # The outcome may have come in between, and then nobody else calls it.
        if self.is_done:
            self._tell()

    def _tell(self) -> None:
        # Threads share the callbacks without a lock: the thread that takes one out calls it, so
        # each is called once, whether it was put in before the outcome came or after it.
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
        """From another thread than the sender's; `DeadlineExceeded` where it takes longer."""
        if not self.is_done:
            event = threading.Event()
            self.when_done(event.set)
            if not event.wait(timeout_ms / 1000):
                raise DeadlineExceeded(f"there is no outcome after {timeout_ms} ms: wait on")
        return self.result()


def _wake_soon(future: "asyncio.Future[None]") -> None:
    """The future may be of another loop than the sender's."""
    loop = future.get_loop()
    if loop is asyncio._get_running_loop():
        _wake(future)
    elif not loop.is_closed():
        loop.call_soon_threadsafe(_wake, future)


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
