"""Clients that append and read all the time; what they were told is checked at the end.

Writers keep several records under way, so that order within a client matters. Readers follow the
log from its beginning, and look now and then at what is there already.
"""

import asyncio
import itertools
import random
import time
from collections.abc import Sequence
from typing import Self

from raftwood.base.errors import RaftwoodError
from raftwood.logservice.client.log_client import AsyncLogClient
from raftwood.logservice.errors import LsnTruncated
from tests.logservice_history import Append, History, Stored, check_history

UNDER_WAY = 8
_PAUSE_S = 0.01
_WAIT_MS = 500
_LOOK_BYTES = 4 << 10


class Load:
    """Use it as a context manager: it runs in between; then `check` what was told."""

    def __init__(
        self,
        writers: Sequence[AsyncLogClient],
        readers: Sequence[AsyncLogClient] = (),
        *,
        record_bytes: int = 100,
    ) -> None:
        self.history = History()
        self.answers: list[float] = []
        """When appends were acknowledged."""
        self.unknown: list[RaftwoodError] = []
        self._writers = writers
        self._readers = readers
        self._record_bytes = record_bytes
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        create = asyncio.get_running_loop().create_task
        self._tasks += [create(self._write(*each)) for each in enumerate(self._writers, 1)]
        self._tasks += [create(self._follow(each)) for each in self._readers]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    async def _write(self, client: int, log: AsyncLogClient) -> None:
        under_way = asyncio.Semaphore(UNDER_WAY)
        futures: set[asyncio.Future[int]] = set()

        def settle(future: "asyncio.Future[int]") -> None:
            futures.discard(future)
            under_way.release()

        try:
            for number in itertools.count():
                await under_way.acquire()
                payload = (b"%d-%d " % (client, number)).ljust(self._record_bytes, b".")
                append = self.history.append(client=client, payload=payload, now=time.monotonic())
                future = log.append_soon(payload)
                futures.add(future)
                future.add_done_callback(lambda done, append=append: self._note(append, done))
                future.add_done_callback(settle)
                await asyncio.sleep(_PAUSE_S)
        finally:
            # Their fate is known at the end, so that the last look finds no late ones.
            await asyncio.gather(*futures, return_exceptions=True)

    def _note(self, append: Append, future: "asyncio.Future[int]") -> None:
        error = future.exception()
        if error is None:
            now = time.monotonic()
            append.acked(future.result(), now=now)
            self.answers.append(now)
        elif isinstance(error, RaftwoodError):
            self.unknown.append(error)
        else:
            raise error

    async def _follow(self, log: AsyncLogClient) -> None:
        first = 1
        while True:
            first = await self._read(log, first, wait_ms=_WAIT_MS)
            await self._read(log, random.randint(1, first), bytes_max=_LOOK_BYTES)

    async def _read(self, log: AsyncLogClient, first: int, **options: int) -> int:
        read = self.history.read(first, now=time.monotonic())
        try:
            records, next_lsn = await log.read(first, **options)
        except LsnTruncated as error:
            return error.first
        except RaftwoodError:
            return first
        found = [(record.lsn, bytes(record.payload)) for record in records]
        read.answered(found, next_lsn, now=time.monotonic())
        return next_lsn

    # Questions

    async def goes_on(self, *, within_s: float = 60.0, records: int = 20) -> float:
        """Wait until more was acknowledged that was asked from now on; how long it took."""
        began = time.monotonic()
        while True:
            for task in self._tasks:
                if task.done():
                    task.result()
            later = [each for each in self.history.acked() if each.called > began]
            if len(later) >= records:
                return time.monotonic() - began
            waited = time.monotonic() - began
            assert waited < within_s, f"no append was acknowledged within {waited:.1f} s"
            await asyncio.sleep(0.02)

    def longest_silence_s(self, since: float) -> float:
        """The longest time without an acknowledgement, from a moment until now."""
        moments = [since, *(each for each in self.answers if each >= since), time.monotonic()]
        return max(after - before for before, after in itertools.pairwise(sorted(moments)))

    async def check(self, log: AsyncLogClient, *, first: int = 1) -> str:
        """All that was told, against all that is there; a summary."""
        stored = await read_all(log, first)
        check_history(self.history, stored, first=first)
        acked, reads = len(self.history.acked()), len(self.history.reads)
        return f"{acked} acked, {len(self.unknown)} unknown, {reads} reads: all right"


async def read_all(log: AsyncLogClient, first: int = 1) -> list[Stored]:
    """All records from an LSN on."""
    found: list[Stored] = []
    while True:
        records, next_lsn = await log.read(first)
        if next_lsn == first:
            return found
        found += [(record.lsn, bytes(record.payload)) for record in records]
        first = next_lsn
