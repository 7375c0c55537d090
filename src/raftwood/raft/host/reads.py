"""Linearizable reads of one group: many reads share one round of confirmation.

A read that comes while a round is under way waits for the next one: the round's index was taken
before the read began, and might miss what was answered in between.
"""

import asyncio
from collections.abc import Callable

from raftwood.base.errors import RaftwoodError
from raftwood.base.futures import fail

ReadDone = Callable[[RaftwoodError | None], None]
"""Called once: when the state machine may be asked, or with the reason why not."""


def read_waiter(loop: asyncio.AbstractEventLoop) -> tuple["asyncio.Future[None]", ReadDone]:
    """A future for the moment of a read, and what ends it."""
    future: asyncio.Future[None] = loop.create_future()

    def done(error: RaftwoodError | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            fail(future, error)

    return future, done


class Reads:
    """Reads waiting for a round, in a round, and waiting for the state machine to get there."""

    __slots__ = ("_confirmed", "_in_round", "_prefix", "_round", "_round_ticks", "waiting")

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        """Unique to this start of this store: an answer to an older question must not fit."""
        self.waiting: list[ReadDone] = []
        self._in_round: list[ReadDone] = []
        self._confirmed: list[tuple[int, list[ReadDone]]] = []
        self._round = 0
        self._round_ticks = 0

    def __len__(self) -> int:
        confirmed = sum(len(dones) for _, dones in self._confirmed)
        return len(self.waiting) + len(self._in_round) + confirmed

    def add(self, done: ReadDone) -> None:
        self.waiting.append(done)

    def next_round(self) -> bytes | None:
        """The context of a round to begin now; None if one is under way or nobody waits."""
        if self._in_round or not self.waiting:
            return None
        self._in_round, self.waiting = self.waiting, []
        self._round += 1
        self._round_ticks = 0
        return self._context()

    def _context(self) -> bytes:
        return self._prefix + self._round.to_bytes(8, "little")

    def tick(self, round_ticks_max: int) -> None:
        """Give up a round that was not answered: a message was lost, or there is no leader."""
        if not self._in_round:
            return
        self._round_ticks += 1
        if self._round_ticks > round_ticks_max:
            # The reads go first into the next round, with a context of its own.
            self.waiting = self._in_round + self.waiting
            self._in_round = []

    def confirmed(self, context: bytes, index: int) -> None:
        """A round was answered: its reads may be served once an index is applied."""
        if self._in_round and context == self._context():
            self._confirmed.append((index, self._in_round))
            self._in_round = []

    def applied(self, index: int) -> None:
        """Serve what waited for the state machine."""
        if not self._confirmed:
            return
        ready = [dones for needed, dones in self._confirmed if needed <= index]
        self._confirmed = [each for each in self._confirmed if each[0] > index]
        for dones in ready:
            for done in dones:
                done(None)

    def refuse_all(self, error: RaftwoodError) -> None:
        dones = self.waiting + self._in_round
        for _, group in self._confirmed:
            dones += group
        self.waiting, self._in_round, self._confirmed = [], [], []
        for done in dones:
            done(error)
