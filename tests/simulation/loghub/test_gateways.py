"""Gateways before stores that are not there yet, or away for a while."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from raftwood.base.errors import PermissionDenied, RaftwoodError, Unavailable
from raftwood.loghub.errors import QuotaExceeded, ShardReadonly
from raftwood.loghub.model import AccessKey, AccessRole, ShardStatus
from raftwood.loghub.wire import (
    CreateLogstore,
    CreateProject,
    GetProject,
    LogstoreOptions,
    SplitShard,
    UpdateProject,
)
from raftwood.server.cluster import METASTORE_SHARD
from raftwood.testing import Simulation, simulate
from tests.kits.loghub.simulation.cluster import GATEWAY_PORT, STORES, HubCluster, gateway_name
from tests.kits.loghub.simulation.link import PROJECT, Link
from tests.kits.logservice.log_cluster import KEEPER
from tests.kits.logservice.simulation.world import RAFT

LOGSTORE = "s"


class Hub(HubCluster):
    """With a link to each gateway."""

    def __init__(self, simulation: Simulation, *flags: str) -> None:
        super().__init__(
            simulation,
            flags=("loghub.retention_ms=1000", *flags),
            keeper=msgspec.structs.replace(KEEPER, log_shards=0),
            raft=msgspec.structs.replace(RAFT, tick_ms=80, election_ticks=6),
        )
        self.key: AccessKey
        self.links: dict[int, Link] = {}

    async def up(self, *gateways: int) -> None:
        self.start(*STORES)
        await self.wait_for_leader(METASTORE_SHARD)
        await self.gateways_up(*gateways)

    async def gateways_up(self, *gateways: int) -> None:
        self.start_gateways(*gateways)
        await self.serve(*gateways)

    async def serve(self, *gateways: int) -> None:
        await self.until(lambda: all(self.serves(each) for each in gateways))

    async def stream(self, *gateways: int, options: LogstoreOptions | None = None) -> None:
        """A logstore with one shard, and a key that every gateway knows."""
        self.key = await self.servers[gateways[0]].gateway.access.create({"*": AccessRole.ADMIN})
        await asyncio.sleep(1)
        for each in gateways:
            self.links[each] = self.link(self.key, each)
        link = self.links[gateways[0]]
        await link.control(CreateProject(project=PROJECT))
        await link.control(
            CreateLogstore(
                project=PROJECT,
                logstore=LOGSTORE,
                shard_count=1,
                options=options or LogstoreOptions(),
            )
        )

    def link(self, key: AccessKey, *gateways: int) -> Link:
        addresses = [f"{gateway_name(each)}:{GATEWAY_PORT}" for each in gateways]
        return Link(self.environment, key, addresses)


def run_hub(scenario: Callable[[Hub], Coroutine[Any, Any, None]], *flags: str) -> None:
    async def whole(simulation: Simulation) -> None:
        hub = Hub(simulation, *flags)
        await scenario(hub)
        for link in hub.links.values():
            await link.close()
        await hub.stop_gateways()
        await hub.close_clients()
        await hub.stop()

    simulate(1, whole, virtual_seconds_max=600.0)


def test_gateways_wait_for_stores_that_are_started_later_one_by_one() -> None:
    async def scenario(hub: Hub) -> None:
        hub.start_gateways(1)
        await asyncio.sleep(5)
        assert hub.gateways[1].running
        assert not hub.serves(1)
        for store in STORES:
            hub.start(store)
            await asyncio.sleep(4)
        await hub.serve(1)
        await hub.stream(1)
        # It knows of all stores, not only of the one that answered first.
        hub.machines[1].kill()
        await asyncio.sleep(5)
        await hub.links[1].put(LOGSTORE, 0, "x", producer="a", sequence=1)
        hub.start(1)

    run_hub(scenario)


def test_without_the_metastore_puts_and_pulls_go_on_and_changes_are_refused() -> None:
    async def scenario(hub: Hub) -> None:
        await hub.up(1, 2)
        await hub.stream(1, 2)
        link = hub.links[1]
        first = await link.put(LOGSTORE, 0, "x", producer="a", sequence=1)

        async def nothing(*_: object, **__: object) -> Any:
            await asyncio.sleep(0.5)
            raise Unavailable("the metastore has no leader")

        for server in hub.servers.values():
            server.gateway.metadata.store._ask = nothing  # type: ignore[attr-defined]
            server.gateway.metadata.store._execute = nothing  # type: ignore[attr-defined]
        await asyncio.sleep(10)
        await link.put(LOGSTORE, 0, "y", producer="a", sequence=2)
        pulled = await link.pull(LOGSTORE, 0, first)
        assert len(pulled.batches) == 2
        for control in (
            SplitShard(project=PROJECT, logstore=LOGSTORE, shard=0),
            CreateProject(project="another"),
            GetProject(project=PROJECT),
        ):
            with pytest.raises(Unavailable):
                await link.control(control)
        await asyncio.sleep(60)
        for server in hub.servers.values():
            assert server.problem() == "the metastore does not answer"
            del server.gateway.metadata.store._ask  # type: ignore[attr-defined]
            del server.gateway.metadata.store._execute  # type: ignore[attr-defined]
        await hub.until(lambda: not any(each.problem() for each in hub.servers.values()))
        await link.control(SplitShard(project=PROJECT, logstore=LOGSTORE, shard=0))

    run_hub(scenario)


def test_a_key_that_was_revoked_gets_nowhere_within_seconds_at_every_gateway() -> None:
    async def scenario(hub: Hub) -> None:
        await hub.up(1, 2)
        await hub.stream(1, 2)
        access = hub.servers[1].gateway.access
        key = await access.create({PROJECT: AccessRole.WRITER})
        await asyncio.sleep(1)
        hub.links[3] = other = hub.link(key, 2)
        await other.put(LOGSTORE, 0, "x")
        await access.revoke(key.id)
        await asyncio.sleep(2)
        with pytest.raises(PermissionDenied):
            await other.put(LOGSTORE, 0, "y")  # on a connection from before
        hub.links[4] = new = hub.link(key, 1)
        with pytest.raises(RaftwoodError):
            await new.shards(LOGSTORE)

    run_hub(scenario)


def test_a_project_that_puts_too_much_is_told_so_and_may_go_on_a_little_later() -> None:
    async def scenario(hub: Hub) -> None:
        await hub.up(1)
        await hub.stream(1)
        link = hub.links[1]
        quota = UpdateProject(project=PROJECT, write_bytes_per_s_max=1_000)
        await link.control(quota)
        await asyncio.sleep(1)
        refused = 0
        for _ in range(40):
            try:
                await link.put(LOGSTORE, 0, "x" * 200)
            except QuotaExceeded:
                refused += 1
        assert refused > 20
        assert hub.servers[1].gateway.quotas.refused == refused
        await asyncio.sleep(3)
        await link.put(LOGSTORE, 0, "x")

    run_hub(scenario)


def test_what_is_too_old_is_freed_from_the_logs_and_then_an_ended_shard() -> None:
    async def scenario(hub: Hub) -> None:
        await hub.up(1, 2)
        await hub.stream(1, 2, options=LogstoreOptions(ttl_days=1))
        link = hub.links[1]
        for number in range(3):
            await link.put(LOGSTORE, 0, f"old {number}")
        await link.control(SplitShard(project=PROJECT, logstore=LOGSTORE, shard=0))
        await link.put(LOGSTORE, 1, "old 3")
        for machine in hub.gateways.values():
            machine.clock.jump_wall(2 * 86_400.0)
        new = await link.put(LOGSTORE, 1, "new")
        await asyncio.sleep(6)
        first, records = await link.read_shard(LOGSTORE, 1)
        assert records == [(new, "new")]
        assert first <= new
        assert [each.id for each in await link.shards(LOGSTORE)] == [1, 2]

    run_hub(scenario)


def test_a_hot_shard_is_split_while_records_come_in() -> None:
    async def scenario(hub: Hub) -> None:
        await hub.up(1, 2)
        await hub.stream(1, 2, options=LogstoreOptions(auto_split=True, shards_split_max=3))
        link = hub.links[2]
        sequence = 0
        shards = await link.shards(LOGSTORE)
        while len(shards) < 5:
            assert sequence < 400
            for shard in shards:
                sequence += 1
                if shard.status is ShardStatus.READWRITE:
                    with suppress(ShardReadonly):
                        await link.put(
                            LOGSTORE, shard.id, "x" * 500, producer="a", sequence=sequence
                        )
            await asyncio.sleep(0.2)
            shards = await link.shards(LOGSTORE)
        await asyncio.sleep(5)
        # Up to the bound, and no further.
        writable = [each for each in await link.shards(LOGSTORE) if each.end_position is None]
        assert len(writable) == 3

    run_hub(scenario, "loghub.hot_bytes_per_s=100", "loghub.hot_rounds=2")
