"""What every `LeaseStore` must do: one suite, run by each implementation with a kit of its own."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Protocol

from raftwood.loghub.consumer.leases import (
    NOBODY,
    SHARD_END,
    LeaseOwner,
    LeaseStore,
    NewLease,
    Renewal,
    Save,
    ShardLease,
    Take,
)

ANNE = LeaseOwner("anne", "process-a")
ANNE_AGAIN = LeaseOwner("anne", "process-z")
BEN = LeaseOwner("ben", "process-b")
CAT = LeaseOwner("cat", "process-c")


class LeaseStoreKit(Protocol):
    """Where the leases of one group are kept."""

    async def open(self) -> LeaseStore:
        """A store on the same rows, opened, that shares nothing else with those before.

        The kit closes it.
        """
        ...


Scenario = Callable[[LeaseStoreKit], Awaitable[None]]


async def rows(store: LeaseStore) -> dict[str, ShardLease]:
    return {lease.shard: lease for lease in (await store.scan(0)).leases}


async def consuming(store: LeaseStore, owner: LeaseOwner, *shards: str) -> dict[str, ShardLease]:
    """New leases that `owner` both leases and consumes."""
    await store.create([NewLease(shard) for shard in shards])
    found = await store.take(owner, [Take(shard, 0, sets_consumer=True) for shard in shards])
    return {lease.shard: lease for lease in found}


class LeaseStoreSuite:
    def run(self, scenario: Scenario) -> None:
        """Run a scenario on an empty group."""
        raise NotImplementedError

    def test_an_empty_group_has_nothing(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            found = await (await kit.open()).scan(0)
            assert (list(found.leases), list(found.workers), found.update_seq) == ([], [], 0)

        self.run(scenario)

    def test_a_created_lease_has_id_zero_and_no_owner(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            await store.create([NewLease("0"), NewLease("1", ("0",))])
            found = await rows(await kit.open())
            assert found["0"] == ShardLease("0", update_seq=found["0"].update_seq)
            assert found["1"] == ShardLease("1", parents=("0",), update_seq=found["1"].update_seq)
            assert found["0"].update_seq > 0

        self.run(scenario)

    def test_a_lease_is_created_once(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            before = await consuming(store, ANNE, "0")
            await store.create([NewLease("0"), NewLease("2")])
            found = await rows(store)
            assert found["0"] == before["0"]
            assert found["2"].lease_id == 0

        self.run(scenario)

    def test_a_deleted_parent_is_not_created_again(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            await store.create([NewLease("0"), NewLease("1", ("0",))])
            [lease] = await store.take(ANNE, [Take("0", 0, sets_consumer=True)])
            await store.save(ANNE.process, [Save("0", lease.epoch, SHARD_END, 1)])
            await store.delete(["0", "1"])
            assert list(await rows(store)) == ["1"]
            await store.create([NewLease("0")])
            assert list(await rows(store)) == ["1"]

        self.run(scenario)

    def test_a_deleted_ancestor_is_not_created_again(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            await store.create([NewLease("2", ("1",))])
            listed = [NewLease("0"), NewLease("1", ("0",)), NewLease("2", ("1",)), NewLease("3")]
            await store.create(listed)
            assert sorted(await rows(store)) == ["2", "3"]

        self.run(scenario)

    def test_a_list_from_before_a_deletion_creates_nothing(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            await consuming(store, ANNE, "0")
            seen = (await store.scan(0)).deleted_seq
            await store.save(ANNE.process, [Save("0", 1, SHARD_END, 1)])
            await store.delete(["0"])
            await store.create([NewLease("0")], deleted_seq=seen)
            assert await rows(store) == {}
            seen = (await store.scan(0)).deleted_seq
            await store.create([NewLease("1")], deleted_seq=seen)
            assert list(await rows(store)) == ["1"]

        self.run(scenario)

    def test_a_scan_says_when_something_was_deleted(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            await consuming(store, ANNE, "0", "1")
            await store.save(ANNE.process, [Save("0", 1, SHARD_END, 1)])
            before = await store.scan(0)
            assert before.deleted_seq == 0
            await store.delete(["1"])
            assert await store.scan(0) == before
            await store.delete(["0"])
            after = await store.scan(before.update_seq)
            assert after.deleted_seq > before.update_seq
            assert after.deleted_seq <= after.update_seq

        self.run(scenario)

    def test_ids_of_any_text_are_kept(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            names = ["topic-0", "日志", "a/b'c\"d%", "x" * 64, "Shard", "shard", "日%_\\"]
            await store.create([NewLease(name, tuple(names[:3])) for name in names[3:]])
            assert sorted(await rows(store)) == sorted(names[3:])
            assert (await rows(store))["shard"].parents == tuple(names[:3])
            lease = (await consuming(store, ANNE, names[-1]))[names[-1]]
            checkpoint = "c" * 5_000 + "日"
            assert not await store.save(
                ANNE.process, [Save(names[-1], lease.epoch, checkpoint, 1 << 40, 0.5)]
            )
            found = (await rows(store))[names[-1]]
            assert (found.checkpoint, found.seq, found.bytes_per_s) == (checkpoint, 1 << 40, 0.5)

        self.run(scenario)

    def test_a_name_belongs_to_the_process_that_registered_last(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            first = await store.register(ANNE)
            beat = await store.heartbeat(ANNE)
            assert beat.heartbeat > first.heartbeat
            again = await store.register(ANNE_AGAIN)
            assert again.process == ANNE_AGAIN.process
            assert await store.heartbeat(ANNE) == again
            assert (await store.scan(0)).workers == [again]

        self.run(scenario)

    def test_a_row_shows_its_workers_timeout(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            slow = LeaseOwner("cleo", "process-c", 7_000)
            assert (await store.register(slow)).timeout_ms == 7_000
            assert (await store.heartbeat(slow)).timeout_ms == 7_000
            assert [each.timeout_ms for each in (await store.scan(0)).workers] == [7_000]

        self.run(scenario)

    def test_a_lease_shows_the_longest_timeout_of_its_owners(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            await store.create([NewLease("0")])
            slow, hasty = (
                LeaseOwner("cleo", "process-c", 7_000),
                LeaseOwner("dora", "process-d", 500),
            )
            [lease] = await store.take(slow, [Take("0", 0, sets_consumer=True)])
            assert lease.timeout_ms == 7_000
            [lease] = await store.take(hasty, [Take("0", 1, sets_consumer=False)])
            assert (lease.lease_process, lease.timeout_ms) == ("process-d", 7_000)
            [lease] = await store.become_consumer(hasty, [Renewal("0", 2)])
            assert lease.timeout_ms == 500
            assert (await store.scan(0)).leases == [lease]

        self.run(scenario)

    def test_a_row_that_was_removed_comes_back_with_a_heartbeat(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            row = await store.register(ANNE)
            await store.forget_workers([row])
            assert list((await store.scan(0)).workers) == []
            back = await store.heartbeat(ANNE)
            assert back.process == ANNE.process
            assert (await store.scan(0)).workers == [back]

        self.run(scenario)

    def test_a_row_that_moved_is_not_removed(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            row = await store.register(ANNE)
            moved = await store.heartbeat(ANNE)
            await store.forget_workers([row])
            assert [each.heartbeat for each in (await store.scan(0)).workers] == [moved.heartbeat]

        self.run(scenario)

    def test_a_renewal_adds_one_to_the_id_and_to_the_heartbeat(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            row = await store.register(ANNE)
            lease = (await consuming(store, ANNE, "0"))["0"]
            renewed = await store.renew(ANNE, [Renewal("0", lease.lease_id)])
            assert renewed.leases[0].lease_id == lease.lease_id + 1
            assert renewed.leases[0].epoch == lease.epoch
            assert renewed.worker.heartbeat > row.heartbeat
            assert await rows(store) == {"0": renewed.leases[0]}

        self.run(scenario)

    def test_a_renewal_shows_what_was_lost(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            await store.register(ANNE)
            held = await consuming(store, ANNE, "0", "1", "2")
            await store.take(BEN, [Take("1", held["1"].lease_id, sets_consumer=False)])
            renewed = await store.renew(
                ANNE, [Renewal("0", 1), Renewal("1", 1), Renewal("2", 7), Renewal("9", 1)]
            )
            found = {lease.shard: lease for lease in renewed.leases}
            assert sorted(found) == ["0", "1", "2"]
            assert (found["0"].lease_id, found["0"].lease_process) == (2, ANNE.process)
            assert (found["1"].lease_id, found["1"].lease_process) == (2, BEN.process)
            assert found["2"] == held["2"]
            # An id may fit by chance after a loss: the process has to be the caller's as well.
            stolen = await store.renew(ANNE, [Renewal("1", 2)])
            assert stolen.leases[0].lease_id == 2

        self.run(scenario)

    def test_a_process_that_lost_its_name_renews_nothing(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            await store.register(ANNE)
            held = await consuming(store, ANNE, "0")
            other = await store.register(ANNE_AGAIN)
            renewed = await store.renew(ANNE, [Renewal("0", 1)])
            assert (renewed.worker, list(renewed.leases)) == (other, [held["0"]])

        self.run(scenario)

    def test_a_steal_moves_the_lease_owner_alone(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            before = (await consuming(store, ANNE, "0"))["0"]
            [lease] = await store.take(BEN, [Take("0", before.lease_id, sets_consumer=False)])
            assert (lease.lease_owner, lease.lease_process) == ("ben", BEN.process)
            assert (lease.consumer_owner, lease.consumer_process) == ("anne", ANNE.process)
            assert (lease.lease_id, lease.epoch) == (before.lease_id + 1, before.epoch)
            assert lease.is_handing_over

        self.run(scenario)

    def test_of_two_takers_one_wins(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            shards = [str(number) for number in range(12)]
            await store.create([NewLease(shard) for shard in shards])
            stores = [await kit.open() for _ in range(3)]
            takes = [Take(shard, 0, sets_consumer=True) for shard in shards]
            orders = [random.Random(each).sample(takes, len(takes)) for each in range(3)]
            answers = await asyncio.gather(
                *(
                    one.take(owner, order)
                    for one, owner, order in zip(stores, (ANNE, BEN, CAT), orders, strict=True)
                )
            )
            found = await rows(store)
            for shard in shards:
                assert (found[shard].lease_id, found[shard].epoch) == (1, 1)
            for owner, answer in zip((ANNE, BEN, CAT), answers, strict=True):
                won = {each.shard for each in answer if each.lease_process == owner.process}
                assert won == {
                    shard for shard in shards if found[shard].lease_process == owner.process
                }

        self.run(scenario)

    def test_an_expired_take_sets_both_owners_and_a_new_epoch(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            before = (await consuming(store, ANNE, "0"))["0"]
            [lease] = await store.take(BEN, [Take("0", before.lease_id, sets_consumer=True)])
            assert (lease.lease_owner, lease.consumer_owner) == ("ben", "ben")
            assert (lease.lease_process, lease.consumer_process) == (BEN.process, BEN.process)
            assert (lease.lease_id, lease.epoch) == (before.lease_id + 1, before.epoch + 1)
            [lost] = await store.take(CAT, [Take("0", before.lease_id, sets_consumer=True)])
            assert lost == lease

        self.run(scenario)

    def test_an_ended_lease_is_not_taken(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            before = (await consuming(store, ANNE, "0"))["0"]
            assert not await store.save(ANNE.process, [Save("0", before.epoch, SHARD_END, 1)])
            [lease] = await store.take(BEN, [Take("0", before.lease_id, sets_consumer=True)])
            assert (lease.lease_process, lease.lease_id) == (ANNE.process, before.lease_id)

        self.run(scenario)

    def test_the_new_consumer_reads_what_the_one_before_saved_last(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            before = (await consuming(store, ANNE, "0"))["0"]
            [stolen] = await store.take(BEN, [Take("0", before.lease_id, sets_consumer=False)])
            # The robbed worker's flush still lands: the epoch did not grow at the steal.
            assert not await store.save(ANNE.process, [Save("0", before.epoch, "p1", 1)])
            [lease] = await store.become_consumer(BEN, [Renewal("0", stolen.lease_id)])
            assert (lease.consumer_process, lease.checkpoint, lease.seq) == (BEN.process, "p1", 1)
            assert (lease.lease_id, lease.epoch) == (stolen.lease_id + 1, before.epoch + 1)
            assert await store.save(ANNE.process, [Save("0", before.epoch, "p2", 2)]) == ["0"]
            assert (await rows(store))["0"].checkpoint == "p1"

        self.run(scenario)

    def test_only_the_lease_owner_becomes_consumer(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            before = (await consuming(store, ANNE, "0"))["0"]
            [second] = await store.take(BEN, [Take("0", before.lease_id, sets_consumer=False)])
            [third] = await store.take(CAT, [Take("0", second.lease_id, sets_consumer=False)])
            for lease_id in (second.lease_id, third.lease_id):
                assert await store.become_consumer(BEN, [Renewal("0", lease_id)]) == [third]

        self.run(scenario)

    def test_a_checkpoint_needs_process_epoch_and_seq(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            lease = (await consuming(store, ANNE, "0"))["0"]
            epoch = lease.epoch
            assert not await store.save(ANNE.process, [Save("0", epoch, "p5", 5)])
            assert not await store.save(ANNE.process, [Save("0", epoch, "p5", 5)])
            refused = [
                (ANNE.process, Save("0", epoch, "p4", 4)),
                (ANNE.process, Save("0", epoch + 1, "p6", 6)),
                (ANNE.process, Save("0", epoch - 1, "p6", 6)),
                (ANNE_AGAIN.process, Save("0", epoch, "p6", 6)),
            ]
            for process, save in refused:
                assert await store.save(process, [save]) == ["0"]
            assert await store.save(ANNE.process, [Save("9", epoch, "p6", 6)]) == ["9"]
            found = (await rows(store))["0"]
            assert (found.checkpoint, found.seq, found.lease_id) == ("p5", 5, lease.lease_id)

        self.run(scenario)

    def test_one_refused_checkpoint_leaves_the_others(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            await consuming(store, ANNE, "0", "1", "2")
            saves = [Save("0", 1, "a", 1), Save("1", 9, "b", 1), Save("2", 1, "c", 1)]
            assert await store.save(ANNE.process, saves) == ["1"]
            found = await rows(store)
            assert [found[shard].checkpoint for shard in "012"] == ["a", None, "c"]

        self.run(scenario)

    def test_the_end_of_a_shard_is_final(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            lease = (await consuming(store, ANNE, "0"))["0"]
            end = Save("0", lease.epoch, SHARD_END, 3)
            assert not await store.save(ANNE.process, [end])
            assert not await store.save(ANNE.process, [end])
            assert await store.save(ANNE.process, [Save("0", lease.epoch, "p9", 9)]) == ["0"]
            await store.hand_over(ANNE.process, [Save("0", lease.epoch, "p9", 10)])
            found = (await rows(store))["0"]
            assert found.is_ended
            assert found.consumer_process == NOBODY

        self.run(scenario)

    def test_a_hand_over_saves_and_clears_the_consumer_owner(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            await consuming(store, ANNE, "0", "1", "2")
            await store.save(ANNE.process, [Save("1", 1, "newer", 8), Save("2", 1, "kept", 1)])
            saves = [Save("0", 1, "p1", 1), Save("1", 1, "older", 7), Save("2", 1, None, 1)]
            found = {each.shard: each for each in await store.hand_over(ANNE.process, saves)}
            assert found == await rows(store)
            assert [found[shard].checkpoint for shard in "012"] == ["p1", "newer", "kept"]
            for lease in found.values():
                assert (lease.consumer_owner, lease.consumer_process) == (NOBODY, NOBODY)
                assert (lease.lease_process, lease.lease_id) == (ANNE.process, 1)
                assert lease.epoch == 1

        self.run(scenario)

    def test_a_hand_over_of_an_epoch_that_is_over_changes_nothing(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            await consuming(store, ANNE, "0")
            [taken] = await store.take(BEN, [Take("0", 1, sets_consumer=True)])
            assert await store.hand_over(ANNE.process, [Save("0", 1, "p", 1)]) == [taken]
            [back] = await store.take(ANNE, [Take("0", 2, sets_consumer=True)])
            assert await store.hand_over(ANNE.process, [Save("0", 1, "p", 1)]) == [back]

        self.run(scenario)

    def test_a_released_lease_has_no_owner_and_another_id(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            await consuming(store, ANNE, "0", "1")
            await store.take(BEN, [Take("1", 1, sets_consumer=False)])
            await store.hand_over(ANNE.process, [Save("0", 1, "p", 1)])
            found = {each.shard: each for each in await store.release(ANNE.process, ["0", "1"])}
            assert found["0"].is_vacant
            assert (found["0"].lease_owner, found["0"].lease_id) == (NOBODY, 2)
            assert (found["0"].checkpoint, found["0"].epoch) == ("p", 1)
            assert found["1"].lease_process == BEN.process

        self.run(scenario)

    def test_only_what_ended_is_deleted(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            await consuming(store, ANNE, "0", "1")
            await store.save(ANNE.process, [Save("0", 1, SHARD_END, 1)])
            await store.delete(["0", "1", "9"])
            assert list(await rows(store)) == ["1"]

        self.run(scenario)

    def test_a_scan_shows_what_changed_since_the_last(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store, other = await kit.open(), await kit.open()
            after = 0

            async def changed() -> list[str]:
                nonlocal after
                scan = await other.scan(after)
                after = scan.update_seq
                return sorted(lease.shard for lease in scan.leases)

            await store.register(ANNE)
            await store.create([NewLease(shard) for shard in "012"])
            assert await changed() == ["0", "1", "2"]
            assert await changed() == []
            await store.take(ANNE, [Take("0", 0, sets_consumer=True), Take("1", 5, True)])
            assert await changed() == ["0"]
            await store.renew(ANNE, [Renewal("0", 1)])
            assert await changed() == []
            await store.save(ANNE.process, [Save("0", 1, "first", 1)])
            assert await changed() == ["0"]
            await store.save(ANNE.process, [Save("0", 1, "second", 2)])
            assert await changed() == []
            await store.take(BEN, [Take("0", 2, sets_consumer=False)])
            assert await changed() == ["0"]
            await store.hand_over(ANNE.process, [Save("0", 1, "third", 3)])
            assert await changed() == ["0"]
            await store.become_consumer(BEN, [Renewal("0", 3)])
            assert await changed() == ["0"]
            await store.save(BEN.process, [Save("0", 2, SHARD_END, 4)])
            assert await changed() == ["0"]
            await store.release(BEN.process, ["0"])
            assert await changed() == ["0"]

        self.run(scenario)

    def test_a_scan_shows_the_present_ids_of_the_processes_it_asks_for(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            await store.register(ANNE)
            await consuming(store, ANNE, "0", "1")
            await consuming(store, BEN, "2")
            after = (await store.scan(0)).update_seq
            await store.renew(ANNE, [Renewal("0", 1)])
            scan = await store.scan(after, [ANNE.process, "nobody"])
            assert {each.shard: each.lease_id for each in scan.leases} == {"0": 2, "1": 1}
            assert [each.instance for each in scan.workers] == ["anne"]

        self.run(scenario)

    def test_own_rows_show_a_steal_to_the_robbed_and_a_hand_over_to_the_thief(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            await consuming(store, ANNE, "0", "1")
            await consuming(store, CAT, "2")
            after = (await store.own(ANNE.process, 0)).update_seq
            assert list((await store.own(ANNE.process, after)).leases) == []
            [stolen] = await store.take(BEN, [Take("0", 1, sets_consumer=False)])
            assert (await store.own(ANNE.process, after)).leases == [stolen]
            seen = await store.own(BEN.process, 0)
            assert seen.leases == [stolen]
            [over] = await store.hand_over(ANNE.process, [Save("0", 1, None, 0)])
            assert (await store.own(BEN.process, seen.update_seq)).leases == [over]
            assert list((await store.own(CAT.process, after)).leases) == []

        self.run(scenario)

    def test_no_change_is_missed_by_scans_beside_writers(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            first = await kit.open()
            shards = [str(number) for number in range(24)]
            await first.create([NewLease(shard) for shard in shards])
            seen: dict[str, ShardLease] = {}
            is_over = False

            async def write(store: LeaseStore, owner: LeaseOwner, mine: list[str]) -> None:
                for shard in mine:
                    await store.take(owner, [Take(shard, 0, sets_consumer=True)])
                    await store.release(owner.process, [shard])

            async def watch(store: LeaseStore) -> None:
                after, is_last = 0, False
                while not is_last:
                    is_last = is_over
                    scan = await store.scan(after)
                    after = scan.update_seq
                    seen.update({lease.shard: lease for lease in scan.leases})
                    await asyncio.sleep(0.001)  # in simulation, time has to go on

            watching = asyncio.create_task(watch(await kit.open()))
            writers = [
                write(await kit.open(), owner, shards[number::3])
                for number, owner in enumerate((ANNE, BEN, CAT))
            ]
            await asyncio.gather(*writers)
            is_over = True
            await watching
            assert seen == await rows(first)
            assert len({lease.update_seq for lease in seen.values()}) == len(shards)

        self.run(scenario)

    def test_a_checkpoint_is_reset_where_nobody_consumes(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            await consuming(store, ANNE, "0", "1", "2")
            await store.hand_over(ANNE.process, [Save("0", 1, SHARD_END, 4), Save("1", 1, "p", 4)])
            assert await store.reset([("0", "p2"), ("1", None), ("2", "x"), ("9", "x")]) == [
                "2",
                "9",
            ]
            found = await rows(store)
            assert [found[shard].checkpoint for shard in "012"] == ["p2", None, None]
            assert [found[shard].seq for shard in "012"] == [5, 5, 0]

        self.run(scenario)

    def test_calls_that_ask_nothing_do_nothing(self) -> None:
        async def scenario(kit: LeaseStoreKit) -> None:
            store = await kit.open()
            await consuming(store, ANNE, "0")
            before = await store.scan(0)
            await store.create([])
            await store.delete([])
            await store.forget_workers([])
            assert await store.take(ANNE, []) == []
            assert await store.become_consumer(ANNE, []) == []
            assert await store.save(ANNE.process, []) == []
            assert await store.hand_over(ANNE.process, []) == []
            assert await store.release(ANNE.process, []) == []
            assert await store.reset([]) == []
            assert await store.scan(0) == before

        self.run(scenario)
