"""A group of metastore replicas without raft: one log in memory, with all that sessions forgive.

Commands are logged twice now and then, and answered late; each replica applies the log in batches
of its own, and one of them is restored from its snapshot again and again.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

from raftwood.base.errors import DeadlineExceeded, NotLeader, RaftwoodError
from raftwood.metastore.state_machine import LeaseTicker, MetaStateMachine
from raftwood.raft import sessions
from raftwood.raft.core import Entry, EntryKind
from raftwood.raft.sessions import SessionTable

GROUP = 7
_PAUSE_S = 0.02


class Files:
    """No file goes with these snapshots."""

    def add(self, name: str, path: str) -> None:
        raise AssertionError(f"{name}: {path}")


async def recover(
    machine: MetaStateMachine, chunks: Sequence[bytes], *, stopped: bool = False
) -> None:
    async def stream() -> AsyncGenerator[bytes, None]:
        for chunk in chunks:
            yield chunk

    async with aclosing(stream()) as source:
        await machine.recover_from_snapshot(source, {}, lambda: stopped)


async def copied(machine: MetaStateMachine) -> MetaStateMachine:
    """What another replica becomes by a snapshot of this one."""
    copy = MetaStateMachine()
    await recover(copy, list(machine.save_snapshot(Files(), lambda: False)))
    return copy


class Replica:
    def __init__(self) -> None:
        self.machine = MetaStateMachine()
        self.sessions = SessionTable()

    def apply(self, entries: list[Entry]) -> Sequence[Any]:
        commands, plan = self.sessions.prepare(entries)
        return self.sessions.finish(plan, self.machine.update(commands))

    def stored(self) -> list[bytes]:
        return [self.sessions.encoded(), *self.machine.save_snapshot(Files(), lambda: False)]

    async def restore(self) -> None:
        self.sessions = SessionTable.decoded(self.sessions.encoded())
        self.machine = await copied(self.machine)


class GroupInMemory:
    """A `GroupClient`, and the group."""

    def __init__(self, seed: int = 1) -> None:
        self._rng = random.Random(seed)
        self.leader, self.follower = Replica(), Replica()
        self._behind: list[Entry] = []
        self._index = 0
        self._sequence = 0
        self._waiting: dict[int, None] = {}
        self.renewals = 0
        """Commands that came by `renew`."""
        self.failures = 0
        """How many of the next reads find no leader."""
        answer = self.log(sessions.encode_register(bytes(16), sessions_max=1))
        self._session = sessions.decode_session(answer)

    def log(self, payload: bytes, kind: EntryKind = EntryKind.CONTROL) -> Any:
        """Append an entry and apply it where the group is led."""
        self._index += 1
        entry = Entry(1, self._index, kind, payload)
        self._behind.append(entry)
        return self.leader.apply([entry])[0]

    async def propose(self, group: int, command: bytes, *, timeout_ms: int) -> bytes:
        assert group == GROUP
        assert timeout_ms > 0
        self._sequence += 1
        sequence = self._sequence
        self._waiting[sequence] = None
        await asyncio.sleep(self._rng.random() * 0.002)
        answers = []
        for _ in range(self._rng.choice([1, 1, 2, 3])):
            acknowledged = min(self._waiting) - 1
            answers.append(
                self.log(
                    sessions.encode_command(
                        command,
                        session=self._session,
                        sequence=sequence,
                        acknowledged=acknowledged,
                    )
                )
            )
            await asyncio.sleep(self._rng.random() * 0.002)
        del self._waiting[sequence]
        assert all(answer == answers[0] for answer in answers)
        if isinstance(answers[0], RaftwoodError):
            raise answers[0]
        result: bytes = answers[0]
        return result

    async def renew(self, group: int, command: bytes, *, timeout_ms: int) -> bytes:
        self.renewals += 1
        return await self.propose(group, command, timeout_ms=timeout_ms)

    async def read(self, group: int, query: bytes, *, timeout_ms: int, wait_ms: int = 0) -> bytes:
        assert group == GROUP
        assert timeout_ms > 0
        if wait_ms and self._rng.random() < 0.9:  # else as where too many wait
            await self.leader.machine.wait(query, wait_ms)
        await asyncio.sleep(self._rng.random() * 0.002)
        if self.failures:
            self.failures -= 1
            raise self._rng.choice([NotLeader, DeadlineExceeded])("nobody leads")
        self.follower.apply(self._behind)
        self._behind = []
        if self._rng.random() < 0.2:
            await self.follower.restore()
            self.follower.apply(self._behind)
            self._behind = []
        answer = self.leader.machine.lookup(query)
        assert answer == self.follower.machine.lookup(query)
        assert self.leader.stored() == self.follower.stored()
        return answer

    @asynccontextmanager
    async def ticking(self, tickers: int = 1) -> AsyncIterator[None]:
        """Let stores that take themselves for the leader propose that time goes on."""
        tasks = [asyncio.create_task(self._tick()) for _ in range(tickers)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def _tick(self) -> None:
        ticker, loop = LeaseTicker(self.leader.machine), asyncio.get_running_loop()
        while True:
            command = ticker.due(int(loop.time() * 1000))
            if command is not None:
                await asyncio.sleep(self._rng.random() * 0.05)
                self.log(command, EntryKind.NORMAL)
            await asyncio.sleep(_PAUSE_S)
