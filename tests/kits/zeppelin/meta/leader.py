"""`Leader`: who plans for a state of the meta server, from what nodes tell in a test's own time."""

from typing import Any

from raftwood.zeppelin.meta.changes import Change
from raftwood.zeppelin.meta.heartbeats import LeaderMoment, LeaderTerm, NodeHeartbeat, ReplicaOffset
from raftwood.zeppelin.meta.state_machine import plan
from raftwood.zeppelin.meta.topology_state import TopologyState
from raftwood.zeppelin.model import NodeId
from raftwood.zeppelin.settings import ZeppelinMetaSettings
from tests.kits.zeppelin.meta.tables import make, state_with

SETTINGS = ZeppelinMetaSettings()
DOWN_MS = SETTINGS.down_ms


class Leader:
    """A state and its leader; nodes tell what they are given here each half second."""

    def __init__(self, state: TopologyState) -> None:
        self.state = state
        self.now_ms = 1_000_000
        self.reign = LeaderTerm(1, self.now_ms)
        self.reign.note(state.topology, self.now_ms)
        self.offsets: dict[NodeId, dict[int, ReplicaOffset]] = {}
        self.answered: dict[NodeId, LeaderMoment] = {}
        self.leaving: list[NodeId] = []
        for number, each in enumerate(state.topology.tables["t"].partitions):
            for node in each.replicas:
                self.tell(node, number=number)

    def tell(
        self, node: NodeId, sequence: int = 100, *, number: int = 0, epoch: int = 1, **more: Any
    ) -> None:
        table = self.state.topology.tables["t"]
        fields = {"contact_ms": 10} | more
        offset = ReplicaOffset(table.incarnation, number, epoch, sequence, **fields)
        self.offsets.setdefault(node, {})[number] = offset

    def beat(self, *nodes: NodeId, applied: int | None = None) -> None:
        for node in nodes:
            epoch = self.state.topology.epoch if applied is None else applied
            run = self.state.topology.nodes[node].run
            told = tuple(self.offsets.get(node, {}).values())
            heartbeat = NodeHeartbeat(
                node, run, epoch, told, self.answered.get(node), is_leaving=node in self.leaving
            )
            self.reign.hear(heartbeat, self.now_ms)
            self.answered[node] = LeaderMoment(self.reign.term, self.now_ms)

    def pass_time(self, duration_ms: int, *nodes: NodeId) -> None:
        for _ in range(duration_ms // 500):
            self.now_ms += 500
            self.beat(*nodes)

    def plan(self) -> tuple[Change, ...]:
        return plan(self.state.topology, self.reign, SETTINGS, self.now_ms)

    def carry_out(self) -> tuple[Change, ...]:
        changes = self.plan()
        if changes:
            make(self.state, *changes)
        self.reign.note(self.state.topology, self.now_ms)
        return changes


def led(*nodes: NodeId, **config: int) -> Leader:
    """One whose master is A, and who has heard all nodes for a while."""
    leader = Leader(state_with(*nodes, **config))
    leader.pass_time(1_000, *nodes)
    assert leader.plan() == ()
    return leader
