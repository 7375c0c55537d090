"""HAKeeper's rules: what each command does to the state. No clock, no randomness, no I/O.

HAKeeper is the replicated state machine of Logservice's text (sections "Bootstrap" and
"Heartbeat"): heartbeats bring states and take orders home, and time is the number of ticks that
were committed. Planted bugs are in `tests/kits/logservice/hakeeper_model/mutants.py`.

**Heartbeats** bring the newest configuration and leader of each shard. A configuration of a higher
epoch wins. Of an equal epoch there can be only one: a report that says otherwise is not believed,
and an alarm is raised, for two halves of a shard may both be at work. If the last report won, the
next change of members would be ordered of the wrong half (planted bug "believes the last of an
equal epoch").

**The queue of orders**: which of a planned batch are taken, and how long they stay. A plan is made
from a state that may have changed before the plan arrives, by a leader that may not be one any
more. What would do harm then is refused here, where all replicas decide alike.
"""

import msgspec

from raftwood.base.errors import (
    AlreadyExists,
    Conflict,
    InvalidInput,
    NotFound,
    Overloaded,
    RaftwoodError,
)
from raftwood.logservice.hakeeper.commands import (
    ORDERS_MAX,
    SERVICES_MAX,
    SHARDS_MAX,
    STORES_MAX,
    TICKS_MAX,
    AddGuests,
    AddShard,
    AddTnShard,
    AllocateIds,
    DrainStore,
    ForgetStore,
    HearService,
    HearStore,
    InitialCluster,
    KeeperCommand,
    KeeperDone,
    KeeperResult,
    KeeperTick,
    Ordered,
    RemoveService,
    RemoveShard,
    RemoveTnShard,
    Schedule,
    Scheduled,
    SetInitialCluster,
    check_command,
    decode_command,
    encode_result,
    failed,
)
from raftwood.logservice.hakeeper.messages import (
    GUESTS_FIRST,
    HAKEEPER_SHARD,
    FinishedOrder,
    Order,
    OrderKind,
    Orders,
    ServiceHeartbeat,
    ShardReplicaReport,
    StoreHeartbeat,
    is_log,
)
from raftwood.logservice.hakeeper.state import (
    ClusterPhase,
    FailedOrder,
    KeeperShardState,
    KeeperState,
    ServiceState,
    StoreState,
    TnShardState,
    VoterMove,
)

FAILURES_KEPT = 100
PLACING = (OrderKind.START_REPLICA, OrderKind.ADD_LEARNER, OrderKind.ADD_VOTER)
"""Orders that make a replica, or a member of it."""


def apply_store_heartbeat(state: KeeperState, heartbeat: StoreHeartbeat) -> None:
    """Takes a store's heartbeat in; the orders that it finished are no longer under way."""
    number = heartbeat.store
    before = state.stores.get(number)
    if before is None and len(state.stores) >= STORES_MAX:
        raise Overloaded(f"HAKeeper knows {STORES_MAX} stores: forget some first")
    if state.forgotten.get(number, heartbeat.incarnation) != heartbeat.incarnation:
        # Raft members that knew the number refuse an empty store under it. It must not become a new
        # replica either, which would vote as one that has seen nothing
        # (`test_an_empty_store_under_a_forgotten_number_becomes_no_reader_of_a_log`).
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


def apply_service_heartbeat(state: KeeperState, heartbeat: ServiceHeartbeat) -> None:
    """Takes a service's heartbeat in."""
    if heartbeat.service not in state.services and len(state.services) >= SERVICES_MAX:
        raise Overloaded(f"HAKeeper knows {SERVICES_MAX} services: remove some first")
    state.services[heartbeat.service] = ServiceState(
        heartbeat.kind, heartbeat.address, state.tick, heartbeat.labels, heartbeat.replicas
    )
    finish(state, heartbeat.finished, to_service=heartbeat.service)
    if not owns_of_others(state, heartbeat.service):
        # The service has begun anew, even if its acknowledgement was lost. The order to stop would
        # else stop it a second time, in the middle of its new work.
        for order in list(state.orders.values()):
            if order.to_service == heartbeat.service and order.kind is OrderKind.SHUTDOWN_SERVICE:
                del state.orders[order.id]


def owns_of_others(state: KeeperState, service: str) -> bool:
    """Whether a service reports a TN shard that was given to another."""
    for report in state.services[service].replicas:
        shard = state.tn_shards.get(report.tn_shard)
        if shard is not None and shard.owner and shard.owner != service:
            return True
    return False


