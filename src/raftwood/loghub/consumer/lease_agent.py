"""One worker's lease agent: a pure state machine between the lease store and its consumers.

`actions = agent.step(event, now_ms)`; nothing in it waits, and `wake_ms()` says when to tick it.
`now_ms` comes from one clock that runs on while the machine sleeps: with one that stops, a laptop
or a paused virtual machine would wake up and go on with a lease that expired long ago.

The driver starts every action at once, does not wait for one before the next, and asks `may_work`
before each call of process() and each checkpoint. `StopConsumer` alone would not do: the loop that
carries it out may be the one that stands still
(`test_work_is_forbidden_after_the_deadline_even_if_nobody_says_stop`).

The two threads of the LogHub client library's text (sections 5.3.2 and 5.3.3) are the calls SCAN
and TAKE, and RENEW and BECOME. They do not wait for one another: a scan of ten thousand rows that
takes seconds must not cost a lease.

`StoreCallSchedule` has one store call of each kind at a time, later after failures. A `ShardHold`
is this worker's claim on one shard. `LeaseOffers` gives a free lease to any worker once the one
that should take it has not done so for a while.
"""

from collections.abc import Collection, Container, Iterable, Sequence
from enum import Enum, auto

import msgspec

from raftwood.base.backoff import Backoff
from raftwood.base.errors import InvariantViolated
from raftwood.loghub.consumer import lease_events
from raftwood.loghub.consumer.group_view import GroupView
from raftwood.loghub.consumer.lease_events import Ask, AskBecome, AskTake, StopReason, StoreCall
from raftwood.loghub.consumer.lease_plan import LeaseMove, Planner, own_part
from raftwood.loghub.consumer.leases import (
    NOBODY,
    LeaseOwner,
    LeaseTimes,
    Renewal,
    Renewed,
    Save,
    Scan,
    ShardLease,
    Take,
    WorkerRow,
)

BACKOFF_MS = 100
FULL_SCAN_EVERY = 20
"""Scans by change show neither rows that were removed by hand nor how fast others read. A full scan
every time would make 1,000 workers read 10,000 rows each, twice in every T."""
GATHER_MS = 5
"""How long a hand-over waits for other consumers that were stopped with it. Most stop at once; if
the first went alone, the others would wait for the answer, and their thieves with them
(`test_shards_that_are_stolen_at_once_are_handed_over_by_one_call`)."""
PERIODIC = (StoreCall.REGISTER, StoreCall.SCAN, StoreCall.POLL, StoreCall.RENEW)
_EXCLUDES = {StoreCall.RENEW: StoreCall.BECOME, StoreCall.BECOME: StoreCall.RENEW}
"""Both add to a lease's id. If they overlapped, the second would carry an id that the first has
just changed, and be refused; a refused renewal costs a part of the deadline."""
NEVER_MS = 1 << 62


