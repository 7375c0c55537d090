"""Where a new table's partitions go: replicas over failure domains, masters and replicas evenly.

Deterministic: whoever has the same topology places alike.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from operator import add
from typing import Final

from raftwood.base.errors import InvalidInput, Unavailable
from raftwood.zeppelin.model import NodeId, NodeInfo, Partition, Table, TableConfig

PLACED_MAX: Final = 1 << 18
"""Nodes by partitions of one table: all stores stand still while it is placed, for about 100 ms
where it is so many."""

_FOURTH: Final = 1 << 10
_THIRD: Final = 1 << 30
_SECOND: Final = 1 << 50
_FIRST: Final = 1 << 70
_TAKEN: Final = 1 << 80


def masters_by_node(tables: Iterable[Table]) -> "Counter[NodeId]":
    return Counter(
        each.master for table in tables for each in table.partitions if each.master is not None
    )


def place(
    config: TableConfig, *, nodes: Mapping[NodeId, NodeInfo], tables: Iterable[Table], epoch: int
) -> tuple[Partition, ...]:
    """Partitions of a new table on the nodes that are up."""
    up = {each.id: each for _, each in sorted(nodes.items()) if each.is_up and not each.is_draining}
    if len(up) < config.replicas:
        raise Unavailable(
            f"{config.replicas} replicas need as many nodes, and {len(up)} are up: start more, or "
            "ask for fewer replicas"
        )
    if len(up) * config.partitions > PLACED_MAX:
        raise InvalidInput(
            f"{config.partitions} partitions on {len(up)} nodes are more than are placed at once: "
            f"give {PLACED_MAX // len(up)} at the most"
        )
    return _Placing(up, list(tables), epoch).partitions(config)


class _Placing:
    """Nodes by number. What is compared of a node is one integer: the first criterion in its
    highest bits, and in its lowest the node's number, so that no two are equal.
    """

    def __init__(self, nodes: Mapping[NodeId, NodeInfo], tables: list[Table], epoch: int) -> None:
        self._ids = list(nodes)
        self._epoch = epoch
        masters = masters_by_node(tables)
        replicas = Counter(
            node for table in tables for each in table.partitions for node in each.replicas
        )
        numbered = list(enumerate(self._ids))
        # Each table is spread by itself first, so that none is hot on a new node.
        self._as_master = [
            masters[node] * _SECOND + replicas[node] * _FOURTH + number for number, node in numbered
        ]
        """In this table masters, then elsewhere; in this table replicas, then elsewhere."""
        self._as_slave = [replicas[node] * _FOURTH + number for number, node in numbered]
        """How many replicas are in its domain and in this table; those with the same master, so
        that the masters of a node that fails are spread, too; replicas elsewhere."""
        self._pairs: dict[int, list[int]] = {}
        domains = [each.failure_domain for each in nodes.values()]
        near = {
            domain: [_FIRST if each == domain else 0 for each in domains]
            for domain in dict.fromkeys(domains)
        }
        self._near = [near[domain] for domain in domains]
        """Of each node what those of its domain count more once it has a replica."""

    def partitions(self, config: TableConfig) -> tuple[Partition, ...]:
        return tuple(self._partition(config.replicas) for _ in range(config.partitions))

    def _partition(self, replicas: int) -> Partition:
        master = _least(self._as_master)
        pairs = self._pairs.setdefault(master, [0] * len(self._ids))
        chosen = [master]
        order = list(map(add, self._as_slave, pairs))
        while len(chosen) < replicas:
            order = list(map(add, order, self._near[chosen[-1]]))
            order[chosen[-1]] += _TAKEN
            slave = _least(order)
            pairs[slave] += _THIRD
            chosen.append(slave)
        for each in chosen:
            self._as_master[each] += _THIRD
            self._as_slave[each] += _SECOND
        self._as_master[master] += _FIRST
        first, *others = [self._ids[each] for each in chosen]
        return Partition(epoch=self._epoch, master=first, slaves=tuple(others), preferred=first)


def _least(keys: list[int]) -> int:
    return keys.index(min(keys))
