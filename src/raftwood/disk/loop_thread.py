"""An event loop in a thread of its own, for clients in programs without one."""

import asyncio
import ctypes
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidInput, Unavailable
from raftwood.disk.real_environment import ThreadFiles, real_environment

Result = TypeVar("Result")


class LoopThread:
    """An event loop in a thread, and the environment of the code on it."""

    def __init__(self, name: str) -> None:
        self._resources = ExitStack()
        self.environment: Environment = self._resources.enter_context(real_environment())
        self._loop = asyncio.new_event_loop()
        # A signal's handler may call `soon` in the midst of the same thread's `begin`.
        self._lock = threading.RLock()
        self._is_stopped = False
        self._abandoned: Sequence[object] = ()
        # A program that forgets to close the client ends all the same.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self.ident = self._thread.ident
        """The thread's id, as in `threading.get_ident`."""

    @classmethod
    def with_client(
        cls, name: str, connect: Callable[[Environment], Coroutine[Any, Any, Result]]
    ) -> "tuple[LoopThread, Result]":
        """Starts a thread and connects a client on it; ends the thread if that fails."""
        thread = cls(name)
        try:
            return thread, thread.call(connect(thread.environment))
        except BaseException:
            thread.stop()
            raise

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def begin(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Starts a coroutine on the loop; returns its future."""
        if self.is_current:
            work.close()
            raise InvalidInput("a callback cannot wait for the client that calls it")
        with self._lock:
            if not self._is_stopped:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise Unavailable("the client is closed")

    def soon(self, callback: Callable[[], None]) -> None:
        """Calls a function on the loop; may be called from any thread."""
        with self._lock:
            if self._is_stopped:
                raise Unavailable("the client is closed")
            self._loop.call_soon_threadsafe(callback)

    @property
    def is_current(self) -> bool:
        """Whether the caller is on the loop itself, and must not wait for it."""
        return threading.current_thread() is self._thread

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Runs a coroutine on the loop, and waits for its result."""
        future = self.begin(work)
        try:
            return future.result()
        except CancelledError:
            raise Unavailable("the client was closed meanwhile") from None
        except KeyboardInterrupt:
            future.cancel()
            raise

    def each_of(self, items: AsyncGenerator[Result, None]) -> Generator[Result, None, None]:
        """What comes from a generator on the loop; it yields no None."""

        async def following() -> Result | None:
            return await anext(items, None)

        try:
            while (item := self.call(following())) is not None:
                yield item
        finally:
            with suppress(Unavailable):  # the client is closed, and all of this with it
                self.call(items.aclose())

    def shared(self) -> "LoopThread":
        """The same loop for one client among several: its `stop` ends that client alone."""
        return _SharedThread(self)

    def stop(self, *endings: Any) -> None:
        """Runs `endings` on the loop, then ends it; once only."""
        with self._lock:
            if self._is_stopped:
                return
            self._is_stopped = True
        asyncio.run_coroutine_threadsafe(self._end(endings), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._resources.close()

    def after_fork(self, *clients: object) -> None:
        """Call in a forked child, which lacks the thread: closes the child's copies of its
        descriptors, which the parent goes on using. Touches nothing else, neither now nor at the
        child's end.
        """
        if isinstance(self.environment.files, ThreadFiles):
            self.environment.files.after_fork()
        selector = getattr(self._loop, "_selector", None)
        if selector is not None:
            descriptors = [key.fd for key in selector.get_map().values()]
            descriptors += [selector.fileno(), self._loop._csock.fileno()]  # type: ignore[attr-defined]
            for descriptor in descriptors:
                with suppress(OSError):
                    os.close(descriptor)
        # Cleaning up its sockets would close descriptors by numbers that others have taken by then.
        self._abandoned = clients
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))

    async def _end(self, endings: Sequence[Any]) -> None:
        for ending in endings:
            await ending()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class _SharedThread(LoopThread):
    """A thread that belongs to another; it outlives the client that has this."""

    def __init__(self, owner: LoopThread) -> None:  # no thread of its own
        self._owner = owner
        self._lock = threading.RLock()
        self._is_stopped = False
        self._thread = owner._thread
        self.environment = owner.environment
        self.ident = owner.ident

    def begin(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        if self._is_stopped:
            work.close()
            raise Unavailable("the client is closed")
        return self._owner.begin(work)

    def soon(self, callback: Callable[[], None]) -> None:
        if self._is_stopped:
            raise Unavailable("the client is closed")
        self._owner.soon(callback)

    def stop(self, *endings: Any) -> None:
        with self._lock:
            if self._is_stopped:
                return
            self._is_stopped = True

        async def end() -> None:
            for ending in endings:
                await ending()

        # Where the owner has stopped, it has ended this client before.
        with suppress(Unavailable):
            self._owner.call(end())
