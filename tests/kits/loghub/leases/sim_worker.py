"""A worker in virtual time: drives the real agent against the store in memory, and reads shards."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec import structs

from raftwood.loghub.consumer import lease_events
from raftwood.loghub.consumer.lease_agent import LeaseAgent
from raftwood.loghub.consumer.lease_events import StoreCall
from raftwood.loghub.consumer.lease_plan import plan_by_bytes, plan_by_count
from raftwood.loghub.consumer.leases import SHARD_END, LeaseOwner, NewLease, Save, ShardLease
from tests.kits.loghub.leases.oracle import Work, position
from tests.kits.loghub.leases.profile import SHORT_TIMES

if TYPE_CHECKING:
    from tests.kits.loghub.leases.world import World

CALL_MS = 700
"""After so long a call is given up."""
LIST_MS = 1_500
IDLE_MS = 400
BATCH = 3


def result_of(call: Coroutine[Any, Any, Any]) -> Any:
    """Of a call that waits for nothing."""
    try:
        call.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("the store in memory waited")


@dataclass
class Consumer:
    lease: ShardLease
    position: int
    seq: int
    is_told_to_stop: bool = False
    work: Work | None = None
    calls: int = 0


class SimWorker:
    def __init__(self, world: World, owner: LeaseOwner) -> None:
        self.world = world
        # The way to the store and back has to be shorter than the time between renewals.
        is_mixed = world.profile.is_mixed and world.profile.latency_ms <= 20
        is_short = is_mixed and world.random.random() < 0.5
        times = SHORT_TIMES if is_short else world.times
        self.owner = owner = structs.replace(owner, timeout_ms=times.timeout_ms)
        self.rate = world.random.uniform(0.975, 1.025)
        self.offset = world.random.randrange(1_000_000)
        self.is_up = True
        self.is_cut_off = False
        self.paused_until = 0.0
        self.hangs_until = 0.0
        """Calls of process() do not return before; all else goes on."""
        self.steps = 0
        planner = plan_by_bytes if world.profile.by_bytes else plan_by_count
        self.agent = LeaseAgent(owner, times, planner, self.now())
        self.consumers: dict[str, Consumer] = {}
        self._wake = 0.0
        self.list_shards()
        self.tick()

    def now(self) -> int:
        return int(self.offset + self.world.now * self.rate)

    def true_ms(self, local_ms: int) -> float:
        return (local_ms - self.offset) / self.rate

    def after(self, delay_ms: float, act: Callable[[], None]) -> None:
        """Run it later, unless this worker died; a paused one does it as it wakes up."""

        def guarded() -> None:
            if not self.is_up:
                return
            if self.world.now < self.paused_until:
                self.world.after(self.paused_until - self.world.now, guarded)
            else:
                act()

        self.world.after(delay_ms, guarded)

    def tick(self) -> None:
        self.feed(lease_events.Ticked())

    def list_shards(self) -> None:
        shards = self.world.oracle.shards.values()
        listed = [NewLease(each.name, each.parents) for each in shards]
        event = lease_events.ShardsListed(listed, self.agent.deleted_seq)

        def answered() -> None:
            self.feed(event)
            self.after(LIST_MS, self.list_shards)

        if late_ms := self.world.late_ms():
            self.after(late_ms, answered)
        else:
            answered()

    def feed(self, event: lease_events.Event) -> None:
        if not self.is_up:
            return
        self.steps += 1
        if self.world.dies_now(self):
            self.crash()
            return
        for action in self.agent.step(event, self.now()):
            self._do(action)
        wake = max(self.true_ms(self.agent.wake_ms() + 1), self.world.now)
        if wake < self._wake or self._wake <= self.world.now:
            self._wake = wake
            self.after(min(wake - self.world.now, 60_000), lambda: self._woken(wake))

    def _woken(self, wake: float) -> None:
        if wake == self._wake:
            self._wake = 0.0
            self.tick()

    def crash(self) -> None:
        self.is_up = False
        for shard, consumer in self.consumers.items():
            if consumer.work is not None:
                self.world.oracle.leaves(shard, consumer.work)
        self.consumers = {}

    def leave(self) -> None:
        self.after(0, lambda: self.feed(lease_events.DrainRequested()))

    def pause(self, length_ms: float) -> None:
        self.paused_until = max(self.paused_until, self.world.now + length_ms)

    def reconnect(self) -> None:
        self.is_cut_off = False

    def _do(self, action: lease_events.Action) -> None:
        match action:
            case lease_events.StartConsumer(lease):
                consumer = Consumer(lease, position(lease.checkpoint), lease.seq)
                self.consumers[lease.shard] = consumer
                self.world.starts += 1
                self.after(0, lambda: self._process(consumer))
            case lease_events.StopConsumer(shard):
                consumer = self.consumers[shard]
                consumer.is_told_to_stop = True
                if consumer.work is None:
                    self.after(0, lambda: self._stopped(consumer, None))
            case lease_events.Finish():
                assert self.consumers == {}
                self.is_up = False
            case _:
                self._call(action)

    def _call(self, ask: lease_events.Ask) -> None:
        store, owner = self.world.store, self.owner
        match ask:
            case lease_events.AskRegister():
                self._send(
                    StoreCall.REGISTER, lambda: store.register(owner), lease_events.WorkerRegistered
                )
            case lease_events.AskScan(after, processes):
                self._send(
                    StoreCall.SCAN, lambda: store.scan(after, processes), lease_events.Scanned
                )
            case lease_events.AskPoll(after):
                self._send(
                    StoreCall.POLL, lambda: store.own(owner.process, after), lease_events.Polled
                )
            case lease_events.AskRenew(renewals):
                self._send(
                    StoreCall.RENEW,
                    lambda: store.renew(owner, renewals),
                    lease_events.LeasesRenewed,
                )
            case lease_events.AskTake(takes):
                self._leases(StoreCall.TAKE, lambda: store.take(owner, takes))
            case lease_events.AskBecome(renewals):
                self._leases(StoreCall.BECOME, lambda: store.become_consumer(owner, renewals))
            case lease_events.AskHandOver(saves):
                self._leases(StoreCall.HAND_OVER, lambda: store.hand_over(owner.process, saves))
            case lease_events.AskRelease(shards):
                self._leases(StoreCall.RELEASE, lambda: store.release(owner.process, shards))
            case lease_events.AskCreate(leases, seen):
                self._send(
                    StoreCall.CREATE,
                    lambda: store.create(leases, deleted_seq=seen),
                    _done(StoreCall.CREATE),
                )
            case lease_events.AskDelete(shards):
                self._send(StoreCall.DELETE, lambda: store.delete(shards), _done(StoreCall.DELETE))
            case lease_events.AskForget(rows):
                self._send(
                    StoreCall.FORGET, lambda: store.forget_workers(rows), _done(StoreCall.FORGET)
                )

    def _leases(self, call: StoreCall, run: Callable[[], Any]) -> None:
        self._send(call, run, lambda leases: lease_events.LeasesAnswered(call, leases))

    def _send(
        self, call: StoreCall, run: Callable[[], Any], event: Callable[[Any], lease_events.Event]
    ) -> None:
        def answered(answer: Any) -> None:
            self.feed(event(answer))

        def failed() -> None:
            self.feed(lease_events.StoreFailed(call, self.world.random.random()))

        self.request(run, answered, failed)

    def request(
        self,
        run: Callable[[], Any],
        answered: Callable[[Any], None],
        failed: Callable[[], None],
    ) -> None:
        """One call of the store: it, or its answer, may be lost; exactly one of both is called."""
        world, over = self.world, False

        def arrives() -> None:
            if self._is_lost(world.profile.lose_request):
                return
            answer = result_of(run())
            world.oracle.rows(world.store.leases)
            if not self._is_lost(world.profile.lose_answer):
                self.after(world.latency(), lambda: finish(lambda: answered(answer)))

        def finish(act: Callable[[], None]) -> None:
            nonlocal over
            if not over:
                over = True
                act()

        world.after(world.latency() + world.late_ms(), arrives)
        self.after(CALL_MS, lambda: finish(failed))

    def _is_lost(self, chance: float) -> bool:
        world = self.world
        return self.is_cut_off or world.is_store_away or world.random.random() < chance * world.bad

    def _process(self, consumer: Consumer) -> None:
        lease = consumer.lease
        shard = self.world.oracle.shards[lease.shard]
        if self.consumers.get(lease.shard) is not consumer or consumer.is_told_to_stop:
            return
        if not self.agent.may_work(lease.shard, lease.epoch, self.now()):
            self.tick()
            return
        records = range(consumer.position, min(consumer.position + BATCH, shard.length))
        if not records:
            if shard.is_sealed:
                self._stopped(consumer, SHARD_END)
            else:
                self.after(IDLE_MS, lambda: self._process(consumer))
            return
        deadline = self.agent.deadline_ms(lease.shard, lease.epoch)
        consumer.work = Work(self.owner.process, lease.epoch, self.true_ms(deadline))
        self.world.oracle.begins(lease.shard, consumer.work, self.world.now)
        self.agent.call_begins(lease.shard, lease.epoch, self.now())
        self.after(self.world.process_ms(), lambda: self._processed(consumer, records))

    def _processed(self, consumer: Consumer, records: range) -> None:
        if self.world.now < self.hangs_until:
            self.world.hangs += 1
            wait_ms = min(self.hangs_until - self.world.now, IDLE_MS)
            self.after(wait_ms, lambda: self._processed(consumer, records))
            return
        assert consumer.work is not None
        self.agent.call_ends(consumer.lease.shard, consumer.lease.epoch)
        self.world.oracle.ends(consumer.lease.shard, consumer.work, records, self.world.now)
        consumer.work = None
        consumer.position = records.stop
        consumer.seq += 1
        consumer.calls += 1
        if consumer.is_told_to_stop:
            self._stopped(consumer, None)
            return
        if consumer.calls % self.world.profile.save_every == 0:
            self._save(consumer)
        self.after(1, lambda: self._process(consumer))

    def _save(self, consumer: Consumer) -> None:
        if not self.agent.may_work(consumer.lease.shard, consumer.lease.epoch, self.now()):
            return
        save = self._last(consumer, None)
        process = self.owner.process

        def refused(shards: list[str]) -> None:
            for shard in shards:
                self.feed(lease_events.SaveRefused(shard, save.epoch))

        self.request(lambda: self.world.store.save(process, [save]), refused, lambda: None)

    def _stopped(self, consumer: Consumer, checkpoint: str | None) -> None:
        shard = consumer.lease.shard
        if self.consumers.get(shard) is consumer:
            del self.consumers[shard]
            save = self._last(consumer, checkpoint)
            self.feed(lease_events.ConsumerStopped(save))

    def _last(self, consumer: Consumer, checkpoint: str | None) -> Save:
        if checkpoint is not None:
            consumer.seq += 1
        text = checkpoint or str(consumer.position)
        return Save(consumer.lease.shard, consumer.lease.epoch, text, consumer.seq, 1.0)


def _done(call: StoreCall) -> Callable[[Any], lease_events.Event]:
    return lambda _: lease_events.StoreCallDone(call)
