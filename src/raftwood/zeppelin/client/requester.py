"""Retries requests until they are answered, or their time is over.

A request goes to the node that has its slot. If that node answers MOVED, the request goes to the
new node at once. If the node is gone, or no node has the slot for now, the requester waits a little
and fetches the map again. A write has a name (`ONCE`), under which it is done once however often it
is sent.
"""

import asyncio
from contextlib import suppress
from typing import Any, Final

from raftwood.base.backoff import Backoff
from raftwood.base.environment import Environment
from raftwood.base.errors import DeadlineExceeded, RaftwoodError, TooLarge, Unavailable
from raftwood.zeppelin.client.connection import NodeConnection
from raftwood.zeppelin.client.errors import Moved, NotSent, RetryLater, judged
from raftwood.zeppelin.client.nodes import NodePool
from raftwood.zeppelin.resp import ErrorAnswer, request

MOVES_AT_ONCE: Final = 3
"""Redirections in a row; more mean that the nodes do not know one another's news yet."""
VALUE_BYTES_MAX: Final = 16 << 20
REQUEST_BYTES_MAX: Final = VALUE_BYTES_MAX + (128 << 10)
"""A node closes a connection that sends a larger request."""
_BACKOFF: Final = Backoff(first_ms=10, longest_ms=400)


def named(producer: str, number: int) -> bytes:
    """Encodes a name, which goes before its command."""
    return request([b"ONCE", producer.encode(), b"%d" % number])


class Attempts:
    """Counts the attempts of a request, and bounds their time."""

    def __init__(self, environment: Environment, timeout_s: float) -> None:
        self._random = environment.random
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._deadline = self._loop.time() + timeout_s
        self._failures = 0
        self._moves = 0
        self._may_be_done = False

    async def after(
        self, answer: ErrorAnswer, nodes: NodePool, seen: int, *, is_of_many: bool = False
    ) -> None:
        """Handles a refusal: waits or updates the map, so that the request may be sent again.

        For a request on many slots it updates the map first.
        """
        step = judged(answer)
        if isinstance(step, RaftwoodError):
            raise step
        if isinstance(step, Moved):
            nodes.moved(step.slot, step.address)
            self._moves += 1
            if self._moves <= MOVES_AT_ONCE and not is_of_many:
                return
            step = RetryLater(answer.text)
        self._may_be_done = self._may_be_done or step.may_be_done
        pause_s = _BACKOFF.delay_s(self._failures, self._random)
        self._failures += 1
        left_s = self._deadline - self._loop.time()
        if left_s <= pause_s:
            raise self._over(step)
        try:
            async with asyncio.timeout(left_s):
                await asyncio.sleep(pause_s if self._failures > 1 else 0)
                with suppress(Unavailable):  # no node answers now
                    await nodes.look(seen)
        except TimeoutError:
            raise self._over(step) from None

    def _over(self, step: RetryLater) -> RaftwoodError:
        message = f"not answered in {self._timeout_s:g} s, {self._failures} attempts: {step.reason}"
        if self._may_be_done:
            return DeadlineExceeded(f"{message}; it may have been done: read before you repeat it")
        return Unavailable(f"{message}; nothing was done")


class Requester:
    """Sends a client's requests."""

    def __init__(self, environment: Environment, nodes: NodePool, timeout_s: float) -> None:
        self._environment = environment
        self.nodes = nodes
        self._timeout_s = timeout_s
        self._producer = environment.random.randbytes(12).hex()
        self._number = 0

    def attempts(self) -> Attempts:
        return Attempts(self._environment, self._timeout_s)

    def name(self) -> bytes:
        """Returns a new name for a write; it goes before the command."""
        self._number += 1
        return named(self._producer, self._number)

    async def read(self, slot: int, encoded: bytes) -> Any:
        """Sends a request on one slot that changes nothing."""
        nodes = self.nodes
        link = nodes.link(nodes.place(slot, reads=True))
        answer: Any = None
        if link is not None and not link.is_full:
            answer = await link.ask(encoded)
            if not isinstance(answer, ErrorAnswer):
                return answer
        return await self._persist(slot, encoded, answer, reads=answer is None)

    async def write(self, slot: int, encoded: bytes) -> Any:
        """Sends a request on one slot that may change something, under a new name."""
        if len(encoded) > REQUEST_BYTES_MAX:
            raise TooLarge(
                f"a request of {len(encoded)} bytes: {VALUE_BYTES_MAX} of a value at most"
            )
        encoded = self.name() + encoded
        link = self.nodes.link(self.nodes.map.masters[slot])
        answer: Any = None
        if link is not None and not link.is_full:
            answer = await link.ask(encoded, before=1)
            if not isinstance(answer, ErrorAnswer):
                return answer
        return await self._persist(slot, encoded, answer, before=1)

    async def _persist(
        self, slot: int, encoded: bytes, answer: Any, *, before: int = 0, reads: bool = False
    ) -> Any:
        """Retries after a refusal, or if nothing could be sent yet.

        It asks a replica once, then the master.
        """
        attempts = self.attempts()
        nodes = self.nodes
        seen = nodes.looks
        while True:
            if answer is not None:
                await attempts.after(answer, nodes, seen)
            seen = nodes.looks
            found = await self.reach(nodes.place(slot, reads=reads))
            reads = False
            answer = found
            if isinstance(found, NodeConnection):
                answer = await found.ask(encoded, before=before)
            if not isinstance(answer, ErrorAnswer):
                return answer

    async def reach(self, address: str | None) -> NodeConnection | NotSent:
        """Returns a connection with room for a request, or the reason why there is none."""
        if self.nodes.is_closed:
            raise Unavailable("the client is closed")
        if address is None:
            return NotSent("CLUSTERDOWN nobody has the slot")
        try:
            link = await self.nodes.connected(address)
        except Unavailable as error:
            return NotSent(error.message)
        await link.room()
        return link
