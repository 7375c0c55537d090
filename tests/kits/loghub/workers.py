"""Workers in virtual time: a source in memory, a store with delays, processors that write down."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import ConnectionLost
from raftwood.loghub.consumer.checkpoints import AsyncCheckpointTracker
from raftwood.loghub.consumer.leases import LeaseStore, LeaseTimes
from raftwood.loghub.consumer.memory_store import MemoryLeaseStore
from raftwood.loghub.consumer.processor import AsyncProcessor
from raftwood.loghub.consumer.source import ShardBatch, ShardRead, SourceShard
from raftwood.loghub.consumer.worker import Worker, WorkerConfig
from raftwood.testing.runner import Machine, Simulation

TIMES = LeaseTimes(timeout_ms=2_000)
READ = 4


class FakeBatch(msgspec.Struct, frozen=True):
    shard_id: str
    position: int
    size_bytes: int = 100
    received_ms: int = 1

    @property
    def next_position(self) -> str:
        return str(self.position + 1)

    def records(self) -> Sequence[str]:
        return [f"{self.shard_id}:{self.position}"]


@dataclass
class FakeShard:
    parents: tuple[str, ...] = ()
    length: int = 0
    is_sealed: bool = False


class FakeSource:
    """Shards of numbered records."""

    def __init__(self, shards: int, length: int = 0) -> None:
        self.shards = {str(number): FakeShard(length=length) for number in range(shards)}
        self.is_away = False
        self.left: list[str] = []

    def put(self, count: int) -> None:
        for shard in self.shards.values():
            shard.length += 0 if shard.is_sealed else count

    def split(self, name: str) -> None:
        self.shards[name].is_sealed = True
        for child in (f"{name}a", f"{name}b"):
            self.shards[child] = FakeShard((name,))

    def everything(self) -> set[str]:
        return {
            f"{name}:{number}"
            for name, each in self.shards.items()
            for number in range(each.length)
        }

    async def list_shards(self) -> Sequence[SourceShard]:
        return [SourceShard(name, each.parents) for name, each in self.shards.items()]

    async def begin(self, shard: str) -> str:
        assert shard in self.shards
        return "0"

    async def end(self, shard: str) -> str:
        return str(self.shards[shard].length)

    async def next_received_ms(self, shard: str, position: str) -> int | None:
        return 1 if int(position) < self.shards[shard].length else None

    async def read(self, shard: str, position: str) -> ShardRead:
        first = int(position)
        for _ in range(20):
            await asyncio.sleep(0.01)
            if self.is_away:
                raise ConnectionLost("the source is away")
            kept = self.shards[shard]
            stop = min(first + READ, kept.length)
            if stop > first or kept.is_sealed:
                break
        batches = [FakeBatch(shard, number) for number in range(first, stop)]
        return ShardRead(batches, str(stop), kept.is_sealed and stop == kept.length)

    def leave(self, shard: str) -> None:
        self.left.append(shard)


class SlowStore:
    """A store in memory, some milliseconds away; or out of reach."""

    def __init__(self, inner: MemoryLeaseStore) -> None:
        self.inner = inner
        self.is_away = False
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.inner, name)

        async def call(*arguments: Any, **named: Any) -> Any:
            self.calls.append(name)
            await asyncio.sleep(0.002)
            if self.is_away and name not in ("open", "close"):
                raise ConnectionLost("the store is away")
            answer = await method(*arguments, **named)
            await asyncio.sleep(0.002)
            return answer

        return call


@dataclass
class Seen:
    """All that processors were given, in order."""

    records: list[tuple[str, str, int]] = field(default_factory=list)
    """Worker, record, epoch."""
    events: list[tuple[str, str, str]] = field(default_factory=list)
    busy: dict[str, tuple[str, AsyncCheckpointTracker]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def all(self) -> list[str]:
        return [record for _, record, _ in self.records]

    def by(self, worker: str) -> set[str]:
        return {record for name, record, _ in self.records if name == worker}


class Recorder(AsyncProcessor):
    """Takes a while for each call, saves in memory, and notes whom it met."""

    def __init__(self, seen: Seen, worker: str, *, seconds: float = 0.02) -> None:
        self._seen = seen
        self._worker = worker
        self._seconds = seconds
        self._shard = ""

    async def initialize(self, shard_id: str) -> None:
        self._shard = shard_id
        self._seen.events.append((self._worker, shard_id, "initialize"))

    async def process(self, batches: Sequence[ShardBatch], tracker: AsyncCheckpointTracker) -> None:
        seen, shard = self._seen, self._shard
        if tracker.remaining_s <= 0:
            seen.problems.append(f"{self._worker} begins with {shard} when its time is over")
        other = seen.busy.get(shard)
        if other is not None and other[0] != self._worker and other[1].remaining_s > 0:
            seen.problems.append(f"{self._worker} begins with {shard}, {other[0]} is not done")
        seen.busy[shard] = (self._worker, tracker)
        await asyncio.sleep(self._seconds)
        if seen.busy.get(shard) == (self._worker, tracker):
            del seen.busy[shard]
        for batch in batches:
            for record in batch.records():
                self._seen.records.append((self._worker, record, tracker.epoch))
        await tracker.save_checkpoint()

    async def shutdown(self, tracker: AsyncCheckpointTracker) -> None:
        kind = "ended" if tracker.is_shard_end else "shutdown"
        self._seen.events.append((self._worker, self._shard, kind))


class Group:
    """Workers of one group, each on a machine of its own."""

    def __init__(self, simulation: Simulation, source: FakeSource) -> None:
        self.simulation = simulation
        self.source = source
        self.memory = MemoryLeaseStore()
        self.seen = Seen()
        self.workers: dict[str, Worker] = {}
        self.stores: dict[str, SlowStore] = {}
        self.ended: dict[str, BaseException | None] = {}

    def start(
        self,
        name: str,
        *,
        factory: Callable[[], AsyncProcessor] | None = None,
        machine: str | None = None,
        **options: Any,
    ) -> Machine:
        node = self.simulation.add_node(machine or name)
        store = self.stores[machine or name] = SlowStore(self.memory)

        async def program(environment: Environment) -> None:
            worker = Worker(
                WorkerConfig(instance=name, times=TIMES, **options),
                factory or (lambda: Recorder(self.seen, machine or name)),
                cast("LeaseStore", store),
                source=self.source,
                environment=environment,
            )
            self.workers[machine or name] = worker
            try:
                await worker.run()
            except Exception as error:
                self.ended[machine or name] = error
            else:
                self.ended[machine or name] = None

        node.start(program)
        return node

    async def drain(self, *names: str) -> None:
        for name in names:
            self.workers[name].drain()
        await self.until(lambda: all(name in self.ended for name in names))
        assert self.seen.problems == []

    async def until(self, holds: Callable[[], bool], seconds: float = 60) -> None:
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110 - it is virtual time that passes
                await asyncio.sleep(0.01)

    async def until_all_seen(self) -> None:
        await self.until(lambda: set(self.seen.all()) >= self.source.everything())

    def killed(self, name: str) -> None:
        """What it was at is over."""
        del self.workers[name]
        for shard, (worker, _) in list(self.seen.busy.items()):
            if worker == name:
                del self.seen.busy[shard]

    def counts(self) -> list[int]:
        return sorted(len(each.shards()) for each in self.workers.values())
