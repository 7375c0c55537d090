"""Each hole that the first text of the lease protocol left, and the rule that closes it."""

import pytest

from raftwood.loghub.consumer import lease_events
from raftwood.loghub.consumer.lease_agent import LeaseAgent
from raftwood.loghub.consumer.lease_events import StopReason, StoreCall
from raftwood.loghub.consumer.lease_plan import plan_by_count
from raftwood.loghub.consumer.leases import (
    FORGET_TIMEOUTS,
    NOBODY,
    SHARD_END,
    LeaseOwner,
    LeaseTimes,
    NewLease,
    Renewed,
    Scan,
    ShardLease,
    Take,
    WorkerRow,
    signature,
)
from tests.kits.loghub.agents import TIMES, Group, T, Worker, result_of


def _names(count: int) -> list[str]:
    return [f"{number:03}" for number in range(count)]


def _alone(*shards: str) -> tuple[Group, Worker]:
    group = Group(*shards)
    worker = group.join("anne")
    group.run_until(lambda: len(worker.running) == len(shards), within_ms=T)
    return group, worker


def _robbed(*, stops_at_once: bool = True) -> tuple[Group, Worker, Worker]:
    """Two shards of one worker, of which a second one has just stolen one."""
    group, anne = _alone("0", "1")
    anne.stops_at_once = stops_at_once
    ben = group.join("ben")
    group.run_until(lambda: bool(ben.asked[lease_events.AskTake]), within_ms=T)
    return group, anne, ben


def test_nothing_moves_once_no_two_workers_differ_by_more_than_one() -> None:
    group = Group(*_names(40))
    for number in range(6):
        group.join(f"w{number}")
    group.run_for(2 * T)
    assert group.sizes() == [6, 6, 7, 7, 7, 7]
    takes = sum(worker.asked[lease_events.AskTake] for worker in group.workers)
    group.run_for(60 * TIMES.scan_ms)
    assert sum(worker.asked[lease_events.AskTake] for worker in group.workers) == takes


def test_two_thieves_never_pick_the_same_shard() -> None:
    group, _ = _alone(*_names(30))
    for name in ("ben", "cat"):
        group.join(name)
    group.run_for(T)
    assert group.sizes() == [10, 10, 10]
    # Each asked once, and got all that it had asked for.
    assert [worker.asked[lease_events.AskTake] for worker in group.workers] == [1, 1, 1]


def test_a_worker_without_a_lease_is_counted() -> None:
    group, _ = _alone(*_names(100))
    for number in range(9):
        group.join(f"w{number}")
    group.run_for(T)
    assert group.sizes() == [10] * 10
    assert group.starts() == 100 + 90


def test_clocks_that_differ_by_years_change_nothing() -> None:
    year_ms = 365 * 24 * 3_600_000
    group = Group(*_names(6))
    for number in range(3):
        group.join(f"w{number}", offset_ms=number * 7 * year_ms)
    group.run_for(5 * T)
    assert group.sizes() == [2, 2, 2]
    assert group.starts() == 6


def test_a_worker_that_is_cut_off_stops_before_another_takes_its_shard() -> None:
    group, anne = _alone("0")
    anne.checkpoints["0"] = "p7"
    ben = group.join("ben")
    group.run_for(T)
    anne.is_cut_off = True
    cut_ms = group.now_ms
    group.run_until(lambda: bool(anne.stops), within_ms=T)
    assert anne.stops == [("0", StopReason.DEADLINE)]
    assert group.now_ms - cut_ms <= TIMES.hold_ms
    assert not ben.running
    group.run_until(lambda: bool(ben.running), within_ms=T)


def test_work_is_forbidden_after_the_deadline_even_if_nobody_says_stop() -> None:
    group, anne = _alone("0")
    deadline_ms = anne.agent.deadline_ms("0", anne.running["0"].epoch)
    assert deadline_ms <= group.now_ms + TIMES.hold_ms < group.now_ms + T * (1 - TIMES.drift)
    group.now_ms = deadline_ms - 1
    assert anne.may_work("0")
    group.now_ms = deadline_ms
    assert not anne.may_work("0")


