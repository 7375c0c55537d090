"""TN shards: each has one living owner; who comes back after its work was given away must stop."""

from raftwood.logservice.hakeeper.checkers.planning import Planning
from raftwood.logservice.hakeeper.orders import OrderKind
from raftwood.logservice.hakeeper.reporting import owns_of_others
from raftwood.logservice.hakeeper.reports import ServiceKind
from raftwood.logservice.hakeeper.state import ServiceState, TnShardState


def plan_services(planning: Planning) -> None:
    state = planning.state
    oldest = state.tick - planning.settings.service_down_ticks
    live = {
        name: service for name, service in state.services.items() if service.heard_tick > oldest
    }
    _assign(planning, live)
    for name, service in live.items():
        _take_away(planning, name, service)


def _assign(planning: Planning, live: dict[str, ServiceState]) -> None:
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


def _take_away(planning: Planning, name: str, service: ServiceState) -> None:
    if owns_of_others(planning.state, name):
        _tell(planning, OrderKind.SHUTDOWN_SERVICE, name, 0)
        return
    for report in service.replicas:
        if report.tn_shard not in planning.state.tn_shards:
            _tell(planning, OrderKind.REMOVE_TN_SHARD, name, report.tn_shard)


def _tell(planning: Planning, kind: OrderKind, service: str, tn_shard: int) -> None:
    told = (kind, service, tn_shard)
    if not any(
        (order.kind, order.to_service, order.tn_shard) == told
        for order in (*planning.state.orders.values(), *planning.orders)
    ):
        planning.order(kind, to_service=service, tn_shard=tn_shard)
