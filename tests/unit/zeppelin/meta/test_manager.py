"""`ClusterManager`: plans that are old are refused, and whoever waits is told, or gives up."""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest

from raftwood.base.errors import Conflict, DeadlineExceeded, NotFound, Unavailable
from raftwood.zeppelin.meta import manager, plans
from raftwood.zeppelin.meta.changes import Change, CreateTable, Migrate, SetMaster, encode_batch
from raftwood.zeppelin.meta.client import MetaClient
from raftwood.zeppelin.meta.manager import ClusterManager
from raftwood.zeppelin.meta.plans import ClusterPlan
from raftwood.zeppelin.meta.progress import MigrationProgress
from raftwood.zeppelin.model import TableConfig, Topology
from tests.kits.running import in_virtual_time
from tests.kits.zeppelin.meta.group_in_memory import GROUP, Command, GroupInMemory
from tests.kits.zeppelin.meta.tables import A, B, C, D, registered


def ran(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def running(*fixtures: Any, **named: Any) -> None:
        in_virtual_time(test(*fixtures, **named))

    return running


class Group(GroupInMemory):
    def __init__(self) -> None:
        super().__init__()
        self.change(*map(registered, (A, B, C)))
        self.change(CreateTable("t", TableConfig(partitions=4, replicas=2)))
        self.change(registered(D))

    def change(self, *changes: Change) -> None:
        self.machine.update([Command(0, encode_batch(changes))])

    @property
    def manager(self) -> ClusterManager:
        return ClusterManager(MetaClient(self, GROUP))


@ran
async def test_a_plan_that_is_old_is_refused_as_a_whole() -> None:
    group = Group()
    plan = await group.manager.plan_balance()
    assert plan.moves
    partition = group.machine.topology.tables["t"].partitions[0]
    group.change(SetMaster("t", 0, partition.slaves[0]))
    with pytest.raises(Conflict, match="plan anew"):
        await group.manager.submit(plan)
    assert not (await group.manager.progress()).moving


@ran
async def test_an_order_is_planned_anew_while_the_topology_changes() -> None:
    group = Group()
    changes: list[Change] = [registered(C, run=2), registered(C, run=3)]

    def planner(topology: Topology) -> ClusterPlan:
        if changes:
            group.change(changes.pop())
        return plans.balance(topology)

    plan, order = await group.manager.order(planner)
    found = await group.manager.progress(order)
    assert (found.total, len(found.moving)) == (len(plan.moves), len(plan.moves))
    changes.append(registered(C, run=4))
    with pytest.raises(Conflict):
        await group.manager.order(planner, epoch=plan.epoch)


@ran
async def test_who_waits_is_told_and_gives_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "_POLL_S", 0.001)
    group = Group()
    order = await group.manager.submit(await group.manager.plan_expand([D]))
    told: list[MigrationProgress] = []
    group.failures.append(Unavailable("nobody leads"))
    with pytest.raises(DeadlineExceeded, match="goes on"):
        await group.manager.wait(order, timeout_s=0.02, told=told.append)
    assert told[0].steps["waiting"] == told[0].total == 2
    group.failures.append(NotFound("no such group"))
    with pytest.raises(NotFound):
        await group.manager.wait(order)
    cancelled = await group.manager.cancel(order=order)
    assert (cancelled.count, cancelled.too_late) == (2, ())
    assert (await group.manager.wait(order)).total == 0


@ran
async def test_a_plan_with_nothing_in_it_changes_nothing() -> None:
    group = Group()
    before = group.machine.topology
    assert await group.manager.submit(ClusterPlan(epoch=before.epoch, changes=())) == before.epoch
    with pytest.raises(NotFound):
        await group.manager.cancel(table="t")
    assert group.machine.topology is before


@ran
async def test_each_kind_of_plan_is_made_of_the_present_topology() -> None:
    group, made = Group(), []
    at = group.machine.topology.tables["t"].partitions[0]
    assert at.master is not None
    free = next(node for node in (A, B, C) if node not in at.replicas)
    made += [
        await group.manager.plan_drain([A]),
        await group.manager.plan_replace(old=A, new=D),
        await group.manager.plan_migrate("t", 0, source=at.master, target=free),
        await group.manager.plan_add_slave("t", 0, free),
        await group.manager.plan_remove_slave("t", 0, at.slaves[0]),
        await group.manager.plan_set_master("t", 0, at.slaves[0]),
        await group.manager.plan_double("t"),
    ]
    assert {plan.epoch for plan in made} == {group.machine.topology.epoch}
    assert made[2].changes == (Migrate("t", 0, at.master, free),)
    assert made[2].moves[0].role == "master"
    with pytest.raises(Conflict, match="is up"):
        await group.manager.plan_remove_nodes([A])
    with pytest.raises(Conflict, match="not being emptied"):
        await group.manager.plan_undo_drain([A])
    with pytest.raises(NotFound, match="no table 'x'"):
        await group.manager.wait_doubled("x")
    assert await group.manager.wait_doubled("t") == 4
