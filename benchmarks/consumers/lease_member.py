"""A worker by leases as a process: joins and leaves as it is told on standard input.

    python -m benchmarks.consumers.lease_member --store=URL --name=w1 --shards=100

Its shards never end: a record comes every 50 ms, and process() only looks at the clock. So what is
measured is how leases change hands, not what is read.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Engine, event

from benchmarks.consumers.notes import BEGUN, ENDED, READY, ROUND, STOLEN, now_ns, say
from raftwood.base.environment import Environment
from raftwood.disk.real_environment import real_environment
from raftwood.loghub.consumer.checkpoints import AsyncCheckpointTracker
from raftwood.loghub.consumer.leases import LeaseOwner, ShardLease, Take, signature
from raftwood.loghub.consumer.processor import AsyncProcessor
from raftwood.loghub.consumer.source import ShardBatch, ShardRead, SourceShard
from raftwood.loghub.consumer.sql_store import SqlLeaseStore
from raftwood.loghub.consumer.worker import Worker, WorkerConfig
from raftwood.server.event_loop import run

RECORD_EVERY_S: Final = 0.05
GROUP: Final = "benchmark"


class Tick(msgspec.Struct, frozen=True):
    """A batch of nothing."""

    shard_id: str
    number: int
    size_bytes: int = 100
    received_ms: int = 0

    @property
    def next_position(self) -> str:
        return str(self.number + 1)

    def records(self) -> Sequence[int]:
        return [self.number]


class Ticks:
    """Shards with a record every 50 ms; who begins finds one at once."""

    def __init__(self, shards: int) -> None:
        self._shards = [SourceShard(f"{number:04}") for number in range(shards)]
        self._next: dict[str, str] = {}

    async def list_shards(self) -> Sequence[SourceShard]:
        return self._shards

    async def begin(self, shard: str) -> str:
        self._next.pop(shard, None)
        return "0"

    async def end(self, shard: str) -> str:
        return await self.begin(shard)

    async def next_received_ms(self, shard: str, position: str) -> int | None:  # noqa: ARG002
        return None

    async def read(self, shard: str, position: str) -> ShardRead:
        if self._next.get(shard) == position:
            await asyncio.sleep(RECORD_EVERY_S)
        tick = Tick(shard, int(position))
        self._next[shard] = tick.next_position
        return ShardRead([tick], tick.next_position)

    def leave(self, shard: str) -> None:
        self._next.pop(shard, None)


class Noting(AsyncProcessor):
    """Says when it was first called, and last."""

    def __init__(self) -> None:
        self._shard = ""
        self._last_ns = 0

    async def initialize(self, shard_id: str) -> None:
        self._shard = shard_id

    async def process(self, batches: Sequence[ShardBatch], tracker: AsyncCheckpointTracker) -> None:
        assert batches
        if not self._last_ns:
            say(BEGUN, self._shard)
        await tracker.save_checkpoint()
        self._last_ns = now_ns()

    async def shutdown(self, tracker: AsyncCheckpointTracker) -> None:
        assert tracker.shard_id == self._shard
        if self._last_ns:
            say(ENDED, self._shard, ns=self._last_ns)


class NotingStore(SqlLeaseStore):
    """Says what was stolen, and when that was committed."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._commits_ns: list[int] = []
        event.listen(Engine, "commit", self._on_commit)

    def _on_commit(self, connection: Connection) -> None:
        if connection.get_execution_options().get("raftwood_writes"):
            self._commits_ns.append(now_ns())

    async def close(self) -> None:
        await super().close()
        event.remove(Engine, "commit", self._on_commit)

    async def take(self, worker: LeaseOwner, takes: Sequence[Take]) -> list[ShardLease]:
        sent_ns = now_ns()
        self._commits_ns.clear()
        leases = await super().take(worker, takes)
        # Another call's may be among them, of which the first is the one to be strict with.
        commit_ns = min(self._commits_ns, default=sent_ns)
        stolen = {take.shard for take in takes if not take.sets_consumer}
        say(ROUND)
        for lease in leases:
            if lease.shard in stolen and lease.lease_process == worker.process:
                say(STOLEN, lease.shard, ns=commit_ns)
        return leases


async def member(environment: Environment, given: argparse.Namespace) -> None:
    """`join` and `leave`, in turn, until standard input ends."""
    source = Ticks(given.shards)
    lines = await _standard_input()
    worker: Worker | None = None
    running: asyncio.Task[None] | None = None
    say(READY)
    while line := (await lines.readline()).decode().strip():
        if line == "join":
            store = NotingStore(
                environment, given.store, group=GROUP, signature=signature("benchmark", GROUP)
            )
            config = WorkerConfig(instance=given.name)
            worker = Worker(config, Noting, store, source=source, environment=environment)
            running = asyncio.create_task(worker.run())
        elif worker is not None and running is not None:
            worker.drain()
            await running


async def _standard_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--shards", type=int, required=True)
    given = parser.parse_args()
    with real_environment() as environment:
        run(member(environment, given))


if __name__ == "__main__":
    main()
