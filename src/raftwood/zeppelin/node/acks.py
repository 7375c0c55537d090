"""Which writes of a partition are done, and who waits to hear that.

acks = Acks(is_immediate=False, count=lambda sequence: 0)
if acks.reached < sequence:
    acks.wait(sequence, heard)          # calls back once it is reached, or never will be
acks.reach(sequence)                    # whoever leads the partition says how far it is
"""

import heapq
from collections.abc import Callable
from itertools import count as counting
from typing import Final, TypeAlias

Heard: TypeAlias = Callable[[], None]
_LEFT_MAX: Final = 64
"""So many who have left stay in the heap, besides as many as wait."""


class Acks:
    """Of one tenure of a master: in the next one a sequence may be another record's, so that one
    has acks of its own.
    """

    __slots__ = (
        "_callers",
        "_count",
        "_numbers",
        "_waiting",
        "is_immediate",
        "is_over",
        "is_paced",
        "reached",
    )

    def __init__(self, *, is_immediate: bool, count: Callable[[int], int]) -> None:
        """`count` tells how many slaves have all up to a sequence."""
        self._count = count
        self._waiting: list[tuple[int, int]] = []
        """A heap of sequences and the numbers of those who wait, some of whom may have left."""
        self._callers: dict[int, Heard] = {}
        self._numbers = counting()
        self.is_immediate = is_immediate
        """What is committed is done: nobody has to wait."""
        self.is_paced = False
        """Answers wait for a slave, so that clients write less: they may not write on meanwhile."""
        self.is_over = False
        """The tenure has ended: what was not reached never will be."""
        self.reached = 0
        """All up to this sequence is done."""

    def wait(self, sequence: int, heard: Heard) -> int:
        """Be called once, when a sequence is reached, which it is not yet, or the tenure ends; the
        number is for `forget`.
        """
        number = next(self._numbers)
        self._callers[number] = heard
        heapq.heappush(self._waiting, (sequence, number))
        return number

    def forget(self, number: int) -> None:
        """Who waits by this number is not called any more."""
        waiting, callers = self._waiting, self._callers
        callers.pop(number, None)
        if len(waiting) > 2 * len(callers) + _LEFT_MAX:
            waiting[:] = [entry for entry in waiting if entry[1] in callers]
            heapq.heapify(waiting)

    def replicas_with(self, sequence: int) -> int:
        """How many slaves have all up to a sequence."""
        return 0 if self.is_over else self._count(sequence)

    def reach(self, sequence: int) -> None:
        """All up to a sequence is done, and that is more than before."""
        self.reached = sequence
        waiting = self._waiting
        while waiting and waiting[0][0] <= sequence:
            heard = self._callers.pop(heapq.heappop(waiting)[1], None)
            if heard is not None:
                heard()

    def end(self) -> None:
        """The tenure is over; whoever waits hears that."""
        self.is_over = True
        self._waiting.clear()
        waiting, self._callers = self._callers, {}
        for heard in waiting.values():
            heard()
