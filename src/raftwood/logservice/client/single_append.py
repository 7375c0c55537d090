"""Appends under names that others may use as well: asked again until they are answered.

Those of one turn of the loop travel together, and each has an answer of its own.
"""

import asyncio
import copy
from functools import partial
from typing import Final

import xxhash

from raftwood.base.errors import (
    ConnectionLost,
    InvalidInput,
    Overloaded,
    RaftwoodError,
    Unavailable,
)
from raftwood.base.files import Buffer
from raftwood.base.futures import fail
from raftwood.logservice.client.shard_link import PAUSE_LONGEST_S, ShardLink
from raftwood.logservice.errors import RecordTooLarge
from raftwood.logservice.records import encode_user_entry
from raftwood.logservice.wire import APPEND, append_pieces, decode_lsns

SEQUENCE_MAX: Final = (1 << 63) - 1
BATCH_RECORDS_MAX: Final = 1_024
BATCH_BYTES_MAX: Final = 256 << 10
"""Of what travels together; a larger record travels alone."""
WAITING_BYTES_MAX: Final = 256 << 20


def producer_key(name: str) -> bytes:
    """What stands for a producer in the log: the same for ever, for all clients."""
    return xxhash.xxh3_128_digest(name.encode())


class _Single:
    """One record on its way."""

    __slots__ = ("deadline", "entry", "future")

    def __init__(self, entry: bytes, future: "asyncio.Future[int]", deadline: float) -> None:
        self.entry = entry
        self.future = future
        self.deadline = deadline


class SingleAppends:
    """Those of one client; `close` ends what is under way, its outcome unknown."""

    def __init__(self, link: ShardLink, *, record_bytes_max: int, timeout_ms: int) -> None:
        self._link = link
        self._record_bytes_max = record_bytes_max
        self._timeout_s = timeout_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._open: list[_Single] = []
        """To be sent at the end of this turn of the loop."""
        self._open_bytes = 0
        self._waiting_bytes = 0
        self._tasks: dict[asyncio.Task[None], None] = {}

    async def append(self, payload: Buffer, *, holder: int, producer: str, sequence: int) -> int:
        """The record's LSN; `DeadlineExceeded` leaves open whether it is written."""
        if not producer or not 0 <= sequence <= SEQUENCE_MAX:
            raise InvalidInput(
                f"sequence {sequence} of producer {producer[:140]!r}: give a name, and a number "
                f"from 0 to {SEQUENCE_MAX}"
            )
        if len(payload) > self._record_bytes_max:
            raise RecordTooLarge(
                f"a record of {len(payload)} bytes is above the limit of "
                f"{self._record_bytes_max}: split it"
            )
        if self._waiting_bytes > WAITING_BYTES_MAX:
            raise Overloaded(f"{self._waiting_bytes} bytes wait for an answer: wait for some")
        entry = encode_user_entry(
            payload,
            holder=holder,
            producer=producer_key(producer),
            sequence=sequence,
            is_ordered=False,
        )
        self._waiting_bytes += len(entry)
        try:
            return await self._send_soon(entry)
        finally:
            self._waiting_bytes -= len(entry)

    def _send_soon(self, entry: bytes) -> "asyncio.Future[int]":
        is_full = len(self._open) >= BATCH_RECORDS_MAX
        if is_full or self._open_bytes + len(entry) > BATCH_BYTES_MAX:
            self._send()
        if not self._open:
            self._loop.call_soon(self._send)
        future: asyncio.Future[int] = self._loop.create_future()
        self._open.append(_Single(entry, future, self._loop.time() + self._timeout_s))
        self._open_bytes += len(entry)
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
                for single in batch:  # what is wrong with one is not the others' fault
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
        while batch:
            remaining_ms = int((batch[0].deadline - self._loop.time()) * 1000)
            if remaining_ms <= 0:
                raise link.silence(reason)
            entries = [single.entry for single in batch]
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
                await asyncio.sleep(PAUSE_LONGEST_S)

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
        # One each: a traceback grows on an exception that several tasks raise.
        fail(single.future, copy.copy(error))
