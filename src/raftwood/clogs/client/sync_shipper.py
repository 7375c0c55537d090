"""The inbox of threads' lines, and `Shipper`: giving lines costs next to nothing, and no lock.

The inbox is bounded by its items and by the bytes of the large ones among them, so that it holds at
most `memory_bytes_max`, as does the backlog. If it is full, the oldest lines are dropped and
counted, unless the caller waits.
"""

import asyncio
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from functools import lru_cache
from typing import Any, Final, NamedTuple, Self, TypeAlias, TypeVar

from raftwood.base.environment import Environment
from raftwood.base.errors import (
    DeadlineExceeded,
    InvalidInput,
    Overloaded,
    RaftwoodError,
    ShuttingDown,
    Unavailable,
)
from raftwood.clogs.client import process_hooks
from raftwood.clogs.client.batch_builder import Fields, LineDelivery
from raftwood.clogs.client.settings import ClogsClientSettings, WhenFull
from raftwood.clogs.client.shipper import AsyncShipper, open_shipper
from raftwood.clogs.client.status import ShipperStatus
from raftwood.clogs.configuration import checked_file_name
from raftwood.clogs.errors import LinesDropped
from raftwood.clogs.lines import encoded_text
from raftwood.clogs.masking import MaskRule
from raftwood.delivery.deliveries import Delivery
from raftwood.disk.loop_thread import LoopThread

LARGE_BYTES: Final = 1024
"""An item of this size or more counts by its bytes; smaller ones count as items alone."""
ITEMS_MIN: Final = 1024
ITEMS_MAX: Final = 65_536
_FIELDS_MAX: Final = 4_096


class GivenLines(NamedTuple):
    """Lines of one file from one call."""

    name: str
    lines: list[bytes]
    time_ns: int | None
    delivery: LineDelivery
    size: int


GivenRecord: TypeAlias = tuple[str, str, float, str, str]
"""A record of a handler, which makes many calls: file, text, time, level and logger."""
Item: TypeAlias = GivenLines | GivenRecord