def test_process_that_outlasts_its_lease_is_fenced_by_its_epoch() -> None:
    group, anne = _alone("0")
    anne.stops_at_once = False
    ben = group.join("ben")
    anne.is_cut_off = True
    group.run_until(lambda: bool(ben.running), within_ms=2 * T)
    assert ben.running["0"].epoch > anne.running["0"].epoch
    assert not anne.may_work("0")
    assert anne.save("0", "late", 99) == ["0"]


def _hung(*names: str) -> tuple[Group, Worker]:
    """A call of the first worker hangs in shard 0, and others are there to take it."""
    group = Group("0", "1")
    anne = group.join("anne")
    for name in names:
        group.join(name)
    group.run_until(lambda: sum(group.sizes()) == 2, within_ms=T)
    anne.stops_at_once = False
    anne.agent.call_begins("0", anne.running["0"].epoch, anne.now)
    return group, anne


def test_a_call_that_hangs_loses_its_shard_while_its_worker_lives() -> None:
    group, anne = _hung("ben")
    ben = group.workers[1]
    anne.save("0", "a", 1)
    took_ms = group.run_until(lambda: "0" in ben.running, within_ms=4 * T)
    assert took_ms > 2 * T
    assert anne.stops == [("0", StopReason.HUNG)]
    assert ben.running["0"].checkpoint == "a"
    assert anne.save("0", "late", 9) == ["0"]
    # It has less than its share, and still does not ask for what it hangs in.
    group.run_for(5 * T)
    assert set(anne.running) == {"0"}
    assert set(ben.running) == {"0", "1"}
    anne.stopped("0")
    group.run_for(T)
    assert group.sizes() == [1, 1]
    assert group.store.leases["0"].checkpoint == "a"


def test_a_call_that_ends_or_gets_on_is_not_taken_for_one_that_hangs() -> None:
    group, anne = _hung("ben")
    for _ in range(8):
        group.run_for(T)
        anne.agent.call_begins("0", anne.running["0"].epoch, anne.now)
    anne.agent.call_ends("0", anne.running["0"].epoch)
    group.run_for(5 * T)
    assert anne.stops == []


def test_a_lone_worker_has_its_shard_again_when_a_call_that_hung_has_ended() -> None:
    group, anne = _hung()
    group.run_for(6 * T)
    assert anne.stops == [("0", StopReason.HUNG)]
    assert group.store.leases["0"].lease_process == NOBODY
    assert anne.save("0", "b", 1) == []
    anne.stopped("0", "c")
    group.run_until(lambda: "0" in anne.running, within_ms=T)
    assert anne.running["0"].checkpoint == "c"


def test_a_zombie_of_the_same_name_cannot_save() -> None:
    group, zombie = _alone("0")
    zombie.stops_at_once = False
    zombie.is_cut_off = True
    anne = group.join("anne")
    group.run_until(lambda: bool(anne.running), within_ms=2 * T)
    assert zombie.save("0", "zombie's", 99) == ["0"]
    assert anne.save("0", "mine", 1) == []


def test_a_process_whose_name_was_taken_leaves() -> None:
    group, older = _alone("0")
    newer = group.join("anne")
    group.run_until(lambda: not older.is_up, within_ms=T)
    assert older.stops == [("0", StopReason.DRAIN)]
    group.run_until(lambda: bool(newer.running), within_ms=T)


def test_a_restarted_worker_has_its_leases_again_once_the_old_process_must_have_stopped() -> None:
    group, old = _alone("0", "1")
    ben = group.join("ben")
    group.run_for(T)
    [mine] = old.running
    old.is_up = False
    died_ms = group.now_ms
    anne = group.join("anne")
    group.run_until(lambda: bool(anne.running), within_ms=2 * T)
    assert list(anne.running) == [mine]
    assert anne.running[mine].epoch == old.running[mine].epoch + 1
    assert group.now_ms - died_ms >= T - TIMES.renew_ms
    assert len(ben.running) == 1