def finish(
    state: KeeperState,
    finished: tuple[FinishedOrder, ...],
    *,
    to_store: int = 0,
    to_service: str = "",
) -> None:
    """Drops orders that their target has answered, and remembers what failed."""
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


def drop_order(state: KeeperState, order: Order) -> None:
    """Drops an order; its target may still carry it out until its next report."""
    del state.orders[order.id]
    if order.kind in PLACING:
        # The replica may just have been made by this order: whether it is a zombie is judged
        # by reports from now on.
        store = state.stores.get(order.store or order.to_store)
        if store is not None:
            store.strange_since.pop(order.shard, None)


def note_failure(state: KeeperState, failure: FailedOrder) -> None:
    state.failures.append(failure)
    del state.failures[:-FAILURES_KEPT]


def is_member(shard: KeeperShardState, store: int) -> bool:
    return store in shard.voters or store in shard.learners


def _begun(shard: KeeperShardState, store: int) -> None:
    for each in (shard.awaited, shard.told):
        if store in each:
            each.remove(store)


def _lose(state: KeeperState, store: int) -> None:
    """Notes that a store came back without its data.

    It has forgotten its votes and what it acknowledged. Started as the voter that it was, it could
    vote twice in one term, or complete a majority that lacks a committed entry: two leaders, or
    lost records (planted bug "restarts voters that lost their data"). So it is marked, and is
    replaced or let in as a new member.
    """
    for shard in state.shards.values():
        if store in shard.awaited and store not in shard.told:
            # It never received the order to begin, so that it has promised nothing
            # (`test_a_founder_that_comes_back_empty_begins_if_it_was_not_told_before`).
            continue
        _begun(shard, store)
        if is_member(shard, store) and store not in shard.lost:
            shard.lost.append(store)
    for order in list(state.orders.values()):
        # A learner that has lost its data is not caught up any more: its vote would count without
        # any entries. And an empty replica has to be started again.
        if order.to_store == store or (order.store == store and order.kind is OrderKind.ADD_VOTER):
            drop_order(state, order)


def _take_configuration(shard: KeeperShardState, report: ShardReplicaReport, store: int) -> None:
    if not report.voters:
        return  # An empty replica: it knows no configuration before its leader reaches it.
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


def _take_leader(
    state: KeeperState, shard: KeeperShardState, report: ShardReplicaReport, store: int
) -> None:
    if not is_member(shard, store):
        return  # A removed replica may believe to lead, or follow a leader of long ago.
    if report.leader == store and report.term >= shard.term:
        shard.leader, shard.term = store, report.term
        shard.leader_tick = state.tick
        shard.lagging = report.lagging
    elif report.leader and report.term > shard.term:
        shard.leader, shard.term, shard.lagging = report.leader, report.term, {}
    elif shard.leader == store and report.term >= shard.term:
        shard.leader, shard.term, shard.lagging = 0, report.term, {}


def _drop_what_is_done(state: KeeperState, number: int) -> None:
    """Drops orders that the report shows as done.

    Their acknowledgement may be lost. Carried out once more later, they do harm: a replica that was
    killed, and made anew by another order, would be killed again.
    """
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


def _keep_remarks(state: KeeperState, number: int, before: StoreState) -> None:
    """Keeps the remarks about replicas that are still there."""
    store = state.stores[number]
    store.strange_since = {
        shard: since for shard, since in before.strange_since.items() if shard in store.replicas
    }
    store.condemned = [
        shard
        for shard in before.condemned
        if shard in store.replicas and before.incarnation == store.incarnation
    ]


def _note_strangers(state: KeeperState, number: int) -> None:
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


MEMBERSHIP = (OrderKind.ADD_LEARNER, OrderKind.ADD_VOTER, OrderKind.REMOVE_MEMBER)
ANSWER_ORDERS_MAX = 1000


