"""Members of a shard: missing ones are added, dead ones replaced, surplus ones removed.

A new replica is a learner first, gets its vote once it has caught up, and the one that it replaces
leaves in the same step. A shard is changed only while its voters, before and after, have a living
majority: one that lost its quorum is left as it is, for people to look at.
"""

from raftwood.logservice.hakeeper.checkers.planning import Planning, placement_key
from raftwood.logservice.hakeeper.orders import OrderKind
from raftwood.logservice.hakeeper.state import ShardState


def plan_members(planning: Planning) -> None:
    for number, shard in planning.state.shards.items():
        if not shard.voters:
            continue
        _restart(planning, number, shard)
        if planning.is_changing(number) or not planning.leader(number):
            continue
        if planning.has_quorum(number, shard.voters) and not _is_disputed(planning, shard):
            _Change(planning, number, shard).plan()


def _is_disputed(planning: Planning, shard: ShardState) -> bool:
    """Whether a living store contradicts the configuration: a change could make it worse."""
    return any(store in planning.live for store in shard.conflicts)


def _restart(planning: Planning, number: int, shard: ShardState) -> None:
    """A living member's replica that is not there is started; not one whose data is lost."""
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
    """The next step towards what is wanted of one shard; at most one is ordered."""

    def __init__(self, planning: Planning, number: int, shard: ShardState) -> None:
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
            # Who does not serve goes first, then who shares its failure domain, then the loaded.
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
            # Nobody else could lead yet: a lone voter leaves after the new one leads.
            removed, remaining = 0, list(self._shard.voters)
            if len(remaining) > 1:
                return
        if self._planning.has_quorum(self._number, [*remaining, store]):
            self._to_leader(OrderKind.ADD_VOTER, store=store, removed=removed)

    def _hand_over(self) -> bool:
        """The leader leaves: another voter that stays leads first."""
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
        """Begin a new replica; the first of a move was ordered with it, so it is not named here."""
        planning, shard, number = self._planning, self._shard, self._number
        places = [store for store in planning.places() if is_free(planning, number, store)]
        if not places:
            return False
        remaining = [store for store in shard.voters if store != removed]
        # Where a start failed before, it is tried again only if there is no other place.
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
        """No other store is free: one that came back empty is removed, to be added as a new one.

        It takes part in no decision as it is, so the shard gets no weaker by that.
        """
        for store in self._shard.lost:
            if store in self._shard.voters and store in self._planning.live:
                self._remove_voter(store)
                return

    def _to_leader(self, kind: OrderKind, *, store: int, removed: int = 0) -> None:
        self._planning.order(
            kind, to_store=self._leader, shard=self._number, store=store, removed=removed
        )


def is_free(planning: Planning, number: int, store: int) -> bool:
    """Whether a store may get a replica: no member, with room, no remains of an earlier."""
    shard = planning.state.shards[number]
    report = planning.report(number, store)
    return (
        store not in shard.voters
        and store not in shard.learners
        and (report is None or not report.voters)
        and not _is_being_killed(planning, number, store)
        and planning.has_room(store)
    )


def _is_being_killed(planning: Planning, number: int, store: int) -> bool:
    return number in planning.state.stores[store].condemned


def place(planning: Planning, number: int, store: int, *, removed: int = 0) -> None:
    """Begin a replica on a store; where a voter is to move there, `removed` is its place so far."""
    if planning.report(number, store) is None:
        planning.order(OrderKind.START_REPLICA, to_store=store, shard=number)
    planning.order(
        OrderKind.ADD_LEARNER,
        to_store=planning.leader(number),
        shard=number,
        store=store,
        removed=removed,
    )
