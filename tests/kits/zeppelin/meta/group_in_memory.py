"""A `MetaGroupClient` and its group of one store: commands are applied at once, and questions
wait.
"""

import asyncio

from raftwood.base.errors import RaftwoodError
from raftwood.zeppelin.meta.changes import encode_batch
from raftwood.zeppelin.meta.state_machine import MetaMachine
from raftwood.zeppelin.settings import ZeppelinMetaSettings

GROUP = 7


class Command:
    def __init__(self, index: int, payload: bytes) -> None:
        self.index, self.payload = index, payload


class GroupInMemory:
    """`term` None: somebody else leads. The clock stands still until it is moved."""

    def __init__(self) -> None:
        self.term: int | None = 1
        self.now_ms = 1_000_000
        self.machine = self.new_machine()
        self.failures: list[RaftwoodError] = []
        """What the next questions end with."""
        self.heartbeats = 0
        """Questions that came by `heartbeat`."""
        self._index = 0

    def new_machine(self) -> MetaMachine:
        return MetaMachine(
            ZeppelinMetaSettings(), now_ms=lambda: self.now_ms, term=lambda: self.term
        )

    async def propose(self, group: int, command: bytes, *, timeout_ms: int) -> bytes:
        assert group == GROUP
        assert timeout_ms > 0
        await asyncio.sleep(0)
        self._index += 1
        return self.machine.update([Command(self._index, command)])[0]

    async def read(self, group: int, query: bytes, *, timeout_ms: int, wait_ms: int = 0) -> bytes:
        assert group == GROUP
        assert timeout_ms > 0
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        if wait_ms:
            await self.machine.wait(query, wait_ms)
        answer = self.machine.lookup(query)
        if isinstance(answer, RaftwoodError):
            raise answer
        return answer

    async def heartbeat(
        self, group: int, query: bytes, *, timeout_ms: int, wait_ms: int = 0
    ) -> bytes:
        self.heartbeats += 1
        return await self.read(group, query, timeout_ms=timeout_ms, wait_ms=wait_ms)

    # As a keeper sees its host

    def groups(self) -> list[int]:
        return [GROUP]

    def is_leading(self, group: int) -> bool:
        return group == GROUP and self.term is not None

    def plan(self) -> None:
        changes = self.machine.plan()
        if changes:
            self._index += 1
            self.machine.update([Command(self._index, encode_batch(changes))])
