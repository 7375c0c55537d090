"""Where a file's batches are stored: places that end, one after the other."""

from raftwood.clogs.client.shipping_rules import QueuedBatch, ShipBatch
from tests.kits.models import Violation

ACK, MOVED, BUSY, REFUSED, OUT_OF_ORDER = range(5)


class Storage:
    """Of one file. It keeps the promises of receivers, and finds what shippers must not do."""

    def __init__(self) -> None:
        self.place = 1
        """The one that takes batches; those before it have ended."""
        self.stored: dict[int, int] = {}
        """Each batch's place, by its sequence."""
        self.last = 0

    def take(self, action: ShipBatch) -> tuple[int, str]:
        """A batch arrives; what it is answered with."""
        sequence = action.batch.sequence
        known = self.stored.get(sequence)
        if action.batch.is_resumed:
            if known is None:
                self._store(sequence, action.entry)
            return ACK, str(self.place)
        named = int(action.place)
        if known == named:
            return ACK, str(self.place)
        if named != self.place:
            return MOVED, ""
        if known is not None:
            raise Violation(f"{action.entry.name}: batch {sequence} is stored twice")
        self._store(sequence, action.entry)
        return ACK, str(self.place)

    def _store(self, sequence: int, entry: QueuedBatch) -> None:
        if entry.is_dropped:
            raise Violation(f"{entry.name}: batch {sequence} was dropped, and is stored")
        if sequence <= self.last:
            raise Violation(f"{entry.name}: batch {sequence} is stored behind {self.last}")
        self.stored[sequence] = self.place
        self.last = sequence
