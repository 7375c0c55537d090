"""Answers that wait until what they tell of is done; they go out in the order of the requests.

What one turn answered is held together, and let go together.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from raftwood.zeppelin.node.acks import Acks
from raftwood.zeppelin.resp.answers import error

ACK_S_MAX: Final = 5.0
NOT_ACKED: Final = error(
    f"NOREPLICAS Not enough good replicas to write: after {ACK_S_MAX:.0f} s the write is here, and "
    "may be lost if this node is"
)


class Held(msgspec.Struct):
    """The answers of one turn, and which of them wait for what."""

    answers: list[bytes]
    waits: list[tuple[int, Acks, int]]
    """The answer's place, who says when it is done, and up to which sequence that has to be."""
    deadline: float


class HeldAnswers:
    """Of one connection; `released` is called when the first ones may go."""

    __slots__ = ("_held", "_released", "size")

    def __init__(self, released: Callable[[], None]) -> None:
        self._held: deque[Held] = deque()
        self._released = released
        self.size = 0
        """Bytes that are held."""

    def __bool__(self) -> bool:
        return bool(self._held)

    @property
    def deadline(self) -> float:
        return self._held[0].deadline

    def hold(self, held: Held) -> None:
        self._held.append(held)
        self.size += sum(map(len, held.answers))
        if len(self._held) == 1:
            self._wait(held)

    def take(self, now: float) -> list[bytes]:
        """What may go now, because it is done or its time is over."""
        ready: list[bytes] = []
        while self._held and self._is_over(self._held[0], now):
            answers = self._held.popleft().answers
            self.size -= sum(map(len, answers))
            ready += answers
        if not self._held:
            self.size = 0
        elif ready:
            self._wait(self._held[0])
        return ready

    def clear(self) -> None:
        self._held.clear()

    def _is_over(self, held: Held, now: float) -> bool:
        if all(acks.reached >= sequence for _, acks, sequence in held.waits):
            return True
        if now < held.deadline:
            return False
        for place, acks, sequence in held.waits:
            if acks.reached < sequence:
                held.answers[place] = NOT_ACKED
        return True

    def _wait(self, held: Held) -> None:
        # The last write is mostly the last to be done: most turns wait for one thing alone.
        for _, acks, sequence in reversed(held.waits):
            if acks.reached < sequence:
                acks.wait(sequence, self._heard)
                return

    def _heard(self) -> None:
        if not self._held:
            return
        held = self._held[0]
        if all(acks.reached >= sequence for _, acks, sequence in held.waits):
            self._released()
        else:
            self._wait(held)
