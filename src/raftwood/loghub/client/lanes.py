"""What a producer's rules move about: records, the batches they make, and a lane for each shard."""

from collections import deque
from typing import ClassVar

import msgspec

from raftwood.loghub.key_ranges import contains
from raftwood.loghub.model import Shard


class Record(msgspec.Struct, gc=False, eq=False):
    """One record, or several that were given as one batch and stay together.

    It is not tracked for garbage: there may be very many, and each ends with its outcome.
    """

    is_whole: ClassVar[bool] = False
    """It is a batch by itself."""
    data: bytes
    size: int
    route: str | None
    """Where its key stands among the ranges; None where it has no key."""
    shared: bytes = b""
    """What all records of a batch have alike: topic, source and tags, encoded."""
    deadline: float = 0.0
    count: int = 1


class Batch:
    """Records that are sent as one, under one sequence, for as often as it takes."""

    __slots__ = ("is_doubtful", "records", "sequence", "settled", "was_sent")

    def __init__(self, sequence: int, records: list[Record]) -> None:
        self.sequence = sequence
        self.records = records
        self.settled = 0
        """So many records at the front have run out of time, and were told so."""
        self.was_sent = False
        """Set by whoever sends it, at the first byte."""
        self.is_doubtful = False
        """An answer was lost: it may be stored."""


class Lane:
    """The records for one shard, in order."""

    __slots__ = (
        "attempts",
        "batch",
        "begin",
        "end",
        "is_sealed",
        "is_under_way",
        "log",
        "queue",
        "retry_at",
        "shard",
    )

    def __init__(self, shard: Shard) -> None:
        self.shard = shard.id
        self.log = shard.log
        """Another one where the logstore was made anew."""
        self.begin = shard.begin
        self.end = shard.end
        self.queue: deque[Record] = deque()
        self.batch: Batch | None = None
        """The one that is to be stored before all in the queue."""
        self.is_under_way = False
        """The batch was sent, and its answer is awaited."""
        self.attempts = 0
        """Failed ones since the last success."""
        self.retry_at = 0.0
        self.is_sealed = False
        """The shard takes no more; its records wait for the shards to be known."""

    def holds(self, route: str) -> bool:
        return contains(self.begin, self.end, route)
