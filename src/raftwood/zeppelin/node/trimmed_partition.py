"""A partition that was split: which keys are its own, and how the others are taken out."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from raftwood.zeppelin.node.overlay import Overlay
from raftwood.zeppelin.node.partition_engine import PartitionEngine
from raftwood.zeppelin.node.readable_partition import ReadablePartition
from raftwood.zeppelin.node.seams import Write
from raftwood.zeppelin.node.shares import Share
from raftwood.zeppelin.node.values import DATA_START
from raftwood.zeppelin.slots import slot_of

_PAIRS: Final = 500
"""Looked at in one turn of the loop, for keys that are another partition's."""
_TURNS: Final = 40
"""So often each time that the partition is looked after."""


class TrimmedPartition(ReadablePartition):
    """The third of `PartitionStore` that a split is about; see `shares`."""

    def __init__(self, engine: PartitionEngine, overlay: Overlay) -> None:
        super().__init__(engine, overlay)
        self._trimmed_to = DATA_START

    def own(self, share: Share | None) -> None:
        """Tell keys of these slots alone from now on, and take others out when there is time."""
        if share != self.share:
            self.share, self._trimmed_to = share, DATA_START
        if share is not None:
            self.engine.own(share.slots)

    def trim_anew(self) -> None:
        """There is another engine, or it holds something else."""
        self._trimmed_to = DATA_START
        self.own(self.share)

    def own_of(self, values: Sequence[Write]) -> Sequence[Write]:
        """Of what a master says that keys have: it does not know it of other slots."""
        share = self.share
        return [each for each in values if share is None or slot_of(each.key) in share.slots]

    async def trim(self, may_trim: Callable[[], bool]) -> None:
        """Take some of the keys out that are another partition's."""
        share, engine = self.share, self.engine
        for _ in range(_TURNS):
            if share is None or share != self.share or engine is not self.engine:
                return
            is_behind = engine.state.sequence < share.begins
            if engine.state.is_trimmed or is_behind or not may_trim():
                return
            end = engine.trim(share.slots, start=self._trimmed_to, pairs_max=_PAIRS)
            self._trimmed_to = end or DATA_START
            await asyncio.sleep(0)
