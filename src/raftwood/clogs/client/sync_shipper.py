"""`Shipper`: ships lines for programs without an event loop, from any of their threads.

    with Shipper(settings) as shipper:
        shipper.send("app.log", "a line").wait()

What a thread gives is put into an inbox, which costs next to nothing; a thread of the shipper's own
takes it from there, looks again every few milliseconds while something comes, and sleeps otherwise.
That thread is started with the first line.

A forked child begins anew: what its parent has taken the parent ships, and the child has a thread,
connections and a spool slot of its own with its first line. At the end of the program lines are
shipped for `exit_ms`; then they go to the spool, or are dropped, counted and told.
"""

import atexit
import contextlib
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Final, Self, TypeAlias

from raftwood.base.environment import Environment
from raftwood.base.errors import (
    DeadlineExceeded,
    Overloaded,
    RaftwoodError,
    ShuttingDown,
    Unavailable,
)
from raftwood.clogs.client.deliveries import Delivery
from raftwood.clogs.client.pending import Fields
from raftwood.clogs.client.settings import ClogsClientSettings, WhenFull
from raftwood.clogs.client.shipper import AsyncShipper
from raftwood.clogs.client.status import ShipperStatus
from raftwood.clogs.errors import LinesDropped
from raftwood.clogs.model import checked_file_name
from raftwood.disk.loop_thread import LoopThread

INBOX_MAX: Final = 65_536
"""Calls whose lines nobody has taken from the inbox yet."""
_POLL_S: Final = 0.01
_QUIET_POLLS: Final = 50
"""So often nothing was found: then the thread sleeps until it is woken."""
_OPEN_S: Final = 30.0
_REOPEN_S: Final = 5.0
"""After a failure to start."""
THREAD_NAME: Final = "clogs shipper"

Opening: TypeAlias = Callable[[Environment], Coroutine[Any, Any, AsyncShipper]]
_Item: TypeAlias = tuple[str, Sequence[str | bytes], int | None, Delivery | None]
_Record: TypeAlias = tuple[str, str, int, Fields]

_abandoned: Final[list[object]] = []
"""Of a forked parent: its loop and sockets must not be cleaned up by the child."""


