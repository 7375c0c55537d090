"""Appends under way: in order under a producer of the client's own, or one by one under names.

`AppendPipeline` sends many records at once and writes each exactly once, in the order of the calls.
Every record has the next sequence of this client's producer, and the shard takes sequences in order
only. After a failure the client sends all unanswered records again, in order: the shard answers a
record that is already written with its LSN, so nothing is stored twice or out of order. When the
time of a record is over, its fate and that of all records behind it is unknown: all of them fail,
and the client goes on as another producer.

`SingleAppends` sends records under producer names that others may use as well, and repeats each
until it is answered. Records of one turn of the loop travel together; each gets an answer of its
own.
"""

import asyncio
import copy
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import xxhash

from raftwood.base.environment import Environment
from raftwood.base.errors import (
    ConnectionLost,
    DeadlineExceeded,
    DiskFull,
    InvalidInput,
    NotFound,
    Overloaded,
    ProtocolError,
    RaftwoodError,
    SequenceForgotten,
    Unavailable,
)
from raftwood.base.files import Buffer
from raftwood.base.futures import fail
from raftwood.base.logs import get_logger
from raftwood.delivery.lanes import DOUBTFUL
from raftwood.logservice.client.shard_link import ShardLink
from raftwood.logservice.errors import RecordTooLarge, SequenceGap
from raftwood.logservice.log_rules import WINDOW
from raftwood.logservice.records import encode_user_entry, renumbered, user_head
from raftwood.logservice.wire import APPEND, HAS_ERRORS, append_pieces, decode_lsns, encode_append
from raftwood.net import Payload
from raftwood.net.stores import attempt_ms

BATCH_RECORDS_MAX: Final = WINDOW // 4
BATCH_BYTES_MAX: Final = 1 << 20
SENT_BYTES_MAX: Final = 8 << 20
"""The most bytes under way to the shard; one request may go beyond it."""
WAITING_MAX: Final = 100_000
WAITING_BYTES_MAX: Final = 256 << 20

_log = get_logger("log-client")


class _Append:
    __slots__ = ("deadline", "entry", "future", "is_doubtful", "sequence")

    def __init__(
        self, sequence: int, entry: bytes, future: "asyncio.Future[int]", deadline: float
    ) -> None:
        self.sequence = sequence
        self.entry = entry
        self.future = future
        self.deadline = deadline
        self.is_doubtful = False
        """Whether it was sent and not refused for certain: the shard may have written it."""


