"""What is free, and not taken by the one who should: after a while it is anybody's.

That one may hang in a call of long ago, which the lease's row no longer shows.
"""

from collections.abc import Iterable

from raftwood.loghub.consumer.leases import NOBODY
from raftwood.loghub.consumer.rules.plan import Move


class Offers:
    """As one worker sees them, in milliseconds during which it looked: nobody could take anything
    while the store was away.
    """

    def __init__(self, me: str, *, patience_ms: int) -> None:
        self._me = me
        self._patience_ms = patience_ms
        self._offered: dict[str, tuple[str, int]] = {}
        """By shard: who else should take it, and since when."""

    def planned(self, moves: Iterable[Move], looked_ms: int) -> list[Move]:
        """The moves of a plan; this worker gets what another left for too long."""
        offered, self._offered = self._offered, {}
        found = []
        for move in moves:
            if move.source == NOBODY and move.target != self._me:
                target, since_ms = offered.get(move.shard, (move.target, looked_ms))
                since_ms = since_ms if target == move.target else looked_ms
                self._offered[move.shard] = move.target, since_ms
                if looked_ms - since_ms >= self._patience_ms:
                    found.append(Move(move.shard, NOBODY, self._me))
                    continue
            found.append(move)
        return found
