"""What a raft client keeps of its requests: commands that travel together, and its sessions."""

import asyncio

from raftwood.base.errors import RaftwoodError
from raftwood.base.futures import fail
from raftwood.raft.host.sessions import WINDOW


class Batch:
    """Commands that travel together, and who waits for them."""

    __slots__ = (
        "asked",
        "attempts",
        "commands",
        "deadline",
        "first_sequence",
        "futures",
        "session",
        "size",
    )

    def __init__(self, deadline: float) -> None:
        self.commands: list[bytes] = []
        self.futures: list[asyncio.Future[bytes]] = []
        self.size = 0
        self.deadline = deadline
        self.session = 0
        self.first_sequence = 0
        self.attempts = 0
        self.asked = 0
        """The store of the last attempt."""

    def succeed(self, results: list[bytes | RaftwoodError]) -> None:
        for future, result in zip(self.futures, results, strict=True):
            if future.done():
                continue
            if isinstance(result, bytes):
                future.set_result(result)
            else:
                fail(future, result)

    def fail(self, error: RaftwoodError) -> None:
        for future in self.futures:
            # One each: a traceback grows on an exception that several tasks raise.
            fail(future, type(error)(error.message))


class Session:
    """A client's numbers in one group."""

    __slots__ = ("freed", "next_sequence", "number", "registering", "under_way")

    def __init__(self) -> None:
        self.freed = asyncio.Event()
        self.number = 0
        self.registering: asyncio.Task[int] | None = None
        self.next_sequence = 1
        self.under_way: dict[int, None] = {}
        """First sequences of the batches that are not answered, in order."""

    @property
    def acknowledged(self) -> int:
        return next(iter(self.under_way), self.next_sequence) - 1

    async def take(self, count: int) -> int:
        """The first of so many sequences, once the group's window has room for them."""
        while self.next_sequence + count - 1 > self.acknowledged + WINDOW:
            self.freed.clear()
            await self.freed.wait()
        first = self.next_sequence
        self.next_sequence += count
        self.under_way[first] = None
        return first

    def give_back(self, first: int) -> None:
        self.under_way.pop(first, None)
        self.freed.set()
