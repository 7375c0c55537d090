"""Services and HAKeeper: TN shards find an owner, and another when that one is gone."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from raftwood.base.environment import Environment
from raftwood.base.errors import PermissionDenied, Unavailable
from raftwood.logservice.client.keeper_client import KeeperClient, ServiceAgent
from raftwood.logservice.client.log_client import AsyncLogClient
from raftwood.logservice.errors import NotLeaseholder
from raftwood.logservice.hakeeper.commands import ClusterView, RemoveTnShard
from raftwood.logservice.hakeeper.messages import (
    FinishedOrder,
    Order,
    OrderKind,
    Orders,
    ServiceHeartbeat,
    ServiceKind,
)
from raftwood.net.stores import Stores
from tests.kits.logservice.log_cluster import (
    CLIENT,
    KEEPER,
    READER,
    LogCluster,
    address,
    run_log_cluster,
)
from tests.kits.running import run, until

QUICK = msgspec.structs.replace(
    KEEPER, tn_shards=1, service_down_ticks=20, service_removed_ticks=100
)


class TnService:
    """A program on a machine of its own: takes the lease it is told to, and may then write."""

    def __init__(self, cluster: LogCluster, name: str, kind: ServiceKind = ServiceKind.TN) -> None:
        self.cluster = cluster
        self.name = name
        self.kind = kind
        self.machine = cluster.simulation.add_node(name)
        self.client: AsyncLogClient | None = None
        self.holder = 0
        self.orders: list[OrderKind] = []

    def start(self) -> None:
        self.machine.start(self._program)

    async def _program(self, environment: Environment) -> None:
        stores = Stores(environment, CLIENT, {store: address(store) for store in (1, 2, 3)})
        keeper = KeeperClient(stores)
        self.client = await AsyncLogClient.attach(environment, stores, shard=1, timeout_ms=60_000)
        agent = ServiceAgent(
            keeper,
            service=self.name,
            kind=self.kind,
            address=f"{self.name}:1",
            labels={"zone": "a"},
            carry_out=self._carry_out,
        )
        try:
            await agent.run()
        finally:
            await self.client.close()
            await keeper.close()
            await stores.close()

    async def _carry_out(self, order: Order) -> None:
        assert self.client is not None
        self.orders.append(order.kind)
        if order.kind is OrderKind.ADD_TN_SHARD:
            await self.client.update_leaseholder_id(order.holder)
            self.holder = order.holder

    async def append(self, payload: bytes) -> int:
        assert self.client is not None
        return await self.client.append(payload)


async def seen(cluster: LogCluster, is_true: Callable[[ClusterView], bool]) -> ClusterView:
    """The cluster as HAKeeper knows it, once it is as wanted."""
    keeper = cluster.operator()
    try:
        for _ in range(240):
            view = await keeper.describe()
            if is_true(view):
                return view
            await asyncio.sleep(0.5)
    finally:
        await keeper.close()
    raise AssertionError(f"not seen in time, last: {view}")


def run_services(scenario: Callable[[LogCluster], Awaitable[None]]) -> None:
    async def whole(cluster: LogCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader(1)
        await scenario(cluster)

    run_log_cluster(whole, keeper=QUICK)


def test_a_tn_shard_goes_to_another_when_its_owner_is_gone_and_the_lease_with_it() -> None:
    async def scenario(cluster: LogCluster) -> None:
        first, second = TnService(cluster, "tn-a"), TnService(cluster, "tn-b")
        first.start()
        await cluster.until(lambda: first.holder > 0)
        await seen(cluster, lambda view: view.tn_shards[0].owner == "tn-a")
        second.start()
        await first.append(b"by the first")
        held = first.holder
        # Cut off and not dead: it still believes that the log is its own.
        cluster.simulation.network.partition(["tn-a"], ["s1", "s2", "s3"])
        await cluster.until(lambda: second.holder > 0)
        assert second.holder > held
        await second.append(b"by the second")
        view = await seen(cluster, lambda view: view.tn_shards[0].holder == second.holder)
        assert view.tn_shards[0].owner == "tn-b"
        cluster.simulation.network.heal()
        with pytest.raises(NotLeaseholder) as refused:
            await first.append(b"too late")
        assert refused.value.holder == second.holder
        await cluster.until(lambda: not first.machine.running)
        assert first.orders == [OrderKind.ADD_TN_SHARD, OrderKind.SHUTDOWN_SERVICE]
        async with await cluster.client() as reader:
            records, _ = await reader.read(1)
            assert [bytes(each.payload) for each in records] == [b"by the first", b"by the second"]
        # It begins anew, with nothing, and is left in peace.
        first.orders.clear()
        first.start()
        await seen(cluster, lambda view: sum(each.is_live for each in view.services) == 2)
        await asyncio.sleep(10)
        assert first.orders == []
        assert first.machine.running
        for each in (first, second):
            each.machine.kill()

    run_services(scenario)


def test_a_tn_shard_that_is_removed_is_taken_from_its_owner() -> None:
    async def scenario(cluster: LogCluster) -> None:
        service = TnService(cluster, "tn-a")
        service.start()
        await cluster.until(lambda: service.holder > 0)
        view = await seen(cluster, lambda view: bool(view.tn_shards))
        keeper = cluster.operator()
        await keeper.command(RemoveTnShard(view.tn_shards[0].tn_shard))
        await keeper.close()
        await cluster.until(lambda: OrderKind.REMOVE_TN_SHARD in service.orders)
        assert service.machine.running
        service.machine.kill()

    run_services(scenario)


def test_a_cn_is_known_while_it_reports_and_forgotten_after_long_silence() -> None:
    async def scenario(cluster: LogCluster) -> None:
        service = TnService(cluster, "cn-a", ServiceKind.CN)
        service.start()
        view = await seen(cluster, lambda view: bool(view.services))
        assert (view.services[0].kind, view.services[0].labels) == (ServiceKind.CN, {"zone": "a"})
        service.machine.kill()
        await seen(cluster, lambda view: not view.services[0].is_live)
        await seen(cluster, lambda view: not view.services)
        assert service.orders == []

    run_services(scenario)


def test_a_reader_is_no_service() -> None:
    async def scenario(cluster: LogCluster) -> None:
        stores = Stores(cluster.environment, READER, {store: address(store) for store in (1, 2, 3)})
        keeper = KeeperClient(stores)
        with pytest.raises(PermissionDenied):
            await keeper.service_heartbeat(
                ServiceHeartbeat("a", ServiceKind.CN, ""), timeout_ms=5_000
            )
        await keeper.close()
        await stores.close()

    run_services(scenario)


class Keeper(KeeperClient):
    """Answers as it is told, and remembers what it heard."""

    def __init__(self, *answers: Orders) -> None:
        self.answers = list(answers)
        self.heard: list[ServiceHeartbeat] = []

    async def service_heartbeat(self, heartbeat: ServiceHeartbeat, *, timeout_ms: int) -> Orders:  # noqa: ARG002
        self.heard.append(heartbeat)
        if not self.answers:
            raise Unavailable("nobody there")
        return self.answers.pop(0)


def agent_of(keeper: KeeperClient, carry_out: Callable[[Order], Awaitable[None]]) -> ServiceAgent:
    return ServiceAgent(
        keeper, service="tn", kind=ServiceKind.TN, address="", carry_out=carry_out, period_ms=1
    )


def test_orders_of_an_older_term_are_ignored_and_failures_are_reported() -> None:
    add = Order(1, OrderKind.ADD_TN_SHARD, to_service="tn", shard=1, tn_shard=2, holder=3)
    late = Order(2, OrderKind.ADD_TN_SHARD, to_service="tn", shard=1, tn_shard=9, holder=4)
    bad = Order(3, OrderKind.REMOVE_TN_SHARD, to_service="tn", tn_shard=2)
    end = Order(4, OrderKind.SHUTDOWN_SERVICE, to_service="tn")
    keeper = Keeper(
        Orders(5, 1, (add,)),
        Orders(4, 1, (late,)),
        Orders(5, 2, (add, bad)),
        Orders(6, 3, (end,)),
        Orders(6, 4, (end,)),
    )
    done: list[int] = []

    async def carry_out(order: Order) -> None:
        done.append(order.id)
        if order is bad:
            raise Unavailable("not now")

    async def main() -> None:
        agent = agent_of(keeper, carry_out)
        await agent.run()
        assert agent.replicas == ()

    run(main())
    # An order that comes again after its acknowledgement was heard is carried out again.
    assert done == [1, 1, 3, 4]
    finished = [each for heartbeat in keeper.heard for each in heartbeat.finished]
    assert [each.order for each in finished] == [1, 1, 3, 4]
    assert FinishedOrder(3, "not now") in finished
    assert [len(heartbeat.replicas) for heartbeat in keeper.heard] == [0, 1, 1, 1, 0]


def test_heartbeats_go_on_while_an_order_is_carried_out_and_a_lost_answer_loses_none() -> None:
    order = Order(1, OrderKind.ADD_TN_SHARD, to_service="tn", shard=1, tn_shard=2, holder=3)
    keeper = Keeper(*(Orders(1, 1, (order,)) for _ in range(5)))

    async def main() -> None:
        may_end = asyncio.Event()
        times = 0

        async def carry_out(_: Order) -> None:
            nonlocal times
            times += 1
            await may_end.wait()

        agent = agent_of(keeper, carry_out)
        running = asyncio.create_task(agent.run())
        await until(lambda: len(keeper.heard) >= 8)
        assert not agent.is_heard
        may_end.set()
        await until(lambda: bool(agent.replicas))
        await until(lambda: bool(keeper.heard[-1].finished))
        heard = len(keeper.heard)
        await until(lambda: len(keeper.heard) >= heard + 2)
        # Told until it is answered.
        assert keeper.heard[-1].finished == (FinishedOrder(1, ""),)
        assert times == 1
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    run(main())