class AppendPipeline:
    """One client's appends to one shard."""

    def __init__(
        self, environment: Environment, link: ShardLink, *, record_bytes_max: int, holder: int
    ) -> None:
        self._environment = environment
        self._link = link
        self._loop = asyncio.get_running_loop()
        self.record_bytes_max = record_bytes_max
        self.holder = holder
        self._producer = b""
        self._next_sequence = 1
        self._queue: deque[_Append] = deque()
        """Records that were not sent yet."""
        self._sent: deque[_Append] = deque()
        """Sent and not answered, in order of their sequences."""
        self._waiting_bytes = 0
        self._sent_bytes = 0
        self._attempt = 0
        """Counts the failures. A late answer to an earlier attempt may only report success."""
        self._recovery: asyncio.Task[None] | None = None
        self._is_scheduled = False
        self._is_closed = False
        self._reason: RaftwoodError | None = None
        self._refusal: DiskFull | Overloaded | None = None
        """The shard's complaint (full disk, overload) since it last took a record."""
        self.retries = 0
        self._silences = 0
        """Attempts without an answer since the last answer."""
        self._begin_producer()

    def _begin_producer(self) -> None:
        self._producer = self._environment.random.randbytes(16)
        self._next_sequence = 1

    # Sending

    def append(self, payload: Buffer, timeout_ms: int) -> "asyncio.Future[int]":
        """Returns a future of the record's LSN; the caller may reuse the payload at once."""
        size = len(payload)
        if self._is_closed:
            raise Unavailable("the client is closed")
        if size > self.record_bytes_max:
            raise RecordTooLarge(
                f"a record of {size} bytes is above the limit of {self.record_bytes_max}: split it"
            )
        waiting = len(self._queue) + len(self._sent)
        if waiting >= WAITING_MAX or self._waiting_bytes + size > WAITING_BYTES_MAX:
            raise Overloaded(f"{waiting} appends wait for an answer: wait for some")
        entry = encode_user_entry(
            payload, holder=self.holder, producer=self._producer, sequence=self._next_sequence
        )
        future: asyncio.Future[int] = self._loop.create_future()
        deadline = self._loop.time() + timeout_ms / 1000
        self._queue.append(_Append(self._next_sequence, entry, future, deadline))
        self._next_sequence += 1
        self._waiting_bytes += len(entry)
        self._schedule()
        return future

    def _schedule(self) -> None:
        if not self._is_scheduled and self._recovery is None:
            self._is_scheduled = True
            self._loop.call_soon(self._send_all)

    # Requests and answers

    def _send_all(self) -> None:
        self._is_scheduled = False
        while self._queue and self._recovery is None and not self._is_closed:
            room = WINDOW - len(self._sent)
            if self._sent_bytes >= SENT_BYTES_MAX or not room:
                return  # the next answer makes room
            batch = _take(self._queue, min(room, BATCH_RECORDS_MAX))
            self._sent.extend(batch)
            self._sent_bytes += sum(len(each.entry) for each in batch)
            self._send(batch)

    def _send(self, batch: Sequence[_Append]) -> None:
        link, attempt = self._link, self._attempt
        asked = link.guess()
        request = self._request(batch)
        try:
            answer = link.call(APPEND, request, store=asked, timeout_ms=self._attempt_ms(batch))
        except RaftwoodError as error:
            self._failed(error, asked, attempt)
            return
        fresh = _doubt(batch)

        def answered(done: "asyncio.Future[Payload]") -> None:
            if attempt == self._attempt:
                _settle_doubt(batch, fresh, done)
            self._answered(batch, done, asked, attempt)

        answer.add_done_callback(answered)

    def _request(self, batch: Sequence[_Append]) -> bytes:
        again = any(each.is_doubtful for each in batch)
        return encode_append(self._link.shard, [each.entry for each in batch], again=again)

    def _attempt_ms(self, batch: Sequence[_Append]) -> int:
        left_ms = int((batch[0].deadline - self._loop.time()) * 1000)
        return max(1, min(left_ms, attempt_ms(self._silences)))

    def _answered(
        self,
        batch: Sequence[_Append],
        answer: "asyncio.Future[Payload]",
        asked: int,
        attempt: int,
    ) -> None:
        if answer.cancelled():
            self._failed(ConnectionLost("the request was given up"), asked, attempt)
            return
        error = answer.exception()
        if error is None:
            try:
                results = decode_lsns(answer.result(), len(batch))
            except RaftwoodError as broken:
                self._failed(broken, asked, attempt)
                return
            self._settle(batch, results, asked, attempt)
        elif isinstance(error, RaftwoodError):
            self._failed(error, asked, attempt)
        else:
            raise error

    def _settle(
        self,
        batch: Sequence[_Append],
        results: Sequence[int | RaftwoodError],
        asked: int,
        attempt: int,
        *,
        is_alone: bool = False,
    ) -> None:
        problem: RaftwoodError | None = None
        for append, result in zip(batch, results, strict=True):
            if isinstance(result, int):
                if not append.future.done():
                    append.future.set_result(result)
            elif isinstance(result, SequenceGap | SequenceForgotten | Unavailable):
                problem = problem or result
                continue
            else:
                fail(append.future, result)
            append.sequence = 0  # settled
        self._drop_settled()
        if problem is not None:
            self._failed(problem, asked, attempt, is_alone=is_alone)
            return
        self._refusal = None
        self._silences = 0
        if self._queue:
            self._schedule()

    def _drop_settled(self) -> None:
        sent = self._sent
        while sent and not sent[0].sequence:
            size = len(sent.popleft().entry)
            self._waiting_bytes -= size
            self._sent_bytes -= size

    # After a failure

    def _failed(
        self, error: RaftwoodError, asked: int, attempt: int, *, is_alone: bool = False
    ) -> None:
        """Starts to send unanswered records again; ignores failures of older attempts."""
        if attempt != self._attempt or self._is_closed:
            return
        self._attempt += 1
        self.retries += 1
        self._reason = error
        self._silences += isinstance(error, DeadlineExceeded)
        if isinstance(error, DiskFull | Overloaded):
            self._refusal = error
        # A lone request only: with others under way, the shard may have seen them in another order.
        if is_alone and self._is_forgotten(error):
            if isinstance(error, SequenceGap) and self._begin_anew():
                return
            self._give_up(SequenceForgotten(f"{error.message}; {_FORGOTTEN}"))
            return
        if not isinstance(error, _PASSING):
            self._give_up(error)
            return
        if not isinstance(error, SequenceGap | SequenceForgotten):
            self._link.note(error, asked=asked)
        if self._recovery is None:
            self._recovery = self._loop.create_task(self._recover())

    def _is_forgotten(self, error: RaftwoodError) -> bool:
        """Whether the shard has forgotten this producer, or the outcome of its records."""
        if isinstance(error, SequenceForgotten):
            return True
        return (
            isinstance(error, SequenceGap)
            and bool(self._sent)
            and 0 < error.due < self._sent[0].sequence
        )

    def _begin_anew(self) -> bool:
        """Goes on as another producer with all waiting records, unless one of them may be written.

        Needed when the shard has forgotten a client that was idle for long.
        """
        waiting = [each for each in (*self._sent, *self._queue) if each.sequence]
        if any(each.is_doubtful for each in waiting):
            return False
        self._begin_producer()
        for append in waiting:
            append.sequence = self._next_sequence
            append.entry = renumbered(append.entry, self._producer, append.sequence)
            self._next_sequence += 1
        self._sent.clear()
        self._queue = deque(waiting)
        self._sent_bytes, self._waiting_bytes = 0, sum(len(each.entry) for each in waiting)
        return True

    async def _recover(self) -> None:
        """Sends the first records alone until they are answered, then goes on as usual."""
        pauses_s = self._link.stores.pauses_s()
        try:
            while self._sent:
                await asyncio.sleep(next(pauses_s))
                if not self._sent:
                    break
                if self._sent[0].deadline <= self._loop.time():
                    self._give_up(self._why())
                    break
                if await self._resend():
                    break
        finally:
            self._recovery = None
        # The records left were sent before: they go out again before any new ones.
        self._queue.extendleft(reversed(self._sent))
        self._sent.clear()
        self._sent_bytes = 0
        if self._queue and not self._is_closed:
            self._schedule()

    async def _resend(self) -> bool:
        """Sends the first records once; returns whether they were answered."""
        waiting = deque(self._sent)
        batch = _take(waiting, BATCH_RECORDS_MAX)
        asked, attempt = self._link.guess(), self._attempt
        request = self._request(batch)
        try:
            timeout_ms = self._attempt_ms(batch)
            answer = self._link.call(APPEND, request, store=asked, timeout_ms=timeout_ms)
            fresh = _doubt(batch)
            try:
                results = decode_lsns(await answer, len(batch))
            finally:
                _settle_doubt(batch, fresh, answer)
        except RaftwoodError as error:
            self._failed(error, asked, attempt, is_alone=True)
            return False
        self._settle(batch, results, asked, attempt, is_alone=True)
        return attempt == self._attempt

    def _why(self) -> RaftwoodError:
        """The reason for a timeout: the shard's own complaint if there is one, else silence."""
        return self._refusal or self._link.silence(self._reason)

    def _give_up(self, error: RaftwoodError) -> None:
        """Fails all waiting appends; the client goes on as a producer new to the shard."""
        appends = [*self._sent, *self._queue]
        self._sent.clear()
        self._queue.clear()
        self._waiting_bytes = self._sent_bytes = 0
        self._begin_producer()
        _log.debug("appends given up", shard=self._link.shard, reason=error.message)
        for append in appends:
            if append.sequence:
                fail(append.future, _told(append, error))

    async def close(self) -> None:
        """Fails unanswered appends with `ConnectionLost`: their outcome is unknown."""
        self._is_closed = True
        if self._recovery is not None:
            self._recovery.cancel()
            await asyncio.gather(self._recovery, return_exceptions=True)
        self._give_up(ConnectionLost("the client was closed: the record may have been written"))