class StoreCallSchedule:
    """Schedules the store calls of one agent, in milliseconds of its clock."""

    def __init__(self, times: LeaseTimes) -> None:
        self._backoff = Backoff(first_ms=BACKOFF_MS, longest_ms=times.renew_ms // 2)
        self._due: dict[StoreCall, int] = {}
        self._failures: dict[StoreCall, int] = {}
        self._not_before: dict[StoreCall, int] = {}
        self._under_way: dict[StoreCall, tuple[Ask, int, frozenset[str]]] = {}
        self._ended: dict[StoreCall, int] = {}
        self._doubtful: dict[str, int] = {}
        """By shard, the id with which a TAKE or BECOME that failed asked for it."""
        self._is_closed = False

    def close(self) -> None:
        """Drops all scheduled calls, and schedules no more."""
        self._due = {}
        self._is_closed = True

    def want(self, call: StoreCall, at_ms: int) -> None:
        if not self._is_closed:
            self._due[call] = at_ms

    def want_by(self, call: StoreCall, at_ms: int) -> None:
        self.want(call, min(at_ms, self._due.get(call, at_ms)))

    def is_due(self, call: StoreCall, now_ms: int) -> bool:
        return self._due.get(call, NEVER_MS) <= now_ms and self.may_begin(call, now_ms)

    def may_begin(self, call: StoreCall, now_ms: int) -> bool:
        return not self._is_blocked(call) and now_ms >= self._not_before.get(call, now_ms)

    def is_under_way(self, calls: Collection[StoreCall]) -> bool:
        return any(call in self._under_way for call in calls)

    def shards(self, call: StoreCall) -> frozenset[str]:
        """Returns the shards that a call under way asks for."""
        return self._under_way[call][2] if call in self._under_way else frozenset()

    def begun(self, call: StoreCall, ask: Ask, now_ms: int, shards: Iterable[str]) -> None:
        self._due.pop(call, None)
        self._under_way[call] = (ask, now_ms, frozenset(shards))

    def sent_ms(self, call: StoreCall) -> int:
        return self._under_way[call][1] if call in self._under_way else 0

    def ended_ms(self, call: StoreCall) -> int:
        return self._ended.get(call, 0)

    def ended(self, call: StoreCall, now_ms: int) -> Ask:
        """Notes that a call was answered; returns what it asked for."""
        if call not in self._under_way:
            raise InvariantViolated(f"an answer to {call} came that was not asked for")
        self._failures.pop(call, None)
        self._not_before.pop(call, None)
        self._ended[call] = now_ms
        return self._under_way.pop(call)[0]

    def failed(self, call: StoreCall, now_ms: int, jitter: float) -> None:
        """Schedules the call again: twice as late each time, by chance up to half of that earlier.

        A store that comes back after an outage meets all workers of all groups. If they came at
        once, and again at once after each timeout, it would never get up.
        """
        match self.ended(call, now_ms):
            case AskTake(asked) | AskBecome(asked):
                self._doubtful |= {each.shard: each.lease_id for each in asked}
        failures = self._failures.get(call, 0)
        self._failures[call] = failures + 1
        self._not_before[call] = now_ms + int(self._backoff.delay_ms(failures, jitter))
        self._due[call] = self._not_before[call]
        if self._is_closed and call in PERIODIC:
            del self._due[call]

    def is_doubtful(self, shard: str, lease_id: int) -> bool:
        """Whether the id that follows this one may be the work of a call that failed.

        A TAKE is done in the store and its answer is lost; the TAKE that is sent again a second
        later only finds it done. Others have seen the lease since the first one, and count T from
        then. A deadline from the second would end a second after they take the shard away
        (`test_a_deadline_is_not_counted_from_a_call_that_only_found_what_one_before_had_done`).
        """
        return self._doubtful.get(shard) == lease_id

    def passed(self, now_ms: int) -> None:
        """Drops repeats that are due and that nothing asks for any more.

        A poll may have shown meanwhile that the failed call was done
        (`test_a_take_that_waits_to_be_repeated_is_not_if_it_was_done_meanwhile`).
        """
        for call, at_ms in list(self._due.items()):
            if at_ms <= now_ms and call not in PERIODIC and call not in self._under_way:
                del self._due[call]

    def next_ms(self) -> int:
        """Returns when the next call is due."""
        waits = [
            max(at_ms, self._not_before.get(call, at_ms))
            for call, at_ms in self._due.items()
            if not self._is_blocked(call)
        ]
        return min(waits, default=NEVER_MS)

    def begin_ms(self, call: StoreCall, wanted_ms: int) -> int:
        """Returns the earliest time at which a call can begin that is wanted at `wanted_ms`."""
        is_blocked = self._is_blocked(call)
        return NEVER_MS if is_blocked else max(wanted_ms, self._not_before.get(call, wanted_ms))

    def _is_blocked(self, call: StoreCall) -> bool:
        return call in self._under_way or _EXCLUDES.get(call) in self._under_way


class HoldStage(Enum):
    """The life of a hold."""

    WAITING = auto()
    """The lease is this worker's; another may still read the shard. The thief renews from now on,
    so that the shard does not look free while it changes hands (5.3.2 of the text)."""
    CONSUMING = auto()
    STOPPING = auto()
    """The consumer has been asked to stop, and may be inside process()."""
    HUNG = auto()
    """A call does not return: the lease is to be freed, or was; the consumer still runs.

    The text does not treat this: a worker whose processor waits for ever for a database renews for
    ever, and no worker reads its shard until a person notices (planted bug "keeps a shard in which
    it hangs").
    """
    STOPPED = auto()
    """The last checkpoint is to be handed over."""
    LEAVING = auto()
    """The lease is to be freed."""


class ShardHold(msgspec.Struct):
    """This worker's claim on a shard: it leases it, or read it last and has to hand it over."""

    shard: str
    stage: HoldStage
    deadline_ms: int
    """No work after this, by the send time of the last renewal that came through."""
    begin_ms: int
    """While waiting: the consumer before must have stopped by then, even if it hears nothing."""
    epoch: int = 0
    save: Save | None = None
    restart_ms: int = 0
    hung_ms: int = NEVER_MS
    """While a call of the processor is under way: when the shard is given up."""


class LeaseOffers:
    """Free leases that a plan gives to other workers, and for how long they have not taken them.

    All workers work out one plan, so a free lease has one taker. That one may be unable to: it
    hangs in a call of the same shard from long ago, which the lease's row no longer shows since
    another worker read the shard in between and died. Without this rule everybody leaves the shard
    to it, for ever (`test_a_shard_whose_worker_hung_before_its_last_one_died_is_read_by_another`).

    Patience is counted in milliseconds during which this worker looked. Counted by the clock, an
    outage of the store would use it up, and all workers would take all free leases at once
    (`test_a_store_that_is_away_uses_up_nobodys_patience`).
    """

    def __init__(self, me: str, *, patience_ms: int) -> None:
        self._me = me
        self._patience_ms = patience_ms
        self._offered: dict[str, tuple[str, int]] = {}
        """By shard: the other worker that should take it, and since when."""

    def planned(self, moves: Iterable[LeaseMove], looked_ms: int) -> list[LeaseMove]:
        """Returns a plan's moves; gives this worker the leases that others left for too long."""
        offered, self._offered = self._offered, {}
        found = []
        for move in moves:
            if move.source == NOBODY and move.target != self._me:
                target, since_ms = offered.get(move.shard, (move.target, looked_ms))
                since_ms = since_ms if target == move.target else looked_ms
                self._offered[move.shard] = move.target, since_ms
                if looked_ms - since_ms >= self._patience_ms:
                    found.append(LeaseMove(move.shard, NOBODY, self._me))
                    continue
            found.append(move)
        return found


class LeaseAgent:
    """Decides what a worker leases, reads, hands over and gives up."""

    def __init__(self, me: LeaseOwner, times: LeaseTimes, planner: Planner, now_ms: int) -> None:
        self.me = me
        self._times = times
        self._planner = planner
        self._holds: dict[str, ShardHold] = {}
        self._view = GroupView(times)
        self._calls = StoreCallSchedule(times)
        self._row: WorkerRow | None = None
        self.is_leaving = False
        """The worker was asked to leave, or another process has its name."""
        self.is_sent_away = False
        """An operator asked the worker to leave."""
        self._is_finished = False
        self._scans = 0
        self._refresh: list[str] = []
        self._takes: dict[str, Take] = {}
        self._offers = LeaseOffers(me.process, patience_ms=2 * times.timeout_ms)
        self._is_tidy = True
        """No lease or row has to be created or removed, as far as the last scan showed."""
        self._balanced: tuple[int, dict[str, str]] | None = None
        """The version and the live workers for which a plan had no moves, and no lease can expire.

        Plans for 10,000 shards cost milliseconds; a group that rests should not make them.
        """
        self._matched: int | None = None
        """The version in which each shard had its lease, and no lease was too many."""
        self._gathered_ms = 0
        """Until then a hand-over waits for other consumers that have been asked to stop."""
        self._calls.want(StoreCall.REGISTER, now_ms)

    def may_work(self, shard: str, epoch: int, now_ms: int) -> bool:
        """Whether the consumer of this epoch may call process(), or save, now.

        The epoch is checked as well: a consumer that hung and comes back must not work on the
        lease that the same worker has taken again.
        """
        return now_ms < self.deadline_ms(shard, epoch)

    def deadline_ms(self, shard: str, epoch: int) -> int:
        """Returns when a call of process() must be over; 0 if no work may be done."""
        hold = self._hold_of(shard, epoch)
        return hold.deadline_ms if hold and hold.stage is HoldStage.CONSUMING else 0

    def call_begins(self, shard: str, epoch: int, now_ms: int) -> None:
        """The processor is called, or a call has shown that it makes progress.

        The shard is given up where the call is not over T behind the deadline that it has now:
        renewals would keep it for ever. The epoch fences the checkpoints of such a call; a call
        that is slow and not stuck says so by saving (`AsyncCheckpointTracker.goes_on`).
        """
        if hold := self._hold_of(shard, epoch):
            hold.hung_ms = max(hold.deadline_ms, now_ms) + self._times.timeout_ms

    def call_ends(self, shard: str, epoch: int) -> None:
        if hold := self._hold_of(shard, epoch):
            hold.hung_ms = NEVER_MS

    def _hold_of(self, shard: str, epoch: int) -> ShardHold | None:
        hold = self._holds.get(shard)
        return hold if hold and hold.epoch == epoch else None

    @property
    def deleted_seq(self) -> int:
        """The driver reads this before it lists the shards, and gives it back with the list."""
        return self._view.deleted_seq

    @property
    def wants_list(self) -> bool:
        """Whether leases were deleted after the shards were listed: list them again at once."""
        return self._view.is_listing_old

    def held(self) -> dict[str, HoldStage]:
        """The stage of each shard, to be shown to people."""
        return {shard: hold.stage for shard, hold in self._holds.items()}

    def wake_ms(self) -> int:
        """Returns the latest time for the next `Ticked`."""
        times = [self._calls.next_ms()]
        for hold in self._holds.values():
            times.append(hold.hung_ms)
            if hold.stage is HoldStage.CONSUMING:
                times.append(hold.deadline_ms)
            elif hold.stage is HoldStage.WAITING:
                times.append(self._calls.begin_ms(StoreCall.BECOME, self._begin_ms(hold)))
            elif hold.stage is HoldStage.STOPPED:
                times.append(self._calls.begin_ms(StoreCall.HAND_OVER, self._gathered_ms))
        return min(times)

    def step(self, event: lease_events.Event, now_ms: int) -> list[lease_events.Action]:
        """Takes in an event; returns what the driver is to do."""
        if self._is_finished:
            return []
        actions: list[lease_events.Action] = []
        match event:
            case lease_events.Ticked():
                pass
            case lease_events.WorkerRegistered(row):
                self._on_registered(row, now_ms)
            case lease_events.Scanned(scan):
                asked = self._calls.ended(StoreCall.SCAN, now_ms)
                self._on_scanned(asked, scan, now_ms, actions)
            case lease_events.Polled(scan):
                self._calls.ended(StoreCall.POLL, now_ms)
                self._on_polled(scan, now_ms, actions)
            case lease_events.LeasesRenewed(renewed):
                self._on_renewed(renewed, now_ms, actions)
            case lease_events.LeasesAnswered(call, leases):
                self._on_answered(call, leases, now_ms, actions)
            case lease_events.StoreCallDone(call):
                self._on_done(call, now_ms)
            case lease_events.StoreFailed(call, jitter):
                shards = self._calls.shards(call)
                self._calls.failed(call, now_ms, jitter)
                # The call may have been done, and a poll may have shown its work while it was
                # under way, when the agent did not yet take the row for its own. It is not shown
                # again: without this look, no worker would read the shard until the lease expires
                # (`test_a_take_that_was_seen_done_before_it_failed_is_not_forgotten`).
                self._reconcile(self._view.known(shards), now_ms, actions)
            case lease_events.ShardsListed(shards, deleted_seq):
                self._view.listed(shards, deleted_seq)
                self._balanced = self._matched = None
                if self._scans and self._view.unknown():
                    # A shard without a lease may be new; or it had one that was deleted since the
                    # last scan, and must not get another one.
                    self._calls.want_by(StoreCall.SCAN, now_ms)
            case lease_events.ConsumerStopped(save, restart_ms):
                self._on_stopped(save, now_ms + restart_ms)
            case lease_events.SaveRefused(shard, epoch):
                if hold := self._hold_of(shard, epoch):
                    self._stop(hold, StopReason.REFUSED, actions)
            case lease_events.DrainRequested():
                self._leave(actions)
        self._stop_the_late(now_ms, actions)
        if any(isinstance(each, lease_events.StopConsumer) for each in actions):
            self._gathered_ms = now_ms + GATHER_MS
        self._ask(now_ms, actions)
        return actions

    def _on_registered(self, row: WorkerRow, now_ms: int) -> None:
        self._calls.ended(StoreCall.REGISTER, now_ms)
        self._row = row
        for call in (StoreCall.SCAN, StoreCall.POLL, StoreCall.RENEW):
            self._calls.want(call, now_ms)

    def _on_scanned(
        self, asked: lease_events.Ask, scan: Scan, now_ms: int, actions: list[lease_events.Action]
    ) -> None:
        assert isinstance(asked, lease_events.AskScan)
        self._scans += 1
        changed = self._view.scanned(scan, is_full=asked.after == 0, now_ms=now_ms)
        self._reconcile(changed, now_ms, actions)
        self._drop_missing(list(self._holds), self._view.leases)
        self._calls.want(StoreCall.SCAN, now_ms + self._times.scan_ms)
        self._is_tidy = self._view.has_deleted
        self._plan({lease.shard for lease in scan.leases}, now_ms)

    def _on_polled(self, scan: Scan, now_ms: int, actions: list[lease_events.Action]) -> None:
        self._reconcile(self._view.polled(scan, now_ms), now_ms, actions)
        self._calls.want(StoreCall.POLL, now_ms + self._times.poll_ms)
        if scan.update_seq > self._view.update_seq:
            early = max(now_ms, self._calls.ended_ms(StoreCall.SCAN) + self._times.early_ms)
            self._calls.want_by(StoreCall.SCAN, early)

    def _on_renewed(
        self, renewed: Renewed, now_ms: int, actions: list[lease_events.Action]
    ) -> None:
        sent_ms = self._calls.sent_ms(StoreCall.RENEW)
        asked = self._calls.ended(StoreCall.RENEW, now_ms)
        assert isinstance(asked, lease_events.AskRenew)
        if renewed.worker.process != self.me.process:
            # Another process runs under this name, and the store renews nothing for this one. Two
            # processes that both went on would take the name from each other for ever, and every
            # plan would count them as one worker.
            self.is_sent_away = renewed.worker.is_sent_away
            self._row = renewed.worker if self.is_sent_away else None
            self._leave(actions)
            return
        self._row = renewed.worker
        self._calls.want(StoreCall.RENEW, sent_ms + self._times.renew_ms)
        ids = {each.shard: each.lease_id for each in asked.renewals}
        for lease in renewed.leases:
            hold = self._holds.get(lease.shard)
            if hold and self._is_mine(lease):
                if lease.lease_id == ids[lease.shard] + 1:
                    # From the sending, not from the answer: see `LeaseTimes.hold_ms`.
                    hold.deadline_ms = sent_ms + self._times.hold_ms
                else:
                    # A renewal before this one was done, and its answer was lost: this one carried
                    # the id from before it, and renewed nothing.
                    self._calls.want(StoreCall.RENEW, now_ms)
        self._reconcile(self._view.see(renewed.leases, now_ms), now_ms, actions)
        self._drop_missing(ids, {lease.shard for lease in renewed.leases})

    def _on_answered(
        self,
        call: StoreCall,
        leases: Sequence[ShardLease],
        now_ms: int,
        actions: list[lease_events.Action],
    ) -> None:
        sent_ms = self._calls.sent_ms(call)
        asked = self._calls.ended(call, now_ms)
        changed = self._view.see(leases, now_ms)
        match asked:
            case lease_events.AskTake(takes):
                for take in takes:
                    self._taken(take, sent_ms, now_ms, actions)
                changed = self._view.known({take.shard for take in takes})
                if not all(take.shard in self._holds for take in takes):
                    self._calls.want_by(StoreCall.SCAN, now_ms + self._times.settle_ms)
            case lease_events.AskBecome(renewals):
                for renewal in renewals:
                    self._became(renewal, sent_ms, actions)
            case lease_events.AskHandOver(saves):
                shown = {lease.shard for lease in leases}
                self._drop_missing([save.shard for save in saves], shown)
                for save in saves:
                    self._handed_over(save, now_ms)
            case lease_events.AskRelease(shards):
                for shard in shards:
                    if shard in self._holds and self._holds[shard].stage is HoldStage.LEAVING:
                        del self._holds[shard]
        self._reconcile(changed, now_ms, actions)

    def _on_done(self, call: StoreCall, now_ms: int) -> None:
        asked = self._calls.ended(call, now_ms)
        if isinstance(asked, lease_events.AskCreate):
            self._calls.want(StoreCall.SCAN, now_ms)
        elif isinstance(asked, lease_events.AskDelete):
            self._drop_missing(self._view.deleted(asked.shards), ())
        elif isinstance(asked, lease_events.AskForget) and self._row in asked.rows:
            self._row = None

    def _taken(
        self, take: Take, sent_ms: int, now_ms: int, actions: list[lease_events.Action]
    ) -> None:
        lease = self._view.leases.get(take.shard)
        if lease and self._has_made(lease, take.lease_id):
            hold = self._new_hold(lease, now_ms)
            hold.deadline_ms = sent_ms + self._times.hold_ms
            if take.sets_consumer:
                self._start(hold, lease, actions)

    def _became(self, renewal: Renewal, sent_ms: int, actions: list[lease_events.Action]) -> None:
        hold, lease = self._holds.get(renewal.shard), self._view.leases.get(renewal.shard)
        if (
            hold
            and lease
            and hold.stage in (HoldStage.WAITING, HoldStage.LEAVING)
            and lease.consumer_process == self.me.process
            and self._has_made(lease, renewal.lease_id)
        ):
            hold.deadline_ms = sent_ms + self._times.hold_ms
            self._start(hold, lease, actions)

    def _has_made(self, lease: ShardLease, before: int) -> bool:
        """Whether the call that was answered, and no other, made the lease this worker's."""
        is_next = self._is_mine(lease) and lease.lease_id == before + 1
        return is_next and not self._calls.is_doubtful(lease.shard, before)

    def _handed_over(self, save: Save, now_ms: int) -> None:
        hold, lease = self._holds.get(save.shard), self._view.leases.get(save.shard)
        if hold is None or hold.stage is not HoldStage.STOPPED:
            return
        if lease is None or not self._is_mine(lease):
            del self._holds[save.shard]
        elif self.is_leaving or lease.is_ended:
            hold.stage = HoldStage.LEAVING
        else:
            # The consumer was stopped by its deadline, and no worker has taken the lease: it begins
            # again, in a new epoch
            # (`test_workers_stop_while_the_store_is_away_and_go_on_by_themselves`).
            hold.stage, hold.save, hold.begin_ms = HoldStage.WAITING, None, now_ms

    def _on_stopped(self, save: Save, restart_ms: int) -> None:
        hold = self._hold_of(save.shard, save.epoch)
        if hold is None or hold.save is not None:
            raise InvariantViolated(
                f"shard {save.shard}: a consumer of epoch {save.epoch} ended that was not started"
            )
        hold.stage, hold.save, hold.restart_ms = HoldStage.STOPPED, save, restart_ms

    def _reconcile(
        self, leases: Iterable[ShardLease], now_ms: int, actions: list[lease_events.Action]
    ) -> None:
        """Lets holds follow what the store shows.

        Compare-and-set against a network: a call that timed out may have been done. What decides
        is the row, not the answer (planted bug "adopts nothing").
        """
        for lease in leases:
            hold = self._holds.get(lease.shard)
            if self._is_mine(lease):
                if hold is None and lease.shard not in self._calls.shards(StoreCall.TAKE):
                    # A TAKE was done, and its answer was lost.
                    self._new_hold(lease, now_ms)
            elif hold is not None:
                if hold.stage is HoldStage.CONSUMING:
                    self._stop(hold, StopReason.STOLEN, actions)
                elif hold.stage in (HoldStage.WAITING, HoldStage.LEAVING):
                    del self._holds[lease.shard]

    def _new_hold(self, lease: ShardLease, now_ms: int) -> ShardHold:
        """Makes a hold of a lease whose shard another worker may still read.

        Section 5.3.2 of the text: the thief waits for a lease timeout before it becomes consumer,
        in case the victim is cut off and receives nothing. It is the victim's T that counts, and
        from now, since the steal ends the victim's renewals (planted bugs "begins before the victim
        handed over" and "forgets that its victim may be silent for longer").
        """
        stage = HoldStage.LEAVING if lease.is_ended or self.is_leaving else HoldStage.WAITING
        begin_ms = now_ms + self._view.timeout_ms(lease)
        hold = ShardHold(lease.shard, stage, 0, begin_ms)
        self._holds[lease.shard] = hold
        return hold

    def _start(
        self, hold: ShardHold, lease: ShardLease, actions: list[lease_events.Action]
    ) -> None:
        hold.epoch = lease.epoch
        # The worker may have been asked to leave, or the victim may have read the shard to its end,
        # while the call was under way. Nothing is read; the consumer column is to be cleared
        # (`test_a_shard_whose_end_its_victim_reaches_is_not_begun_again_by_the_thief`).
        if self.is_leaving or lease.is_ended:
            hold.stage, hold.save = (
                HoldStage.STOPPED,
                Save(lease.shard, lease.epoch, None, lease.seq),
            )
            return
        hold.stage, hold.save = HoldStage.CONSUMING, None
        actions.append(lease_events.StartConsumer(lease))

    def _stop(
        self, hold: ShardHold, reason: StopReason, actions: list[lease_events.Action]
    ) -> None:
        if hold.stage is HoldStage.CONSUMING:
            hold.stage = HoldStage.STOPPING
            actions.append(lease_events.StopConsumer(hold.shard, hold.epoch, reason))

    def _stop_the_late(self, now_ms: int, actions: list[lease_events.Action]) -> None:
        for hold in self._holds.values():
            if now_ms >= hold.deadline_ms:
                self._stop(hold, StopReason.DEADLINE, actions)
            if now_ms >= hold.hung_ms:
                hold.hung_ms = NEVER_MS
                self._give_up(hold, actions)

    def _give_up(self, hold: ShardHold, actions: list[lease_events.Action]) -> None:
        """Frees the lease though its consumer has not stopped.

        The row still shows the consumer, so that others wait for T as after a death. The
        consumer's checkpoints land until another begins: if the call returns after all, its work
        is not lost (`test_a_lone_worker_has_its_shard_again_when_a_call_that_hung_has_ended`).
        """
        lease = self._view.leases.get(hold.shard)
        if lease and self._is_mine(lease):
            self._stop(hold, StopReason.HUNG, actions)
            if hold.stage is HoldStage.STOPPING:
                hold.stage = HoldStage.HUNG

    def _leave(self, actions: list[lease_events.Action]) -> None:
        self.is_leaving = True
        self._calls.close()
        for hold in self._holds.values():
            self._stop(hold, StopReason.DRAIN, actions)
            if hold.stage is HoldStage.WAITING:
                hold.stage = HoldStage.LEAVING

    def _drop_missing(self, asked: Iterable[str], found: Container[str]) -> None:
        """Lets go of leases whose rows are gone: removed by hand, or deleted after their end."""
        for shard in asked:
            hold = self._holds.get(shard)
            if (
                shard not in found
                and hold
                and hold.stage not in (HoldStage.STOPPING, HoldStage.HUNG)
            ):
                if hold.stage is not HoldStage.CONSUMING:
                    del self._holds[shard]
                else:
                    hold.deadline_ms = 0

    def _plan(self, fresh: set[str], now_ms: int) -> None:
        """Chooses what to take; where an id may be outdated, asks for another scan first."""
        live = self._view.live(self.me, now_ms)
        self._takes, self._refresh = {}, []
        if self._calls.is_under_way((StoreCall.TAKE,)):
            # What it takes is not in the view yet. A plan without it would count this worker as
            # one that has too little, and steal a second time.
            self._calls.want_by(StoreCall.SCAN, now_ms + self._times.poll_ms)
            return
        settled_ms = self._view.live_since_ms + self._times.settle_ms
        # Of ten workers that start together each sees the others come one by one. A plan for each
        # sight would move shards that the next one moves again.
        if now_ms < settled_ms:
            self._calls.want_by(StoreCall.SCAN, settled_ms)
        if self._view.has_deleted:
            self._calls.want_by(StoreCall.SCAN, now_ms)
        if self._balanced == (self._view.version, live):
            return
        if self.is_leaving or self._view.has_deleted or self._view.unknown():
            # Shards that are gone, or have no lease yet, would make the count wrong, and workers
            # that know them would have another plan.
            return
        moves = self._planner(self._view.situation(live, self.me))
        if not moves and self._view.is_all_in(live):
            self._balanced = (self._view.version, live)
        # A worker with a stuck processor steals nothing: it may hang in that shard too, which now
        # has a reader. A free lease it does take, since all others leave it to this worker.
        is_hung = bool(self._in(HoldStage.HUNG))
        moves = [
            move
            for move in self._offers.planned(moves, self._view.looked_ms)
            if move.shard not in self._holds and not (is_hung and move.source != NOBODY)
        ]
        takes, self._refresh = own_part(moves, self._view.leases, self.me.process, fresh)
        if now_ms >= settled_ms:
            self._takes = {take.shard: take for take in takes}
            if self._refresh:
                self._calls.want_by(StoreCall.SCAN, now_ms)

    def _begin_ms(self, hold: ShardHold) -> int:
        lease = self._view.leases[hold.shard]
        is_free = lease.consumer_process in (NOBODY, self.me.process)
        return max(hold.restart_ms, 0 if is_free else hold.begin_ms)

    def _is_mine(self, lease: ShardLease) -> bool:
        return lease.lease_process == self.me.process

    def _in(self, stage: HoldStage) -> list[ShardHold]:
        return [hold for hold in self._holds.values() if hold.stage is stage]

    def _renewals(self, holds: Iterable[ShardHold]) -> list[Renewal]:
        return self._view.renewals((hold.shard for hold in holds), self.me)

    def _ask(self, now_ms: int, actions: list[lease_events.Action]) -> None:
        """Begins every call that is due, each kind at most once at a time."""
        stopped = [hold.save for hold in self._in(HoldStage.STOPPED) if hold.save is not None]
        is_gathering = now_ms < self._gathered_ms and self._in(HoldStage.STOPPING)
        if stopped and not is_gathering and self._calls.may_begin(StoreCall.HAND_OVER, now_ms):
            self._begin(StoreCall.HAND_OVER, lease_events.AskHandOver(stopped), now_ms, actions)
        if self.is_leaving:
            self._ask_to_leave(now_ms, actions)
        else:
            self._ask_to_hold(now_ms, actions)
            self._ask_to_look(now_ms, actions)
            self._ask_to_tidy(now_ms, actions)
        self._calls.passed(now_ms)

    def _ask_to_hold(self, now_ms: int, actions: list[lease_events.Action]) -> None:
        if self._calls.is_due(StoreCall.RENEW, now_ms):
            kept = [hold for hold in self._holds.values() if hold.stage is not HoldStage.HUNG]
            renewals = self._renewals(kept)
            self._begin(StoreCall.RENEW, lease_events.AskRenew(renewals), now_ms, actions)
        ready = [hold for hold in self._in(HoldStage.WAITING) if now_ms >= self._begin_ms(hold)]
        if ready and self._calls.may_begin(StoreCall.BECOME, now_ms):
            self._begin(
                StoreCall.BECOME, lease_events.AskBecome(self._renewals(ready)), now_ms, actions
            )
        # A TAKE that failed may have been done, and its lease may be here by now. To take it again
        # would begin an epoch beside the one that is under way
        # (`test_a_take_that_waits_to_be_repeated_is_not_if_it_was_done_meanwhile`).
        takes = [take for take in self._takes.values() if take.shard not in self._holds]
        if takes and self._calls.may_begin(StoreCall.TAKE, now_ms):
            self._begin(StoreCall.TAKE, lease_events.AskTake(takes), now_ms, actions, self._takes)
            self._takes = {}

    def _ask_to_look(self, now_ms: int, actions: list[lease_events.Action]) -> None:
        if self._calls.is_due(StoreCall.REGISTER, now_ms):
            self._begin(StoreCall.REGISTER, lease_events.AskRegister(), now_ms, actions)
        if self._calls.is_due(StoreCall.POLL, now_ms):
            self._begin(
                StoreCall.POLL, lease_events.AskPoll(self._view.polled_seq), now_ms, actions
            )
        if self._calls.is_due(StoreCall.SCAN, now_ms):
            is_full = self._view.has_deleted or self._scans % FULL_SCAN_EVERY == 0
            after = 0 if is_full else self._view.update_seq
            self._begin(StoreCall.SCAN, lease_events.AskScan(after, self._refresh), now_ms, actions)

    def _ask_to_tidy(self, now_ms: int, actions: list[lease_events.Action]) -> None:
        self._ask_to_release(now_ms, actions)
        if self._is_tidy:
            return
        self._is_tidy = True
        if self._matched != self._view.version:
            self._ask_to_match(now_ms, actions)
        stale = self._view.stale_workers()
        if (
            stale
            and self._view.is_first(self.me)
            and self._calls.may_begin(StoreCall.FORGET, now_ms)
        ):
            self._begin(StoreCall.FORGET, lease_events.AskForget(stale), now_ms, actions)

    def _ask_to_match(self, now_ms: int, actions: list[lease_events.Action]) -> None:
        """Creates leases for new shards, and deletes those of shards that are over.

        Every worker creates: the first to start may be the only one, and a second creation does
        nothing (section 5.3.1 of the text). Only the first worker deletes, or a thousand would.
        """
        unknown = self._view.unknown()
        if unknown and self._calls.may_begin(StoreCall.CREATE, now_ms):
            self._begin(
                StoreCall.CREATE, lease_events.AskCreate(*self._view.listing), now_ms, actions
            )
        finished = self._view.finished_parents()
        if not unknown and not finished:
            self._matched = self._view.version
        if (
            finished
            and self._view.is_first(self.me)
            and self._calls.may_begin(StoreCall.DELETE, now_ms)
        ):
            self._begin(StoreCall.DELETE, lease_events.AskDelete(finished), now_ms, actions)

    def _ask_to_release(self, now_ms: int, actions: list[lease_events.Action]) -> None:
        leaving = [hold.shard for hold in self._in(HoldStage.LEAVING)]
        leaving += [each.shard for each in self._renewals(self._in(HoldStage.HUNG))]
        if leaving and self._calls.may_begin(StoreCall.RELEASE, now_ms):
            self._begin(StoreCall.RELEASE, lease_events.AskRelease(leaving), now_ms, actions)

    def _ask_to_leave(self, now_ms: int, actions: list[lease_events.Action]) -> None:
        """Removes the own row first, so that no plan leaves a share for this worker; then the
        leases. The other way round, others plan with this worker for T, and the shards that it
        freed wait for it (`test_nobody_leaves_a_share_for_one_that_was_sent_away`).
        """
        if self._calls.is_under_way(
            (StoreCall.REGISTER, StoreCall.RENEW, StoreCall.TAKE, StoreCall.BECOME)
        ):
            return
        if self._row is not None:
            if self._calls.may_begin(StoreCall.FORGET, now_ms):
                self._begin(StoreCall.FORGET, lease_events.AskForget([self._row]), now_ms, actions)
            return
        self._ask_to_release(now_ms, actions)
        if not self._holds:
            self._is_finished = True
            actions.append(lease_events.Finish())

    def _begin(
        self,
        call: StoreCall,
        ask: lease_events.Ask,
        now_ms: int,
        actions: list[lease_events.Action],
        shards: Iterable[str] = (),
    ) -> None:
        self._calls.begun(call, ask, now_ms, shards)
        actions.append(ask)
