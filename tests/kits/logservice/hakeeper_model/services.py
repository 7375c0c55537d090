"""TN services of the model: they own TN shards, go silent, and come back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from raftwood.logservice.hakeeper.commands import HearService, Ordered
from raftwood.logservice.hakeeper.messages import (
    FinishedOrder,
    Order,
    OrderKind,
    ServiceHeartbeat,
    ServiceKind,
    TnReplicaReport,
)
from tests.kits.models import Violation

if TYPE_CHECKING:
    from tests.kits.logservice.hakeeper_model.world import World


@dataclass
class Service:
    name: str
    is_up: bool = True
    owned: dict[int, TnReplicaReport] = field(default_factory=dict)
    finished: list[FinishedOrder] = field(default_factory=list)


class Services:
    def __init__(self, world: World) -> None:
        self._world = world
        self.all = [Service(f"tn-{number}") for number in range(world.profile.services)]
        self._leases: dict[int, int] = {}

    def event(self) -> None:
        world = self._world
        service = world.random.choice(self.all)
        if world.chance(world.profile.crash):
            service.is_up = not service.is_up
            if world.random.random() < 0.5:
                service.owned = {}
        elif not service.is_up:
            service.is_up = world.random.random() < world.profile.restart
        else:
            self.heartbeat(service)

    def return_all(self) -> None:
        for service in self.all:
            service.is_up = True

    def round(self) -> None:
        for service in self.all:
            self.heartbeat(service)

    def heartbeat(self, service: Service) -> None:
        world = self._world
        if not service.is_up or not world.serves or world.chance(world.profile.lose_heartbeat):
            return
        told = ServiceHeartbeat(
            service.name,
            ServiceKind.TN,
            f"{service.name}:7100",
            replicas=tuple(service.owned.values()),
            finished=tuple(service.finished),
        )
        result = world.apply(HearService(told))
        assert isinstance(result, Ordered)
        if world.chance(world.profile.lose_answer):
            return
        service.finished = []
        for order in result.orders.orders:
            self._carry_out(service, order)

    def _carry_out(self, service: Service, order: Order) -> None:
        if order.kind is OrderKind.ADD_TN_SHARD:
            if order.holder < self._leases.get(order.shard, 0):
                raise Violation(f"a new owner gets the old lease {order.holder}")
            self._leases[order.shard] = order.holder
            service.owned[order.tn_shard] = TnReplicaReport(
                order.tn_shard, order.shard, order.holder
            )
        elif order.kind is OrderKind.REMOVE_TN_SHARD:
            service.owned.pop(order.tn_shard, None)
        else:
            if service.owned and all(
                self._world.state.tn_shards[number].owner == service.name
                for number in service.owned
            ):
                raise Violation(f"{service.name} is shut down though it owns all that it has")
            service.owned = {}
        service.finished.append(FinishedOrder(order.id))