def _doubt(batch: Sequence[_Append]) -> list[_Append]:
    """Marks a batch as sent; returns the records that no earlier attempt may have written."""
    fresh = [append for append in batch if not append.is_doubtful]
    for append in fresh:
        append.is_doubtful = True
    return fresh


def _settle_doubt(
    batch: Sequence[_Append], fresh: Sequence[_Append], answer: "asyncio.Future[Payload]"
) -> None:
    """Clears the doubt: a request refused as a whole, or at its first sequence, wrote nothing."""
    error = None if answer.cancelled() else answer.exception()
    if error is None and not answer.cancelled() and answer.result()[:1] == HAS_ERRORS:
        with suppress(ProtocolError):  # dealt with later
            error = _gap_of(decode_lsns(answer.result(), len(batch)))
    if isinstance(error, RaftwoodError) and not isinstance(error, DOUBTFUL):
        for append in fresh:
            append.is_doubtful = False


def _gap_of(results: Sequence[int | RaftwoodError]) -> SequenceGap | None:
    first = results[0]
    is_gap = all(isinstance(each, SequenceGap) for each in results)
    return first if is_gap and isinstance(first, SequenceGap) else None


def _told(append: _Append, error: RaftwoodError) -> RaftwoodError:
    """A new exception for each append: a traceback grows if several tasks raise the same one."""
    if append.is_doubtful and not isinstance(error, (*DOUBTFUL, SequenceForgotten)):
        return ConnectionLost(f"{error.message}; an earlier attempt may have written the record")
    return type(error)(error.message)


