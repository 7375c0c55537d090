"""What HAKeeper promises, checked by other means than its own: after each event, on the truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from raftwood.logservice.hakeeper.messages import Order, OrderKind
from tests.kits.logservice.hakeeper_model.profile import SETTINGS
from tests.kits.models import Violation

if TYPE_CHECKING:
    from tests.kits.logservice.hakeeper_model.world import World

_CHANGES = (OrderKind.ADD_LEARNER, OrderKind.ADD_VOTER, OrderKind.REMOVE_MEMBER)


class Oracle:
    def __init__(self, world: World) -> None:
        self._world = world
        self._newest = 0
        self._holders: dict[int, int] = {}
        self._owners: dict[int, str] = {}
        self._highest_holder = 0
        self._founders: dict[int, dict[int, str]] = {}
        self._epochs: dict[int, int] = {}

    def check(self) -> None:
        """After an event that changed HAKeeper's state."""
        state = self._world.state
        fresh = [order for number, order in state.orders.items() if number > self._newest]
        if fresh:
            self._newest = fresh[-1].id
            self._check_queue()
            for order in fresh:
                self._check_order(order)
        for number, shard in state.shards.items():
            self._check_shard(number, shard.epoch, shard.voters, shard.learners)
        for number, each in state.tn_shards.items():
            if self._owners.get(number) != each.owner and each.owner:
                if each.holder <= self._highest_holder:
                    raise Violation(f"TN shard {number} has holder {each.holder} again")
                self._owners[number], self._highest_holder = each.owner, each.holder
            if each.holder < self._holders.get(number, 0):
                raise Violation(f"the holder of TN shard {number} went back")
            self._holders[number] = each.holder

    def check_plan(self, plan: Sequence[Order]) -> None:
        """What a leader planned, judged by the state that it saw.

        Reports that come before the plan is taken may put a store further behind, or show that it
        stopped; whether that does harm is seen by what the groups come to.
        """
        for order in plan:
            self._check_order(order)
            if order.kind in (OrderKind.ADD_VOTER, OrderKind.REMOVE_MEMBER):
                self._check_change(order)

    def _check_queue(self) -> None:
        orders = list(self._world.state.orders.values())
        changes = Counter(order.shard for order in orders if order.kind in _CHANGES)
        if changes and max(changes.values()) > 1:
            raise Violation(f"two changes of members at once: {changes}")
        same = Counter(
            (each.kind, each.to_store, each.to_service, each.shard, each.store, each.tn_shard)
            for each in orders
        )
        if same and max(same.values()) > 1:
            raise Violation(f"ordered twice: {same.most_common(1)}")

    def _check_shard(
        self, number: int, epoch: int, voters: tuple[int, ...], learners: tuple[int, ...]
    ) -> None:
        if epoch < self._epochs.get(number, 0):
            raise Violation(f"shard {number} went back to epoch {epoch}")
        self._epochs[number] = epoch
        founders = self._world.state.shards[number].founders
        if self._founders.setdefault(number, founders) != founders and self._founders[number]:
            raise Violation(f"the founders of shard {number} changed")
        self._founders[number] = founders
        group = self._world.groups.get(number)
        if group is None:
            return
        for configuration in reversed(group.history):
            if configuration.epoch == epoch:
                if (configuration.voters, configuration.learners) != (voters, learners):
                    raise Violation(f"shard {number} never had voters {voters}, {learners}")
                return
        raise Violation(f"shard {number} never had epoch {epoch}")

    def _check_order(self, order: Order) -> None:
        """What holds when an order is planned, and still when it is taken."""
        if order.kind is OrderKind.KILL_ZOMBIE:
            self._check_kill(order)
        elif order.kind in _CHANGES:
            leader = self._world.state.stores[order.to_store].replicas[order.shard]
            if leader.leader != order.to_store:
                raise Violation(f"a change of members is ordered at {order.to_store}, no leader")

    def _check_change(self, order: Order) -> None:
        shard = self._world.state.shards[order.shard]
        leader = self._world.state.stores[order.to_store].replicas[order.shard]
        gone = order.removed or (order.store if order.kind is OrderKind.REMOVE_MEMBER else 0)
        after = [store for store in shard.voters if store != gone]
        if order.kind is OrderKind.ADD_VOTER:
            after.append(order.store)
            if leader.lagging.get(order.store, 1 << 60) > SETTINGS.lag_entries:
                raise Violation(f"store {order.store} gets its vote before it has caught up")
        if gone in shard.voters:
            self._check_voters(order, gone, after, wanted=shard.replicas)

    def _check_voters(self, order: Order, gone: int, after: list[int], *, wanted: int) -> None:
        world = self._world
        alive = [
            store
            for store in after
            if store in world.state.stores
            and world.state.tick - world.state.stores[store].heard_tick < SETTINGS.store_down_ticks
            and order.shard in world.state.stores[store].replicas
        ]
        if len(alive) <= len(after) // 2:
            raise Violation(f"{order} leaves {alive} alive of voters {after}")
        was_lost = gone not in world.groups[order.shard].replicas
        if len(after) < wanted and not was_lost:
            raise Violation(f"{order} leaves only voters {after}")

    def _check_kill(self, order: Order) -> None:
        world = self._world
        shard = world.state.shards.get(order.shard)
        if shard is None:
            return
        report = world.state.stores[order.to_store].replicas[order.shard]
        agrees = order.to_store not in (*report.voters, *report.learners) and bool(report.voters)
        if report.epoch >= shard.epoch and not agrees:
            raise Violation(f"{order} kills what is not known to be a zombie")
        if any(
            each.shard == order.shard
            and each.kind in (OrderKind.START_REPLICA, OrderKind.ADD_LEARNER)
            and order.to_store in (each.store, each.to_store if not each.store else 0)
            for each in world.state.orders.values()
        ):
            raise Violation(f"{order} kills what is about to be added")
