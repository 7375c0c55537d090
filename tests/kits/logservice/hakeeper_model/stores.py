"""A store of the model: reports its replicas, and carries out what it is ordered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from raftwood.logservice.hakeeper.messages import (
    FinishedOrder,
    Order,
    OrderKind,
    ShardReplicaReport,
    StoreHeartbeat,
)
from tests.kits.logservice.hakeeper_model.groups import Configuration, Group, Replica
from tests.kits.models import Violation

if TYPE_CHECKING:
    from tests.kits.logservice.hakeeper_model.world import World


@dataclass
class Store:
    number: int
    domain: str
    incarnation: int = 1
    is_up: bool = True
    orders: list[Order] = field(default_factory=list)
    finished: list[FinishedOrder] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"store-{self.number}:7001"

    def heartbeat(self, world: World) -> StoreHeartbeat:
        reports = []
        for number, group in world.groups.items():
            replica = group.replicas.get(self.number)
            if replica is not None and replica.is_running:
                reports.append(self._report(number, group, replica))
        self.orders = []
        return StoreHeartbeat(
            self.number,
            self.address,
            self.domain,
            str(self.incarnation),
            "1",
            tuple(reports),
            tuple(self.finished),
        )

    def _report(self, number: int, group: Group, replica: Replica) -> ShardReplicaReport:
        seen = group.seen_by(replica)
        if seen is None:
            return ShardReplicaReport(number, 0, (), (), 0, 0, 0)
        leads = group.leader == self.number
        lagging = {}
        if leads:
            for store in (*seen.voters, *seen.learners):
                other = group.replicas.get(store)
                if store != self.number:
                    lagging[store] = group.last - (0 if other is None else other.match)
        return ShardReplicaReport(
            number,
            seen.epoch,
            seen.voters,
            seen.learners,
            group.leader if seen.has(self.number) else 0,
            group.term if seen.has(self.number) else 0,
            replica.match,
            lagging,
            is_joint=bool(seen.outgoing),
        )

    def crash(self) -> None:
        self.is_up = False
        self.orders = []
        self.finished = []

    def wipe(self, world: World) -> None:
        self.incarnation += 1
        for group in world.groups.values():
            group.replicas.pop(self.number, None)

    def carry_out(self, world: World, order: Order) -> None:
        error = self._carry_out(world, order)
        self.finished.append(FinishedOrder(order.id, error))

    def _carry_out(self, world: World, order: Order) -> str:
        group = world.groups.get(order.shard)
        if order.kind is OrderKind.BOOTSTRAP_SHARD:
            return self._bootstrap(world, order)
        if group is None:
            return "no such shard"
        replica = group.replicas.get(self.number)
        if order.kind is OrderKind.START_REPLICA:
            if replica is not None:
                replica.is_running = True
                return ""
            if self.number in group.promised:
                raise Violation(f"voter {self.number} of {order.shard} starts without its data")
            group.replicas[self.number] = Replica()
            return ""
        if order.kind is OrderKind.KILL_ZOMBIE:
            return self._kill(world, group, order)
        if group.leader != self.number or not world.takes_part(group, self.number):
            return "not the leader"
        if order.kind is OrderKind.TRANSFER_LEADER:
            target = group.replicas.get(order.store)
            if not world.takes_part(group, order.store) or target is None:
                return "cannot lead"
            if order.store in group.now.voters and target.match == group.last:
                group.lead(order.store)
                return ""
            return "not caught up"
        return self._change(world, group, order)

    def _bootstrap(self, world: World, order: Order) -> str:
        group = world.groups.setdefault(order.shard, Group(dict(order.members)))
        if group.founders != order.members:
            raise Violation(f"shard {order.shard} begins twice")
        if self.number in group.replicas:
            return ""
        if self.number in group.promised:
            raise Violation(f"founder {self.number} of {order.shard} begins without its data")
        group.replicas[self.number] = Replica(is_empty=False)
        if self.number in group.now.voters:
            group.promised.add(self.number)
        return ""

    def _kill(self, world: World, group: Group, order: Order) -> str:
        replica = group.replicas.get(self.number)
        if replica is None:
            return ""
        if order.shard in world.state.removed_shards:
            del group.replicas[self.number]
            return ""
        seen = group.seen_by(replica)
        if replica.epoch >= order.epoch and seen is not None and seen.has(self.number):
            return "a member"
        if group.now.has(self.number):
            raise Violation(f"member {self.number} of {order.shard} is killed as a zombie")
        del group.replicas[self.number]
        return ""

    def _change(self, world: World, group: Group, order: Order) -> str:
        now = group.now
        if order.epoch != now.epoch or now.outgoing:
            return "another epoch"

        def without(stores: tuple[int, ...], *gone: int) -> tuple[int, ...]:
            return tuple(store for store in stores if store not in gone)

        store = order.store
        if order.kind is OrderKind.ADD_LEARNER:
            wanted = Configuration(0, now.voters, tuple(sorted({*now.learners, store})))
            if store in now.voters:
                raise Violation("a voter is made a learner")
        elif order.kind is OrderKind.ADD_VOTER:
            voters = tuple(sorted({*without(now.voters, order.removed), store}))
            learners = without(now.learners, store)
            wanted = Configuration(0, voters, learners, now.voters if order.removed else ())
        else:
            if store == self.number:
                return "a leader does not remove itself"
            wanted = Configuration(0, without(now.voters, store), without(now.learners, store))
        present = world.presence(group)
        return "" if group.change(present, wanted) else "no quorum"