_PASSING = (Unavailable, DeadlineExceeded, NotFound, SequenceGap, SequenceForgotten)
_FORGOTTEN = "whether the records that were under way are written has to be read"


def _take(queue: deque[_Append], records_max: int) -> list[_Append]:
    """Takes as many first records as fit one request; at least one if `records_max` allows any."""
    taken: list[_Append] = []
    size = 0
    while queue and len(taken) < records_max:
        size += len(queue[0].entry)
        if taken and size > BATCH_BYTES_MAX:
            break
        taken.append(queue.popleft())
    return taken


SEQUENCE_MAX: Final = (1 << 63) - 1
SINGLES_RECORDS_MAX: Final = 1_024
SINGLES_BYTES_MAX: Final = 256 << 10
"""The limit of records that travel together; a larger record travels alone."""


def producer_key(name: bytes) -> bytes:
    """The producer's id in the log: the same for ever, for all clients."""
    return xxhash.xxh3_128_digest(name)


class _Single:
    """One record under way."""

    __slots__ = ("deadline", "future", "pieces")

    def __init__(
        self, pieces: list[Buffer], future: "asyncio.Future[int]", deadline: float
    ) -> None:
        self.pieces = pieces
        """The pieces of its entry."""
        self.future = future
        self.deadline = deadline


