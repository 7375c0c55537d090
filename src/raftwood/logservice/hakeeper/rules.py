"""HAKeeper's rules: what each command does to the state. No clock, no randomness, no I/O."""

from raftwood.base.errors import (
    AlreadyExists,
    Conflict,
    InvalidInput,
    NotFound,
    Overloaded,
    RaftwoodError,
)
from raftwood.logservice.hakeeper.commands import (
    SHARDS_MAX,
    AddGuests,
    AddShard,
    AddTnShard,
    AllocateIds,
    Command,
    Done,
    DrainStore,
    ForgetStore,
    HearService,
    HearStore,
    InitialCluster,
    Ordered,
    RemoveService,
    RemoveShard,
    RemoveTnShard,
    Result,
    Schedule,
    SetInitialCluster,
    Tick,
    check_command,
    decode_command,
    encode_result,
    failed,
)
from raftwood.logservice.hakeeper.reporting import hear_service, hear_store, is_member
from raftwood.logservice.hakeeper.reports import GUESTS_FIRST, HAKEEPER_SHARD, is_log
from raftwood.logservice.hakeeper.scheduling import expire, orders_for, schedule, settle_moves
from raftwood.logservice.hakeeper.state import Phase, ShardState, State, TnShardState

REMOVED_KEPT = 100_000
_WITHOUT_FORGOTTEN = ("0.1.0",)
"""Releases that do not remember forgotten numbers: while one of them runs, nobody does, so that all
members come to the same state by the same commands."""


def apply(state: State, payload: bytes) -> bytes:
    """Carry out one command; whatever is wrong with it is its result."""
    result: Result
    try:
        command = decode_command(payload)
        check_command(command)
        result = carry_out(state, command)
    except RaftwoodError as error:
        result = failed(error)
    return encode_result(result)


def carry_out(state: State, command: Command) -> Result:
    """As `apply`, for a command that was checked."""
    match command:
        case Tick():
            _tick(state, command)
        case HearStore(heartbeat):
            hear_store(state, heartbeat)
            _advance(state)
            return Ordered(orders_for(state, to_store=heartbeat.store))
        case HearService(heartbeat):
            hear_service(state, heartbeat)
            return Ordered(orders_for(state, to_service=heartbeat.service))
        case Schedule():
            return schedule(state, command)
        case SetInitialCluster():
            return _set_initial_cluster(state, command)
        case AddGuests(guests):
            _add_guests(state, guests)
        case AllocateIds(count):
            return Done(_allocate(state, count))
        case AddShard():
            return Done(_add_shard(state, command))
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
            return Done(_add_tn_shard(state, command))
        case RemoveTnShard(tn_shard):
            if state.tn_shards.pop(tn_shard, None) is None:
                raise NotFound(f"there is no TN shard {tn_shard}: check its number")
            _drop_orders(state, tn_shard=tn_shard)
    return Done()


def _allocate(state: State, count: int) -> int:
    first = state.next_id
    if first + count > GUESTS_FIRST:
        raise Overloaded(f"all numbers below {GUESTS_FIRST} are taken")
    state.next_id += count
    return first


def _tick(state: State, command: Tick) -> None:
    state.tick += 1
    expire(state)
    settle_moves(state)
    silent = state.tick - command.service_removed_ticks
    for name in [each for each, service in state.services.items() if service.heard_tick < silent]:
        _remove_service(state, name)
    is_beginning = state.phase in (Phase.BOOTSTRAPPING, Phase.BOOTSTRAP_COMMANDS_RECEIVED)
    if is_beginning and state.tick - state.initial_tick > command.bootstrap_ticks:
        state.phase, state.reason = Phase.BOOTSTRAP_FAILED, _why_not_running(state)


def _advance(state: State) -> None:
    """The cluster runs when each of the first shards has had a leader."""
    if state.phase in (Phase.BOOTSTRAP_COMMANDS_RECEIVED, Phase.BOOTSTRAP_FAILED) and all(
        shard.leader_tick for shard in state.shards.values() if shard.is_initial
    ):
        state.phase, state.reason = Phase.RUNNING, ""


def _why_not_running(state: State) -> str:
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


def _set_initial_cluster(state: State, command: SetInitialCluster) -> InitialCluster:
    if state.phase is not Phase.CREATED:
        return InitialCluster(is_first=False)
    state.phase, state.initial_tick = Phase.BOOTSTRAPPING, state.tick
    state.members = dict(sorted(command.members.items()))
    state.shards[HAKEEPER_SHARD] = ShardState(
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
        state.shards[number] = ShardState(
            f"log-{number}", command.log_replicas, 0, state.tick, is_initial=True
        )
    for number, name in sorted(command.guests.items()):
        state.shards[number] = ShardState(
            name, command.hakeeper_replicas, 0, state.tick, is_initial=True
        )
    for log_shard in range(first, first + command.tn_shards):
        state.tn_shards[_allocate(state, 1)] = TnShardState(log_shard)
    for number, store in state.stores.items():
        # Reports that came before anybody knew the shard.
        for shard in store.replicas:
            if shard in state.shards and is_member(state.shards[shard], number):
                store.strange_since.pop(shard, None)
    return InitialCluster(is_first=True)


def _add_guests(state: State, guests: dict[int, str]) -> None:
    if state.phase is Phase.CREATED:
        raise Conflict("the cluster has not begun: set what it is to be first")
    new = {number: name for number, name in sorted(guests.items()) if number not in state.shards}
    taken = {shard.name for shard in state.shards.values()}
    for name in new.values():
        if name in taken:
            raise AlreadyExists(f"a log is named {name!r}, as a guest is to be: remove it")
    replicas = state.shards[HAKEEPER_SHARD].replicas
    for number, name in new.items():
        state.shards[number] = ShardState(name, replicas, 0, state.tick)


def _add_shard(state: State, command: AddShard) -> int:
    for number, shard in state.shards.items():
        if shard.name == command.name:
            if shard.nonce == command.nonce and command.nonce:
                return number
            raise AlreadyExists(f"shard {command.name!r} exists: choose another name")
    if state.phase is Phase.CREATED:
        raise Conflict("the cluster has not begun: set what it is to be first")
    if len(state.shards) >= SHARDS_MAX:
        raise Overloaded(f"there are {SHARDS_MAX} shards: remove some first")
    number = _allocate(state, 1)
    state.shards[number] = ShardState(
        command.name, command.replicas, command.learners, state.tick, command.nonce
    )
    return number


def _remove_shard(state: State, number: int) -> None:
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


def _forget_store(state: State, store: int) -> None:
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
        # What it voted for and acknowledged outlives it: nobody else may come under its number.
        state.forgotten[store] = served_as
        for oldest in list(state.forgotten)[:-REMOVED_KEPT]:
            del state.forgotten[oldest]
    del state.stores[store]
    for shard in state.shards.values():
        shard.conflicts.pop(store, None)
    state.members.pop(store, None)
    for order in [each for each in state.orders.values() if store in (each.to_store, each.store)]:
        del state.orders[order.id]


def _remove_service(state: State, name: str) -> None:
    del state.services[name]
    for shard in state.tn_shards.values():
        if shard.owner == name:
            shard.owner = ""
    for order in [each for each in state.orders.values() if each.to_service == name]:
        del state.orders[order.id]


def _add_tn_shard(state: State, command: AddTnShard) -> int:
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


def _drop_orders(state: State, *, shard: int = 0, tn_shard: int = 0) -> None:
    for order in list(state.orders.values()):
        if (shard and order.shard == shard and not order.tn_shard) or (
            tn_shard and order.tn_shard == tn_shard
        ):
            del state.orders[order.id]
