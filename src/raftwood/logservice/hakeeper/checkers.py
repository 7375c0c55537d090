"""Checkers: what HAKeeper's leader orders at each tick, decided from the state alone.

Start at `plan`. Nothing is remembered between two plans but what the state holds, so that a new
leader plans what the old one would have: what was lost, refused or overtaken is seen and planned
anew. Logservice's text has one check, of silence by ticks, with two answers, remove and shut down
(section "Server Handler"); each rule below says why it waits for more than silence.

- **Bootstrap**: a shard begins on the stores that live, once enough have reported. Where too few
  live after a grace time, named stores that are still to come fill up, as long as a majority
  lives: the shard works without them, and they join as founders or are replaced.
- **Members**: missing ones are added, dead ones replaced, surplus ones removed. A new replica is a
  learner first, gets its vote once it has caught up, and the one that it replaces leaves in the
  same step. A shard is changed only while its voters, before and after, have a living majority:
  one that lost its quorum is left as it is, for people to look at. A change that cannot commit
  would block the leader for all later ones (planted bug "changes members without a quorum"). To
  remove the dead first leaves two voters of three, and the next dead store stops the shard (planted
  bug "removes the dead before adding").
- **Room**: a leader whose store takes no more appends hands over to one that does.
- **Zombies**: replicas that their shard has removed, or whose shard is no more. One is removed
  only when its epoch is below the shard's, or when it says itself that it is out: a replica that
  knows of a change that HAKeeper has not heard of yet may well be a member, and its data with it
  (planted bugs "kills a replica at an equal epoch" and "kills a replica that is just added").
- **Services**: each TN shard has one living owner; a service that comes back after its work was
  given away must stop.
- **Balance**: replicas and leaders are spread, one move at a time, while all else is well. Each
  move makes things strictly better (more failure domains, or less difference of load), so that
  moves come to an end (planted bug "moves for ever").
"""

from collections.abc import Iterable

from raftwood.logservice.hakeeper.messages import (
    DISK_SLOW,
    EPOCH_OF_REMOVED,
    HAKEEPER_SHARD,
    Order,
    OrderKind,
    ServiceKind,
    ShardReplicaReport,
)
from raftwood.logservice.hakeeper.rules import MEMBERSHIP, PLACING, is_member, owns_of_others
from raftwood.logservice.hakeeper.state import (
    ClusterPhase,
    KeeperShardState,
    KeeperState,
    ServiceState,
    TnShardState,
)
from raftwood.logservice.settings import HaKeeperSettings

HEARTBEATS_MISSED = 3


def majority(voters: Iterable[int]) -> int:
    return len(list(voters)) // 2 + 1


