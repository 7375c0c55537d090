"""Many connections change the same leases at once: every step of a row is somebody's own."""

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack

from raftwood.disk.real_environment import real_environment
from raftwood.loghub.consumer.leases import (
    LeaseOwner,
    LeaseStore,
    NewLease,
    Renewal,
    Save,
    ShardLease,
    Take,
)
from tests.kits.loghub.lease_store_suite import rows
from tests.kits.loghub.sql import SqlKit

SHARDS = [str(number) for number in range(8)]
WORKERS = 4
STEPS = 15


class _Tally:
    """What the workers were told that they did."""

    def __init__(self) -> None:
        self.ids: Counter[str] = Counter()
        self.consumers: dict[tuple[str, int], str] = {}
        self.saved: dict[str, int] = dict.fromkeys(SHARDS, 0)

    def consumes(self, lease: ShardLease) -> None:
        assert (lease.shard, lease.epoch) not in self.consumers, "an epoch has one consumer"
        self.consumers[lease.shard, lease.epoch] = lease.consumer_process


async def _step(store: LeaseStore, owner: LeaseOwner, choice: random.Random, tally: _Tally) -> None:
    seen = await rows(store)
    some = [seen[shard] for shard in choice.sample(SHARDS, 5)]
    takes = [Take(lease.shard, lease.lease_id, choice.random() < 0.5) for lease in some]
    before = {take.shard: take for take in takes}
    won = [
        lease
        for lease in await store.take(owner, takes)
        if (lease.lease_process, lease.lease_id)
        == (owner.process, before[lease.shard].lease_id + 1)
    ]
    for lease in won:
        tally.ids[lease.shard] += 1
        if before[lease.shard].sets_consumer:
            tally.consumes(lease)
    renewed = await store.renew(owner, [Renewal(each.shard, each.lease_id) for each in won])
    ids = {lease.shard: lease.lease_id + 1 for lease in won}
    kept = [
        lease
        for lease in renewed.leases
        if (lease.lease_process, lease.lease_id) == (owner.process, ids[lease.shard])
    ]
    tally.ids.update(lease.shard for lease in kept)
    mine = [lease for lease in kept if lease.consumer_process == owner.process]
    saves = [Save(each.shard, each.epoch, f"p{each.seq + 1}", each.seq + 1) for each in mine]
    refused = await store.save(owner.process, saves)
    for save in saves:
        if save.shard not in refused:
            tally.saved[save.shard] = max(tally.saved[save.shard], save.seq)


async def _race(url: str) -> None:
    tally = _Tally()
    with real_environment() as environment:
        async with AsyncExitStack() as ends:
            kit = SqlKit(environment, url, ends)
            first = await kit.open()
            await first.create([NewLease(shard) for shard in SHARDS])

            async def work(number: int) -> None:
                store = await kit.open()
                owner, choice = LeaseOwner(f"w{number}", f"process-{number}"), random.Random(number)
                for _ in range(STEPS):
                    await _step(store, owner, choice, tally)

            await asyncio.gather(*(work(number) for number in range(WORKERS)))
            found = await rows(first)
    assert {shard: lease.lease_id for shard, lease in found.items()} == dict(tally.ids)
    epochs = Counter(shard for shard, _ in tally.consumers)
    assert {shard: lease.epoch for shard, lease in found.items()} == {
        shard: epochs[shard] for shard in SHARDS
    }
    assert {shard: lease.seq for shard, lease in found.items()} == tally.saved
    assert len({lease.update_seq for lease in found.values()}) == len(SHARDS)


def test_every_step_of_a_lease_is_told_to_exactly_one_worker(database_url: str) -> None:
    asyncio.run(_race(database_url))


def test_of_many_who_create_and_register_at_once_all_see_the_same(database_url: str) -> None:
    async def scenario() -> None:
        with real_environment() as environment:
            async with AsyncExitStack() as ends:
                kit = SqlKit(environment, database_url, ends)
                stores = await asyncio.gather(*(kit.open() for _ in range(WORKERS)))

                async def begin(store: LeaseStore, number: int) -> int:
                    await store.create([NewLease(shard) for shard in SHARDS])
                    return (await store.register(LeaseOwner("same", f"p{number}"))).heartbeat

                beats = await asyncio.gather(
                    *(begin(store, number) for number, store in enumerate(stores))
                )
                assert sorted(beats) == list(range(1, WORKERS + 1))
                assert sorted(await rows(stores[0])) == SHARDS
                assert (await stores[0].scan(0)).update_seq == len(SHARDS)

    asyncio.run(scenario())


def test_no_scan_shows_a_renewed_id_beside_an_older_heartbeat(database_url: str) -> None:
    """Else a worker that renewed just now would be taken for dead, with the id to take it by."""

    async def scenario() -> None:
        with real_environment() as environment:
            async with AsyncExitStack() as ends:
                kit = SqlKit(environment, database_url, ends)
                store, other = await kit.open(), await kit.open()
                owner = LeaseOwner("anne", "process-a")
                first = await store.register(owner)
                await store.create([NewLease("0")])
                await store.take(owner, [Take("0", 0, True)])
                is_over = False

                async def watch() -> int:
                    scans = 0
                    while not is_over:
                        scan = await other.scan(1 << 40, [owner.process])
                        renewals = scan.leases[0].lease_id - 1
                        assert scan.workers[0].heartbeat - first.heartbeat >= renewals
                        scans += 1
                    return scans

                watching = asyncio.create_task(watch())
                for lease_id in range(1, 41):
                    await store.renew(owner, [Renewal("0", lease_id)])
                is_over = True
                assert await watching > 0

    asyncio.run(scenario())
