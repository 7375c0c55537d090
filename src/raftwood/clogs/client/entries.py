"""What the shipping rules move about: batches on their way, and a lane for each file."""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from raftwood.base.errors import RaftwoodError
from raftwood.clogs.batches import LineBatch

if TYPE_CHECKING:
    from raftwood.clogs.client.deliveries import Delivery
    from raftwood.clogs.client.spool import Spool

Done = Callable[[RaftwoodError | None], None]
"""Told once what became of a batch: stored, or the error for which it never will be."""


class Entry:
    """One batch until it is stored or given up; its body may be on disk alone."""

    __slots__ = (
        "batch",
        "count",
        "done",
        "flushes",
        "held_bytes",
        "is_dropped",
        "is_keepable",
        "is_stored",
        "name",
        "place",
        "size",
        "spool",
        "spool_group",
        "spool_index",
        "was_sent",
    )

    def __init__(self, batch: LineBatch, done: Done, *, is_keepable: bool = True) -> None:
        self.name = batch.name
        self.batch: LineBatch | None = batch
        """None while the body is in the spool alone."""
        self.count = batch.count
        self.size = len(batch.body)
        self.done = done
        self.flushes: list[Delivery] | None = None
        """Who waits for it beside whoever gave it."""
        self.held_bytes = 0
        """What it takes of the memory that is bounded."""
        self.is_keepable = is_keepable
        """Whether it may be spooled or dropped; not where somebody else keeps the lines."""
        self.was_sent = False
        """A copy may be on its way: it can be stored at any time, and so is never dropped."""
        self.place = ""
        """Where it may be stored, and nowhere else: the place that it was sent to."""
        self.is_stored = False
        self.is_dropped = False
        self.spool: Spool | None = None
        """The one that it is in, and where."""
        self.spool_group = 0
        self.spool_index = 0


class Lane:
    """The batches of one file, in order."""

    __slots__ = (
        "attempt",
        "failures",
        "goes_on",
        "held_at",
        "in_flight",
        "is_asking",
        "last",
        "name",
        "place",
        "queue",
        "retry_at",
        "server",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.queue: deque[Entry] = deque()
        """The first one is the next to be stored."""
        self.place = ""
        """Where the receivers said that the file goes; empty: to be asked."""
        self.server = ""
        """The one that was asked or sent to last."""
        self.is_asking = False
        """Its place or its first batch's body is asked for."""
        self.in_flight: deque[Entry] = deque()
        """Sent, and not answered: the first ones of the queue, all by one attempt."""
        self.last: LineBatch | None = None
        """The last one of these."""
        self.goes_on = False
        """Whether more may follow these."""
        self.attempt = 0
        """Counts all attempts, so that a late answer is known for one."""
        self.failures = 0
        """Attempts that failed since the last success."""
        self.held_at = ""
        """The server at which it waits until fewer are under way."""
        self.retry_at = 0.0
        """It waits until then before another attempt; 0: it does not."""

    @property
    def is_under_way(self) -> bool:
        return self.is_asking or bool(self.in_flight)