def schedule(state: KeeperState, batch: Schedule) -> Scheduled:
    """Takes a batch of orders into the queue.

    A leader that was replaced may still have a plan on its way, made from a state of minutes ago:
    its batch is refused by the term, and any plan by the tick that it was made at (planted bug
    "accepts an older term's batch"; `test_orders_of_an_older_term_or_another_tick_are_ignored`).
    """
    if batch.term < state.term or batch.tick != state.tick:
        return Scheduled(0, is_outdated=True)
    state.term = batch.term
    wanted = {_key(order) for order in state.orders.values()}
    changing = {order.shard for order in state.orders.values() if order.kind in MEMBERSHIP}
    taken = 0
    for order in batch.orders:
        # One change of a shard at a time: the next is decided by the outcome of this one. Two that
        # are each right for three voters can leave one voter (planted bug "two changes at once").
        if _key(order) in wanted or (order.kind in MEMBERSHIP and order.shard in changing):
            continue
        if _take(state, order):
            taken += 1
            wanted.add(_key(order))
            if order.kind in MEMBERSHIP:
                changing.add(order.shard)
    if state.phase is ClusterPhase.BOOTSTRAPPING and all(
        shard.founders for shard in state.shards.values() if shard.is_initial
    ):
        state.phase = ClusterPhase.BOOTSTRAP_COMMANDS_RECEIVED
    return Scheduled(taken)


def orders_for(state: KeeperState, *, to_store: int = 0, to_service: str = "") -> Orders:
    """The orders that a heartbeat's answer brings: oldest first, and not too many at once.

    An order comes with every answer until it is acknowledged: answers get lost (the text's section
    "Heartbeat"; `test_orders_come_until_they_are_acknowledged`).
    """
    found = [
        order
        for order in state.orders.values()
        if order.to_store == to_store and order.to_service == to_service
    ]
    answered = tuple(found[:ANSWER_ORDERS_MAX])
    for order in answered:
        shard = state.shards.get(order.shard)
        if order.kind is not OrderKind.BOOTSTRAP_SHARD or shard is None:
            continue
        if to_store not in shard.told:
            shard.told.append(to_store)
    return Orders(state.term, state.tick, answered)


def expire(state: KeeperState) -> None:
    """Drops orders whose time is over; what is still needed is planned anew, for a store that may
    be another by now."""
    for order in [each for each in state.orders.values() if each.expires_tick <= state.tick]:
        drop_order(state, order)
        if order.to_store and order.to_store not in state.stores:
            continue  # A founder that has not reported yet: the order is planned again.
        target = order.to_service or f"store {order.to_store}"
        note_failure(
            state, FailedOrder(state.tick, order.kind, target, order.shard, "not acknowledged")
        )


def settle_moves(state: KeeperState) -> None:
    """Ends moves whose source is gone, or of whose target nothing is left
    (`test_a_move_that_comes_to_nothing_is_forgotten`)."""
    for number, shard in state.shards.items():
        move = shard.move
        if move is None:
            continue
        is_under_way = (
            move.target in shard.learners
            # A lone voter leaves after the new one has its vote. In any larger shard both happen in
            # one step: a target that votes there replaced another voter than the source.
            or (move.target in shard.voters and len(shard.voters) > shard.replicas)
            or any(
                order.shard == number and order.store == move.target
                for order in state.orders.values()
            )
        )
        if move.source not in shard.voters or not is_under_way:
            shard.move = None


def _take(state: KeeperState, order: Order) -> bool:
    if len(state.orders) >= ORDERS_MAX or (order.to_store > 0) == bool(order.to_service):
        return False
    if order.to_service:
        prepared = _prepare_tn(state, order)
    else:
        prepared = order if _fits(state, order) else None
    if prepared is None:
        return False
    expires = min(max(order.expires_tick, state.tick + 1), state.tick + TICKS_MAX)
    queued = msgspec.structs.replace(prepared, id=state.next_order, expires_tick=expires)
    state.orders[queued.id] = queued
    state.next_order += 1
    _remark(state, queued)
    return True


def _remark(state: KeeperState, order: Order) -> None:
    if order.kind in PLACING:
        target = state.stores.get(order.store or order.to_store)
        if target is not None:
            target.strange_since.pop(order.shard, None)
    elif order.kind is OrderKind.KILL_ZOMBIE:
        condemned = state.stores[order.to_store].condemned
        if order.shard not in condemned:
            condemned.append(order.shard)


def _key(order: Order) -> tuple[object, ...]:
    """Two orders with the same key ask for the same."""
    about = (order.tn_shard,) if order.tn_shard else (order.shard, order.store)
    return (order.kind, order.to_store, order.to_service, *about)