class Inbox:
    """Items of all threads, in order per thread."""

    def __init__(self, memory_bytes_max: int) -> None:
        self._lock = threading.Lock()
        self._large_bytes = 0
        self._large_bytes_max = memory_bytes_max
        self._dropped_lines = 0
        self.items: deque[Item] = deque()
        self.items_max = min(ITEMS_MAX, max(ITEMS_MIN, memory_bytes_max // LARGE_BYTES))

    def has_room(self) -> bool:
        return len(self.items) < self.items_max and self._large_bytes < self._large_bytes_max

    def announce(self, size: int) -> None:
        """Counts a large item that is about to be put."""
        if size > LARGE_BYTES:
            with self._lock:
                self._large_bytes += size

    def make_room(self) -> None:
        """Drops the oldest until there is room for one more."""
        while self.items and not self.has_room():
            try:
                item = self.items.popleft()
            except IndexError:
                return  # all were taken meanwhile
            self.took(item)
            lines = line_count(item)
            with self._lock:
                self._dropped_lines += lines
            if isinstance(item, GivenLines):
                item.delivery.settle(lines, LinesDropped("there was no room for the lines"))

    def took(self, item: Item) -> None:
        """To be called for each item that was taken from `items`."""
        size = item.size if isinstance(item, GivenLines) else len(item[1])
        if size > LARGE_BYTES:
            with self._lock:
                self._large_bytes -= size

    def take_back(self, item: Item) -> bool:
        """Removes an item; returns whether it was still there."""
        try:
            self.items.remove(item)
        except ValueError:
            return False
        self.took(item)
        return True

    def dropped_since(self) -> int:
        """Returns how many lines were dropped since the last call."""
        if not self._dropped_lines:
            return 0
        with self._lock:
            dropped, self._dropped_lines = self._dropped_lines, 0
        return dropped

    def drain(self, shipper: AsyncShipper, items_max: int) -> int:
        """Passes items on to the shipper, on its loop; returns how many there were."""
        if dropped := self.dropped_since():
            shipper.count_dropped(dropped)
        items, taken = self.items, 0
        records: list[GivenRecord] = []
        while items and taken < items_max:
            try:
                item = items.popleft()
            except IndexError:
                break  # a thread has dropped the last one to make room
            taken += 1
            if isinstance(item, GivenLines) or (records and records[-1][0] != item[0]):
                self._hand_over(records, shipper)
                records = []
            if isinstance(item, GivenLines):
                self.took(item)
                shipper.take(item.name, item.lines, time_ns=item.time_ns, delivery=item.delivery)
            else:
                records.append(item)
        self._hand_over(records, shipper)
        return taken

    def _hand_over(self, records: list[GivenRecord], shipper: AsyncShipper) -> None:
        """Passes on consecutive records of one file."""
        if not records:
            return
        _, texts, times_s, levels, loggers = zip(*records, strict=True)
        for record in records:
            if len(record[1]) > LARGE_BYTES:
                self.took(record)
        shipper.take_records(
            records[0][0],
            list(map(_line, texts)),
            times_ns=list(map(_nanoseconds, times_s)),
            fields=list(map(_fields, map(str, levels), map(str, loggers))),
        )

    def give_up(self) -> int:
        """At the end, drops all items and fails their deliveries; returns the number of lines."""
        dropped = self.dropped_since()
        while self.items:
            try:
                item = self.items.popleft()
            except IndexError:
                break  # a thread has taken the last one back
            lines = line_count(item)
            dropped += lines
            if isinstance(item, GivenLines):
                reason = "the shipper was closed before the lines were taken up"
                item.delivery.settle(lines, ShuttingDown(reason))
        return dropped


def line_count(item: Item) -> int:
    return len(item.lines) if isinstance(item, GivenLines) else 1


@lru_cache(maxsize=_FIELDS_MAX)
def _fields(level: str, logger: str) -> Fields:
    """Returns one object for each pair, so that each batch encodes it once."""
    return {"level": level, "logger": logger}


def _line(text: object) -> bytes:
    """Converts what formatters return, which may be bytes, or no text at all."""
    if isinstance(text, bytes):
        return text
    return encoded_text(text if isinstance(text, str) else str(text))


def _nanoseconds(time_s: float) -> int:
    try:
        return int(time_s * 1_000_000) * 1000
    except (ValueError, OverflowError, TypeError):
        return 0  # an invalid time, but the line is kept


THREAD_NAME: Final = "clogs shipper"
_POLL_S: Final = 0.01
_QUIET_POLLS: Final = 50
"""After so many polls without a line the thread sleeps until it is woken."""
_TURN_ITEMS_MAX: Final = 4_096
"""Limit of one turn: pings and acks are served in between."""
_REOPEN_S: Final = 5.0
"""The pause after a failure to start."""
_END_S: Final = 5.0
"""Time at the end, after the last lines are shipped, to write the spool and close connections."""

Opening: TypeAlias = Callable[[Environment], Coroutine[Any, Any, AsyncShipper]]
_Result = TypeVar("_Result")


class Shipper:
    """`close` it when done, or use `with`."""

    def __init__(
        self,
        settings: ClogsClientSettings,
        *,
        tags: Sequence[tuple[str, str]] = (),
        mask_rules: Sequence[MaskRule] = (),
        opening: Opening | None = None,
    ) -> None:
        """`tags` are stored with all lines; `mask_rules` are the caller's rules beside `masks`.
        `opening` makes the shipper on its loop; by default `open_shipper` does.
        """
        self.settings = settings
        self._opening = opening or _default_opening(settings, tags, mask_rules)
        self._is_blocking = settings.when_full is WhenFull.BLOCK
        self._is_closed = False
        self._owner: weakref.ref[object] | None = None
        self._begin()
        process_hooks.register(self)

    def _begin(self) -> None:
        """Sets the state of a process that has given no lines yet."""
        # Reentrant: the thread that starts another may log meanwhile, and so come here again.
        self.lock = threading.RLock()
        """Held for moments only; a forked child makes a new one."""
        self._room = threading.Condition(threading.Lock())
        self._waiting = 0
        self._inbox = Inbox(self.settings.memory_bytes_max)
        self._items = self._inbox.items
        self._items_max = self._inbox.items_max
        self._thread: LoopThread | None = None
        self.thread_ident: int | None = None
        """The id of the shipper's own thread."""
        self._shipper: AsyncShipper | None = None
        self._opened: Future[AsyncShipper] | None = None
        self._is_starting = False
        self._is_awake = False
        self._quiet = 0
        self._poll_timer: asyncio.TimerHandle | None = None
        self._failed_at: float | None = None
        self._failure = ""
        self._ended = threading.Event()
        self._last_status: ShipperStatus | None = None

    @property
    def exit_ms(self) -> int:
        return self.settings.exit_ms

    @property
    def is_closed_late(self) -> bool:
        """Whether an owner closes it at the end of the process."""
        return self._owner is not None and self._owner() is not None

    def left_to(self, owner: object) -> None:
        """Leaves it to the owner, if that still exists, to close it at the end of the process."""
        self._owner = weakref.ref(owner)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(wait_ms=None if kind is None else 0)

    # From any thread

    def send(
        self, name: str, lines: str | bytes | Sequence[str | bytes], *, time_ns: int | None = None
    ) -> Delivery[None]:
        """Takes lines of a file, in order per thread. Only with `when_full = block` it waits for
        room; then it raises `Overloaded` if there is none for `block_ms`.
        """
        given = (lines,) if isinstance(lines, str | bytes) else lines
        encoded = [_encoded(line) for line in given]
        delivery = LineDelivery(len(encoded))
        if encoded:
            size = sum(map(len, encoded))
            time_ns = time.time_ns() if time_ns is None else int(time_ns)
            item = GivenLines(checked_file_name(name), encoded, time_ns, delivery, size)
            if self._is_closed:
                raise _closed()
            self._make_room(size)
            self._put(item)
        return delivery

    def take_record(self, name: str, text: str, created_s: float, level: str, logger: str) -> None:
        """Takes one line with further fields, for handlers; the name must be checked."""
        if self._is_closed:
            raise _closed()
        if self._is_blocking or len(self._items) >= self._items_max or len(text) > LARGE_BYTES:
            self._make_room(len(text))
        self._put((name, text, created_s, level, logger))

    def _put(self, item: Item) -> None:
        self._items.append(item)
        # The thread sets the flag that it sleeps before it looks for the last time.
        if not self._is_awake:
            self._wake()
        if self._is_closed and self._inbox.take_back(item):
            raise _closed()

    def _make_room(self, size: int) -> None:
        inbox = self._inbox
        if self._is_blocking and not self._has_room():
            self._wait_for_room()
        inbox.announce(size)
        if not self._is_blocking:
            inbox.make_room()

    def _has_room(self) -> bool:
        shipper = self._shipper
        return self._inbox.has_room() and (shipper is None or shipper.has_room)

    def _wait_for_room(self) -> None:
        if not self._is_awake:
            self._wake()
        with self._room:
            self._waiting += 1
            try:
                has_room = self._room.wait_for(
                    lambda: self._is_closed or self._has_room(), self.settings.block_ms / 1000
                )
            finally:
                self._waiting -= 1
        if self._is_closed:
            raise _closed()
        if not has_room:
            raise Overloaded(
                f"there was no room for a line in {self.settings.block_ms} ms: send more slowly, "
                "or raise clogs_client.memory_bytes_max"
            )

    def flush(self, timeout_ms: int = 60_000) -> None:
        """Waits until all that was given before is stored, or dropped."""
        self._on_loop(AsyncShipper.flush, timeout_ms)

    def sync(self, timeout_ms: int = 60_000) -> None:
        """Waits until all that was given before is stored, or in the spool."""
        self._on_loop(AsyncShipper.sync, timeout_ms)

    def status(self) -> ShipperStatus | None:
        """Returns the figures, after the end the last ones; None before the first line."""
        if self._shipper is None or self._is_closed:
            return self._last_status
        return self._on_loop(_status, 60_000)

    def _on_loop(
        self, work: Callable[[AsyncShipper], Coroutine[Any, Any, _Result]], timeout_ms: int
    ) -> _Result | None:
        if self._opened is None:
            if not self._items:
                return None
            self._wake()
        deadline = time.monotonic() + timeout_ms / 1000
        opened, thread = self._opened, self._thread
        if self._is_closed:
            raise _closed()
        if opened is None or thread is None:
            raise Unavailable(f"the shipper could not be started: {self._failure}")
        if thread.is_current:
            raise InvalidInput("a callback cannot wait for the shipper that calls it")
        try:
            shipper = opened.result(timeout_ms / 1000)
            future = thread.begin(self._drained(shipper, work))
        except FutureTimeout:
            raise DeadlineExceeded(f"the shipper did not start in {timeout_ms} ms") from None
        try:
            return future.result(max(0.0, deadline - time.monotonic()))
        except FutureTimeout:
            future.cancel()
            raise DeadlineExceeded(f"not all lines are stored after {timeout_ms} ms") from None
        except CancelledError:
            raise _closed() from None

    async def _drained(
        self, shipper: AsyncShipper, work: Callable[[AsyncShipper], Coroutine[Any, Any, _Result]]
    ) -> _Result:
        await self._drain_all(shipper)
        return await work(shipper)

    def close(self, *, wait_ms: int | None = None) -> None:
        """Ships for up to `wait_ms`, by default `exit_ms`; the rest goes to the spool, or is
        dropped and counted. A second call waits for the end of the first.
        """
        wait_ms = self.exit_ms if wait_ms is None else wait_ms
        wait_ms = process_hooks.wait_ms_at_end(wait_ms)
        if self._thread is not None and self._thread.is_current:
            raise InvalidInput("a callback cannot close the shipper that calls it")
        with self.lock:
            is_first = not self._is_closed
            if is_first and self._items and self._opened is None:
                self._wake()
            self._is_closed = True
        if not is_first:
            self._ended.wait(wait_ms / 1000 + _END_S)
            return
        with self._room:
            self._room.notify_all()
        try:
            self._end(wait_ms)
        finally:
            self._ended.set()

    def _end(self, wait_ms: int) -> None:
        thread, opened = self._thread, self._opened
        if thread is None:
            self._tell_dropped(self._inbox.give_up(), self._failure)
            return
        deadline = time.monotonic() + wait_ms / 1000 + _END_S
        shipper = None
        try:
            if opened is not None:
                shipper = opened.result(max(0.0, deadline - time.monotonic()))
                ending = thread.begin(self._end_on_loop(shipper, wait_ms))
                ending.result(max(0.0, deadline - time.monotonic()))
        except FutureTimeout:
            # The disk hangs: the program must not hang with it.
            process_hooks.tell("log lines may be lost: the shipper could not be closed in time")
            self._inbox.give_up()
            return
        except (RaftwoodError, OSError, ValueError, CancelledError):
            pass  # the reason why it did not start is printed below
        thread.stop()
        lost = self._inbox.give_up()
        if shipper is None:
            self._tell_dropped(lost, self._failure)
            return
        shipper.count_dropped(lost)
        self._last_status = shipper.status()
        self._tell_dropped(shipper.counters.dropped, "see the settings of clogs_client")

    async def _end_on_loop(self, shipper: AsyncShipper, wait_ms: int) -> None:
        await self._drain_all(shipper)
        await shipper.close(wait_ms=wait_ms)

    @staticmethod
    def _tell_dropped(lines: int, why: str) -> None:
        if lines:
            process_hooks.tell(f"{lines} log lines were dropped: {why or 'there was no room'}")

    # The thread

    def _wake(self) -> None:
        """Wakes the thread without waiting; the thread does what takes time."""
        with self.lock:
            if self._is_awake or self._is_closed or self._is_starting:
                return
            if self._opened is not None:
                assert self._thread is not None
                self._thread.soon(self._poll)
                self._is_awake = True
                return
            if self._failed_at is not None and time.monotonic() < self._failed_at + _REOPEN_S:
                return
            self._is_starting = True
            try:
                self._start()
            except (RuntimeError, OSError) as error:  # no more threads, or descriptors
                self._fail(str(error))
            finally:
                self._is_starting = False

    def _start(self) -> None:
        if self._thread is None:
            self._thread = LoopThread(THREAD_NAME)
            self.thread_ident = self._thread.ident
            process_hooks.register_child()
        self._is_awake = True
        self._opened = self._thread.begin(self._open(self._thread.environment))
        self._opened.add_done_callback(self._when_opened)

    def _when_opened(self, opened: "Future[AsyncShipper]") -> None:
        error = None if opened.cancelled() else opened.exception()
        if error is not None:
            self._opened = None
            self._is_awake = False
            self._fail(error.message if isinstance(error, RaftwoodError) else repr(error))

    def _fail(self, reason: str) -> None:
        """Reports each reason once; later lines cause another attempt."""
        self._failed_at = time.monotonic()
        if reason != self._failure:
            self._failure = reason
            process_hooks.tell(f"log lines are not shipped for now: {reason}")

    async def _open(self, environment: Environment) -> AsyncShipper:
        shipper = await self._opening(environment)
        shipper.on_room = self._tell_room
        self._shipper = shipper
        self._failure = ""
        self._poll()
        return shipper

    # On the loop

    def _poll(self) -> None:
        if self._poll_timer is not None:
            self._poll_timer.cancel()
            self._poll_timer = None
        if self._is_closed:
            return
        shipper = self._shipper
        assert shipper is not None
        try:
            self._quiet = 0 if self._drain(shipper, _TURN_ITEMS_MAX) else self._quiet + 1
        finally:
            self._poll_later()  # whatever is wrong with one line, others are shipped

    def _poll_later(self) -> None:
        if self._quiet >= _QUIET_POLLS:
            self._quiet = 0
            self._is_awake = False
            if not self._items:
                return
            self._is_awake = True
        # If more waits, the loop serves other events first, and then the rest at once.
        delay_s = 0.0 if self._items else _POLL_S
        self._poll_timer = asyncio.get_running_loop().call_later(delay_s, self._poll)

    async def _drain_all(self, shipper: AsyncShipper) -> None:
        """Drains all that is there now, without waiting for more."""
        left = len(self._items)
        while taken := self._drain(shipper, min(left, _TURN_ITEMS_MAX)):
            left -= taken
            await asyncio.sleep(0)

    def _drain(self, shipper: AsyncShipper, items_max: int) -> int:
        """Passes items on; returns how many there were."""
        taken = self._inbox.drain(shipper, items_max)
        if taken:
            self._tell_room()
        return taken

    def _tell_room(self) -> None:
        if self._waiting:
            with self._room:
                self._room.notify_all()

    def after_fork(self) -> None:
        """Resets the state in a child, where the parent's thread and its lines do not exist."""
        if self._thread is not None:
            self._thread.after_fork(self._shipper)
        self._begin()
        if self._is_closed:
            self._ended.set()  # in the parent, or there it will be: nothing here has to end


async def _status(shipper: AsyncShipper) -> ShipperStatus:
    return shipper.status()


def _encoded(line: str | bytes) -> bytes:
    if isinstance(line, str):
        return encoded_text(line)
    if isinstance(line, bytes):
        return line
    raise InvalidInput(f"a line is a text or bytes, not a {type(line).__name__}")


def _closed() -> ShuttingDown:
    return ShuttingDown("the shipper is closed: make another one")


def _default_opening(
    settings: ClogsClientSettings,
    tags: Sequence[tuple[str, str]],
    mask_rules: Sequence[MaskRule],
) -> Opening:
    async def opening(environment: Environment) -> AsyncShipper:
        return await open_shipper(environment, settings, tags=tags, mask_rules=mask_rules)

    return opening