class PlanningRound:
    """The state, with the questions that checkers ask of it, and the orders found so far."""

    def __init__(self, state: KeeperState, settings: HaKeeperSettings) -> None:
        self.state = state
        self.settings = settings
        self.orders: list[Order] = []
        oldest = state.tick - settings.store_down_ticks
        self.live = {number for number, store in state.stores.items() if store.heard_tick > oldest}
        """A set, to be asked and never iterated: its order would differ from process to process."""
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
        """Adds an order to the plan."""
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
        """The number of replicas that a store has or will have."""
        return self._load.get(store, 0)

    def domain(self, store: int) -> str:
        """The failure domain of a store; one that names none is a domain of its own."""
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

    def report(self, shard: int, store: int) -> ShardReplicaReport | None:
        known = self.state.stores.get(store)
        return None if known is None else known.replicas.get(shard)

    def is_silent(self, store: int) -> bool:
        """Whether a store has missed so many heartbeats that it may well be dead."""
        silent_ticks = self.state.tick - self.state.stores[store].heard_tick
        return silent_ticks * self.settings.tick_ms > HEARTBEATS_MISSED * self.settings.heartbeat_ms

    def is_serving(self, shard: int, store: int) -> bool:
        """Whether a member takes part, by its last report."""
        report = self.report(shard, store)
        return (
            store in self.live
            and report is not None
            and not report.problem
            and store not in self.state.shards[shard].lost
        )

    def is_gone(self, shard: KeeperShardState, store: int) -> bool:
        """Whether a member is not expected back."""
        if store in shard.lost:
            return True
        known = self.state.stores.get(store)
        if known is None:
            # A store that was never heard counts as heard when the shard was made: a founder has as
            # long to come as any other to come back.
            return self.state.tick - shard.created_tick >= self.settings.store_down_ticks
        return store not in self.live

    def is_draining(self, store: int) -> bool:
        known = self.state.stores.get(store)
        return known is not None and known.is_draining

    def is_reborn(self, store: int) -> bool:
        """Whether a store came back without its data: some shards may never let it in again."""
        known = self.state.stores.get(store)
        return known is not None and known.is_reborn

    def has_room(self, store: int) -> bool:
        """Whether a store takes appends, as far as this state shows."""
        known = self.state.stores.get(store)
        return known is not None and not known.is_short

    def is_slow(self, store: int) -> bool:
        """Whether a store says that its disk is far slower than others': it gives up leading
        (docs/decisions/0035)."""
        known = self.state.stores.get(store)
        return known is not None and any(alarm.startswith(DISK_SLOW) for alarm in known.alarms)

    def leader(self, shard: int) -> int:
        """The store that leads and can be given orders; 0 for none."""
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
        """Whether a member serves and is close behind the leader.

        The leader tells how far behind it is: a learner cannot know. That it is a member it tells
        itself, since a short log makes an empty learner look close that nothing has reached yet. A
        vote for a learner without entries makes a majority that cannot elect (planted bug "promotes
        before caught up";
        `test_a_learner_that_nothing_has_reached_is_not_caught_up_however_short_the_log_is`).
        """
        lag, report = self.state.shards[shard].lagging.get(store), self.report(shard, store)
        is_there = self.is_serving(shard, store) and not self.is_silent(store)
        knows = report is not None and store in (*report.voters, *report.learners)
        return is_there and knows and lag is not None and lag <= self.settings.lag_entries

    def has_failed(self, shard: int, store: int) -> bool:
        """Whether a replica could not be started or become a member there lately."""
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


def placement_key(
    planning: PlanningRound, store: int, others: Iterable[int]
) -> tuple[bool, int, int]:
    """The sort key of places for a replica: a new failure domain first, then the least loaded."""
    used = {planning.domain(other) for other in others if other != store}
    return planning.domain(store) in used, planning.load(store), store


def plan_bootstrap(planning: PlanningRound) -> None:
    """Places shards that have not begun, and orders founders to begin that have not yet."""
    for number, shard in planning.state.shards.items():
        members = shard.founders or _place(planning, shard)
        awaited = shard.awaited if shard.founders else list(members)
        for store in awaited:
            if not any(
                order.to_store == store
                for order in planning.under_way(number, OrderKind.BOOTSTRAP_SHARD)
            ):
                planning.order(
                    OrderKind.BOOTSTRAP_SHARD, to_store=store, shard=number, members=members
                )


def _place(planning: PlanningRound, shard: KeeperShardState) -> dict[int, str]:
    # Section "Bootstrap" of the text begins with the members of the configuration. Founders are
    # fixed for ever, so it waits for stores for a while; then a majority that lives is enough, or
    # one machine that never comes would keep a new cluster from beginning
    # (`test_a_store_that_never_comes_is_a_founder_in_absence`).
    places = planning.places()
    is_waiting = planning.state.tick - shard.created_tick < planning.settings.bootstrap_grace_ticks
    named = sorted({*planning.state.members, *planning.state.stores})
    absent = [
        store for store in named if store not in planning.live and not planning.is_draining(store)
    ]
    if is_waiting and len(places) < shard.replicas:
        return {}
    if len(places) < majority(range(shard.replicas)):
        return {}
    chosen: list[int] = []
    for candidates in (places, absent):
        rest = list(candidates)
        while rest and len(chosen) < shard.replicas:
            best = min(rest, key=lambda store: placement_key(planning, store, chosen))
            rest.remove(best)
            chosen.append(best)
    if len(chosen) < shard.replicas:
        return {}
    return {store: planning.address(store) for store in sorted(chosen)}


def plan_members(planning: PlanningRound) -> None:
    for number, shard in planning.state.shards.items():
        if not shard.voters:
            continue
        _restart(planning, number, shard)
        if planning.is_changing(number) or not planning.leader(number):
            continue
        if planning.has_quorum(number, shard.voters) and not _is_disputed(planning, shard):
            _Change(planning, number, shard).plan()


