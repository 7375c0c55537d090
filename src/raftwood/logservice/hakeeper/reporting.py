"""What heartbeats change in HAKeeper's state: the newest configuration and leader of each shard.

A configuration of a higher epoch wins. Of an equal epoch there can be only one: a report that says
otherwise is not believed, and an alarm is raised, for two halves of a shard may both be at work.
"""

from raftwood.base.errors import Conflict, Overloaded
from raftwood.logservice.hakeeper.commands import SERVICES_MAX, STORES_MAX
from raftwood.logservice.hakeeper.orders import Order, OrderKind
from raftwood.logservice.hakeeper.reports import (
    FinishedOrder,
    ReplicaReport,
    ServiceHeartbeat,
    StoreHeartbeat,
)
from raftwood.logservice.hakeeper.state import (
    FailedOrder,
    ServiceState,
    ShardState,
    State,
    StoreState,
)

FAILURES_KEPT = 100
PLACING = (OrderKind.START_REPLICA, OrderKind.ADD_LEARNER, OrderKind.ADD_VOTER)
"""Orders that make a replica, or a member of it."""


def hear_store(state: State, heartbeat: StoreHeartbeat) -> None:
    """Take a store's word in; the orders that it finished are under way no more."""
    number = heartbeat.store
    before = state.stores.get(number)
    if before is None and len(state.stores) >= STORES_MAX:
        raise Overloaded(f"HAKeeper knows {STORES_MAX} stores: forget some first")
    if state.forgotten.get(number, heartbeat.incarnation) != heartbeat.incarnation:
        # The stores that knew it refuse it: it must not become a reader of a log meanwhile.
        raise Conflict(
            f"store {number} was forgotten, and comes back without its data: a number belongs to "
            "one data folder for ever, so start it with a new number and --join"
        )
    if before is not None and before.incarnation != heartbeat.incarnation:
        _lose(state, number)
    store = StoreState(
        heartbeat.address,
        heartbeat.failure_domain,
        heartbeat.incarnation,
        heartbeat.version,
        state.tick,
        {report.shard: report for report in heartbeat.replicas},
        heartbeat.alarms,
        heartbeat.disk_bytes,
        heartbeat.disk_free_bytes,
        before is not None and before.is_draining,
        is_short=heartbeat.is_short,
        served_as=(before.served_as if before is not None else "")
        or (heartbeat.incarnation if heartbeat.replicas else ""),
    )
    state.stores[number] = store
    for each, known in state.shards.items():
        if each not in store.replicas:
            known.conflicts.pop(number, None)
    for report in store.replicas.values():
        shard = state.shards.get(report.shard)
        if shard is not None:
            _take_configuration(shard, report, number)
            _take_leader(state, shard, report, number)
    finish(state, heartbeat.finished, to_store=number)
    _drop_what_is_done(state, number)
    if before is not None:
        _keep_remarks(state, number, before)
    _note_strangers(state, number)


def hear_service(state: State, heartbeat: ServiceHeartbeat) -> None:
    """Take a service's word in."""
    if heartbeat.service not in state.services and len(state.services) >= SERVICES_MAX:
        raise Overloaded(f"HAKeeper knows {SERVICES_MAX} services: remove some first")
    state.services[heartbeat.service] = ServiceState(
        heartbeat.kind, heartbeat.address, state.tick, heartbeat.labels, heartbeat.replicas
    )
    finish(state, heartbeat.finished, to_service=heartbeat.service)
    if not owns_of_others(state, heartbeat.service):
        # It has begun anew, whether or not its acknowledgement arrived.
        for order in list(state.orders.values()):
            if order.to_service == heartbeat.service and order.kind is OrderKind.SHUTDOWN_SERVICE:
                del state.orders[order.id]


def owns_of_others(state: State, service: str) -> bool:
    """Whether a service reports a TN shard that was given to another."""
    for report in state.services[service].replicas:
        shard = state.tn_shards.get(report.tn_shard)
        if shard is not None and shard.owner and shard.owner != service:
            return True
    return False


def finish(
    state: State,
    finished: tuple[FinishedOrder, ...],
    *,
    to_store: int = 0,
    to_service: str = "",
) -> None:
    """Drop orders that their target has answered, and remember what failed."""
    for each in finished:
        order = state.orders.get(each.order)
        if order is None or (order.to_store, order.to_service) != (to_store, to_service):
            continue
        drop_order(state, order)
        if each.error:
            target = to_service or f"store {to_store}"
            note_failure(
                state,
                FailedOrder(state.tick, order.kind, target, order.shard, each.error, order.store),
            )
        elif order.kind is OrderKind.BOOTSTRAP_SHARD and order.shard in state.shards:
            _begun(state.shards[order.shard], to_store)