def _fits(state: KeeperState, order: Order) -> bool:
    shard = state.shards.get(order.shard)
    if order.kind is OrderKind.KILL_ZOMBIE:
        return _is_stranger(state, order)
    if shard is None:
        return False
    if order.kind is OrderKind.BOOTSTRAP_SHARD:
        # The first batch fixes the founders for ever. A second choice of founders, by a leader that
        # did not know the first, would begin a second group of the same name with its own log
        # (planted bug "begins a shard twice"; `test_founders_are_chosen_once`).
        if not shard.founders and order.members:
            shard.founders = dict(sorted(order.members.items()))
            shard.voters = tuple(shard.founders)
            shard.awaited = list(shard.founders)
        return order.members == shard.founders and order.to_store in shard.awaited
    if order.kind in PLACING and _is_condemned(state, order):
        return False
    if order.kind is OrderKind.START_REPLICA:
        return _may_start(shard, order.to_store)
    if order.kind is OrderKind.TRANSFER_LEADER:
        return order.to_store == shard.leader
    if order.kind in MEMBERSHIP:
        if order.to_store != shard.leader or not _says_it_leads(state, order):
            return False
        # The plan counted living voters of one configuration; of another it proves nothing.
        if order.epoch != shard.epoch or shard.is_joint:
            return False
        if order.kind is OrderKind.ADD_VOTER and order.store in shard.lost:
            return False
        if order.kind is OrderKind.ADD_LEARNER and order.removed:
            shard.move = VoterMove(order.removed, order.store)
    return True


def _says_it_leads(state: KeeperState, order: Order) -> bool:
    store = state.stores.get(order.to_store)
    report = None if store is None else store.replicas.get(order.shard)
    return report is not None and report.leader == order.to_store


def _may_start(shard: KeeperShardState, store: int) -> bool:
    """Whether a missing replica may be started empty without harm to earlier promises.

    A member that still has its data starts from that. While a change is joint, a store that is no
    member after it may still be a voter before it, with promises that an empty replica would break
    (`test_who_may_be_leaving_by_a_joint_change_is_not_started_anew`).
    """
    if store in shard.lost:
        return False
    return is_member(shard, store) or not shard.is_joint


def _is_condemned(state: KeeperState, order: Order) -> bool:
    store = state.stores.get(order.store or order.to_store)
    return store is None or order.shard in store.condemned


def _is_stranger(state: KeeperState, order: Order) -> bool:
    shard, store = state.shards.get(order.shard), state.stores.get(order.to_store)
    if store is None or order.shard not in store.replicas:
        return False
    if shard is None:
        return order.shard in state.removed_shards
    report = store.replicas[order.shard]
    is_out = bool(report.voters) and order.to_store not in (*report.voters, *report.learners)
    return (
        order.shard in store.strange_since
        and order.epoch == shard.epoch
        and (report.epoch < shard.epoch or is_out)
    )


def _prepare_tn(state: KeeperState, order: Order) -> Order | None:
    """A new owner gets a lease id above all before it; the same owner keeps its own.

    The owner before may be alive and cut off. Its appends are refused by the log because its id is
    smaller; with the same id both would write (planted bug "gives an old lease to a new owner").
    """
    if order.to_service not in state.services:
        return None
    if order.kind is not OrderKind.ADD_TN_SHARD:
        return order
    shard = state.tn_shards.get(order.tn_shard)
    if shard is None:
        return None
    if shard.owner != order.to_service:
        for other in list(state.orders.values()):
            if other.tn_shard == order.tn_shard and other.kind is OrderKind.ADD_TN_SHARD:
                del state.orders[other.id]
        shard.owner = order.to_service
        shard.holder = state.next_id
        state.next_id += 1
    return msgspec.structs.replace(order, shard=shard.log_shard, epoch=0, holder=shard.holder)


REMOVED_KEPT = 100_000
_WITHOUT_FORGOTTEN = ("0.1.0",)
"""Releases that do not remember forgotten numbers: while one of them runs, no member does, so that
the same commands lead all members to the same state."""


def apply(state: KeeperState, payload: bytes) -> bytes:
    """Carries out one command; an error is its result, since raising would stop every member at the
    same entry."""
    result: KeeperResult
    try:
        command = decode_command(payload)
        check_command(command)
        result = carry_out(state, command)
    except RaftwoodError as error:
        result = failed(error)
    return encode_result(result)


