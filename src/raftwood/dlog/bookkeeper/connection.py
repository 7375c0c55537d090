"""`BookieConnection`: one connection to one bookie, the common part of BookKeeper's two protocols.

It can be used before it is established: requests are kept until then, and fail together if it never
is. All requests of one loop turn leave in one write. Once it has ended it stays so; `bookies` makes
another. Waiters are kept by the request's key, without a timer each: every half of the timeout,
those that have waited since before the last check are given up.

A status that says neither "done" nor "never had it" is about the bookie, and never about the entry:
an I/O error or an unknown state of the ledger must not be taken for an absent entry.
"""

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, ClassVar, Final, cast

import msgspec

from raftwood.base.errors import Overloaded, PermissionDenied, ProtocolError, RaftwoodError
from raftwood.dlog.errors import (
    BookieReadOnly,
    BookieUnavailable,
    Fenced,
    NoSuchEntry,
    NoSuchLedger,
)
from raftwood.dlog.ledgers.metadata import BookieId
from raftwood.net.frames import joined


class BookKeeperSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of the connections to bookies."""

    connect_timeout_ms: int = 3_000
    """Includes the TLS handshake, if there is one."""
    request_timeout_ms: int = 5_000
    """A request ends between half of it and all of it, if the bookie does not answer."""
    reconnect_pause_ms: int = 200
    """How long a bookie that could not be reached is left alone."""
    frame_bytes_max: int = 5 << 20
    """Like the bookies' own `nettyMaxFrameSizeBytes`."""
    in_flight_max: int = 20_000
    """Requests to one bookie that wait for their answers."""
    unsent_bytes_max: int = 64 << 20
    """The size of requests that one bookie has not taken yet."""
    use_v3_alone: bool = False
    """Use the third protocol for adds and reads as well."""


_ERRORS: Final[tuple[tuple[int, int, Callable[[str], RaftwoodError], str], ...]] = (
    (1, 402, NoSuchLedger, "has nothing of the ledger"),
    (2, 403, NoSuchEntry, "does not have the entry"),
    (100, 404, ProtocolError, "takes the request for a bad one"),
    (101, 501, BookieUnavailable, "cannot read or write its disk: look at its log"),
    (102, 502, PermissionDenied, "refuses the password of the ledger"),
    (103, 503, ProtocolError, "does not speak this version of the protocol"),
    (104, 504, Fenced, "was told of another writer of the ledger"),
    (105, 505, BookieReadOnly, "takes no writes: make room on its disk"),
    (106, 506, Overloaded, "has too many requests: try again"),
    (107, 507, BookieUnavailable, "does not know what it has of the ledger: check its data"),
)
"""Number in v2, number in v3, error, its meaning."""

_BY_STATUS: Final = {
    number: (error, says) for in_v2, in_v3, error, says in _ERRORS for number in (in_v2, in_v3)
}


def error_of(status: int, bookie: BookieId, ledger: int, entry: int) -> RaftwoodError:
    """The error for a status that is not 0."""
    error, says = _BY_STATUS.get(status, (BookieUnavailable, f"answers with status {status}"))
    return error(f"bookie {bookie} {says} (ledger {ledger}, entry {entry})")


LENGTH_BYTES: Final = 4
_JOINED_BYTES_MAX: Final = 1 << 16
Dial = Callable[[asyncio.Protocol], Coroutine[Any, Any, asyncio.Transport]]
"""Connects a protocol to the bookie; its errors become `BookieUnavailable`."""


class BookieConnection(asyncio.Protocol):
    """One connection; subclasses know requests, keys and answers of their protocol."""

    frame_bytes_min: ClassVar[int] = 0

    def __init__(self, bookie: BookieId, settings: BookKeeperSettings, dial: Dial) -> None:
        self.bookie = bookie
        self.error: RaftwoodError | None = None
        """Why the connection has ended."""
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
        """Further waiters under a key that is in use."""
        self._timer: asyncio.TimerHandle | None = None
        self._was_heard = False
        self._parts: list[bytes] = []
        self._missing = 0
        """How many bytes of the first frame in `_parts` are missing, at least."""
        self._connecting = self._loop.create_task(self._connect(dial), name=f"to bookie {bookie}")

    # Differences between the protocols.

    def _frames(self, data: bytes) -> int:
        """Takes whole frames; returns how many bytes they had. Raises `ProtocolError`."""
        raise NotImplementedError

    def _tell(self, key: Any, waiting: Any, error: RaftwoodError) -> None:
        """Fails one waiter."""
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
        """Fails all requests under way."""
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
        """Returns the waiter for an answer, or None if it was given up."""
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

    # Timeouts.

    def _start_timer(self) -> None:
        self._timer = self._loop.call_later(self._settings.request_timeout_ms / 2000, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        expired, self._old, self._young = self._old, self._young, {}
        if expired:
            timeout_ms = self._settings.request_timeout_ms
            error = BookieUnavailable(f"bookie {self.bookie} did not answer in {timeout_ms} ms")
            if not self._was_heard:
                # Nothing came at all: what the bookie has not taken yet need not be kept.
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
