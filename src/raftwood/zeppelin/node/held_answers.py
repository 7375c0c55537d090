"""Answers that wait until what they tell of is done; they go out in the order of the requests.

A write's answer waits for its record, and a read's for the record that wrote what it read, where
the table's reads are durable. What one turn answered is held together, and let go together.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from raftwood.zeppelin.node.acks import Acks
from raftwood.zeppelin.resp.answers import error

ACK_S_MAX: Final = 5.0
NOT_ACKED: Final = error(
    f"NOREPLICAS Not enough good replicas to write: after {ACK_S_MAX:.0f} s the write is here, and "
    "may be lost if this node is"
)
TENURE_OVER: Final = error(
    "NOREPLICAS Not enough good replicas to write: this node is no longer the master, and the "
    "write may be lost"
)
NOT_DURABLE: Final = error(
    f"NOREPLICAS Not enough good replicas to read: after {ACK_S_MAX:.0f} s what was written here "
    "last may still be lost; ask again, or let the table read the latest"
)
READ_AGAIN: Final = error(
    "TRYAGAIN this node is no longer the master, and what it has read may be lost: read again"
)

Wait: TypeAlias = tuple[int, Acks, int, bool]
"""The answer's place, who says when it is done, up to which sequence that has to be, and whether it
tells what was read alone: then the client is told to read again if it is not done."""


class Held(msgspec.Struct):
    """The answers of one turn, and which of them wait for what."""

    answers: list[bytes]
    waits: list[Wait]
    deadline: float


class HeldAnswers:
    """Of one connection; `released` is called when the first ones may go."""

    __slots__ = ("_held", "_released", "_waits_at", "count", "size")

    def __init__(self, released: Callable[[], None]) -> None:
        self._held: deque[Held] = deque()
        self._released = released
        self._waits_at: tuple[Acks, int] | None = None
        """Who calls, and by which number."""
        self.count = 0
        """Answers that are held."""
        self.size = 0
        """Their bytes."""

    def __bool__(self) -> bool:
        return bool(self._held)

    @property
    def is_paced(self) -> bool:
        """Whether the client is to write less: it may not go on before it has an answer."""
        return self._waits_at is not None and self._waits_at[0].is_paced

    @property
    def deadline(self) -> float:
        return self._held[0].deadline

    def hold(self, held: Held) -> None:
        self._held.append(held)
        self.count += len(held.answers)
        self.size += sum(map(len, held.answers))
        if len(self._held) == 1:
            self._wait(held)

    def take(self, now: float) -> list[bytes]:
        """What may go now, because it is done or its time is over."""
        ready: list[bytes] = []
        while self._held and self._is_over(self._held[0], now):
            answers = self._held.popleft().answers
            self.count -= len(answers)
            self.size -= sum(map(len, answers))
            ready += answers
        if ready:
            self._forget()
        if not self._held:
            self.count = self.size = 0
        elif ready:
            self._wait(self._held[0])
        return ready

    def clear(self) -> None:
        """The client has left."""
        self._held.clear()
        self._forget()

    def _forget(self) -> None:
        if self._waits_at is not None:
            acks, number = self._waits_at
            acks.forget(number)
            self._waits_at = None

    def _is_over(self, held: Held, now: float) -> bool:
        if now < held.deadline and _awaited(held) is not None:
            return False
        for place, acks, sequence, is_read in held.waits:
            if acks.reached < sequence:
                held.answers[place] = _refusal(acks, is_read=is_read)
        return True

    def _wait(self, held: Held) -> None:
        awaited = _awaited(held)
        if awaited is None:
            self._released()
        else:
            acks, sequence = awaited
            self._waits_at = (acks, acks.wait(sequence, self._heard))

    def _heard(self) -> None:
        self._waits_at = None
        if self._held:
            self._wait(self._held[0])


def _refusal(acks: Acks, *, is_read: bool) -> bytes:
    if is_read:
        return READ_AGAIN if acks.is_over else NOT_DURABLE
    return TENURE_OVER if acks.is_over else NOT_ACKED


def are_done(waits: list[Wait]) -> bool:
    """Whether nothing has to be waited for."""
    # A loop: a generator would cost more than all of it.
    for _, acks, sequence, _ in waits:  # noqa: SIM110
        if acks.reached < sequence:
            return False
    return True


def _awaited(held: Held) -> tuple[Acks, int] | None:
    """Something that is not done and may still be; None: there is nothing to wait for."""
    # The last write is mostly the last to be done: most turns wait for one thing alone.
    for _, acks, sequence, _ in reversed(held.waits):
        if acks.reached < sequence and not acks.is_over:
            return acks, sequence
    return None
