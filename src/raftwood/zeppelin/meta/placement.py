"""Places a new table's partitions: replicas over failure domains, masters and replicas evenly.

Deterministic: every store of the meta server computes the same placement.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from operator import add
from typing import Final

from raftwood.base.errors import InvalidInput, Unavailable
from raftwood.zeppelin.model import NodeId, NodeInfo, Partition, Table, TableConfig

PLACED_MAX: Final = 1 << 18
"""Bound on nodes times partitions of a table; placing so many blocks all stores for 100 ms."""

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
    """Places the partitions of a new table on the nodes that are up."""
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
    """Nodes by number. The rank of a node is one integer: the first criterion in its highest bits,
    the node's number in its lowest, so that no two are equal.
    """

    def __init__(self, nodes: Mapping[NodeId, NodeInfo], tables: list[Table], epoch: int) -> None:
        self._ids = list(nodes)
        self._epoch = epoch
        masters = masters_by_node(tables)
        replicas = Counter(
            node for table in tables for each in table.partitions for node in each.replicas
        )
        numbered = list(enumerate(self._ids))
        # Each table spreads by itself first, so that a new node does not get the whole load of a
        # new table.
        self._as_master = [
            masters[node] * _SECOND + replicas[node] * _FOURTH + number for number, node in numbered
        ]
        """Masters in this table, then elsewhere; replicas in this table, then elsewhere."""
        self._as_slave = [replicas[node] * _FOURTH + number for number, node in numbered]
        """Replicas of this table in its domain; those with the same master, so that the masters of
        a failed node spread too; replicas elsewhere."""
        self._pairs: dict[int, list[int]] = {}
        domains = [each.failure_domain for each in nodes.values()]
        near = {
            domain: [_FIRST if each == domain else 0 for each in domains]
            for domain in dict.fromkeys(domains)
        }
        self._near = [near[domain] for domain in domains]
        """For each node: what the ranks of its domain grow by once it gets a replica."""

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
