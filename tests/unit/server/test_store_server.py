"""A store as the program runs it, and what operators do with several, in simulation."""

import asyncio

import pytest
from msgspec.structs import replace
from tests.kits.server.store_cluster import StoreCluster, run_stores, settings_of

from raftwood.base.errors import (
    Conflict,
    DeadlineExceeded,
    InvalidConfiguration,
    InvalidInput,
    Unauthenticated,
)
from raftwood.base.metrics import Metrics
from raftwood.base.seams import SetKey
from raftwood.base.settings import Secret, SecretSettings
from raftwood.cli.serve import Readiness
from raftwood.metastore.raft_store import RaftMetaStore
from raftwood.raft.client import LEARN_S
from raftwood.server.cluster import METASTORE_GROUP, client_network
from raftwood.server.cluster_client import find_stores
from raftwood.server.group_membership import (
    add_learner,
    members_of,
    promote_when_caught_up,
    remove_member,
    status_of_all,
)
from raftwood.server.store import METRICS, STOP_S_MAX, StoreServer
from raftwood.server.tenants import MetastoreTenant


async def put(meta: RaftMetaStore, key: str, lease: int = 0) -> None:
    await meta.transact((), (SetKey(key, b"value", lease),))


def test_stores_from_settings_alone_make_a_metastore() -> None:
    async def scenario(cluster: StoreCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.ready(1, 2, 3)
        async with cluster.client(2) as client:
            meta = RaftMetaStore(client, METASTORE_GROUP)
            await put(meta, "a")
            found = await meta.get("a")
            assert found is not None
            assert found.value == b"value"

    run_stores(scenario)


def test_a_lease_ends_by_the_leaders_clock_also_after_a_change_of_leader() -> None:
    async def scenario(cluster: StoreCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.ready(1, 2, 3)
        async with cluster.client() as client:
            meta = RaftMetaStore(client, METASTORE_GROUP)
            lease = await meta.grant_lease(ttl_ms=3_000)
            await put(meta, "a", lease)
            await asyncio.sleep(1.0)
            cluster.machines[cluster.leader()].kill()
            assert await meta.get("a") is not None
            await asyncio.sleep(6.0)
            assert await meta.get("a") is None

    run_stores(scenario)


def test_a_store_that_is_told_to_stop_hands_over_before_it_ends() -> None:
    async def scenario(cluster: StoreCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.ready(1, 2, 3)
        loop = asyncio.get_running_loop()
        async with cluster.client() as client:
            meta = RaftMetaStore(client, METASTORE_GROUP)
            await put(meta, "a")
            leader = await cluster.wait_for_leader()
            stopping = asyncio.create_task(cluster.stop(leader))
            began = loop.time()
            await asyncio.sleep(0.01)
            await put(meta, "b")
            assert loop.time() - began < 0.5, "an election would take longer"
            await stopping
            assert await cluster.wait_for_leader() != leader

    run_stores(scenario)


def test_a_store_that_cannot_stop_is_ended() -> None:
    async def scenario(cluster: StoreCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.ready(1, 2, 3)

        async def hang(*, hand_over_ms: int) -> None:  # noqa: ARG001
            await asyncio.sleep(1_000)

        cluster.servers[1].host.close = hang  # type: ignore[method-assign,assignment]
        loop = asyncio.get_running_loop()
        began = loop.time()
        await cluster.stop(1)
        assert loop.time() - began == pytest.approx(STOP_S_MAX, abs=1.0)

    run_stores(scenario)


def test_a_store_is_added_promoted_and_the_leader_removed() -> None:
    async def scenario(cluster: StoreCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.ready(1, 2, 3)
        async with cluster.client() as client, cluster.operator(3) as stores:
            meta = RaftMetaStore(client, METASTORE_GROUP)
            await put(meta, "a")
            with pytest.raises(InvalidInput, match="add it first"):
                await promote_when_caught_up(stores, METASTORE_GROUP, 4, wait_s=1.0)
            cluster.start(4, joins=True)
            rows = members_of(await add_learner(stores, METASTORE_GROUP, 4, "s4:7000"))
            assert rows[3]["member"] == "learner"
            rows = members_of(await promote_when_caught_up(stores, METASTORE_GROUP, 4, wait_s=10.0))
            assert [row["member"] for row in rows] == ["voter"] * 4
            with pytest.raises(Conflict, match="already"):
                await add_learner(stores, METASTORE_GROUP, 4, "s4:7000")
            leader = await cluster.wait_for_leader()
            status = await remove_member(stores, METASTORE_GROUP, leader)
            assert leader not in status.voters
            assert status.leader not in (0, leader)
            await put(meta, "b")
            await cluster.until(lambda: not cluster.servers[leader].host.groups())
            states = {row["store"]: row for row in await status_of_all(stores, METASTORE_GROUP)}
            assert states[leader]["role"] == "no replica"
            assert states[leader]["member"] is None
            assert states[4]["member"] == "voter"
            with pytest.raises(InvalidInput, match="no member"):
                await remove_member(stores, METASTORE_GROUP, leader)

    run_stores(scenario)


def test_no_store_is_removed_that_the_majority_needs_unless_forced() -> None:
    async def scenario(cluster: StoreCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.ready(1, 2, 3)
        leader = await cluster.wait_for_leader()
        dead, other = (store for store in (1, 2, 3) if store != leader)
        cluster.machines[dead].kill()
        async with cluster.operator() as stores:
            with pytest.raises(Conflict, match="only 1 of 2 voters"):
                await remove_member(stores, METASTORE_GROUP, other)
            rows = {row["store"]: row for row in await status_of_all(stores, METASTORE_GROUP)}
            assert rows[dead]["role"] == "unreachable"
            await remove_member(stores, METASTORE_GROUP, dead)
            await remove_member(stores, METASTORE_GROUP, other, is_forced=True)

    run_stores(scenario)


def test_a_learner_that_does_not_answer_gets_no_vote() -> None:
    async def scenario(cluster: StoreCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.ready(1, 2, 3)
        async with cluster.operator() as stores, cluster.client() as client:
            meta = RaftMetaStore(client, METASTORE_GROUP)
            await asyncio.gather(*(put(meta, f"key {number}") for number in range(200)))
            await add_learner(stores, METASTORE_GROUP, 4, "s4:7000")
            with pytest.raises(DeadlineExceeded, match="not caught up"):
                await promote_when_caught_up(stores, METASTORE_GROUP, 4, wait_s=2.0)

    run_stores(scenario)


def test_a_store_tells_its_metrics() -> None:
    async def scenario(cluster: StoreCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.ready(1, 2, 3)
        async with cluster.operator() as stores:
            channel = await stores.connected(2, 1_000)
            text = (await channel.ask(METRICS, None, 1_000)).decode()
            assert 'raftwood_raft_groups{store="2"} 1.0' in text

    run_stores(scenario)


def metastore_problem(cluster: StoreCluster) -> str:
    return cluster.servers[1].tenant.problems()["metastore"]


def test_a_store_tells_whether_its_metastore_is_of_use(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: StoreCluster) -> None:
        cluster.start(1)
        await cluster.ready(1)
        assert metastore_problem(cluster) == "no leader is known"
        cluster.start(2, 3)
        await cluster.ready(1, 2, 3)
        await cluster.until(lambda: not metastore_problem(cluster))
        with monkeypatch.context() as patch:
            patch.setattr(cluster.servers[1].host, "halted", lambda: {METASTORE_GROUP: "bad"})
            assert "being repaired" in metastore_problem(cluster)
        await cluster.servers[1].host.stop_group(METASTORE_GROUP)
        assert metastore_problem(cluster) == "no replica of it is here"

    run_stores(scenario)


def test_a_store_is_ready_from_when_it_is_open_until_it_is_to_stop() -> None:
    async def scenario(cluster: StoreCluster) -> None:
        stop = asyncio.Event()
        readiness = Readiness(stop)

        def problems() -> dict[str, str]:
            told = {name: check() for name, check in readiness.checks().items()}
            return {name: reason for name, reason in told.items() if reason}

        assert problems() == {"store": "it is being opened"}
        cluster.start(1, 2, 3)
        await cluster.ready(1, 2, 3)
        readiness.server = cluster.servers[1]
        await cluster.until(lambda: not problems())
        stop.set()
        assert problems() == {"store": "it is stopping"}

    run_stores(scenario)


def test_who_does_not_know_the_secret_is_not_let_in() -> None:
    async def scenario(cluster: StoreCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.ready(1, 2, 3)
        settings = settings_of(1)
        wrong = SecretSettings(clients=Secret("what somebody made up"))
        with pytest.raises(Unauthenticated, match="secret"):
            network = client_network(replace(settings, secrets=wrong))
            await find_stores(cluster.environment, settings, None, network)

    run_stores(scenario)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("cluster.members=",), "cluster.members is empty"),
        (("node.store_id=9",), "store 9 is not among cluster.members"),
    ],
)
def test_a_store_that_has_no_place_is_told_what_to_set(
    flags: tuple[str, ...], message: str
) -> None:
    async def scenario(cluster: StoreCluster) -> None:
        with pytest.raises(InvalidConfiguration, match=message):
            await StoreServer.start(
                cluster.environment,
                settings_of(1, *flags),
                MetastoreTenant,
                joins=False,
                metrics=Metrics(),
            )

    run_stores(scenario)


@pytest.mark.parametrize("joins", [False, True])
def test_a_store_that_was_removed_comes_back_when_it_is_started_and_added_again(
    joins: bool,
) -> None:
    async def scenario(cluster: StoreCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.ready(1, 2, 3)
        async with cluster.client() as client, cluster.operator() as stores:
            meta = RaftMetaStore(client, METASTORE_GROUP)
            await put(meta, "a")
            gone = await cluster.wait_for_leader()
            await remove_member(stores, METASTORE_GROUP, gone)
            await cluster.until(lambda: not cluster.servers[gone].host.groups())
            await put(meta, "b")
            await cluster.stop(gone)
            cluster.start(gone, joins=joins)
            await cluster.ready(gone)
            await asyncio.sleep(5.0)
            await add_learner(stores, METASTORE_GROUP, gone, f"s{gone}:7000")
            await promote_when_caught_up(stores, METASTORE_GROUP, gone, wait_s=10.0)
            await put(meta, "c")
            host = cluster.servers[gone].host
            await cluster.until(lambda: host.status(METASTORE_GROUP).voters == (1, 2, 3))
            rows = await status_of_all(stores, METASTORE_GROUP)
            assert [row["member"] for row in rows] == ["voter"] * 3

    run_stores(scenario)


def test_a_store_that_the_others_refuse_says_so_and_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def scenario(cluster: StoreCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.ready(1, 2, 3)
        await cluster.wait_for_leader()
        await cluster.stop(3)
        capsys.readouterr()
        cluster.start(3, flags=("node.data_folder=/data/wiped",))
        await asyncio.sleep(5.0)

    run_stores(scenario)
    reason = "store 3 comes with another data folder than before"
    lines = capsys.readouterr().err.splitlines()
    told = [line for line in lines if "refused by a store" in line and reason in line]
    assert len(told) == 2, "once for each of the others"


def test_a_cluster_of_one_store_grows_to_three() -> None:
    async def scenario(cluster: StoreCluster) -> None:
        cluster.start(1, flags=("cluster.members=1=s1:7000",))
        await cluster.ready(1)
        async with cluster.client(1) as client, cluster.operator(1) as stores:
            meta = RaftMetaStore(client, METASTORE_GROUP)
            await put(meta, "a")
            for store in (2, 3):
                cluster.start(store, joins=True, flags=("cluster.members=",))
                await cluster.ready(store)
                await add_learner(stores, METASTORE_GROUP, store, f"s{store}:7000")
                await promote_when_caught_up(stores, METASTORE_GROUP, store, wait_s=10.0)
            # A client that has work learns of the others in time.
            await put(meta, "b")
            await asyncio.sleep(LEARN_S + 1)
            cluster.machines[1].kill()
            await put(meta, "c")
            assert await meta.get("a") is not None

    run_stores(scenario)