def _is_disputed(planning: PlanningRound, shard: KeeperShardState) -> bool:
    """Whether a living store reports other members: a change might be committed by one half of the
    shard while the other is at work."""
    return any(store in planning.live for store in shard.conflicts)


def _restart(planning: PlanningRound, number: int, shard: KeeperShardState) -> None:
    """Orders a living member to start its replica that is not there; not one whose data is lost."""
    for store in (*shard.voters, *shard.learners):
        if (
            store in planning.live
            and planning.report(number, store) is None
            and store not in shard.lost
            and store not in shard.awaited
            and not planning.is_placed(number, store)
            and not _is_being_killed(planning, number, store)
        ):
            planning.order(OrderKind.START_REPLICA, to_store=store, shard=number)


class _Change:
    """The next step of one shard towards its wanted members; at most one is ordered."""

    def __init__(self, planning: PlanningRound, number: int, shard: KeeperShardState) -> None:
        self._planning = planning
        self._number = number
        self._shard = shard
        self._leader = planning.leader(number)
        gone = [store for store in shard.voters if planning.is_gone(shard, store)]
        leaving = [
            store
            for store in shard.voters
            if store not in gone
            and (
                planning.is_draining(store)
                or (shard.move is not None and shard.move.source == store)
            )
        ]
        self._leaving = gone + leaving
        """Voters to be replaced, the most urgent first."""

    def plan(self) -> None:
        shard = self._shard
        missing = shard.replicas - len(shard.voters)
        needed = shard.learners_wanted + (missing > 0 or bool(self._leaving))
        if self._remove_learner(needed=needed):
            return
        if self._leader in self._leaving and self._hand_over():
            return
        if missing < 0:
            self._remove_surplus_voter()
        elif missing > 0:
            self._add_voter(removed=0)
        elif self._leaving:
            self._add_voter(removed=self._leaving[0])
        elif len(shard.learners) < shard.learners_wanted:
            self._add_learner(removed=0)

    def _remove_learner(self, *, needed: int) -> bool:
        planning, shard = self._planning, self._shard
        unfit = [
            store
            for store in shard.learners
            if planning.is_gone(shard, store)
            or planning.is_draining(store)
            or self._is_hopeless(store)
        ]
        if not unfit and len(shard.learners) > needed:
            kept = shard.move.target if shard.move is not None else 0
            unfit = [
                max(
                    (store for store in shard.learners if store != kept or needed == 0),
                    key=lambda store: (
                        not planning.is_caught_up(self._number, store),
                        planning.load(store),
                    ),
                )
            ]
        for store in unfit[:1]:
            self._to_leader(OrderKind.REMOVE_MEMBER, store=store)
        return bool(unfit)

    def _is_hopeless(self, learner: int) -> bool:
        """Whether a learner may never catch up, and there is a better place for it."""
        planning, number = self._planning, self._number
        return (
            planning.is_reborn(learner)
            and not planning.is_caught_up(number, learner)
            and any(
                is_free(planning, number, store) and not planning.is_reborn(store)
                for store in planning.places()
            )
        )

    def _remove_surplus_voter(self) -> None:
        planning, shard = self._planning, self._shard
        leaving = [store for store in self._leaving if store != self._leader]
        if leaving:
            store = leaving[0]
        else:
            # A voter that does not serve goes first, then one that shares its failure domain, then
            # the one with the most replicas.
            others = [store for store in shard.voters if store != self._leader]
            silent = [store for store in others if not planning.is_serving(self._number, store)]
            store = max(
                silent or others, key=lambda each: placement_key(planning, each, shard.voters)
            )
        self._remove_voter(store)

    def _remove_voter(self, store: int) -> None:
        after = [each for each in self._shard.voters if each != store]
        if after and self._planning.has_quorum(self._number, after):
            self._to_leader(OrderKind.REMOVE_MEMBER, store=store)

    def _add_voter(self, *, removed: int) -> None:
        planning, shard = self._planning, self._shard
        learners = [
            store
            for store in shard.learners
            if not planning.is_gone(shard, store) and not planning.is_draining(store)
        ]
        ready = [store for store in learners if planning.is_caught_up(self._number, store)]
        remaining = [store for store in shard.voters if store != removed]
        if ready:
            best = min(ready, key=lambda store: placement_key(planning, store, remaining))
            self._promote(best, remaining, removed=removed)
        elif len(learners) <= shard.learners_wanted and not self._add_learner(removed=removed):
            self._give_up_lost()

    def _promote(self, store: int, remaining: list[int], *, removed: int) -> None:
        if removed == self._leader:
            # No other voter could lead yet: a lone voter leaves after the new one has its vote and
            # leads (`test_a_lone_voter_that_leaves_is_joined_first`).
            removed, remaining = 0, list(self._shard.voters)
            if len(remaining) > 1:
                return
        if self._planning.has_quorum(self._number, [*remaining, store]):
            self._to_leader(OrderKind.ADD_VOTER, store=store, removed=removed)

    def _hand_over(self) -> bool:
        """The leader is to leave: hands over to a voter that stays. A shard whose leader is just
        removed is without one until an election
        (`test_a_draining_store_hands_its_leaders_over_and_is_replaced`)."""
        planning = self._planning
        ready = [
            store
            for store in self._shard.voters
            if store not in self._leaving and planning.is_caught_up(self._number, store)
        ]
        if ready:
            best = min(ready, key=lambda store: (planning.is_slow(store), planning.load(store)))
            self._to_leader(OrderKind.TRANSFER_LEADER, store=best)
        return bool(ready)

    def _add_learner(self, *, removed: int) -> bool:
        """Begins a new replica. The first one of a move is ordered with the move itself (`place`),
        so that `removed` only tells here which failure domain becomes free.
        """
        planning, shard, number = self._planning, self._shard, self._number
        places = [store for store in planning.places() if is_free(planning, number, store)]
        if not places:
            return False
        remaining = [store for store in shard.voters if store != removed]
        # A place where a start failed comes last: a full or broken disk would be tried for ever,
        # with an empty store beside it (`test_a_replica_goes_elsewhere_where_its_start_failed`).
        best = min(
            places,
            key=lambda store: (
                planning.is_reborn(store),
                planning.has_failed(number, store),
                *placement_key(planning, store, remaining),
            ),
        )
        place(planning, number, best)
        return True

    def _give_up_lost(self) -> None:
        """No other store is free: removes a voter that came back empty, to add it as a new one.

        It takes part in no decision as it is, so the shard gets no weaker by that
        (`test_a_voter_that_lost_its_data_is_removed_and_added_anew_where_none_is`).
        """
        for store in self._shard.lost:
            if store in self._shard.voters and store in self._planning.live:
                self._remove_voter(store)
                return

    def _to_leader(self, kind: OrderKind, *, store: int, removed: int = 0) -> None:
        self._planning.order(
            kind, to_store=self._leader, shard=self._number, store=store, removed=removed
        )


