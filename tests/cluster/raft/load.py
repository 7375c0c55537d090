"""Clients that write and read all the time, and keep what they were told for the last look.

Every writer counts its commands and sends the next one when the last was answered, so that what
replicas hold of it must be its numbers, in order, each once.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence

from raftwood.base.errors import DeadlineExceeded
from raftwood.raft.remote.client import AsyncRaftClient
from tests.cluster.raft.ledger import command, count_from, count_query
from tests.cluster.raft.node import BUSY_GROUPS, QUIET_GROUP

COMMAND_BYTES = 200
_PAUSE_S = 0.004
_TIMEOUT_MS = 30_000


class Writer:
    """One client's commands to one group."""

    def __init__(self, number: int, group: int, client: AsyncRaftClient) -> None:
        self.id = number
        self.group = group
        self._client = client
        self.sent = 0
        self.acked: list[int] = []
        self.latencies: list[tuple[float, float]] = []
        """When a command was sent, and how long its answer took."""

    async def write(self) -> None:
        self.sent += 1
        number, began = self.sent, time.monotonic()
        payload = command(self.id, number, COMMAND_BYTES)
        try:
            await self._client.propose(self.group, payload, timeout_ms=_TIMEOUT_MS)
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

    def __init__(self, clients: Sequence[AsyncRaftClient], writers_each: int = 2) -> None:
        places = [
            (client, group)
            for client in clients
            for group in BUSY_GROUPS
            for _ in range(writers_each)
        ]
        self.busy = [
            Writer(number, group, client) for number, (client, group) in enumerate(places, 1)
        ]
        self.client = clients[0]
        self.quiet = Writer(len(self.busy) + 1, QUIET_GROUP, clients[0])
        # A reader belongs to another client than its writer, if there is one.
        self.readers = [
            Reader(writer, clients[-1]) for writer in self.busy[: len(BUSY_GROUPS) * writers_each]
        ][::writers_each]
        self.readers.append(Reader(self.quiet, clients[-1]))
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def writers(self) -> list[Writer]:
        return [*self.busy, self.quiet]

    async def __aenter__(self) -> "Load":
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
            last = [
                max(
                    (each.latencies[-1][0] for each in self.busy if self._is_of(each, group)),
                    default=0.0,
                )
                for group in BUSY_GROUPS
            ]
            elapsed = time.monotonic() - moment
            if min(last) > moment:
                return elapsed
            assert elapsed < within_s, f"no group may be without an answer for {elapsed:.1f} s"
            await asyncio.sleep(0.005)

    @staticmethod
    def _is_of(writer: Writer, group: int) -> bool:
        return writer.group == group and bool(writer.latencies)

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
