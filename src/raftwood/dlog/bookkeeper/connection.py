"""One connection to one bookie: what both of BookKeeper's protocols share.

It can be used before it stands: requests are kept until then, and fail together if it never does.
All requests of one loop turn leave in one write. Once it has ended it stays so; `bookies` makes
another. Whoever waits for an answer is kept by the request's key, without a timer of its own: every
half of the timeout those that wait since before the last time are given up.
"""

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, ClassVar, Final, cast

from raftwood.base.errors import Overloaded, ProtocolError, RaftwoodError
from raftwood.dlog.bookkeeper.settings import BookKeeperSettings
from raftwood.dlog.errors import BookieUnavailable
from raftwood.dlog.ledgers.model import BookieId
from raftwood.net.frames import joined

LENGTH_BYTES: Final = 4
_JOINED_BYTES_MAX: Final = 1 << 16
Dial = Callable[[asyncio.Protocol], Coroutine[Any, Any, asyncio.Transport]]
"""Connects a protocol to the bookie; what it raises is `BookieUnavailable`."""


class BookieConnection(asyncio.Protocol):
    """Subclasses know requests, keys and answers of their protocol."""

    frame_bytes_min: ClassVar[int] = 0

    def __init__(self, bookie: BookieId, settings: BookKeeperSettings, dial: Dial) -> None:
        self.bookie = bookie
        self.error: RaftwoodError | None = None
        """Why it has ended."""
        self.ended_at = 0.0
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._flush_is_due = False
        self._is_paused = True
        self._young: dict[Hashable, Any] = {}
        self._old: dict[Hashable, Any] = {}
        self._again: dict[Hashable, list[Any]] = {}
        """Those that wait under a key behind another one."""
        self._timer: asyncio.TimerHandle | None = None
        self._was_heard = False
        self._parts: list[bytes] = []
        self._missing = 0
        """How many bytes of the frame that `_parts` begins are still to come, at least."""
        self._connecting = self._loop.create_task(self._connect(dial), name=f"to bookie {bookie}")

    # What the protocols do differently.

    def _frames(self, data: bytes) -> int:
        """Take whole frames; how many bytes they had. Raises `ProtocolError`."""
        raise NotImplementedError

    def _tell(self, key: Any, waiting: Any, error: RaftwoodError) -> None:
        """That its request has failed."""
        raise NotImplementedError

    # Connecting and ending.

    async def _connect(self, dial: Dial) -> None:
        try:
            async with asyncio.timeout(self._settings.connect_timeout_ms / 1000):
                transport = await dial(self)
        except TimeoutError:
            timeout_ms = self._settings.connect_timeout_ms
            self._end(BookieUnavailable(f"bookie {self.bookie} did not answer in {timeout_ms} ms"))
        except ssl.SSLError as error:
            self._end(BookieUnavailable(f"TLS with bookie {self.bookie} failed: {error}"))
        except OSError as error:
            self._end(
                BookieUnavailable(
                    f"cannot connect to bookie {self.bookie}: {error.strerror or error}"
                )
            )
        except RaftwoodError as error:
            self._end(error)
        else:
            if self.error is not None:
                transport.abort()
                return
            self._transport = transport
            transport.set_write_buffer_limits(high=self._settings.unsent_bytes_max // 4)
            self._is_paused = False
            self._flush()

    async def close(self) -> None:
        """Fail what is under way."""
        self._end(BookieUnavailable(f"the connection to bookie {self.bookie} was closed"))
        await asyncio.wait((self._connecting,))

    def connection_lost(self, error: Exception | None) -> None:
        reason = f": {error}" if error is not None else ""
        self._end(BookieUnavailable(f"bookie {self.bookie} ended the connection{reason}"))

    def _end(self, error: RaftwoodError) -> None:
        if self.error is not None:
            return
        self.error = error
        self.ended_at = self._loop.time()
        self._connecting.cancel()
        self._out = []
        self._parts = []
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        self._fail_all(error)

    def _fail_all(self, error: RaftwoodError) -> None:
        waiting = (*self._old.items(), *self._young.items())
        again, self._old, self._young, self._again = self._again, {}, {}, {}
        for key, first in waiting:
            for each in (first, *again.get(key, ())):
                self._tell(key, each, error)

    # Requests.

    def _ask(self, key: Hashable, waiting: Any, frame: bytes) -> None:
        if self.error is not None:
            self._loop.call_soon(self._tell, key, waiting, self.error)
            return
        young = self._young
        if (
            len(young) + len(self._old) >= self._settings.in_flight_max
            or self._out_bytes > self._settings.unsent_bytes_max
        ):
            error = Overloaded(f"too much is under way to bookie {self.bookie}: wait for answers")
            self._loop.call_soon(self._tell, key, waiting, error)
            return
        if key in young or key in self._old:
            self._again.setdefault(key, []).append(waiting)
        else:
            young[key] = waiting
        self._out.append(frame)
        self._out_bytes += len(frame)
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)
        if self._timer is None:
            self._was_heard = True
            self._start_timer()

    def _take(self, key: Hashable) -> Any:
        """Who waits for an answer, or None: it was given up."""
        waiting = self._young.pop(key, None)
        if waiting is None:
            waiting = self._old.pop(key, None)
        if self._again and key in self._again:
            others = self._again[key]
            self._young[key] = others.pop(0)
            if not others:
                del self._again[key]
        return waiting

    def _flush(self) -> None:
        self._flush_is_due = False
        if self._is_paused or not self._out or self._transport is None:
            return
        out, self._out = self._out, []
        size, self._out_bytes = self._out_bytes, 0
        if len(out) == 1:
            self._transport.write(out[0])
        elif size <= _JOINED_BYTES_MAX:
            self._transport.write(b"".join(out))
        else:
            self._transport.writelines(joined(cast("list[Any]", out)))

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._flush()

    # Giving up.

    def _start_timer(self) -> None:
        self._timer = self._loop.call_later(self._settings.request_timeout_ms / 2000, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        expired, self._old, self._young = self._old, self._young, {}
        if expired:
            timeout_ms = self._settings.request_timeout_ms
            error = BookieUnavailable(f"bookie {self.bookie} did not answer in {timeout_ms} ms")
            if not self._was_heard:
                # Nothing came at all: what it has not taken yet need not be kept.
                self._old, self._young = expired, self._old
                self._end(error)
                return
            for key, first in expired.items():
                for each in (first, *self._again.pop(key, ())):
                    self._tell(key, each, error)
        self._was_heard = False
        if self._old:
            self._start_timer()

    # Answers.

    def data_received(self, data: bytes) -> None:
        if self.error is not None:
            return
        self._was_heard = True
        if self._missing:
            self._parts.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return
            data = b"".join(self._parts)
            self._parts = []
            self._missing = 0
        try:
            taken = self._frames(data)
            if taken < len(data) and self.error is None:
                self._keep(data[taken:] if taken else data)
        except ProtocolError as error:
            self._end(BookieUnavailable(f"bookie {self.bookie} breaks the protocol: {error}"))

    def _keep(self, rest: bytes) -> None:
        self._parts = [rest]
        self._missing = LENGTH_BYTES - len(rest)
        if self._missing <= 0:
            size = int.from_bytes(rest[:LENGTH_BYTES])
            size_max = self._settings.frame_bytes_max
            if not self.frame_bytes_min <= size <= size_max:
                raise ProtocolError(
                    f"a frame of {size} bytes is not in {self.frame_bytes_min}..{size_max}: is "
                    "there a bookie at this port?"
                )
            self._missing = LENGTH_BYTES + size - len(rest)
