"""When a write of a partition is done: the master has it as its table wants, and enough slaves too.

acks = Acks(store, ack="written", min_replicas=2)
if acks.reached < sequence:
    acks.wait(sequence, heard)          # calls back once it is reached
acks.replica_has(slave, sequence)       # whoever sends to slaves says what they have
"""

import heapq
from collections.abc import Callable
from itertools import count
from typing import TypeAlias

from raftwood.zeppelin.model import Ack, NodeId
from raftwood.zeppelin.node.seams import PartitionStore

Heard: TypeAlias = Callable[[], None]


class Acks:
    """Of one partition, on its master; `close` it when it is no longer that."""

    __slots__ = (
        "_ack",
        "_numbers",
        "_replicas",
        "_slaves_min",
        "_stop_listening",
        "_store",
        "_waiting",
        "is_immediate",
        "reached",
    )

    def __init__(self, store: PartitionStore, *, ack: Ack, min_replicas: int) -> None:
        self._store = store
        self._ack = ack
        self._slaves_min = min_replicas - 1
        self._replicas: dict[NodeId, int] = {}
        self._waiting: list[tuple[int, int, Heard]] = []
        self._numbers = count()
        self.is_immediate = ack == "memory" and min_replicas == 1
        """What is committed is done: nobody has to wait."""
        self.reached = 0
        """All up to this sequence is done."""
        self._stop_listening = store.listen(self._heard)
        self._heard()

    def wait(self, sequence: int, heard: Heard) -> None:
        """Be called once, when a sequence is reached, which it is not yet."""
        heapq.heappush(self._waiting, (sequence, next(self._numbers), heard))

    def replica_has(self, slave: NodeId, sequence: int) -> None:
        """A slave has all up to a sequence, as safely as the table wants it."""
        self._replicas[slave] = sequence
        self._heard()

    def replica_left(self, slave: NodeId) -> None:
        """It counts no more; what is done stays done."""
        self._replicas.pop(slave, None)

    def replicas_with(self, sequence: int) -> int:
        """How many slaves have all up to a sequence."""
        return sum(has >= sequence for has in self._replicas.values())

    def close(self) -> None:
        """Nobody is called any more: those who wait run out of time."""
        self._stop_listening()
        self._waiting.clear()

    def _heard(self) -> None:
        reached = self._done()
        if reached <= self.reached:
            return
        self.reached = reached
        waiting = self._waiting
        while waiting and waiting[0][0] <= reached:
            heapq.heappop(waiting)[2]()

    def _done(self) -> int:
        store = self._store
        if self._ack == "synced":
            done = store.synced_sequence
        else:
            done = store.written_sequence if self._ack == "written" else store.last_sequence
        if not self._slaves_min:
            return done
        if len(self._replicas) < self._slaves_min:
            return 0
        return min(done, sorted(self._replicas.values())[-self._slaves_min])
