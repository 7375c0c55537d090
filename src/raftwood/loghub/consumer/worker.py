"""`Worker`: a process's member of a consumer group; it gets shards, and runs a processor for each.

    worker = Worker(config, MyProcessor, store, source=source, environment=environment)
    await worker.run()          # until worker.drain() is called, and all was handed over

Four tasks run beside the consumers: the main loop wakes the lease agent when it is due, and the
agent says when to renew, to scan, to take; one lists the source's shards; one flushes checkpoints.
Each call of the store runs by itself, so that a slow one delays no other.
"""

import asyncio
import uuid
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from raftwood.base.backoff import Backoff
from raftwood.base.environment import Environment
from raftwood.base.errors import DeadlineExceeded, InvalidInput, InvariantViolated, RaftwoodError
from raftwood.base.logs import get_logger
from raftwood.base.metrics import Metrics
from raftwood.loghub.consumer import lease_events
from raftwood.loghub.consumer.checkpoints import (
    AsyncCheckpointTracker,
    CheckpointWriter,
    LeaseTenure,
)
from raftwood.loghub.consumer.lease_agent import LeaseAgent
from raftwood.loghub.consumer.lease_events import StoreCall
from raftwood.loghub.consumer.lease_plan import plan_by_bytes, plan_by_count
from raftwood.loghub.consumer.leases import (
    SHARD_END,
    LeaseOwner,
    LeaseStore,
    LeaseTimes,
    NewLease,
    Save,
    ShardLease,
)
from raftwood.loghub.consumer.processor import ProcessorFactory, ProcessorThreads
from raftwood.loghub.consumer.shard_consumer import ShardConsumer, ShardConsumerState, Start
from raftwood.loghub.consumer.source import ShardSource
from raftwood.loghub.consumer.worker_metrics import ShardMeter, Totals, WorkerMetrics
from raftwood.loghub.errors import LeaseLost, NameTaken

CALL_OF: Final[Mapping[type[lease_events.Ask], StoreCall]] = {
    lease_events.AskRegister: StoreCall.REGISTER,
    lease_events.AskScan: StoreCall.SCAN,
    lease_events.AskPoll: StoreCall.POLL,
    lease_events.AskRenew: StoreCall.RENEW,
    lease_events.AskTake: StoreCall.TAKE,
    lease_events.AskBecome: StoreCall.BECOME,
    lease_events.AskHandOver: StoreCall.HAND_OVER,
    lease_events.AskRelease: StoreCall.RELEASE,
    lease_events.AskCreate: StoreCall.CREATE,
    lease_events.AskDelete: StoreCall.DELETE,
    lease_events.AskForget: StoreCall.FORGET,
}


async def call_store(
    store: LeaseStore, owner: LeaseOwner, ask: lease_events.Ask
) -> lease_events.Event:
    """Makes the call; returns the event for the agent."""
    call = CALL_OF[type(ask)]
    match ask:
        case lease_events.AskRegister():
            return lease_events.WorkerRegistered(await store.register(owner))
        case lease_events.AskScan(after, processes):
            return lease_events.Scanned(await store.scan(after, processes))
        case lease_events.AskPoll(after):
            return lease_events.Polled(await store.own(owner.process, after))
        case lease_events.AskRenew(renewals):
            return lease_events.LeasesRenewed(await store.renew(owner, renewals))
        case lease_events.AskTake(takes):
            return lease_events.LeasesAnswered(call, await store.take(owner, takes))
        case lease_events.AskBecome(renewals):
            return lease_events.LeasesAnswered(call, await store.become_consumer(owner, renewals))
        case lease_events.AskHandOver(saves):
            return lease_events.LeasesAnswered(call, await store.hand_over(owner.process, saves))
        case lease_events.AskRelease(shards):
            return lease_events.LeasesAnswered(call, await store.release(owner.process, shards))
        case lease_events.AskCreate(leases, deleted_seq):
            await store.create(leases, deleted_seq=deleted_seq)
        case lease_events.AskDelete(shards):
            await store.delete(shards)
        case lease_events.AskForget(rows):
            await store.forget_workers(rows)
    return lease_events.StoreCallDone(call)


_log = get_logger("consumer")
_PLANNERS: Final = {"count": plan_by_count, "bytes": plan_by_bytes}
_SLEEP_MAX_MS: Final = 1_000
"""The loop's timers stand still while the machine sleeps; the agent's clock does not."""
_DRAIN_TIMEOUTS: Final = 3
"""After so many lease timeouts a draining worker leaves without a hand-over."""
_RESTART: Final = Backoff(first_ms=1_000, longest_ms=60_000)


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's settings; `times` and `balance` must be the same in all workers of a group."""

    instance: str
    """Its name in the group; a process that restarts under it gets its shards back."""
    start: Start = "begin"
    """Where a shard without a checkpoint begins; a shard with parents begins at its beginning."""
    times: LeaseTimes = LeaseTimes()
    balance: Literal["count", "bytes"] = "count"
    """Balances the numbers of shards, or their bytes per second."""
    threads_max: int = 16
    """Threads for processors that block."""
    flush_ms: int = 2_000
    """How often checkpoints in memory are saved to the store."""
    list_ms: int = 2_000
    """How often the source is asked for new shards."""


