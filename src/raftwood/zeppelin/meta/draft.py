"""`Draft`: a topology while one batch of changes is made to it."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from raftwood.base.errors import Conflict, NotFound
from raftwood.zeppelin.model import (
    EPOCH_NO_TABLE,
    EPOCH_NONE,
    Node,
    NodeId,
    Partition,
    Table,
    Topology,
    User,
)


class Draft:
    """Whatever is looked up and missing is refused with `NotFound`."""

    def __init__(self, topology: Topology) -> None:
        self._before = topology
        self.epoch = max(topology.epoch + 1, 1)
        """What the batch leads to. Those of partitions are above 0, which stands for none."""
        self.tables: dict[str, Table] = dict(topology.tables)
        self.nodes: dict[NodeId, Node] = dict(topology.nodes)
        self.users: dict[str, User] = dict(topology.users)
        self._opened: dict[str, list[Partition]] = {}

    def check_epoch(self, epoch: int) -> None:
        """Whether the topology is still that which was planned on; else `Conflict`."""
        if self._before.epoch != epoch:
            raise Conflict(
                f"the topology has changed: it was planned on at epoch {epoch} and is at "
                f"{self._before.epoch}; plan anew"
            )

    def table(self, name: str) -> Table:
        if name not in self.tables:
            raise NotFound(f"there is no table {name!r}: check its name")
        return self.tables[name]

    def node(self, node: NodeId) -> Node:
        if node not in self.nodes:
            raise NotFound(f"there is no node {node!r}: check its name")
        return self.nodes[node]

    def is_up(self, node: NodeId | None) -> bool:
        return node is not None and node in self.nodes and self.nodes[node].is_up

    def partition(self, table: str, number: int) -> Partition:
        self.table(table)
        count = len(self.partitions_of(table))
        if not 0 <= number < count:
            raise NotFound(f"table {table!r} has no partition {number}: give 0 to {count - 1}")
        return self.partitions_of(table)[number]

    def planned(self, table: str, number: int, epoch: int) -> Partition:
        """A partition that has not changed since it was planned on; else `Conflict`."""
        found = self.partition(table, number)
        if found.epoch != epoch:
            raise Conflict(
                f"partition {number} of table {table!r} has changed: it was planned on at epoch "
                f"{epoch} and is at {found.epoch}; plan anew"
            )
        return found

    def all_partitions(self) -> Iterator[tuple[str, int, Partition]]:
        for name in self.tables:
            for number, partition in enumerate(self.partitions_of(name)):
                yield name, number, partition

    def change(self, table: str, number: int, **fields: Any) -> None:
        """Give a partition other fields, and this epoch if that makes a difference."""
        before = self.partition(table, number)
        after = msgspec.structs.replace(before, **fields)
        if after == before:
            return
        self._opened_partitions(table)[number] = msgspec.structs.replace(after, epoch=self.epoch)

    def add_partition(self, table: str, partition: Partition) -> None:
        """One more, behind all others."""
        self._opened_partitions(table).append(partition)

    def _opened_partitions(self, table: str) -> list[Partition]:
        if table not in self._opened:
            self._opened[table] = list(self.tables[table].partitions)
        return self._opened[table]

    def add_table(self, table: Table) -> None:
        self.tables[table.name] = table

    def drop_table(self, name: str) -> None:
        del self.tables[name]
        self._opened.pop(name, None)

    def partitions_of(self, table: str) -> Sequence[Partition]:
        """All of a table that is there, by number."""
        return self._opened.get(table, self.tables[table].partitions)

    def finished(self) -> Topology:
        """The new topology; the old one itself where nothing has changed."""
        for name, partitions in self._opened.items():
            self.tables[name] = msgspec.structs.replace(
                self.tables[name], partitions=tuple(partitions)
            )
        before = self._before
        if (self.tables, self.nodes, self.users) == (before.tables, before.nodes, before.users):
            return before
        is_first = before.epoch == EPOCH_NONE and not self.tables
        return Topology(
            epoch=EPOCH_NO_TABLE if is_first else self.epoch,
            tables=self.tables,
            nodes=self.nodes,
            users=self.users,
        )