def is_free(planning: PlanningRound, number: int, store: int) -> bool:
    """Whether a store may get a replica: it is no member, has room, and no remains of an earlier
    replica, whose votes a new one under the same number would contradict."""
    shard = planning.state.shards[number]
    report = planning.report(number, store)
    return (
        store not in shard.voters
        and store not in shard.learners
        and (report is None or not report.voters)
        and not _is_being_killed(planning, number, store)
        and planning.has_room(store)
    )


def _is_being_killed(planning: PlanningRound, number: int, store: int) -> bool:
    return number in planning.state.stores[store].condemned


def place(planning: PlanningRound, number: int, store: int, *, removed: int = 0) -> None:
    """Begins a replica on a store; where a voter moves there, `removed` is its present store."""
    if planning.report(number, store) is None:
        planning.order(OrderKind.START_REPLICA, to_store=store, shard=number)
    planning.order(
        OrderKind.ADD_LEARNER,
        to_store=planning.leader(number),
        shard=number,
        store=store,
        removed=removed,
    )


def plan_room(planning: PlanningRound) -> None:
    """Moves leaders off stores that take no more appends, or their shards would refuse every record
    while two other disks have room
    (`test_a_leader_without_room_hands_over_to_the_voter_with_most`).

    HAKeeper's own shard is left: its commands are small, and taken as long as any are.
    """
    stores = planning.state.stores
    for number, shard in planning.state.shards.items():
        leader = planning.leader(number)
        if (
            number == HAKEEPER_SHARD
            or leader == 0
            or planning.has_room(leader)
            or planning.is_changing(number)
        ):
            continue
        ready = [
            store
            for store in shard.voters
            if planning.has_room(store)
            and not planning.is_draining(store)
            and planning.is_caught_up(number, store)
        ]
        # A store whose disk is slow gives the leadership back, but it takes appends: the last
        # choice.
        ready = [store for store in ready if not planning.is_slow(store)] or ready
        if ready:
            roomiest = max(ready, key=lambda store: (stores[store].disk_free_bytes, -store))
            planning.order(OrderKind.TRANSFER_LEADER, to_store=leader, shard=number, store=roomiest)


