"""`View`: what a leader sees when it plans: the topology, what it heard, and the time."""

from functools import cached_property

import msgspec

from raftwood.zeppelin.meta.heard import Heard, Offset, Reign, Seen
from raftwood.zeppelin.meta.placement import masters_by_node
from raftwood.zeppelin.meta.settings import ZeppelinMetaSettings
from raftwood.zeppelin.model import NodeId, Partition, PartitionId, Table, Topology


class Place(msgspec.Struct, frozen=True):
    """A partition, and which one it is."""

    table: Table
    number: int

    @property
    def partition(self) -> Partition:
        return self.table.partitions[self.number]

    @property
    def key(self) -> PartitionId:
        return PartitionId(self.table.incarnation, self.number)


class View:
    """At one moment, for one plan."""

    def __init__(
        self, topology: Topology, reign: Reign, settings: ZeppelinMetaSettings, now_ms: int
    ) -> None:
        self.topology = topology
        self.reign = reign
        self.settings = settings
        self.now_ms = now_ms
        silent = {node for node in topology.nodes if self._is_silent(node)}
        self.downs = [
            node for node, known in topology.nodes.items() if known.is_up and node in silent
        ]
        self.ups = [
            node
            for node, known in topology.nodes.items()
            if not known.is_up and node not in silent and reign.nodes[node].is_heard
        ]
        self._up = {
            node
            for node, known in topology.nodes.items()
            if node not in silent and (known.is_up or node in self.ups)
        }

    def _is_silent(self, node: NodeId) -> bool:
        is_condemned = node in self.reign.condemned
        return is_condemned or self.now_ms - self.heard(node).at_ms >= self.settings.down_ms

    def is_up(self, node: NodeId | None) -> bool:
        """As the plan will have it."""
        return node in self._up

    def is_leaving(self, node: NodeId | None) -> bool:
        return node is not None and self.heard(node).is_leaving

    def heard(self, node: NodeId) -> Heard:
        return self.reign.nodes[node]

    def seen(self, place: Place) -> Seen:
        return self.reign.seen[place.key]

    def offset(self, node: NodeId, place: Place) -> Offset | None:
        """What a node has told of its replica of this very partition."""
        return self.heard(node).offsets.get(place.key)

    def missed_ms(self, slave: NodeId, place: Place, master: NodeId) -> int | None:
        """For how long the master went on without this slave; None: they were not in contact, as
        far as this leader was told.
        """
        contact_ms = self.heard(slave).contacts.get(place.key)
        return None if contact_ms is None else self.heard(master).at_ms - contact_ms

    @cached_property
    def masters(self) -> "dict[NodeId, int]":
        """How many each node has, and is about to have."""
        counted = masters_by_node(self.topology.tables.values())
        return {node: counted[node] for node in self.topology.nodes}
