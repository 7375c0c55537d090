"""`CatchUp`: whether a slave that its master streams to will ever be where its master is."""

import msgspec

from raftwood.zeppelin.model import NodeId


class CatchUp(msgspec.Struct):
    """How the lag of a migration's target goes down, in equal spans of time. What counts is the
    least of each span: what is told goes up and down with each answer.
    """

    target: NodeId
    master_epoch: int
    """It follows the master of this epoch: how far it was behind another says nothing."""
    began_ms: int
    """This span."""
    least: int | None = None
    least_before: int | None = None
    """In the span before this one."""

    def tell(self, lag_bytes: int, *, after_ms: int) -> None:
        """`after_ms` as in `Heard`: what may be from before the span says nothing of it."""
        if after_ms >= self.began_ms:
            self.least = lag_bytes if self.least is None else min(self.least, lag_bytes)

    def is_failing(self, *, now_ms: int, span_ms: int, catch_up_ms_max: int) -> bool:
        """True at the end of a span that brought so little that the rest would take too long."""
        if now_ms - self.began_ms < span_ms:
            return False
        least, before = self.least, self.least_before
        self.began_ms, self.least, self.least_before = now_ms, None, least
        if least is None or before is None:
            return False
        return (before - least) * catch_up_ms_max < least * span_ms