class Worker:
    """One process's worker; it opens and closes the store, and the caller closes the source."""

    def __init__(
        self,
        config: WorkerConfig,
        processor_factory: ProcessorFactory,
        lease_store: LeaseStore,
        *,
        source: ShardSource,
        environment: Environment,
        metrics: Metrics | None = None,
    ) -> None:
        self.config = config
        self._factory = processor_factory
        self._store = lease_store
        self._source = source
        self._clock = environment.clock
        self._random = environment.random
        process = str(uuid.UUID(int=environment.random.getrandbits(128), version=4))
        self.owner = LeaseOwner(config.instance, process, config.times.timeout_ms)
        planner = _PLANNERS[config.balance]
        self._agent = LeaseAgent(self.owner, config.times, planner, self._now_ms())
        self._writer = CheckpointWriter(lease_store, process, self._refused)
        self._threads = ProcessorThreads(config.threads_max)
        self._consumers: dict[str, ShardConsumer] = {}
        self._failures: dict[str, int] = {}
        self._totals = Totals()
        self.metrics = WorkerMetrics(metrics or Metrics(), self._totals, self.lags)
        self._tasks: asyncio.TaskGroup | None = None
        self._woken = asyncio.Event()
        self._listing = asyncio.Event()
        self._finished = asyncio.Event()
        self._is_draining = False
        self._stolen_ms: dict[str, int] = {}
        """When a lease was stolen, from this worker or by it."""

    async def run(self) -> None:
        """Consumes until `drain` or `raftwood group drain`.

        `NameTaken` if another process takes over the name.
        """
        await self._store.open()
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                beside = [tasks.create_task(self._list_shards()), tasks.create_task(self._flush())]
                await self._wake_agent()
                for task in beside:
                    task.cancel()
        except BaseExceptionGroup as group:
            # One error ended all; the others are its consequences.
            raise group.exceptions[0] from group
        finally:
            self._threads.close()
            await self._store.close()
        if not (self._is_draining or self._agent.is_sent_away):
            raise NameTaken(
                f"worker {self.owner.instance} has left: another process has its name now; give "
                "each worker of a group a name of its own"
            )

    def drain(self) -> None:
        """Begins to hand everything over and leave: `run` returns when that is done."""
        if not self._is_draining:
            self._is_draining = True
            self._woken.set()

    def shards(self) -> dict[str, ShardConsumerState]:
        """Returns the state of each shard that this worker consumes."""
        return {shard: each.state for shard, each in self._consumers.items()}

    def lags(self) -> dict[str, float]:
        """Returns by shard the age in seconds of the batch in work; 0 at the shard's end."""
        return {shard: each.meter.lag_s for shard, each in self._consumers.items()}

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000

    # Loops

    async def _wake_agent(self) -> None:
        give_up_ms = 0
        self._feed(lease_events.Ticked())
        while not self._finished.is_set():
            wait_ms = min(self._agent.wake_ms() - self._now_ms() + 1, _SLEEP_MAX_MS)
            try:
                async with asyncio.timeout(max(wait_ms, 0) / 1000):
                    await self._woken.wait()
            except TimeoutError:
                pass
            if self._is_draining and not self._agent.is_leaving:
                self._feed(lease_events.DrainRequested())
            if self._agent.is_leaving and not give_up_ms:
                give_up_ms = self._now_ms() + _DRAIN_TIMEOUTS * self.config.times.timeout_ms
            elif give_up_ms and self._now_ms() > give_up_ms:
                raise DeadlineExceeded(
                    f"worker {self.owner.instance} could not hand its shards over: others take "
                    "them when their leases expire, behind the last stored checkpoints"
                )
            elif self._agent.wake_ms() <= self._now_ms():
                self._feed(lease_events.Ticked())
            # Events that were fed set it; what they changed is handled below, before anything else
            # runs.
            self._woken.clear()

    async def _list_shards(self) -> None:
        while True:
            # A request that comes from now on needs another listing.
            self._listing.clear()
            deleted_seq = self._agent.deleted_seq
            try:
                shards = await self._source.list_shards()
            except RaftwoodError as error:
                if not error.retriable:
                    raise
                _log.warning("shards not listed", error=error.message)
                await asyncio.sleep(self.config.list_ms / 1000)
                continue
            listed = [NewLease(each.id, each.parents) for each in shards]
            self._feed(lease_events.ShardsListed(listed, deleted_seq))
            try:
                async with asyncio.timeout(self.config.list_ms / 1000):
                    await self._listing.wait()
            except TimeoutError:
                pass

    async def _flush(self) -> None:
        while True:
            await asyncio.sleep(self.config.flush_ms / 1000)
            consumers = [each for each in self._consumers.values() if each.may_save()]
            found = {each: save for each in consumers if (save := each.tracker.unstored())}
            if not found:
                continue
            try:
                await self._writer.save(list(found.values()))
            except LeaseLost:
                pass  # the agent has received the refusals
            except RaftwoodError as error:
                self._store_failed("save", error)
                continue
            for consumer, save in found.items():
                consumer.tracker.stored(save)

    # The agent

    def _feed(self, event: lease_events.Event) -> None:
        for action in self._agent.step(event, self._now_ms()):
            self._do(action)
        if self._agent.wants_list:
            self._listing.set()
        self._woken.set()

    def _do(self, action: lease_events.Action) -> None:
        assert self._tasks is not None
        match action:
            case lease_events.StartConsumer(lease):
                self._start(lease)
            case lease_events.StopConsumer(shard, _, reason):
                self._stop(shard, reason)
            case lease_events.Finish():
                self._finished.set()
            case _:
                self._tasks.create_task(self._ask(action))

    async def _ask(self, ask: lease_events.Ask) -> None:
        call = CALL_OF[type(ask)]
        try:
            async with asyncio.timeout(self.config.times.timeout_ms / 1000):
                event = await call_store(self._store, self.owner, ask)
        except (RaftwoodError, TimeoutError) as error:
            if isinstance(error, InvalidInput | InvariantViolated):
                raise
            self._store_failed(call, error)
            event = lease_events.StoreFailed(call, self._random.random())
        self._measure(ask, event)
        self._feed(event)

    def _store_failed(self, call: str, error: Exception) -> None:
        self.metrics.store_failed(call)
        _log.warning("lease store failed", call=call, error=str(error) or type(error).__name__)

    def _refused(self, save: Save) -> None:
        self._feed(lease_events.SaveRefused(save.shard, save.epoch))

    # Consumers

    def _start(self, lease: ShardLease) -> None:
        if lease.shard in self._consumers:
            raise InvariantViolated(f"shard {lease.shard} is started while it is consumed")
        tenure = LeaseTenure(self._agent, self._now_ms, shard=lease.shard, epoch=lease.epoch)
        consumer = ShardConsumer(
            lease,
            self._factory,
            self._threads,
            self._source,
            AsyncCheckpointTracker(lease, tenure, self._writer),
            tenure,
            ShardMeter(self._clock, self._totals),
            self._random,
            start=self.config.start,
        )
        self._consumers[lease.shard] = consumer
        stolen_ms = self._stolen_ms.pop(lease.shard, None)
        if stolen_ms is not None:
            self.metrics.idle.observe((self._now_ms() - stolen_ms) / 1000)
        assert self._tasks is not None
        self._tasks.create_task(self._consume(consumer))

    def _stop(self, shard: str, reason: lease_events.StopReason) -> None:
        self.metrics.moved(f"gone_{reason}")
        if reason is lease_events.StopReason.STOLEN:
            self._stolen_ms[shard] = self._now_ms()
        self._consumers[shard].stop(reason)

    async def _consume(self, consumer: ShardConsumer) -> None:
        await consumer.run()
        shard = consumer.lease.shard
        del self._consumers[shard]
        save = consumer.tracker.last()
        if save.checkpoint == SHARD_END:
            self._listing.set()  # its children may be unknown yet
        self._feed(lease_events.ConsumerStopped(save, self._restart_ms(consumer)))

    def _restart_ms(self, consumer: ShardConsumer) -> int:
        """Returns a delay that grows each time a shard's processor fails without progress."""
        shard = consumer.lease.shard
        if not consumer.has_failed:
            self._failures.pop(shard, None)
            return 0
        if consumer.has_advanced:
            self._failures.pop(shard, None)
        failures = self._failures[shard] = self._failures.get(shard, 0) + 1
        return int(_RESTART.delay_ms(failures - 1, self._random.random()))

    def _measure(self, ask: lease_events.Ask, event: lease_events.Event) -> None:
        if not isinstance(event, lease_events.LeasesAnswered):
            return
        match ask:
            case lease_events.AskTake(takes):
                stolen = {each.shard for each in takes if not each.sets_consumer}
                for lease in event.leases:
                    if lease.lease_process == self.owner.process:
                        is_stolen = lease.shard in stolen
                        self.metrics.moved("stolen" if is_stolen else "taken")
                        if is_stolen:
                            self._stolen_ms[lease.shard] = self._now_ms()
            case lease_events.AskHandOver(saves):
                for save in saves:
                    stolen_ms = self._stolen_ms.pop(save.shard, None)
                    if stolen_ms is not None:
                        self.metrics.hand_over.observe((self._now_ms() - stolen_ms) / 1000)
            case _:
                pass