def test_a_lease_with_id_zero_is_taken_at_once() -> None:
    group = Group("0")
    worker = group.join("anne")
    took_ms = group.run_until(lambda: bool(worker.running), within_ms=T)
    assert took_ms <= TIMES.settle_ms + 2 * TIMES.poll_ms


def test_rows_of_workers_that_stood_still_for_ten_timeouts_are_removed() -> None:
    group, anne = _alone("0")
    ben = group.join("ben")
    group.run_for(T)
    ben.is_up = False
    group.run_for(9 * T)
    assert sorted(group.store.workers) == ["anne", "ben"]
    group.run_for(2 * T)
    assert sorted(group.store.workers) == ["anne"]
    assert anne.is_up


def test_the_times_follow_from_the_timeout() -> None:
    times = LeaseTimes()
    assert times.timeout_ms == 10_000
    assert times.renew_ms < times.timeout_ms / 2
    assert times.scan_ms == times.timeout_ms / 2
    assert times.hold_ms < times.timeout_ms * (1 - times.drift)
    assert FORGET_TIMEOUTS == 10
    assert len(signature("project", "logstore")) == 64
    assert signature("a", "b") != signature("a", "c")


def test_an_older_checkpoint_does_not_replace_a_newer_one() -> None:
    group, anne = _alone("0")
    assert anne.save("0", "p5", 5) == []
    assert anne.save("0", "p4", 4) == ["0"]
    assert group.store.leases["0"].checkpoint == "p5"


def test_a_stolen_shard_idles_for_some_polls_only() -> None:
    group, _, ben = _robbed()
    took_ms = group.run_until(lambda: bool(ben.running), within_ms=T)
    assert took_ms <= 4 * TIMES.poll_ms


def test_shards_that_are_stolen_at_once_are_handed_over_by_one_call() -> None:
    group, anne = _alone(*_names(8))
    anne.stops_at_once = False
    ben = group.join("ben")
    group.run_until(lambda: len(anne.stops) == 4, within_ms=T)
    stopping = [shard for shard, _ in anne.stops]
    for shard in stopping[:3]:
        anne.stopped(shard)
    assert anne.asked[lease_events.AskHandOver] == 0
    anne.stopped(stopping[3])
    assert anne.asked[lease_events.AskHandOver] == 1
    group.run_until(lambda: len(ben.running) == 4, within_ms=T)


def test_one_consumer_that_is_slow_to_stop_does_not_hold_up_the_others() -> None:
    group, anne = _alone(*_names(8))
    anne.stops_at_once = False
    ben = group.join("ben")
    group.run_until(lambda: len(anne.stops) == 4, within_ms=T)
    for shard, _ in anne.stops[:3]:
        anne.stopped(shard)
    group.run_until(lambda: len(ben.running) == 3, within_ms=4 * TIMES.poll_ms)


def test_a_thief_starts_after_the_timeout_if_no_hand_over_comes() -> None:
    group, anne, ben = _robbed(stops_at_once=False)
    [stolen] = set(group.store.leases) - {
        shard for shard, lease in group.store.leases.items() if lease.lease_owner == "anne"
    }
    took_ms = group.run_until(lambda: bool(ben.running), within_ms=2 * T)
    assert T - 2 * TIMES.poll_ms <= took_ms <= T + 2 * TIMES.poll_ms
    assert not anne.may_work(stolen)
    assert ben.running[stolen].epoch > anne.running[stolen].epoch


def test_the_shard_of_a_thief_that_dies_waiting_goes_to_the_next() -> None:
    group, anne, ben = _robbed(stops_at_once=False)
    group.run_until(lambda: bool(anne.stops), within_ms=T)
    [(stolen, _)] = anne.stops
    ben.is_up = False
    anne.is_up = False
    cat = group.join("cat")
    group.run_until(lambda: stolen in cat.running, within_ms=3 * T)
    lease = group.store.leases[stolen]
    assert (lease.lease_owner, lease.consumer_owner) == ("cat", "cat")


