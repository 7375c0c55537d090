"""Leases in a metastore mean what leases in every store mean: on files and in a group, in
simulation too.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import pytest

from raftwood.base.environment import Environment
from raftwood.base.seams import Compare, KeyOperation, MetaStore, TransactionOutcome
from raftwood.disk.real_environment import real_environment
from raftwood.loghub.consumer.leases import (
    LeaseOwner,
    LeaseStore,
    NewLease,
    Renewal,
    Save,
    Take,
    signature,
)
from raftwood.loghub.consumer.meta_store import LEASES_MAX, MetaLeaseStore
from raftwood.metastore.file_store import FileMetaStore
from raftwood.metastore.raft_store import RaftMetaStore
from raftwood.testing import Simulation, simulate
from tests.kits.loghub.lease_store_suite import (
    ANNE,
    LeaseStoreKit,
    LeaseStoreSuite,
    Scenario,
    rows,
)
from tests.kits.metastore.group_in_memory import GROUP, GroupInMemory


class _Kit:
    def __init__(self, environment: Environment, meta: MetaStore) -> None:
        self._environment = environment
        self._meta = meta

    async def open(self) -> LeaseStore:
        sig = signature("project", "logstore")
        store = MetaLeaseStore(self._environment, self._meta, group="a group", signature=sig)
        await store.open()
        return store


async def _run(environment: Environment, folder: str, scenario: Scenario) -> None:
    meta = await FileMetaStore.open(environment, folder)
    try:
        await scenario(_Kit(environment, meta))
    finally:
        await meta.close()


class _MetaSuite(LeaseStoreSuite):
    def test_more_leases_than_fit_into_one_transaction(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            shards = [str(number) for number in range(2 * LEASES_MAX + 5)]
            await store.create([NewLease(shard) for shard in shards])
            taken = await store.take(ANNE, [Take(shard, 0, True) for shard in shards])
            assert [lease.shard for lease in taken] == shards
            renewed = await store.renew(ANNE, [Renewal(shard, 1) for shard in shards])
            assert {lease.lease_id for lease in renewed.leases} == {2}
            saves = [Save(shard, 1, "p", 1) for shard in shards]
            assert await store.save(ANNE.process, saves) == []
            found = await rows(await kit.open())
            assert sorted(found) == sorted(shards)
            assert {(lease.lease_id, lease.checkpoint) for lease in found.values()} == {(2, "p")}
            assert len({lease.update_seq for lease in found.values()}) == len(shards)

        self.run(scenario)

    def test_a_parent_is_created_before_its_children(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            count = 2 * LEASES_MAX
            chain = [NewLease(str(each), (str(each + 1),)) for each in range(count)]
            await store.create(chain)
            found = await rows(store)
            numbers = [found[str(each)].update_seq for each in range(count)]
            assert numbers == sorted(numbers, reverse=True)

        self.run(scenario)

    def test_calls_of_one_worker_may_overlap(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            await store.create([NewLease("0")])
            [lease] = await store.take(ANNE, [Take("0", 0, True)])

            async def renew() -> None:
                for lease_id in range(1, 11):
                    await store.renew(ANNE, [Renewal("0", lease_id)])

            async def save() -> None:
                for seq in range(1, 11):
                    assert not await store.save(ANNE.process, [Save("0", 1, str(seq), seq)])

            await asyncio.gather(renew(), save(), renew_other(await kit.open()))
            found = (await rows(store))["0"]
            assert (found.lease_id, found.seq, found.epoch) == (11, 10, lease.epoch)

        async def renew_other(store: LeaseStore) -> None:
            other = LeaseOwner("dora", "process-d")
            for _ in range(10):
                assert (await store.renew(other, [Renewal("0", 1)])).worker.process == other.process

        self.run(scenario)


def test_what_another_created_and_took_between_two_parts_of_a_creation_stays(
    tmp_path: Path,
) -> None:
    new = [NewLease(f"{number:03}") for number in range(LEASES_MAX + 5)]
    late = new[-1].shard

    async def run() -> None:
        with real_environment() as environment:
            meta = await FileMetaStore.open(environment, str(tmp_path))
            mine, other = [await _Kit(environment, meta).open() for _ in range(2)]
            transact = meta.transact
            parts = 0

            async def interrupted(
                compares: Sequence[Compare], operations: Sequence[KeyOperation]
            ) -> TransactionOutcome:
                nonlocal parts
                parts += 1
                outcome = await transact(compares, operations)
                if parts == 1:
                    await other.create(new)
                    await other.take(ANNE, [Take(late, 0, sets_consumer=True)])
                    await mine.own("process-m", 0)
                return outcome

            with mock.patch.object(meta, "transact", interrupted):
                await mine.create(new)
            found = await rows(other)
            assert len(found) == len(new)
            assert (found[late].lease_process, found[late].lease_id) == (ANNE.process, 1)
            await meta.close()

    asyncio.run(run())


class TestMetaLeasesOnFiles(_MetaSuite):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = str(tmp_path)

    def run(self, scenario: Scenario) -> None:
        with real_environment() as environment:
            asyncio.run(_run(environment, self.folder, scenario))


class TestMetaLeasesInReplicas(_MetaSuite):
    """A group whose answers come late, and whose replicas are restored again and again."""

    def run(self, scenario: Scenario) -> None:
        async def run(simulation: Simulation) -> None:
            group = GroupInMemory()
            meta = RaftMetaStore(group, GROUP)
            async with group.ticking(1):
                await scenario(_Kit(simulation.environment, meta))
            await meta.close()

        simulate(1, run)


class TestMetaLeasesInSimulation(_MetaSuite):
    def run(self, scenario: Scenario) -> None:
        async def simulated(simulation: Simulation) -> None:
            await _run(simulation.environment, "meta", scenario)

        simulate(1, simulated)