def carry_out(state: KeeperState, command: KeeperCommand) -> KeeperResult:
    """Like `apply`, for a command that was checked."""
    match command:
        case KeeperTick():
            _tick(state, command)
        case HearStore(heartbeat):
            apply_store_heartbeat(state, heartbeat)
            _advance(state)
            return Ordered(orders_for(state, to_store=heartbeat.store))
        case HearService(heartbeat):
            apply_service_heartbeat(state, heartbeat)
            return Ordered(orders_for(state, to_service=heartbeat.service))
        case Schedule():
            return schedule(state, command)
        case SetInitialCluster():
            return _set_initial_cluster(state, command)
        case AddGuests(guests):
            _add_guests(state, guests)
        case AllocateIds(count):
            return KeeperDone(_allocate(state, count))
        case AddShard():
            return KeeperDone(_add_shard(state, command))
        case RemoveShard(shard):
            _remove_shard(state, shard)
        case DrainStore(store, is_draining):
            if store not in state.stores:
                raise NotFound(f"HAKeeper has never heard of store {store}: check its number")
            state.stores[store].is_draining = is_draining
        case ForgetStore(store):
            _forget_store(state, store)
        case RemoveService(service):
            if service not in state.services:
                raise NotFound(f"there is no service {service!r}: check its name")
            _remove_service(state, service)
        case AddTnShard():
            return KeeperDone(_add_tn_shard(state, command))
        case RemoveTnShard(tn_shard):
            if state.tn_shards.pop(tn_shard, None) is None:
                raise NotFound(f"there is no TN shard {tn_shard}: check its number")
            _drop_orders(state, tn_shard=tn_shard)
    return KeeperDone()


def _allocate(state: KeeperState, count: int) -> int:
    first = state.next_id
    if first + count > GUESTS_FIRST:
        raise Overloaded(f"all numbers below {GUESTS_FIRST} are taken")
    state.next_id += count
    return first


def _tick(state: KeeperState, command: KeeperTick) -> None:
    state.tick += 1
    expire(state)
    settle_moves(state)
    silent = state.tick - command.service_removed_ticks
    for name in [each for each, service in state.services.items() if service.heard_tick < silent]:
        _remove_service(state, name)
    is_beginning = state.phase in (
        ClusterPhase.BOOTSTRAPPING,
        ClusterPhase.BOOTSTRAP_COMMANDS_RECEIVED,
    )
    if is_beginning and state.tick - state.initial_tick > command.bootstrap_ticks:
        state.phase, state.reason = ClusterPhase.BOOTSTRAP_FAILED, _why_not_running(state)


def _advance(state: KeeperState) -> None:
    """Sets the cluster running once each of the first shards has had a leader."""
    if state.phase in (
        ClusterPhase.BOOTSTRAP_COMMANDS_RECEIVED,
        ClusterPhase.BOOTSTRAP_FAILED,
    ) and all(shard.leader_tick for shard in state.shards.values() if shard.is_initial):
        state.phase, state.reason = ClusterPhase.RUNNING, ""


def _why_not_running(state: KeeperState) -> str:
    silent = [store for store in state.members if store not in state.stores]
    reasons = [f"stores {silent} have never reported"] if silent else []
    first = {number: shard for number, shard in state.shards.items() if shard.is_initial}
    homeless = [number for number, shard in first.items() if not shard.founders]
    if homeless:
        reasons.append(f"too few stores for shards {homeless[:10]}")
    leaderless = [
        number for number, each in first.items() if each.founders and not each.leader_tick
    ]
    if leaderless:
        reasons.append(f"no leader for shards {leaderless[:10]}")
    return "; ".join(reasons)


def _set_initial_cluster(state: KeeperState, command: SetInitialCluster) -> InitialCluster:
    if state.phase is not ClusterPhase.CREATED:
        return InitialCluster(is_first=False)
    state.phase, state.initial_tick = ClusterPhase.BOOTSTRAPPING, state.tick
    state.members = dict(sorted(command.members.items()))
    state.shards[HAKEEPER_SHARD] = KeeperShardState(
        "hakeeper",
        command.hakeeper_replicas,
        0,
        state.tick,
        is_initial=True,
        founders=dict(state.members),
        voters=tuple(state.members),
    )
    first = _allocate(state, command.log_shards)
    for number in range(first, first + command.log_shards):
        state.shards[number] = KeeperShardState(
            f"log-{number}", command.log_replicas, 0, state.tick, is_initial=True
        )
    for number, name in sorted(command.guests.items()):
        state.shards[number] = KeeperShardState(
            name, command.hakeeper_replicas, 0, state.tick, is_initial=True
        )
    for log_shard in range(first, first + command.tn_shards):
        state.tn_shards[_allocate(state, 1)] = TnShardState(log_shard)
    for number, store in state.stores.items():
        # Reports that came before HAKeeper knew the shard made its replicas strangers.
        for shard in store.replicas:
            if shard in state.shards and is_member(state.shards[shard], number):
                store.strange_since.pop(shard, None)
    return InitialCluster(is_first=True)