def drop_order(state: State, order: Order) -> None:
    """An order is under way no more, though its target may carry it out until it reports again."""
    del state.orders[order.id]
    if order.kind in PLACING:
        # Whether it is a stranger is judged by what is reported from now on.
        store = state.stores.get(order.store or order.to_store)
        if store is not None:
            store.strange_since.pop(order.shard, None)


def note_failure(state: State, failure: FailedOrder) -> None:
    state.failures.append(failure)
    del state.failures[:-FAILURES_KEPT]


def is_member(shard: ShardState, store: int) -> bool:
    return store in shard.voters or store in shard.learners


def _begun(shard: ShardState, store: int) -> None:
    for each in (shard.awaited, shard.told):
        if store in each:
            each.remove(store)


def _lose(state: State, store: int) -> None:
    """A store came back empty: what it promised is forgotten, so it may not vote as it was."""
    for shard in state.shards.values():
        if store in shard.awaited and store not in shard.told:
            continue  # It has not begun, so there is nothing to lose.
        _begun(shard, store)
        if is_member(shard, store) and store not in shard.lost:
            shard.lost.append(store)
    for order in list(state.orders.values()):
        # It is not caught up any more, and an empty replica has to be started anew.
        if order.to_store == store or (order.store == store and order.kind is OrderKind.ADD_VOTER):
            drop_order(state, order)


def _take_configuration(shard: ShardState, report: ReplicaReport, store: int) -> None:
    if not report.voters:
        return  # An empty replica, which waits for its leader.
    if store in report.voters:
        _begun(shard, store)
    told = (tuple(sorted(report.voters)), tuple(sorted(report.learners)))
    known = (shard.voters, shard.learners)
    if report.epoch < shard.epoch:
        shard.conflicts.pop(store, None)
        return
    if report.epoch == shard.epoch and shard.voters:
        if told != known:
            shard.conflicts[store] = (
                f"store {store} reports voters {list(report.voters)} and learners "
                f"{list(report.learners)} at epoch {report.epoch}, known are {list(shard.voters)} "
                f"and {list(shard.learners)}"
            )
        else:
            shard.conflicts.pop(store, None)
            shard.is_joint = shard.is_joint and report.is_joint
        return
    shard.epoch = report.epoch
    shard.voters, shard.learners = told
    shard.is_joint = report.is_joint
    shard.conflicts = {}
    shard.lost = [each for each in shard.lost if is_member(shard, each)]
    shard.awaited = [each for each in shard.awaited if each in shard.voters]
    shard.told = [each for each in shard.told if each in shard.awaited]


def _take_leader(state: State, shard: ShardState, report: ReplicaReport, store: int) -> None:
    if not is_member(shard, store):
        return  # Whom a removed replica follows, or leads, is of no account.
    if report.leader == store and report.term >= shard.term:
        shard.leader, shard.term = store, report.term
        shard.leader_tick = state.tick
        shard.lagging = report.lagging
    elif report.leader and report.term > shard.term:
        shard.leader, shard.term, shard.lagging = report.leader, report.term, {}
    elif shard.leader == store and report.term >= shard.term:
        shard.leader, shard.term, shard.lagging = 0, report.term, {}


def _drop_what_is_done(state: State, number: int) -> None:
    """Orders that the report shows as done; carried out once more, they could do harm later."""
    replicas = state.stores[number].replicas
    for order in [each for each in state.orders.values() if each.to_store == number]:
        shard = state.shards.get(order.shard)
        if (
            (order.kind is OrderKind.KILL_ZOMBIE and order.shard not in replicas)
            or (order.kind is OrderKind.START_REPLICA and order.shard in replicas)
            or (
                order.kind is OrderKind.BOOTSTRAP_SHARD
                and shard is not None
                and number not in shard.awaited
            )
        ):
            drop_order(state, order)


def _keep_remarks(state: State, number: int, before: StoreState) -> None:
    """What is remembered of replicas that are still there."""
    store = state.stores[number]
    store.strange_since = {
        shard: since for shard, since in before.strange_since.items() if shard in store.replicas
    }
    store.condemned = [
        shard
        for shard in before.condemned
        if shard in store.replicas and before.incarnation == store.incarnation
    ]


def _note_strangers(state: State, number: int) -> None:
    store = state.stores[number]
    placed = {
        order.shard
        for order in state.orders.values()
        if order.kind in PLACING and (order.store or order.to_store) == number
    }
    for shard in store.replicas:
        known = state.shards.get(shard)
        if known is not None and is_member(known, number):
            store.strange_since.pop(shard, None)
            if shard in store.condemned:
                store.condemned.remove(shard)
        elif shard not in placed:
            store.strange_since.setdefault(shard, state.tick)