class Shipper:
    """`close` it when done, or use `with`."""

    def __init__(self, settings: ClogsClientSettings, opening: Opening | None = None) -> None:
        """`opening` makes the shipper on its loop; by default `open_shipper` with the settings."""
        self.settings = settings
        self._opening = opening or _default_opening(settings)
        self._begin()
        _of_this_process.add(self)

    def _begin(self) -> None:
        """As in a process that has given nothing yet."""
        self._lock = threading.Lock()
        self._room = threading.Condition(threading.Lock())
        self._thread: LoopThread | None = None
        self._shipper: AsyncShipper | None = None
        self._inbox: deque[_Item | _Record] = deque()
        self._inbox_dropped = 0
        self._is_awake = False
        self._quiet = 0
        self._is_closed = False
        self._opened: Future[AsyncShipper] | None = None
        self._failed_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(wait_ms=None if kind is None else 0)

    # From any thread

    def send(
        self, name: str, lines: str | bytes | Sequence[str | bytes], *, time_ns: int | None = None
    ) -> Delivery:
        """Take lines of a file, in order per thread. It waits for room with `when_full = block`
        alone: then `Overloaded` says that there was none for `block_ms`.
        """
        given = (lines,) if isinstance(lines, str | bytes) else lines
        delivery = Delivery(len(given))
        if given:
            self._put((checked_file_name(name), given, time_ns, delivery))
        return delivery

    def take_record(self, name: str, text: str, time_ns: int, fields: Fields) -> None:
        """For handlers: one line with further fields, under a name that was checked."""
        self._put((name, text, time_ns, fields))

    def _put(self, item: _Item | _Record) -> None:
        if self._is_closed:
            raise ShuttingDown("the shipper is closed: make another one")
        inbox = self._inbox
        if len(inbox) >= INBOX_MAX or (
            self.settings.when_full is WhenFull.BLOCK and not self._has_room()
        ):
            self._make_room()
        inbox.append(item)
        # The thread says that it sleeps before it looks for the last time.
        if not self._is_awake:
            self._wake()

    def _has_room(self) -> bool:
        shipper = self._shipper
        return len(self._inbox) < INBOX_MAX and (shipper is None or shipper.has_room)

    def _make_room(self) -> None:
        if self.settings.when_full is not WhenFull.BLOCK:
            with contextlib.suppress(IndexError):  # it was taken meanwhile
                self._count_dropped(self._inbox.popleft())
            return
        if not self._is_awake:
            self._wake()
        with self._room:
            has_room = self._room.wait_for(
                lambda: self._is_closed or self._has_room(), self.settings.block_ms / 1000
            )
        if not has_room:
            raise Overloaded(
                f"there was no room for a line in {self.settings.block_ms} ms: send more slowly, "
                "or raise clogs_client.memory_bytes_max"
            )

    def _count_dropped(self, item: _Item | _Record) -> None:
        if isinstance(item[1], str):
            self._inbox_dropped += 1
            return
        self._inbox_dropped += len(item[1])
        delivery = item[3]
        if isinstance(delivery, Delivery):
            delivery.settle(len(item[1]), LinesDropped("there was no room for the lines"))

    def flush(self, timeout_ms: int = 60_000) -> None:
        """Wait until all that was given before is stored, or dropped."""
        self._on_loop(lambda shipper: shipper.flush(), timeout_ms)

    def sync(self, timeout_ms: int = 60_000) -> None:
        """Wait until all that was given before is stored, or in the spool."""
        self._on_loop(lambda shipper: shipper.sync(), timeout_ms)

    def status(self) -> ShipperStatus | None:
        """Figures; None before the first line."""
        if self._shipper is None or self._thread is None:
            return None
        return self._thread.call(self._status(self._shipper))

    async def _status(self, shipper: AsyncShipper) -> ShipperStatus:
        self._drain(shipper)
        return shipper.status()

    def close(self, *, wait_ms: int | None = None) -> None:
        """Ship for so long, `exit_ms` if nothing is said; the rest goes to the spool, or is
        dropped and counted.
        """
        if self._inbox and not self._is_closed and self._thread is None:
            self._wake()
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            thread, opened = self._thread, self._opened
        with self._room:
            self._room.notify_all()
        if thread is None or opened is None:
            return
        try:
            shipper = opened.result(_OPEN_S)
        except (RaftwoodError, FutureTimeout, CancelledError):
            thread.stop()
            self._tell_dropped(len(self._inbox))
            return

        async def end() -> None:
            self._drain(shipper)
            await shipper.close(wait_ms=wait_ms)

        thread.stop(end)
        self._tell_dropped(shipper.counters.dropped)

    @staticmethod
    def _tell_dropped(lines: int) -> None:
        if lines:
            sys.stderr.write(f"raftwood: {lines} log lines were dropped: see clogs_client\n")

    def _on_loop(
        self, work: Callable[[AsyncShipper], Coroutine[Any, Any, None]], timeout_ms: int
    ) -> None:
        if self._opened is None and not self._inbox:
            return
        if self._opened is None:
            self._wake()
        deadline = time.monotonic() + timeout_ms / 1000
        try:
            opened, thread = self._opened, self._thread
            if opened is None or thread is None:
                raise Unavailable("the shipper could not be started: see the log")
            shipper = opened.result(timeout_ms / 1000)
            future = thread.begin(self._drained(shipper, work))
            future.result(max(0.0, deadline - time.monotonic()))
        except FutureTimeout:
            raise DeadlineExceeded(f"not all lines are stored after {timeout_ms} ms") from None

    async def _drained(
        self, shipper: AsyncShipper, work: Callable[[AsyncShipper], Coroutine[Any, Any, None]]
    ) -> None:
        self._drain(shipper)
        await work(shipper)

    def _wake(self) -> None:
        """Never waits: what takes time is done by the thread."""
        with self._lock:
            if self._is_awake or self._is_closed:
                return
            if self._opened is None:
                if self._failed_at and time.monotonic() < self._failed_at + _REOPEN_S:
                    return
                if self._thread is None:
                    self._thread = LoopThread(THREAD_NAME)
                self._opened = self._thread.begin(self._open(self._thread.environment))
                self._opened.add_done_callback(self._when_opened)
            else:
                assert self._thread is not None
                self._thread.soon(self._poll)
            self._is_awake = True

    def _when_opened(self, opened: "Future[AsyncShipper]") -> None:
        if opened.cancelled() or opened.exception() is not None:
            self._failed_at = time.monotonic()
            self._opened = None
            self._is_awake = False

    async def _open(self, environment: Environment) -> AsyncShipper:
        try:
            shipper = await self._opening(environment)
        except RaftwoodError as error:
            sys.stderr.write(f"raftwood: log lines are not shipped: {error.message}\n")
            raise
        shipper.on_room = self._tell_room
        self._shipper = shipper
        self._poll()
        return shipper

    # On the loop

    def _poll(self) -> None:
        if self._is_closed:
            return
        shipper = self._shipper
        assert shipper is not None
        self._quiet = 0 if self._drain(shipper) else self._quiet + 1
        if self._quiet >= _QUIET_POLLS:
            self._quiet = 0
            self._is_awake = False
            if not self._inbox:
                return
            self._is_awake = True
        shipper.later(_POLL_S, self._poll)

    def _drain(self, shipper: AsyncShipper) -> bool:
        """Whether there was anything."""
        inbox = self._inbox
        if self._inbox_dropped:
            dropped, self._inbox_dropped = self._inbox_dropped, 0
            shipper.count_dropped(dropped)
        if not inbox:
            return False
        while inbox:
            name, lines, time_ns, more = inbox.popleft()
            if isinstance(lines, str):
                assert time_ns is not None
                assert not isinstance(more, Delivery)
                line = lines.encode("utf-8", "surrogateescape")
                shipper.take_record(name, line, time_ns=time_ns, fields=more or {})
            else:
                encoded = [
                    line.encode("utf-8", "surrogateescape") if isinstance(line, str) else line
                    for line in lines
                ]
                assert more is None or isinstance(more, Delivery)
                shipper.take(name, encoded, time_ns=time_ns, delivery=more)
        return True

    def _tell_room(self) -> None:
        with self._room:
            self._room.notify_all()

    # Fork and exit

    def after_fork(self) -> None:
        """In the child: its parent's thread is not there, and what it holds is not the child's."""
        _abandoned.append((self._thread, self._shipper, self._inbox))
        self._begin()


def _default_opening(settings: ClogsClientSettings) -> Opening:
    async def opening(environment: Environment) -> AsyncShipper:
        from raftwood.clogs.client.opening import open_shipper  # noqa: PLC0415 (heavy)

        return await open_shipper(environment, settings)

    return opening


_of_this_process: Final["weakref.WeakSet[Shipper]"] = weakref.WeakSet()


def _after_fork() -> None:
    for shipper in list(_of_this_process):
        shipper.after_fork()


def _at_exit() -> None:
    for shipper in list(_of_this_process):
        try:
            shipper.close()
        except RaftwoodError as error:
            sys.stderr.write(f"raftwood: log lines may be lost: {error.message}\n")


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
