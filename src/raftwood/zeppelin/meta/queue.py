"""`Queue`: the migrations that have not begun, those that were ordered first at its head.

There may be one for each partition, so plans look at some at a time: at the head, and where nothing
of that can begin, the next time further behind.
"""

from typing import Final

from raftwood.zeppelin.model import Partition, PartitionId

LOOKED_AT_MAX: Final = 1_000


class Queue:
    """It is told of each partition that has changed."""

    def __init__(self) -> None:
        self._orders: dict[PartitionId, tuple[int, PartitionId, str]] = {}
        """When it was ordered, and of which table."""
        self._sorted: list[tuple[int, PartitionId, str]] | None = None
        self._begin = 0

    def note(self, key: PartitionId, table: str, partition: Partition) -> None:
        if partition.migration is None or partition.is_moving:
            self.forget(key)
            return
        order = (partition.migration.plan, key, table)
        if self._orders.get(key) != order:
            self._orders[key] = order
            self._sorted = None

    def forget(self, key: PartitionId) -> None:
        if self._orders.pop(key, None) is not None:
            self._sorted = None

    def look(self) -> list[tuple[str, int]]:
        """The next to be looked at: tables, and numbers of partitions."""
        if self._sorted is None:
            self._sorted = sorted(self._orders.values())
            self._begin = 0
        looked_at = self._sorted[self._begin : self._begin + LOOKED_AT_MAX]
        self._begin += LOOKED_AT_MAX
        if self._begin >= len(self._sorted):
            self._begin = 0
        return [(table, key.number) for _, key, table in looked_at]
