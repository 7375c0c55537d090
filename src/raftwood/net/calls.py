"""A request as its handler on the server sees it: who asks, until when, and the way to answer."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from raftwood.base.errors import RaftwoodError
from raftwood.base.files import Buffer
from raftwood.net.deadlines import NEVER
from raftwood.net.frames import HEADER_BYTES
from raftwood.net.identity import Identity

if TYPE_CHECKING:
    from raftwood.net.session import Session


class Call:
    """One request under way. Answer it once; answers after the first, or too late, do nothing."""

    is_stream = False
    __slots__ = ("_session", "deadline", "is_urgent", "peer", "request_id", "size", "task")

    def __init__(
        self, session: "Session", peer: Identity, request_id: int, deadline: float, size: int
    ) -> None:
        self._session: Session | None = session
        self.peer = peer
        """Who asks; proved by the handshake."""
        self.request_id = request_id
        self.deadline = deadline
        """By the loop's time; infinity where the client set none."""
        self.size = size
        self.is_urgent = False
        """Whether it counts as one of those that may be begun before others."""
        self.task: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether anybody still waits: not answered, cancelled, expired or disconnected."""
        return self._session is not None

    @property
    def is_congested(self) -> bool:
        """Whether the client does not take what was answered to it so far."""
        return self._session is not None and self._session.is_congested

    def remaining_ms(self) -> int | None:
        """Until the deadline; None where the client set none."""
        if self.deadline == NEVER:
            return None
        return max(0, int((self.deadline - asyncio.get_running_loop().time()) * 1000))

    def reply(self, payload: Buffer | Sequence[Buffer] = b"") -> None:
        """Answer, with one buffer or several; those above 8 kB are sent without a copy and must not
        change any more.
        """
        session = self._session
        if session is not None:
            self._session = None
            session.answer(self, payload)

    def fail(self, error: RaftwoodError) -> None:
        """Answer with an error: its code, message and `wire_fields` travel, nothing else."""
        session = self._session
        if session is not None:
            self._session = None
            session.refuse(self, error)

    def close(self) -> None:
        """Forget the client: it cancelled, the deadline passed or the connection ended."""
        self._session = None
        if self.task is not None:
            self.task.cancel()


class StreamCall(Call):
    """A request whose answer is a stream; what the client has not asked for yet is not sent."""

    is_stream = True
    __slots__ = ("_waiter", "credit")

    def __init__(
        self, session: "Session", peer: Identity, request_id: int, deadline: float, size: int
    ) -> None:
        super().__init__(session, peer, request_id, deadline, size)
        self.credit = 0
        self._waiter: asyncio.Future[None] | None = None

    async def send(self, item: Buffer) -> None:
        """Send one item as soon as the client has room and the connection is not congested."""
        while self._session is not None and (self.credit <= 0 or self._session.is_congested):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._session is not None:
            # The header counts, so that a stream of empty items is bounded too.
            self.credit -= HEADER_BYTES + self._session.send_item(self, item)

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
