"""Clients that write and read all the time, and keep what they were told for the last look.

Every writer counts its commands and sends the next one when the last was answered, so that what
replicas hold of it must be its numbers, in order, each once.
"""

import asyncio
import itertools
import math
import statistics
import time
from collections.abc import Sequence
from typing import Self

from raftwood.base.errors import DeadlineExceeded
from raftwood.raft.client import AsyncRaftClient
from tests.kits.raft.ledger import command, count_from, count_query
from tests.kits.raft.node import BUSY_GROUPS, QUIET_GROUP

COMMAND_BYTES = 200
_PAUSE_S = 0.02
_WRITERS_EACH = 2
_TIMEOUT_MS = 30_000
_IMPATIENT_TIMEOUT_MS = 200


class Writer:
    """One client's commands to one group."""

    def __init__(
        self, number: int, group: int, client: AsyncRaftClient, *, is_patient: bool = True
    ) -> None:
        self.id = number
        self.group = group
        self.is_patient = is_patient
        """Whether it waits for every answer; else it gives some up, and may never know."""
        self._client = client
        self._timeout_ms = _TIMEOUT_MS if is_patient else _IMPATIENT_TIMEOUT_MS
        self.sent = 0
        self.acked: list[int] = []
        self.latencies: list[tuple[float, float]] = []
        """When a command was sent, and how long its answer took."""

    async def write(self) -> None:
        self.sent += 1
        number, began = self.sent, time.monotonic()
        payload = command(self.id, number, COMMAND_BYTES)
        try:
            await self._client.propose(self.group, payload, timeout_ms=self._timeout_ms)
        except DeadlineExceeded:
            return  # its outcome is unknown
        self.acked.append(number)
        self.latencies.append((began, time.monotonic() - began))

    async def keep_writing(self) -> None:
        while True:
            await self.write()
            await asyncio.sleep(_PAUSE_S)


class Reader:
    """Reads what another client writes: never less than was answered before, never less again."""

    def __init__(self, writer: Writer, client: AsyncRaftClient) -> None:
        self._writer = writer
        self._client = client
        self.reads = 0
        self._seen = 0

    async def read(self) -> None:
        least = max(self._seen, len(self._writer.acked))
        query = count_query(self._writer.id)
        answer = await self._client.read(self._writer.group, query, timeout_ms=_TIMEOUT_MS)
        self._seen = count_from(answer)
        self.reads += 1
        assert self._seen >= least, f"a read saw {self._seen} commands after {least} were told"
        assert self._seen <= self._writer.sent, "a read saw commands that nobody sent"

    async def keep_reading(self) -> None:
        while True:
            await self.read()
            await asyncio.sleep(_PAUSE_S)


class Load:
    """Use it as a context manager: it runs in between, and what goes wrong in it is raised."""

    def __init__(
        self, clients: Sequence[AsyncRaftClient], impatient: Sequence[AsyncRaftClient] = ()
    ) -> None:
        numbers = itertools.count(1)
        self.busy = [
            Writer(next(numbers), group, client, is_patient=client in clients)
            for client in (*clients, *impatient)
            for group in BUSY_GROUPS
            for _ in range(_WRITERS_EACH)
        ]
        self.client = clients[0]
        self.quiet = Writer(next(numbers), QUIET_GROUP, clients[0])
        # A reader belongs to another client than its writer, the first one's.
        written = self.busy[: len(BUSY_GROUPS) * _WRITERS_EACH : _WRITERS_EACH]
        self.readers = [Reader(writer, clients[-1]) for writer in written]
        self.readers.append(Reader(self.quiet, clients[-1]))
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def writers(self) -> list[Writer]:
        return [*self.busy, self.quiet]

    async def __aenter__(self) -> Self:
        create = asyncio.get_running_loop().create_task
        self._tasks += [create(writer.keep_writing()) for writer in self.busy]
        self._tasks += [create(reader.keep_reading()) for reader in self.readers]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    def _check(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()

    async def answered_again(self, moment: float, within_s: float) -> float:
        """Wait until all groups have answered what was sent after a moment; how long it took."""
        while True:
            self._check()
            answered = [self._first_answer(group, moment) for group in BUSY_GROUPS]
            if max(answered) < math.inf:
                return max(answered) - moment
            elapsed = time.monotonic() - moment
            assert elapsed < within_s, f"a group gave no answer for {elapsed:.1f} s"
            await asyncio.sleep(0.005)

    def _first_answer(self, group: int, moment: float) -> float:
        """When the first answer came to what was sent to a group after a moment."""
        found = math.inf
        for writer in self.busy:
            if writer.group == group:
                for began, latency in reversed(writer.latencies):
                    if began < moment:
                        break
                    found = min(found, began + latency)
        return found

    def longest_silence_s(self, since: float) -> float:
        """The longest time that some group gave no answer, from a moment until now."""
        longest = 0.0
        for group in BUSY_GROUPS:
            answered = [
                began + latency
                for writer in self.busy
                if writer.group == group
                for began, latency in writer.latencies
                if began + latency >= since
            ]
            moments = [since, *sorted(answered), time.monotonic()]
            longest = max(
                longest, *(after - before for before, after in itertools.pairwise(moments))
            )
        return longest

    async def for_a_while(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._check()

    async def write_quietly(self) -> float:
        """One command to the group that sleeps; how long it took."""
        began = time.monotonic()
        await self.quiet.write()
        return time.monotonic() - began

    def acked_count(self) -> int:
        return sum(len(each.acked) for each in self.writers)

    def median_s(self, since: float, until: float) -> float:
        """The median time to an answer among commands that were sent in a period."""
        return statistics.median(
            latency
            for each in self.busy
            for began, latency in each.latencies
            if since <= began < until
        )