def plan_zombies(planning: PlanningRound) -> None:
    state = planning.state
    for number, store in sorted(state.stores.items()):
        if number not in planning.live:
            continue
        for report in store.replicas.values():
            since = store.strange_since.get(report.shard, state.tick)
            if (
                state.tick - since >= planning.settings.zombie_ticks
                and is_zombie(planning, report, number)
                and not any(
                    order.to_store == number
                    for order in planning.under_way(report.shard, OrderKind.KILL_ZOMBIE)
                )
            ):
                planning.order(OrderKind.KILL_ZOMBIE, to_store=number, shard=report.shard)


def is_zombie(planning: PlanningRound, report: ShardReplicaReport, store: int) -> bool:
    """Whether a replica certainly belongs to no shard: it is killed with its data."""
    state = planning.state
    shard = state.shards.get(report.shard)
    if shard is None:
        return report.shard in state.removed_shards
    if is_member(shard, store) or planning.is_placed(report.shard, store):
        return False
    if shard.is_joint or not planning.leader(report.shard):
        # The newest configuration may be known to its leader alone, and this replica be in it
        # (`test_nothing_is_killed_while_the_leader_is_silent`).
        return False
    knows_it = (
        report.epoch == shard.epoch
        and tuple(sorted(report.voters)) == shard.voters
        and tuple(sorted(report.learners)) == shard.learners
    )
    return report.epoch < shard.epoch or knows_it


def plan_services(planning: PlanningRound) -> None:
    state = planning.state
    oldest = state.tick - planning.settings.service_down_ticks
    live = {
        name: service for name, service in state.services.items() if service.heard_tick > oldest
    }
    _assign(planning, live)
    for name, service in live.items():
        _take_away(planning, name, service)


def _assign(planning: PlanningRound, live: dict[str, ServiceState]) -> None:
    state = planning.state
    work = {name: 0 for name, service in live.items() if service.kind is ServiceKind.TN}
    for shard in state.tn_shards.values():
        if shard.owner in work:
            work[shard.owner] += 1
    for number, shard in state.tn_shards.items():
        if shard.owner in work:
            if not _has(live[shard.owner], number, shard):
                _tell(planning, OrderKind.ADD_TN_SHARD, shard.owner, number)
        elif work and state.shards[shard.log_shard].leader_tick:
            owner = min(work, key=lambda name: (work[name], name))
            work[owner] += 1
            _tell(planning, OrderKind.ADD_TN_SHARD, owner, number)


def _has(service: ServiceState, number: int, shard: TnShardState) -> bool:
    return any(
        report.tn_shard == number and report.holder == shard.holder for report in service.replicas
    )


def _take_away(planning: PlanningRound, name: str, service: ServiceState) -> None:
    if owns_of_others(planning.state, name):
        _tell(planning, OrderKind.SHUTDOWN_SERVICE, name, 0)
        return
    for report in service.replicas:
        if report.tn_shard not in planning.state.tn_shards:
            _tell(planning, OrderKind.REMOVE_TN_SHARD, name, report.tn_shard)


def _tell(planning: PlanningRound, kind: OrderKind, service: str, tn_shard: int) -> None:
    told = (kind, service, tn_shard)
    if not any(
        (order.kind, order.to_service, order.tn_shard) == told
        for order in (*planning.state.orders.values(), *planning.orders)
    ):
        planning.order(kind, to_service=service, tn_shard=tn_shard)


DIFFERENCE = 2
"""The least difference of load that is evened out: with 1, a move only swaps the two stores, and
the next one swaps them back (`test_a_difference_of_one_is_left`).
"""