def test_of_a_chain_of_thieves_only_the_last_becomes_consumer() -> None:
    group, anne, ben = _robbed(stops_at_once=False)
    group.run_for(T // 2)
    [stolen] = [shard for shard, _ in anne.stops]
    lease = group.store.leases[stolen]
    assert lease.lease_owner == "ben"
    cat = LeaseOwner("cat", "process-c")
    takes = [Take(stolen, lease.lease_id, sets_consumer=False)]
    result_of(group.store.register(cat))
    result_of(group.store.take(cat, takes))
    group.run_for(T // 2)
    assert stolen not in ben.running
    assert group.store.leases[stolen].consumer_owner == "anne"


def test_a_thief_reads_the_checkpoint_that_its_victim_saved_last() -> None:
    group, anne, ben = _robbed(stops_at_once=False)
    group.run_until(lambda: bool(anne.stops), within_ms=T)
    [(stolen, reason)] = anne.stops
    assert reason is StopReason.STOLEN
    assert anne.save(stolen, "p8", 8) == []
    anne.running[stolen] = group.store.leases[stolen]
    anne.stopped(stolen, "p9")
    group.run_until(lambda: bool(ben.running), within_ms=T)
    assert ben.running[stolen].checkpoint == "p9"


@pytest.mark.parametrize(
    "call", [StoreCall.TAKE, StoreCall.RENEW, StoreCall.BECOME, StoreCall.HAND_OVER]
)
def test_a_call_that_was_done_though_its_answer_was_lost_does_no_harm(call: StoreCall) -> None:
    group, anne = _alone("0", "1")
    anne.lost_answers = {call}
    ben = group.join("ben")
    ben.lost_answers = {call}
    group.run_for(2 * T)
    assert group.sizes() == [1, 1]
    assert not any(reason is StopReason.DEADLINE for _, reason in anne.stops + ben.stops)
    assert sorted([*anne.running, *ben.running]) == ["0", "1"]


def test_a_take_that_was_seen_done_before_it_failed_is_not_forgotten() -> None:
    """Polls and scans show a change once, and may do so while the call is still under way."""
    me = LeaseOwner("anne", "a")
    agent = LeaseAgent(me, TIMES, plan_by_count, 0)
    row = WorkerRow("anne", "a", 1)
    now_ms = 0

    def asked(event: lease_events.Event) -> set[type]:
        return {type(action) for action in agent.step(event, now_ms)}

    asked(lease_events.Ticked())
    asked(lease_events.WorkerRegistered(row))
    asked(lease_events.Scanned(Scan([ShardLease("0", 4, update_seq=1)], [row], 1)))
    now_ms = TIMES.settle_ms
    asked(lease_events.Ticked())
    assert lease_events.AskTake in asked(lease_events.Scanned(Scan([], [row], 1)))
    mine = ShardLease("0", 5, "anne", "a", "anne", "a", epoch=1, update_seq=2)
    asked(lease_events.Polled(Scan([mine], [], 2)))
    assert not agent.held()
    asked(lease_events.StoreFailed(StoreCall.TAKE, 1.0))
    assert list(agent.held()) == ["0"]


def test_a_deadline_is_not_counted_from_a_call_that_only_found_what_one_before_had_done() -> None:
    """Others saw the lease change with the first call, and the heartbeat stand still since then."""
    group, anne, ben = _robbed(stops_at_once=False)
    group.run_until(lambda: bool(anne.stops), within_ms=T)
    ben.lost_answers = {StoreCall.BECOME}
    anne.stopped(anne.stops[0][0])
    group.run_until(lambda: bool(ben.asked[lease_events.AskBecome]), within_ms=T)
    ben.failing = {StoreCall.POLL, StoreCall.RENEW, StoreCall.SCAN}
    [done] = [each for each in group.store.leases.values() if each.consumer_owner == "ben"]
    group.run_until(lambda: bool(ben.running), within_ms=T)
    [begun] = ben.running.values()
    # It became so once more, by a call that all can see.
    assert begun.epoch == done.epoch + 1
    assert begun.update_seq > done.update_seq


def test_workers_stop_while_the_store_is_away_and_go_on_by_themselves() -> None:
    group, anne = _alone("0", "1")
    ben = group.join("ben")
    group.run_for(T)
    held = sorted(anne.running), sorted(ben.running)
    anne.checkpoints = {"0": "p3", "1": "p3"}
    group.is_store_away = True
    group.run_for(T // 2)
    assert group.sizes() == [1, 1]
    group.run_for(5 * T // 2)
    assert group.sizes() == [0, 0]
    group.is_store_away = False
    group.run_for(T)
    assert (sorted(anne.running), sorted(ben.running)) == held
    assert [lease.checkpoint for lease in anne.running.values()] == ["p3"]


def test_failover_takes_twice_the_timeout_at_most() -> None:
    group, anne = _alone("0")
    ben = group.join("ben")
    group.run_for(T)
    anne.is_up = False
    assert group.run_until(lambda: bool(ben.running), within_ms=2 * T) <= 2 * T


def test_one_with_a_shorter_timeout_waits_for_as_long_as_the_others_is() -> None:
    """As while a group is being given another timeout, worker by worker."""
    group, anne = _alone("0")
    hasty = group.join("ben", times=LeaseTimes(timeout_ms=T // 10))
    group.run_for(3 * T)
    assert list(anne.running) == ["0"]
    anne.is_cut_off = True
    group.run_until(lambda: bool(hasty.running), within_ms=2 * T)
    assert not anne.running


def test_one_with_a_shorter_timeout_waits_also_where_it_never_saw_the_others_row() -> None:
    group, anne = _alone("0")
    anne.is_cut_off = True
    del group.store.workers["anne"]
    hasty = group.join("ben", times=LeaseTimes(timeout_ms=T // 10))
    group.run_until(lambda: bool(hasty.running), within_ms=2 * T)
    assert not anne.running


def test_a_thief_with_a_shorter_timeout_waits_for_its_victims() -> None:
    group, anne = _alone("0", "1")
    anne.stops_at_once = False
    hasty = group.join("ben", times=LeaseTimes(timeout_ms=T // 10))
    group.run_until(lambda: bool(hasty.asked[lease_events.AskTake]), within_ms=T)
    assert group.run_until(lambda: bool(hasty.running), within_ms=2 * T) >= T - 2 * TIMES.poll_ms


def test_a_clean_exit_hands_over_and_frees_its_leases() -> None:
    group, anne = _alone("0")
    anne.checkpoints["0"] = "p4"
    ben = group.join("ben")
    group.run_for(T)
    anne.feed(lease_events.DrainRequested())
    assert not anne.is_up
    assert (group.store.leases["0"].lease_owner, list(group.store.workers)) == (NOBODY, ["ben"])
    took_ms = group.run_until(lambda: bool(ben.running), within_ms=T)
    assert took_ms <= TIMES.early_ms + TIMES.settle_ms + 4 * TIMES.poll_ms
    assert ben.running["0"].checkpoint == "p4"


def test_children_wait_for_all_their_parents_and_parents_are_deleted_at_last() -> None:
    group, anne = _alone("0", "1")
    children = [NewLease("2", ("0", "1")), NewLease("3", ("0",))]
    group.list_shards(NewLease("0"), NewLease("1"), *children)
    group.run_for(T)
    assert sorted(anne.running) == ["0", "1"]
    anne.stopped("0", SHARD_END)
    group.run_for(T)
    assert sorted(anne.running) == ["1", "3"]
    anne.stopped("1", SHARD_END)
    group.run_for(T)
    assert sorted(anne.running) == ["2", "3"]
    assert anne.running["2"].parents == ("0", "1")
    assert anne.running["2"].checkpoint is None
    assert sorted(group.store.leases) == ["0", "1", "2", "3"]
    anne.save("2", "p1", 1)
    group.run_for(T)
    assert sorted(group.store.leases) == ["0", "2", "3"]
    anne.save("3", "p1", 1)
    group.run_for(T)
    group.list_shards(NewLease("0"), NewLease("1"), *children)
    group.run_for(T)
    assert sorted(group.store.leases) == ["2", "3"]


def test_a_shard_that_ended_and_was_deleted_before_its_thief_began_is_let_go() -> None:
    group = Group("0", "1")
    ben = group.join("ben")
    group.run_until(lambda: len(ben.running) == 2, within_ms=T)
    ben.stops_at_once = False
    anne = group.join("anne")
    anne.failing = {StoreCall.BECOME}
    group.run_until(lambda: bool(ben.stops), within_ms=T)
    [(stolen, _)] = ben.stops
    ben.stopped(stolen, SHARD_END)
    group.list_shards(*group.listed, NewLease("2", (stolen,)))
    group.run_until(lambda: "2" in {**anne.running, **ben.running}, within_ms=2 * T)
    # She is the first, and deletes it herself.
    for worker in (anne, ben):
        if "2" in worker.running:
            worker.save("2", "p1", 1)
    group.run_until(lambda: stolen not in group.store.leases, within_ms=2 * T)
    group.run_for(T)
    assert stolen not in anne.agent.held()


def test_shards_that_ended_do_not_count() -> None:
    group, anne = _alone(*_names(4))
    for shard in _names(2):
        anne.stopped(shard, SHARD_END)
    ben = group.join("ben")
    group.run_for(T)
    assert group.sizes() == [1, 1]
    assert not set(ben.running) & set(_names(2))


def test_a_shard_whose_end_its_victim_reaches_is_not_begun_again_by_the_thief() -> None:
    group, anne, ben = _robbed(stops_at_once=False)
    group.run_until(lambda: bool(anne.stops), within_ms=T)
    [(stolen, _)] = anne.stops
    anne.stopped(stolen, SHARD_END)
    group.run_for(T)
    assert ben.asked[lease_events.StartConsumer] == 0
    lease = group.store.leases[stolen]
    assert lease.is_ended
    assert lease.is_vacant


def test_a_take_that_waits_to_be_repeated_is_not_if_it_was_done_meanwhile() -> None:
    """Else the shard would be begun in an epoch that is over already."""
    me = LeaseOwner("anne", "a")
    agent = LeaseAgent(me, TIMES, plan_by_count, 0)
    free = ShardLease("0", 4, update_seq=1)
    row = WorkerRow("anne", "a", 1)
    now_ms = 0

    def asked(event: lease_events.Event) -> set[type]:
        return {type(action) for action in agent.step(event, now_ms)}

    assert lease_events.AskRegister in asked(lease_events.Ticked())
    asked(lease_events.WorkerRegistered(row))
    asked(lease_events.Scanned(Scan([free], [row], 1)))
    asked(lease_events.LeasesRenewed(Renewed([], row)))
    asked(lease_events.Polled(Scan([], [], 1)))
    now_ms = TIMES.settle_ms
    assert lease_events.AskScan in asked(lease_events.Ticked())
    assert lease_events.AskTake in asked(lease_events.Scanned(Scan([], [row], 1)))
    asked(lease_events.StoreFailed(StoreCall.TAKE, 1.0))
    agent.step(lease_events.ShardsListed([NewLease("0"), NewLease("1")], 0), now_ms)
    # The scan is from before the take; what the poll shows is from behind it.
    assert lease_events.AskTake not in asked(
        lease_events.Scanned(Scan([free, ShardLease("1", 1)], [row], 1))
    )
    mine = ShardLease("0", 5, "anne", "a", "anne", "a", epoch=1, update_seq=2)
    assert lease_events.AskBecome in asked(lease_events.Polled(Scan([mine], [], 2)))
    now_ms += T // 4
    taken = [
        action
        for action in agent.step(lease_events.Ticked(), now_ms)
        if isinstance(action, lease_events.AskTake)
    ]
    assert all(take.shard != "0" for action in taken for take in action.takes)


def test_one_call_renews_every_lease() -> None:
    group, anne = _alone(*_names(50))
    before = {shard: lease.lease_id for shard, lease in group.store.leases.items()}
    calls = anne.asked[lease_events.AskRenew]
    group.run_until(lambda: anne.asked[lease_events.AskRenew] > calls, within_ms=T)
    assert anne.asked[lease_events.AskRenew] == calls + 1
    after = {shard: lease.lease_id for shard, lease in group.store.leases.items()}
    assert after == {shard: lease_id + 1 for shard, lease_id in before.items()}
