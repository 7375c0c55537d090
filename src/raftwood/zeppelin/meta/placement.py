"""Where a new table's partitions go: replicas over failure domains, masters and replicas evenly.

Deterministic: whoever has the same topology places alike.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from raftwood.base.errors import Unavailable
from raftwood.zeppelin.model import Node, NodeId, Partition, Table, TableConfig


def masters_by_node(tables: Iterable[Table]) -> "Counter[NodeId]":
    return Counter(
        each.master for table in tables for each in table.partitions if each.master is not None
    )


def place(
    config: TableConfig, *, nodes: Mapping[NodeId, Node], tables: Iterable[Table], epoch: int
) -> tuple[Partition, ...]:
    """Partitions of a new table on the nodes that are up."""
    up = {each.id: each for _, each in sorted(nodes.items()) if each.is_up}
    if len(up) < config.replicas:
        raise Unavailable(
            f"{config.replicas} replicas need as many nodes, and {len(up)} are up: start more, or "
            "ask for fewer replicas"
        )
    return _Placing(up, list(tables), epoch).partitions(config)


class _Placing:
    def __init__(self, nodes: Mapping[NodeId, Node], tables: list[Table], epoch: int) -> None:
        self._nodes = nodes
        self._epoch = epoch
        self._masters_here: Counter[NodeId] = Counter()
        """Of the new table: each table is spread by itself, so that none is hot on a new node."""
        self._replicas_here: Counter[NodeId] = Counter()
        self._masters = masters_by_node(tables)
        self._replicas = Counter(
            node for table in tables for each in table.partitions for node in each.replicas
        )
        self._pairs: Counter[tuple[NodeId, NodeId]] = Counter()
        """Master and slave: where they are spread, so are the masters of a node that fails."""

    def partitions(self, config: TableConfig) -> tuple[Partition, ...]:
        return tuple(self._partition(config.replicas) for _ in range(config.partitions))

    def _partition(self, replicas: int) -> Partition:
        master = min(self._nodes, key=self._master_order)
        self._masters_here[master] += 1
        chosen = [master]
        domains = Counter([self._nodes[master].failure_domain])
        while len(chosen) < replicas:
            free = [each for each in self._nodes if each not in chosen]
            slave = min(free, key=lambda each: self._slave_order(each, master, domains))
            chosen.append(slave)
            domains[self._nodes[slave].failure_domain] += 1
            self._pairs[master, slave] += 1
        self._replicas_here.update(chosen)
        return Partition(
            epoch=self._epoch, master=master, slaves=tuple(chosen[1:]), preferred=master
        )

    def _master_order(self, node: NodeId) -> tuple[int, int, int, int, NodeId]:
        here, replicas = self._masters_here[node], self._replicas_here[node]
        elsewhere = self._masters[node]
        return here, elsewhere, replicas, self._replicas[node], node

    def _slave_order(
        self, node: NodeId, master: NodeId, domains: "Counter[str]"
    ) -> tuple[int, int, int, int, NodeId]:
        return (
            domains[self._nodes[node].failure_domain],
            self._replicas_here[node],
            self._pairs[master, node],
            self._replicas[node],
            node,
        )