def plan_balance(planning: PlanningRound) -> None:
    # Only while all is well. A move copies a replica and changes members; with a store that may be
    # dead it takes the disks, and the one change at a time, from repairs
    # (`test_nothing_moves_while_a_store_is_silent_that_may_be_dead`).
    state = planning.state
    if state.tick % planning.settings.moves_every_ticks or planning.orders or state.orders:
        return
    if any(planning.is_silent(store) for store in planning.places()):
        return
    if not all(_is_well(planning, number) for number in state.shards):
        return
    if not _spread(planning) and not _level_replicas(planning):
        _level_leaders(planning)


def _is_well(planning: PlanningRound, number: int) -> bool:
    shard = planning.state.shards[number]
    members = (*shard.voters, *shard.learners)
    return (
        len(shard.voters) == shard.replicas
        and len(shard.learners) == shard.learners_wanted
        and shard.move is None
        and not shard.is_joint
        and planning.leader(number) != 0
        and all(planning.is_serving(number, store) for store in members)
        and not any(planning.is_draining(store) for store in members)
    )


def _spread(planning: PlanningRound) -> bool:
    """Moves a voter that shares its failure domain to a domain that has none."""
    for number, shard in planning.state.shards.items():
        used = [planning.domain(store) for store in shard.voters]
        sharing = [store for store in shard.voters if used.count(planning.domain(store)) > 1]
        targets = [
            store
            for store in planning.places()
            if planning.domain(store) not in used and _is_fit(planning, number, store)
        ]
        if sharing and targets and number != HAKEEPER_SHARD:
            source = max(sharing, key=planning.load)
            place(planning, number, min(targets, key=planning.load), removed=source)
            return True
    return False


def _is_fit(planning: PlanningRound, number: int, store: int) -> bool:
    """Whether a replica may move to a store; not to one that its members may never let in."""
    return is_free(planning, number, store) and not planning.is_reborn(store)


def _level_replicas(planning: PlanningRound) -> bool:
    places = sorted(planning.places(), key=planning.load)
    for source in reversed(places):
        for target in places:
            if planning.load(source) - planning.load(target) < DIFFERENCE:
                break
            for number, shard in planning.state.shards.items():
                if (
                    number != HAKEEPER_SHARD
                    and source in shard.voters
                    and _is_fit(planning, number, target)
                    and _domains_after(planning, number, source=source, target=target)
                ):
                    place(planning, number, target, removed=source)
                    return True
    return False


def _domains_after(planning: PlanningRound, number: int, *, source: int, target: int) -> bool:
    """Whether a move keeps at least as many failure domains."""
    voters = planning.state.shards[number].voters
    before = {planning.domain(store) for store in voters}
    after = {planning.domain(store) for store in (*voters, target) if store != source}
    return len(after) >= len(before)


def _level_leaders(planning: PlanningRound) -> None:
    led = dict.fromkeys(planning.places(), 0)
    for number in planning.state.shards:
        led[planning.leader(number)] = led.get(planning.leader(number), 0) + 1
    places = sorted(planning.places(), key=lambda store: led[store])
    # A store whose disk is slow would give up at once what it is given to lead, and get it again.
    targets = [store for store in places if not planning.is_slow(store)]
    for source in reversed(places):
        for target in targets:
            if led[source] - led[target] < DIFFERENCE:
                break
            for number, shard in planning.state.shards.items():
                if (
                    number != HAKEEPER_SHARD
                    and planning.leader(number) == source
                    and target in shard.voters
                    and planning.is_caught_up(number, target)
                    and planning.has_room(target)
                ):
                    planning.order(
                        OrderKind.TRANSFER_LEADER, to_store=source, shard=number, store=target
                    )
                    return


BATCH_MAX = 1000
"""Orders of one plan; what is left out is planned at the next tick."""


def plan(state: KeeperState, settings: HaKeeperSettings) -> list[Order]:
    """The orders that are missing, to be proposed as a `Schedule` in the leader's term."""
    planning = PlanningRound(state, settings)
    if state.phase is ClusterPhase.CREATED:
        return []
    plan_bootstrap(planning)
    if state.phase in (ClusterPhase.RUNNING, ClusterPhase.BOOTSTRAP_FAILED):
        plan_members(planning)
        plan_room(planning)
        plan_zombies(planning)
        plan_services(planning)
        plan_balance(planning)
    return planning.orders[:BATCH_MAX]
