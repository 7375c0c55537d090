"""Bookies that failed lately: they are avoided for a while, and used where there is nobody else."""

from raftwood.base.environment import Clock
from raftwood.dlog.ledgers.model import BookieId

_KEPT_MAX = 1_000


class Quarantine:
    """Shared by all writers and readers of a client."""

    def __init__(self, clock: Clock, *, quarantine_ms: int) -> None:
        self._clock = clock
        self._quarantine_ns = quarantine_ms * 1_000_000
        self._until_ns: dict[BookieId, int] = {}

    def add(self, bookie: BookieId) -> None:
        """It has failed just now."""
        self._until_ns.pop(bookie, None)
        if len(self._until_ns) >= _KEPT_MAX:
            del self._until_ns[next(iter(self._until_ns))]
        self._until_ns[bookie] = self._clock.monotonic_ns() + self._quarantine_ns

    def holds(self, bookie: BookieId) -> bool:
        if not self._until_ns:
            return False
        until_ns = self._until_ns.get(bookie)
        if until_ns is None:
            return False
        if self._clock.monotonic_ns() < until_ns:
            return True
        del self._until_ns[bookie]
        return False
