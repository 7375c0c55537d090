"""`RaftMetaStore`: the client of a metastore that a raft group keeps.

A watch repeats a query that waits at the leader's store for a change.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Protocol

from raftwood.base.errors import InvalidInput, RaftwoodError, ShuttingDown
from raftwood.base.seams import KeyChange, KeyEntry, KeyRange, MetaStatus, Versioned
from raftwood.metastore import commands, queries
from raftwood.metastore.command_store import CommandWriter
from raftwood.metastore.commands import TTL_MS_MAX, Command
from raftwood.metastore.queries import AnswerType, Query
from raftwood.metastore.state_machine import STEP_MS_MAX, encode_command

WAIT_MS = 5_000
"""How long a watch's query waits at the store."""
PAUSE_MS_MIN = 5
"""Pause between two queries of a watch, so that many changes arrive together."""
PAUSE_MS_MAX = 500
CHANGES_MAX = 1000
FAILURES_MAX = 10
"""How often in a row a watch retries while the group does not answer."""
TIMEOUT_MS = 10_000
_TTL_MS_MAX = TTL_MS_MAX - STEP_MS_MAX


class GroupClient(Protocol):
    """Finds a group's leader and sends it commands and queries."""

    def propose(self, group: int, command: bytes, *, timeout_ms: int) -> Awaitable[bytes]:
        """Returns the result of a command, which is applied exactly once."""
        ...

    def renew(self, group: int, command: bytes, *, timeout_ms: int) -> Awaitable[bytes]:
        """Returns the result of a command that may be applied twice; it goes ahead of others."""
        ...

    def read(
        self, group: int, query: bytes, *, timeout_ms: int, wait_ms: int = 0
    ) -> Awaitable[bytes]:
        """Answers from a state that includes everything answered to any client before the call.

        A query for changes waits until there are some, or for `wait_ms`.
        """
        ...


class RaftMetaStore(CommandWriter):
    """A `MetaStore`; the caller keeps and closes the client."""

    def __init__(self, client: GroupClient, group: int, *, timeout_ms: int = TIMEOUT_MS) -> None:
        self._client = client
        self._group = group
        self._timeout_ms = timeout_ms
        self._closed = asyncio.Event()

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise self._shut()

    def _shut(self) -> ShuttingDown:
        return ShuttingDown(f"the metastore of group {self._group} is closed")

    async def _execute(self, command: Command) -> bytes:
        self._check_open()
        commands.check_command(command)
        return await self._client.propose(
            self._group, encode_command(command), timeout_ms=self._timeout_ms
        )

    async def _ask(
        self, query: Query, expected: type[AnswerType], *, wait_ms: int = 0
    ) -> AnswerType:
        self._check_open()
        data = await self._client.read(
            self._group,
            queries.encode_query(query),
            timeout_ms=self._timeout_ms,
            wait_ms=wait_ms,
        )
        return queries.decode_answer(data, expected)

    async def get(self, key: str) -> Versioned | None:
        return (await self._ask(queries.GetQuery(key), queries.GetAnswer)).value

    async def range(
        self, *, prefix: str = "", start: str = "", end: str | None = None, limit: int = 1000
    ) -> KeyRange:
        """Reads a large range in parts: later parts may show changes after its version."""
        entries: list[KeyEntry] = []
        version: int | None = None
        while True:
            query = queries.RangeQuery(prefix, start, end, limit - len(entries))
            part = (await self._ask(query, queries.RangeAnswer)).range
            entries += part.entries
            # The first part's version, so that a watch after it reports what the later parts
            # missed.
            version = part.version if version is None else version
            if part.next_start is None or len(entries) >= limit:
                return KeyRange(tuple(entries), version, part.next_start)
            start = part.next_start

    async def grant_lease(self, *, ttl_ms: int) -> int:
        if not 1 <= ttl_ms <= _TTL_MS_MAX:
            raise InvalidInput(f"a lease of {ttl_ms} ms: give 1 to {_TTL_MS_MAX}")
        # Right after this, the group's time may take a step that began long before.
        return await super().grant_lease(ttl_ms=ttl_ms + STEP_MS_MAX)

    async def keep_alive(self, lease: int) -> None:
        # Outside any session: a renewal must not wait for transactions, and repeating it does no
        # harm.
        self._check_open()
        command = encode_command(commands.KeepAlive(lease))
        result = await self._client.renew(self._group, command, timeout_ms=self._timeout_ms)
        commands.decode_result(result)

    async def watch(
        self, prefix: str, *, after_version: int
    ) -> AsyncIterator[tuple[KeyChange, ...]]:
        pause_ms, failures = PAUSE_MS_MIN, 0
        loop = asyncio.get_running_loop()
        while True:
            query = queries.ChangesQuery(prefix, after_version, CHANGES_MAX)
            began = loop.time()
            try:
                found = await self._wait_for_changes(query)
            except RaftwoodError as error:
                failures += 1
                if not error.retriable or failures >= FAILURES_MAX:
                    raise
            else:
                failures = 0
                for changes in found.changes:
                    yield changes
                after_version = found.version
                # A store with too many waiting queries answers at once that nothing changed.
                if found.changes or loop.time() - began > WAIT_MS / 2000:
                    pause_ms = PAUSE_MS_MIN
            await self._pause(pause_ms)
            pause_ms = min(2 * pause_ms, PAUSE_MS_MAX)

    async def _wait_for_changes(self, query: queries.ChangesQuery) -> queries.ChangesAnswer:
        """Returns the answer; raises `ShuttingDown` as soon as the store is closed."""
        asking = asyncio.create_task(self._ask(query, queries.ChangesAnswer, wait_ms=WAIT_MS))
        closing = asyncio.create_task(self._closed.wait())
        try:
            await asyncio.wait((asking, closing), return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
        finally:
            asking.cancel()
            closing.cancel()
            await asyncio.gather(asking, closing, return_exceptions=True)
        raise self._shut()

    async def _pause(self, pause_ms: int) -> None:
        """Waits; raises `ShuttingDown` as soon as the store is closed."""
        try:
            async with asyncio.timeout(pause_ms / 1000):
                await self._closed.wait()
        except TimeoutError:
            return
        self._check_open()

    async def status(self) -> MetaStatus:
        return (await self._ask(queries.DescribeQuery(), queries.DescribeAnswer)).status

    async def close(self) -> None:
        self._closed.set()
