"""What the truncation worker does next for one shard. No I/O.

A snapshot taken where the state machine stands must not hide what a user may still read. So the
snapshots that are taken regularly are hidden, and the largest one at or below what may be freed
becomes the visible one, up to which the log is cut.
"""

from collections.abc import Sequence

import msgspec


class TruncationStep(msgspec.Struct, frozen=True):
    """In this order."""

    visible: int | None
    """The snapshot to make visible; None where there is none yet."""
    dropped: tuple[int, ...]
    """Hidden snapshots that are thinned out."""
    takes_snapshot: bool


def next_step(
    snapshots: Sequence[int],
    *,
    applied: int,
    freeable: int,
    entries_between: int,
    kept_max: int,
) -> TruncationStep:
    """`snapshots` are the shard's, in order; `freeable` is the last index that need not be kept."""
    newest = snapshots[-1] if snapshots else 0
    takes_snapshot = applied - newest >= entries_between
    below = [index for index in snapshots if index <= freeable]
    visible = below[-1] if below else None
    kept = [index for index in snapshots if visible is None or index >= visible]
    return TruncationStep(visible, _thinned(kept, kept_max), takes_snapshot)


def _thinned(snapshots: list[int], kept_max: int) -> tuple[int, ...]:
    """Those whose neighbours are closest to one another; never the first nor the last."""
    kept = list(snapshots)
    dropped = []
    while len(kept) > max(2, kept_max):
        closest = min(range(1, len(kept) - 1), key=lambda place: kept[place + 1] - kept[place - 1])
        dropped.append(kept.pop(closest))
    return tuple(dropped)
