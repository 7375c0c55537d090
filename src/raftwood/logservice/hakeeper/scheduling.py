"""The queue of orders: which of a planned batch are taken, and how long they stay.

A plan is made from a state that may have changed before the plan arrives, by a leader that may not
be one any more. What would do harm then is refused here, where all replicas decide alike.
"""

import msgspec

from raftwood.logservice.hakeeper.commands import ORDERS_MAX, TICKS_MAX, Schedule, Scheduled
from raftwood.logservice.hakeeper.orders import Order, OrderKind, Orders
from raftwood.logservice.hakeeper.reporting import PLACING, drop_order, is_member, note_failure
from raftwood.logservice.hakeeper.state import FailedOrder, Move, Phase, ShardState, State

MEMBERSHIP = (OrderKind.ADD_LEARNER, OrderKind.ADD_VOTER, OrderKind.REMOVE_MEMBER)
ANSWER_ORDERS_MAX = 1000


def schedule(state: State, batch: Schedule) -> Scheduled:
    """Take a batch of orders into the queue."""
    if batch.term < state.term or batch.tick != state.tick:
        return Scheduled(0, is_outdated=True)
    state.term = batch.term
    wanted = {_key(order) for order in state.orders.values()}
    changing = {order.shard for order in state.orders.values() if order.kind in MEMBERSHIP}
    taken = 0
    for order in batch.orders:
        # One change of a shard at a time: the next is decided by what came of this one.
        if _key(order) in wanted or (order.kind in MEMBERSHIP and order.shard in changing):
            continue
        if _take(state, order):
            taken += 1
            wanted.add(_key(order))
            if order.kind in MEMBERSHIP:
                changing.add(order.shard)
    if state.phase is Phase.BOOTSTRAPPING and all(
        shard.founders for shard in state.shards.values() if shard.is_initial
    ):
        state.phase = Phase.BOOTSTRAP_COMMANDS_RECEIVED
    return Scheduled(taken)


def orders_for(state: State, *, to_store: int = 0, to_service: str = "") -> Orders:
    """What a heartbeat's answer brings: oldest first, and not too many at once."""
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


def expire(state: State) -> None:
    """Drop the orders whose time is over; what is still needed is planned anew."""
    for order in [each for each in state.orders.values() if each.expires_tick <= state.tick]:
        drop_order(state, order)
        if order.to_store and order.to_store not in state.stores:
            continue  # A founder that is still to come: it is told again.
        target = order.to_service or f"store {order.to_store}"
        note_failure(
            state, FailedOrder(state.tick, order.kind, target, order.shard, "not acknowledged")
        )


def settle_moves(state: State) -> None:
    """A move has ended when its source is gone, or when nothing is left of its target."""
    for number, shard in state.shards.items():
        move = shard.move
        if move is None:
            continue
        is_under_way = (
            move.target in shard.learners
            # A lone voter leaves after the new one has its vote; else the target replaced another.
            or (move.target in shard.voters and len(shard.voters) > shard.replicas)
            or any(
                order.shard == number and order.store == move.target
                for order in state.orders.values()
            )
        )
        if move.source not in shard.voters or not is_under_way:
            shard.move = None


def _take(state: State, order: Order) -> bool:
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


def _remark(state: State, order: Order) -> None:
    if order.kind in PLACING:
        target = state.stores.get(order.store or order.to_store)
        if target is not None:
            target.strange_since.pop(order.shard, None)
    elif order.kind is OrderKind.KILL_ZOMBIE:
        condemned = state.stores[order.to_store].condemned
        if order.shard not in condemned:
            condemned.append(order.shard)


def _key(order: Order) -> tuple[object, ...]:
    """Orders with the same key want the same."""
    about = (order.tn_shard,) if order.tn_shard else (order.shard, order.store)
    return (order.kind, order.to_store, order.to_service, *about)


def _fits(state: State, order: Order) -> bool:
    shard = state.shards.get(order.shard)
    if order.kind is OrderKind.KILL_ZOMBIE:
        return _is_stranger(state, order)
    if shard is None:
        return False
    if order.kind is OrderKind.BOOTSTRAP_SHARD:
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
        if order.epoch != shard.epoch or shard.is_joint:
            return False
        if order.kind is OrderKind.ADD_VOTER and order.store in shard.lost:
            return False
        if order.kind is OrderKind.ADD_LEARNER and order.removed:
            shard.move = Move(order.removed, order.store)
    return True


def _says_it_leads(state: State, order: Order) -> bool:
    store = state.stores.get(order.to_store)
    report = None if store is None else store.replicas.get(order.shard)
    return report is not None and report.leader == order.to_store


def _may_start(shard: ShardState, store: int) -> bool:
    """Whether a replica that is not there may be started without harm to what it has promised."""
    if store in shard.lost:
        return False
    # While a change is joint, who is no member after it may still be one before it.
    return is_member(shard, store) or not shard.is_joint


def _is_condemned(state: State, order: Order) -> bool:
    store = state.stores.get(order.store or order.to_store)
    return store is None or order.shard in store.condemned


def _is_stranger(state: State, order: Order) -> bool:
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


def _prepare_tn(state: State, order: Order) -> Order | None:
    """A new owner gets a lease id above all before it; the same owner keeps its own."""
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
