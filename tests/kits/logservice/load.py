"""Clients that append and read all the time; what they were told is checked at the end.

Writers keep several records under way, so that order within a client matters. Readers follow the
log from its beginning, and look now and then at what is there already.
"""

import asyncio
import itertools
import random
import time
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Self

from raftwood.base.errors import RaftwoodError
from raftwood.logservice.client.log_client import AsyncLogClient
from raftwood.logservice.errors import LsnTruncated
from raftwood.logservice.records import Record
from raftwood.testing import Event
from tests.kits.logservice.processes import WAIT_S_MAX, LogNode
from tests.kits.logservice.simulation.records import LOG, Notebook
from tests.kits.logservice.simulation.workload import read_output, text_of

UNDER_WAY = 8
_PAUSE_S = 0.02
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
        self.notebook = Notebook(time.monotonic)
        self.unknown: list[RaftwoodError] = []
        """Why appends were given up."""
        self._writers = writers
        self._readers = readers
        self._record_bytes = record_bytes
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        create = asyncio.get_running_loop().create_task
        self._tasks += [create(self._write(f"w{n}", log)) for n, log in enumerate(self._writers)]
        self._tasks += [create(self._follow(f"r{n}", log)) for n, log in enumerate(self._readers)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    async def _write(self, name: str, log: AsyncLogClient) -> None:
        under_way = asyncio.Semaphore(UNDER_WAY)
        futures: dict[asyncio.Future[int], None] = {}

        def settle(event: Event, future: "asyncio.Future[int]") -> None:
            del futures[future]
            under_way.release()
            self._note(event, future)

        try:
            for number in itertools.count():
                await under_way.acquire()
                text = f"{name}-{number}"
                event = self.notebook.history.call(name, "append", text, key=LOG)
                future = log.append_soon(text.ljust(self._record_bytes, "~").encode())
                futures[future] = None
                future.add_done_callback(partial(settle, event))
                await asyncio.sleep(_PAUSE_S)
        finally:
            # What becomes of them is known at the end, so that the last look finds no late ones.
            await asyncio.gather(*futures, return_exceptions=True)

    def _note(self, event: Event, future: "asyncio.Future[int]") -> None:
        error = future.exception()
        if error is None:
            self.notebook.history.finish(event, "ok", future.result())
        elif isinstance(error, RaftwoodError):
            # Also a refusal may have come after an attempt that nobody answered.
            self.unknown.append(error)
        else:
            raise error

    async def _follow(self, name: str, log: AsyncLogClient) -> None:
        first = 1
        while True:
            first = await self._read(name, log, first, wait_ms=_WAIT_MS)
            await self._read(name, log, random.randint(1, first), bytes_max=_LOOK_BYTES)
            await asyncio.sleep(_PAUSE_S)

    async def _read(self, name: str, log: AsyncLogClient, first: int, **options: Any) -> int:
        event = self.notebook.history.call(name, "read", first, key=LOG)
        try:
            records, next_lsn = await log.read(first, **options)
        except RaftwoodError as error:
            self.notebook.history.finish(event, "failed")
            if not isinstance(error, LsnTruncated):
                return first
            self.notebook.told_truncated(first, error.first)
            return error.first
        is_complete = next_lsn == first
        self.notebook.history.finish(event, "ok", read_output(records, next_lsn, is_complete))
        return next_lsn

    # Questions

    async def goes_on(self, *, within_s: float = WAIT_S_MAX, records: int = 20) -> float:
        """Wait until more was acknowledged that was asked from now on; how long it took."""
        began = time.monotonic()
        while True:
            for task in self._tasks:
                if task.done():
                    task.result()
            later = [each for each in self._acked() if each.called > began]
            if len(later) >= records:
                return time.monotonic() - began
            waited = time.monotonic() - began
            assert waited < within_s, f"no append was acknowledged within {waited:.1f} s"
            await asyncio.sleep(0.02)

    def _acked(self) -> list[Event]:
        events = self.notebook.history.events
        return [each for each in events if each.operation == "append" and each.outcome == "ok"]

    def longest_silence_s(self, since: float) -> float:
        """The longest time without an acknowledgement, from a moment until now."""
        answered = [each.returned for each in self._acked() if each.returned is not None]
        moments = [since, *(each for each in answered if each >= since), time.monotonic()]
        return max(after - before for before, after in itertools.pairwise(sorted(moments)))

    async def truncate(self, log: AsyncLogClient, lsn: int) -> None:
        cut = self.notebook.cut_begins(lsn)
        await log.truncate(lsn)
        self.notebook.cut_acked(cut)

    async def check(self, log: AsyncLogClient) -> str:
        """All that was told, against all that is there; a summary."""
        first = (await log.info()).log.first_lsn
        stored = [(record.lsn, text_of(record)) for record in await read_all(log, first)]
        self.notebook.check(stored, first_lsn=first)
        reads = sum(each.operation == "read" for each in self.notebook.history.events)
        acked, unknown = len(self._acked()), len(self.unknown)
        return f"{acked} appends acked, {unknown} unknown, {reads} reads: all right"


async def cut_log(log: AsyncLogClient, nodes: Collection[LogNode]) -> list[int]:
    """Append and truncate until stores have cut away what came first; the LSNs that are kept.

    Where a store takes its snapshots is chance, and a log is cut at snapshots alone: a slow store
    may need many rounds.
    """
    lsns = await log.append_many([b"the first"] * 20)
    deadline = time.monotonic() + WAIT_S_MAX
    while uncut := [node.store for node in nodes if node.log_cut(log.config.shard) < lsns[0]]:
        assert time.monotonic() < deadline, f"stores {uncut} do not cut the log at {lsns[0]}"
        lsns += await log.append_many([b"a record"] * 20)
        await log.truncate(lsns[-10])
        await asyncio.sleep(0.05)
    return lsns[-9:]


async def read_all(log: AsyncLogClient, first: int = 1) -> list[Record]:
    """All records from an LSN on."""
    found: list[Record] = []
    while True:
        records, next_lsn = await log.read(first)
        if next_lsn == first:
            return found
        found += records
        first = next_lsn
