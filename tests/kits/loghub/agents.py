"""Lease agents side by side on one store in memory, with a clock that the test moves."""

from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from raftwood.loghub.consumer import lease_events
from raftwood.loghub.consumer.lease_agent import LeaseAgent
from raftwood.loghub.consumer.lease_events import StopReason, StoreCall
from raftwood.loghub.consumer.lease_plan import plan_by_count
from raftwood.loghub.consumer.leases import LeaseOwner, LeaseTimes, NewLease, Save, ShardLease
from raftwood.loghub.consumer.memory_store import MemoryLeaseStore

TIMES = LeaseTimes()
T = TIMES.timeout_ms
STEP_MS = 50


def result_of(call: Coroutine[Any, Any, Any]) -> Any:
    """Of a call that waits for nothing."""
    try:
        call.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("the store in memory waited")


class Worker:
    """An agent whose calls are answered at once; its consumers do nothing until the test does."""

    def __init__(
        self, group: "Group", owner: LeaseOwner, offset_ms: int, times: LeaseTimes = TIMES
    ) -> None:
        self.group = group
        self.owner = owner
        self.offset_ms = offset_ms
        self.agent = LeaseAgent(owner, times, plan_by_count, self.now)
        self.running: dict[str, ShardLease] = {}
        self.checkpoints: dict[str, str] = {}
        self.stops: list[tuple[str, StopReason]] = []
        self.started_ms: dict[str, int] = {}
        self.asked: Counter[type] = Counter()
        self.is_up = True
        self.is_cut_off = False
        self.stops_at_once = True
        self.lost_answers: set[StoreCall] = set()
        self.failing: set[StoreCall] = set()
        self.feed(lease_events.ShardsListed(group.listed, self.agent.deleted_seq))

    @property
    def now(self) -> int:
        return self.group.now_ms + self.offset_ms

    def feed(self, event: lease_events.Event) -> None:
        if not self.is_up:
            return
        for action in self.agent.step(event, self.now):
            self._do(action)

    def _do(self, action: lease_events.Action) -> None:
        self.asked[type(action)] += 1
        match action:
            case lease_events.StartConsumer(lease):
                self.running[lease.shard] = lease
                self.started_ms[lease.shard] = self.group.now_ms
            case lease_events.StopConsumer(shard, _, reason):
                self.stops.append((shard, reason))
                if self.stops_at_once:
                    self.stopped(shard)
            case lease_events.Finish():
                self.is_up = False
            case _:
                self._ask(action)

    def stopped(self, shard: str, checkpoint: str | None = None) -> None:
        lease = self.running.pop(shard)
        text = checkpoint or self.checkpoints.get(shard, lease.checkpoint)
        self.feed(lease_events.ConsumerStopped(Save(shard, lease.epoch, text, lease.seq + 1)))

    def save(self, shard: str, checkpoint: str, seq: int) -> list[str]:
        """Those refused, whether the agent would let it or not."""
        epoch = self.running[shard].epoch
        saves = [Save(shard, epoch, checkpoint, seq)]
        refused: list[str] = result_of(self.group.store.save(self.owner.process, saves))
        return refused

    def may_work(self, shard: str) -> bool:
        return self.agent.may_work(shard, self.running[shard].epoch, self.now)

    def _ask(self, ask: lease_events.Ask) -> None:
        store, owner, process = self.group.store, self.owner, self.owner.process
        leases = lease_events.LeasesAnswered
        match ask:
            case lease_events.AskRegister():
                self._call(StoreCall.REGISTER, store.register(owner), lease_events.WorkerRegistered)
            case lease_events.AskScan(after, processes):
                self._call(StoreCall.SCAN, store.scan(after, processes), lease_events.Scanned)
            case lease_events.AskPoll(after):
                self._call(StoreCall.POLL, store.own(process, after), lease_events.Polled)
            case lease_events.AskRenew(renewals):
                self._call(
                    StoreCall.RENEW, store.renew(owner, renewals), lease_events.LeasesRenewed
                )
            case lease_events.AskTake(takes):
                call = StoreCall.TAKE
                self._call(call, store.take(owner, takes), lambda each: leases(call, each))
            case lease_events.AskBecome(renewals):
                call = StoreCall.BECOME
                self._call(
                    call, store.become_consumer(owner, renewals), lambda each: leases(call, each)
                )
            case lease_events.AskHandOver(saves):
                call = StoreCall.HAND_OVER
                self._call(call, store.hand_over(process, saves), lambda each: leases(call, each))
            case lease_events.AskRelease(shards):
                call = StoreCall.RELEASE
                self._call(call, store.release(process, shards), lambda each: leases(call, each))
            case lease_events.AskCreate(new, seen):
                making = store.create(new, deleted_seq=seen)
                self._call(
                    StoreCall.CREATE, making, lambda _: lease_events.StoreCallDone(StoreCall.CREATE)
                )
            case lease_events.AskDelete(shards):
                self._call(
                    StoreCall.DELETE,
                    store.delete(shards),
                    lambda _: lease_events.StoreCallDone(StoreCall.DELETE),
                )
            case lease_events.AskForget(rows):
                self._call(
                    StoreCall.FORGET,
                    store.forget_workers(rows),
                    lambda _: lease_events.StoreCallDone(StoreCall.FORGET),
                )

    def _call(
        self,
        call: StoreCall,
        run: Coroutine[Any, Any, Any],
        event: Callable[[Any], lease_events.Event],
    ) -> None:
        if self.is_cut_off or self.group.is_store_away or call in self.failing:
            run.close()
            self.feed(lease_events.StoreFailed(call, 0.5))
            return
        answer = result_of(run)
        if call in self.lost_answers:
            self.lost_answers.discard(call)
            self.feed(lease_events.StoreFailed(call, 0.5))
        else:
            self.feed(event(answer))


class Group:
    """Workers by name, and the shards that they share."""

    def __init__(self, *shards: str) -> None:
        self.store = MemoryLeaseStore()
        self.now_ms = 1_000
        self.is_store_away = False
        self.listed = [NewLease(shard) for shard in shards]
        self.workers: list[Worker] = []

    def join(
        self, name: str, *, process: str = "", offset_ms: int = 0, times: LeaseTimes = TIMES
    ) -> Worker:
        owner = LeaseOwner(name, process or f"process-{len(self.workers)}", times.timeout_ms)
        worker = Worker(self, owner, offset_ms, times)
        self.workers.append(worker)
        return worker

    def list_shards(self, *shards: NewLease) -> None:
        self.listed = list(shards)
        for worker in self.workers:
            worker.feed(lease_events.ShardsListed(self.listed, worker.agent.deleted_seq))

    def run_for(self, duration_ms: int) -> None:
        for _ in range(duration_ms // STEP_MS):
            self.now_ms += STEP_MS
            for worker in self.workers:
                worker.feed(lease_events.Ticked())

    def run_until(self, is_so: Callable[[], bool], *, within_ms: int) -> int:
        """Answers how long it took."""
        begun_ms = self.now_ms
        while not is_so():
            assert self.now_ms - begun_ms < within_ms, "it took too long"
            self.run_for(STEP_MS)
        return self.now_ms - begun_ms

    def sizes(self) -> list[int]:
        return sorted(len(worker.running) for worker in self.workers if worker.is_up)

    def starts(self) -> int:
        """How often a worker began to read a shard."""
        return sum(worker.asked[lease_events.StartConsumer] for worker in self.workers)