def _add_guests(state: KeeperState, guests: dict[int, str]) -> None:
    if state.phase is ClusterPhase.CREATED:
        raise Conflict("the cluster has not begun: set what it is to be first")
    new = {number: name for number, name in sorted(guests.items()) if number not in state.shards}
    taken = {shard.name for shard in state.shards.values()}
    for name in new.values():
        if name in taken:
            raise AlreadyExists(f"a log is named {name!r}, as a guest is to be: remove it")
    replicas = state.shards[HAKEEPER_SHARD].replicas
    for number, name in new.items():
        state.shards[number] = KeeperShardState(name, replicas, 0, state.tick)


def _add_shard(state: KeeperState, command: AddShard) -> int:
    for number, shard in state.shards.items():
        if shard.name == command.name:
            if shard.nonce == command.nonce and command.nonce:
                return number
            raise AlreadyExists(f"shard {command.name!r} exists: choose another name")
    if state.phase is ClusterPhase.CREATED:
        raise Conflict("the cluster has not begun: set what it is to be first")
    if len(state.shards) >= SHARDS_MAX:
        raise Overloaded(f"there are {SHARDS_MAX} shards: remove some first")
    number = _allocate(state, 1)
    state.shards[number] = KeeperShardState(
        command.name, command.replicas, command.learners, state.tick, command.nonce
    )
    return number


def _remove_shard(state: KeeperState, number: int) -> None:
    if not is_log(number):
        raise InvalidInput(f"shard {number} is no log, and part of every cluster: it stays")
    if number not in state.shards:
        if number in state.removed_shards:
            return
        raise NotFound(f"there is no shard {number}: check its number")
    if any(each.log_shard == number for each in state.tn_shards.values()):
        raise Conflict(f"a TN shard writes shard {number}: remove it first")
    del state.shards[number]
    state.removed_shards.append(number)
    del state.removed_shards[:-REMOVED_KEPT]
    _drop_orders(state, shard=number)


def _forget_store(state: KeeperState, store: int) -> None:
    if store not in state.stores:
        raise NotFound(f"HAKeeper has never heard of store {store}: check its number")
    for number, shard in state.shards.items():
        if is_member(shard, store):
            raise Conflict(
                f"store {store} is a member of shard {number}: drain it, or wait until it is "
                "replaced"
            )
    served_as = state.stores[store].served_as
    others = [each for number, each in state.stores.items() if number != store]
    if served_as and not any(each.version in _WITHOUT_FORGOTTEN for each in others):
        # Its votes and acknowledgements outlive it in other stores' logs: no other data folder may
        # come under its number (`test_a_forgotten_store_comes_back_with_its_own_folder_alone`).
        state.forgotten[store] = served_as
        for oldest in list(state.forgotten)[:-REMOVED_KEPT]:
            del state.forgotten[oldest]
    del state.stores[store]
    for shard in state.shards.values():
        shard.conflicts.pop(store, None)
    state.members.pop(store, None)
    for order in [each for each in state.orders.values() if store in (each.to_store, each.store)]:
        del state.orders[order.id]


def _remove_service(state: KeeperState, name: str) -> None:
    del state.services[name]
    for shard in state.tn_shards.values():
        if shard.owner == name:
            shard.owner = ""
    for order in [each for each in state.orders.values() if each.to_service == name]:
        del state.orders[order.id]


def _add_tn_shard(state: KeeperState, command: AddTnShard) -> int:
    if not is_log(command.log_shard) or command.log_shard not in state.shards:
        raise NotFound(f"there is no log shard {command.log_shard}: add it first")
    for number, shard in state.tn_shards.items():
        if shard.log_shard == command.log_shard:
            if shard.nonce == command.nonce and command.nonce:
                return number
            raise AlreadyExists(f"TN shard {number} writes log shard {command.log_shard} already")
    number = _allocate(state, 1)
    state.tn_shards[number] = TnShardState(command.log_shard, command.nonce)
    return number


def _drop_orders(state: KeeperState, *, shard: int = 0, tn_shard: int = 0) -> None:
    for order in list(state.orders.values()):
        if (shard and order.shard == shard and not order.tn_shard) or (
            tn_shard and order.tn_shard == tn_shard
        ):
            del state.orders[order.id]