class SingleAppends:
    """The single appends of one client; `close` fails what is under way, its outcome unknown."""

    def __init__(self, link: ShardLink, *, record_bytes_max: int, timeout_ms: int) -> None:
        self._link = link
        self._record_bytes_max = record_bytes_max
        self._timeout_s = timeout_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._open: list[_Single] = []
        """Records to send at the end of this turn of the loop."""
        self._open_bytes = 0
        self._waiting_bytes = 0
        self._tasks: dict[asyncio.Task[None], None] = {}

    async def append(
        self, payload: Sequence[Buffer], *, holder: int, producer: bytes, sequence: int
    ) -> int:
        """Returns the record's LSN; `DeadlineExceeded` leaves open whether it is written."""
        if not producer or not 0 <= sequence <= SEQUENCE_MAX:
            name = producer[:140].decode(errors="replace")
            raise InvalidInput(
                f"sequence {sequence} of producer {name!r}: give a name, and a number from 0 to "
                f"{SEQUENCE_MAX}"
            )
        size = sum(map(len, payload))
        if size > self._record_bytes_max:
            raise RecordTooLarge(
                f"a record of {size} bytes is above the limit of {self._record_bytes_max}: split it"
            )
        if self._waiting_bytes > WAITING_BYTES_MAX:
            raise Overloaded(f"{self._waiting_bytes} bytes wait for an answer: wait for some")
        key = producer_key(producer)
        head = user_head(holder=holder, producer=key, sequence=sequence, is_ordered=False)
        size += len(head)
        self._waiting_bytes += size
        try:
            return await self._send_soon([head, *payload], size)
        finally:
            self._waiting_bytes -= size

    def _send_soon(self, pieces: list[Buffer], size: int) -> "asyncio.Future[int]":
        is_full = len(self._open) >= SINGLES_RECORDS_MAX
        if is_full or self._open_bytes + size > SINGLES_BYTES_MAX:
            self._send()
        if not self._open:
            self._loop.call_soon(self._send)
        future: asyncio.Future[int] = self._loop.create_future()
        self._open.append(_Single(pieces, future, self._loop.time() + self._timeout_s))
        self._open_bytes += size
        return future

    def _send(self) -> None:
        batch, self._open, self._open_bytes = self._open, [], 0
        if batch:
            self._run(batch)

    def _run(self, batch: list[_Single]) -> None:
        task = self._loop.create_task(self._drive(batch))
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def _drive(self, batch: list[_Single]) -> None:
        try:
            await self._deliver(batch)
        except InvalidInput as error:
            if len(batch) == 1:
                _fail(batch, error)
            else:
                for single in batch:  # one bad record must not fail the others
                    self._run([single])
        except RaftwoodError as error:
            _fail(batch, error)
        except asyncio.CancelledError:
            _fail(batch, ConnectionLost("the client was closed: the record may be written or not"))
            raise

    async def _deliver(self, batch: list[_Single]) -> None:
        link = self._link
        reason: RaftwoodError | None = None
        again = False
        pauses_s = link.stores.pauses_s()
        while batch:
            remaining_ms = int((batch[0].deadline - self._loop.time()) * 1000)
            if remaining_ms <= 0:
                raise link.silence(reason)
            entries = [single.pieces for single in batch]
            answer = await link.ask_raw(
                APPEND,
                append_pieces(link.shard, entries, again=again),
                timeout_ms=remaining_ms,
                repeated=partial(append_pieces, link.shard, entries, again=True),
            )
            again = True
            left: list[_Single] = []
            for single, result in zip(batch, decode_lsns(answer, len(batch)), strict=True):
                if isinstance(result, int):
                    _succeed(single, result)
                elif isinstance(result, Unavailable):
                    left.append(single)
                    reason = result
                else:
                    _fail([single], result)
            batch = left
            if batch and reason is not None:
                link.note(reason, asked=link.guess())
                await asyncio.sleep(next(pauses_s))

    async def close(self) -> None:
        self._send()
        for task in [*self._tasks]:
            task.cancel()
        if self._tasks:
            await asyncio.wait([*self._tasks])


def _succeed(single: _Single, lsn: int) -> None:
    if not single.future.done():
        single.future.set_result(lsn)


def _fail(batch: list[_Single], error: RaftwoodError) -> None:
    for single in batch:
        # One each: a traceback grows if several tasks raise the same exception.
        fail(single.future, copy.copy(error))
