"""One round of planning: who lives, what is under way, how much each store has."""

from collections.abc import Iterable

from raftwood.logservice.hakeeper.orders import EPOCH_OF_REMOVED, Order, OrderKind
from raftwood.logservice.hakeeper.reporting import PLACING, is_member
from raftwood.logservice.hakeeper.reports import DISK_SLOW, ReplicaReport
from raftwood.logservice.hakeeper.scheduling import MEMBERSHIP
from raftwood.logservice.hakeeper.settings import HaKeeperSettings
from raftwood.logservice.hakeeper.state import ShardState, State

HEARTBEATS_MISSED = 3


def majority(voters: Iterable[int]) -> int:
    return len(list(voters)) // 2 + 1


class Planning:
    """The state as the checkers ask for it, and the orders found so far."""

    def __init__(self, state: State, settings: HaKeeperSettings) -> None:
        self.state = state
        self.settings = settings
        self.orders: list[Order] = []
        oldest = state.tick - settings.store_down_ticks
        self.live = {number for number, store in state.stores.items() if store.heard_tick > oldest}
        """For asking alone; never iterated."""
        self._by_shard: dict[int, list[Order]] = {}
        self._load = dict.fromkeys(state.stores, 0)
        for shard in state.shards.values():
            for store in (*shard.voters, *shard.learners):
                self._load[store] = self._load.get(store, 0) + 1
        for order in state.orders.values():
            self._note(order)

    def order(
        self,
        kind: OrderKind,
        *,
        to_store: int = 0,
        to_service: str = "",
        shard: int = 0,
        members: dict[int, str] | None = None,
        store: int = 0,
        removed: int = 0,
        tn_shard: int = 0,
        holder: int = 0,
    ) -> None:
        """Add an order to the plan."""
        known = self.state.shards.get(shard)
        order = Order(
            0,
            kind,
            to_store,
            to_service,
            shard,
            EPOCH_OF_REMOVED if known is None else known.epoch,
            members or {},
            store,
            self.address(store),
            removed,
            tn_shard,
            holder,
            self.state.tick + self.settings.order_ticks,
        )
        self.orders.append(order)
        self._note(order)

    def _note(self, order: Order) -> None:
        if not order.tn_shard:
            self._by_shard.setdefault(order.shard, []).append(order)
        shard = self.state.shards.get(order.shard)
        if shard is None:
            return
        if order.kind is OrderKind.ADD_LEARNER and not is_member(shard, order.store):
            self._load[order.store] = self._load.get(order.store, 0) + 1
        elif order.kind is OrderKind.BOOTSTRAP_SHARD and not shard.voters:
            self._load[order.to_store] = self._load.get(order.to_store, 0) + 1

    def address(self, store: int) -> str:
        known = self.state.stores.get(store)
        return known.address if known is not None else self.state.members.get(store, "")

    def load(self, store: int) -> int:
        """Replicas that a store has or will have."""
        return self._load.get(store, 0)

    def domain(self, store: int) -> str:
        """A store that names none is a failure domain of its own."""
        known = self.state.stores.get(store)
        return (known.failure_domain if known is not None else "") or f"store {store}"

    def under_way(self, shard: int, *kinds: OrderKind) -> list[Order]:
        return [order for order in self._by_shard.get(shard, ()) if order.kind in kinds]

    def is_changing(self, shard: int) -> bool:
        """Whether a change of members is under way, or the leader is moving."""
        return bool(
            self.state.shards[shard].is_joint
            or self.under_way(shard, *MEMBERSHIP, OrderKind.TRANSFER_LEADER)
        )

    def is_placed(self, shard: int, store: int) -> bool:
        """Whether a store is about to get, or to become, a replica of a shard."""
        return any(
            (order.store or order.to_store) == store for order in self.under_way(shard, *PLACING)
        )

    def report(self, shard: int, store: int) -> ReplicaReport | None:
        known = self.state.stores.get(store)
        return None if known is None else known.replicas.get(shard)

    def is_silent(self, store: int) -> bool:
        """Whether a store has missed so many heartbeats that it may well be dead."""
        silent_ticks = self.state.tick - self.state.stores[store].heard_tick
        return silent_ticks * self.settings.tick_ms > HEARTBEATS_MISSED * self.settings.heartbeat_ms

    def is_serving(self, shard: int, store: int) -> bool:
        """Whether a member takes part, as far as one can tell."""
        report = self.report(shard, store)
        return (
            store in self.live
            and report is not None
            and not report.problem
            and store not in self.state.shards[shard].lost
        )

    def is_gone(self, shard: ShardState, store: int) -> bool:
        """Whether a member is not expected back."""
        if store in shard.lost:
            return True
        known = self.state.stores.get(store)
        if known is None:
            # Never heard of: as if it had been heard when the shard was made.
            return self.state.tick - shard.created_tick >= self.settings.store_down_ticks
        return store not in self.live

    def is_draining(self, store: int) -> bool:
        known = self.state.stores.get(store)
        return known is not None and known.is_draining

    def is_reborn(self, store: int) -> bool:
        """Whether a store came back without its data: it may never be let in again."""
        known = self.state.stores.get(store)
        return known is not None and known.is_reborn

    def has_room(self, store: int) -> bool:
        """Whether a store takes appends, as far as is known."""
        known = self.state.stores.get(store)
        return known is not None and not known.is_short

    def is_slow(self, store: int) -> bool:
        """Whether a store says that its disk is far slower than others': it gives up leading."""
        known = self.state.stores.get(store)
        return known is not None and any(alarm.startswith(DISK_SLOW) for alarm in known.alarms)

    def leader(self, shard: int) -> int:
        """The store that leads and can be told what to do; 0 for none."""
        known = self.state.shards[shard]
        report = self.report(shard, known.leader)
        if report is None or not self.is_serving(shard, known.leader):
            return 0
        leads = report.leader == known.leader and report.epoch == known.epoch
        return known.leader if leads and known.leader in known.voters else 0

    def has_quorum(self, shard: int, voters: Iterable[int]) -> bool:
        """Whether these voters could decide by those that serve now."""
        listed = list(voters)
        return sum(self.is_serving(shard, each) for each in listed) >= majority(listed)

    def is_caught_up(self, shard: int, store: int) -> bool:
        """Whether a member serves and is close behind the leader, by the leader's word.

        By its own word it is a member: one that nothing has reached yet is not.
        """
        lag, report = self.state.shards[shard].lagging.get(store), self.report(shard, store)
        is_there = self.is_serving(shard, store) and not self.is_silent(store)
        knows = report is not None and store in (*report.voters, *report.learners)
        return is_there and knows and lag is not None and lag <= self.settings.lag_entries

    def has_failed(self, shard: int, store: int) -> bool:
        """Whether a replica was to be started there lately, or to be a member, and was not."""
        return any(
            failure.shard == shard
            and (
                (failure.kind is OrderKind.START_REPLICA and failure.target == f"store {store}")
                or (failure.kind is OrderKind.ADD_LEARNER and failure.store == store)
            )
            for failure in self.state.failures
        )

    def places(self) -> list[int]:
        """Stores that may get replicas, in order."""
        return [
            number
            for number, store in sorted(self.state.stores.items())
            if number in self.live and not store.is_draining
        ]


def placement_key(planning: Planning, store: int, others: Iterable[int]) -> tuple[bool, int, int]:
    """Best first: a new failure domain, then the least loaded."""
    used = {planning.domain(other) for other in others if other != store}
    return planning.domain(store) in used, planning.load(store), store
