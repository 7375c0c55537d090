"""One partition while it is captured: what was read goes to its lane, in order."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from raftwood.base.environment import Environment
from raftwood.base.errors import ConnectionLost, DeadlineExceeded, RaftwoodError, Unavailable
from raftwood.base.logs import get_logger
from raftwood.capture.events import Point
from raftwood.capture.lane import Lane
from raftwood.capture.rules import CHUNK_BYTES, Chunk, PartitionRules, Step
from raftwood.net.channel import Backoff
from raftwood.zeppelin.client import AsyncKv
from raftwood.zeppelin.client.binlogs import BinlogAnswer, BinlogWant, KeysNow, PartitionSlots
from raftwood.zeppelin.node.seams import BinlogPosition, Write

QUEUE_BYTES_MAX: Final = 2 << 20
"""Beyond it, a partition is not read before some of it is stored."""
VALUES_AT_ONCE: Final = 1_000
RESTAMP_NS: Final = 60_000_000_000
_BACKOFF: Final = Backoff(first_ms=50, longest_ms=2_000)
_LATER: Final = (Unavailable, ConnectionLost, DeadlineExceeded)
_log = get_logger("capture")


class CapturedPartition:
    """Runs the rules of one partition."""

    def __init__(
        self,
        environment: Environment,
        kv: AsyncKv,
        rules: PartitionRules,
        lane: Lane,
        *,
        snapshots: asyncio.Semaphore,
        moved: Callable[[], None],
    ) -> None:
        """`moved` hears that there is room, or more to be done."""
        self._environment = environment
        self._kv = kv
        self._snapshots = snapshots
        self._moved = moved
        self.rules = rules
        self.lane = lane
        self.stored = rules.point
        """All up to it is in the stream."""
        self.changes = 0
        self.snapshot_count = self.cut_count = 0
        self.queued_bytes = 0
        self.snapshot_at: BinlogPosition | None = None
        """Of the snapshot that is under way; None: there is none."""
        self._queue: deque[Chunk] = deque()
        self._has_work = asyncio.Event()
        self._failures = 0
        self._caught_up_ns = self._stored_ns = environment.clock.monotonic_ns()
        self.problem = ""

    @property
    def place(self) -> PartitionSlots:
        return self.rules.family[self.rules.partition]

    @property
    def captured(self) -> Point | None:
        """As `stored`, with what has no changes in it."""
        return self.stored if self.queued_bytes else self.rules.point

    def follow(self, parent: "CapturedPartition") -> None:
        """Begin where it was split off, once its parent is captured so far."""
        captured = parent.captured
        if captured is not None:
            self._add(self.rules.follow(parent.rules, captured, time_ns=self._now()))
            self._has_work.set()

    def restamp(self) -> None:
        """Where nothing was stored for a while, say again how far it is: else all of the stream
        since then would have to be read back.
        """
        now_ns = self._environment.clock.monotonic_ns()
        if not self._queue and now_ns - self._stored_ns > RESTAMP_NS:
            self._stored_ns = now_ns
            self._add(self.rules.still(time_ns=self._now()))
            self._has_work.set()

    @property
    def may_read(self) -> bool:
        return self.rules.step is Step.READ and self.queued_bytes < QUEUE_BYTES_MAX

    @property
    def needed(self) -> BinlogWant:
        """What has to stay in the binlog: what follows a snapshot is read once that is whole."""
        at = self.snapshot_at
        if at is None:
            return self.rules.want
        return BinlogWant(self.rules.partition, at, at.sequence + 1)

    @property
    def lag_records(self) -> int:
        """Records that are done and not in the stream."""
        stored = 0 if self.stored is None else self.stored.sequence
        return max(0, self.rules.reached - stored) if self.queued_bytes else self.rules.behind

    @property
    def lag_s(self) -> float:
        """How long ago all that was done was in the stream."""
        if self.rules.step is Step.READ and not self.lag_records:
            return 0.0
        return (self._environment.clock.monotonic_ns() - self._caught_up_ns) / 1e9

    def answered(self, want: BinlogWant, answer: BinlogAnswer) -> None:
        """What a master said to a read; it does not count where another one said more meanwhile."""
        rules = self.rules
        if rules.step is not Step.READ or rules.want != want:
            return
        match answer.state:
            case "records":
                self._add(rules.read(answer.records, reached=answer.reached, time_ns=self._now()))
                if not self.lag_records:
                    self._caught_up_ns = self._environment.clock.monotonic_ns()
            case "unknown":
                rules.unknown()
            case "purged":
                rules.purged()
            case "moved":
                return
        if rules.step is not Step.READ or self._queue:
            self._has_work.set()

    def _add(self, chunks: list[Chunk]) -> None:
        self._queue.extend(chunks)
        self.queued_bytes += sum(len(chunk.body) for chunk in chunks)

    def _now(self) -> int:
        return self._environment.clock.wall_ns()

    def wake(self) -> None:
        """There may be something to be done before anything is read."""
        self._has_work.set()

    async def run(self) -> None:
        """Store what comes, and mend what has to be, for ever."""
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            await self.drain()
            while self.rules.step not in (Step.READ, Step.WAIT):
                try:
                    await self._mend()
                    self._failures, self.problem = 0, ""
                except _LATER as error:
                    await self._put_off(error)
                    self.rules.again()
                await self.drain()

    async def drain(self) -> None:
        """Store all that was read."""
        while self._queue:
            body, count, point = bytearray(), 0, self._queue[0].point
            while self._queue and (not body or len(body) < CHUNK_BYTES):
                chunk = self._queue.popleft()
                body += chunk.body
                count += chunk.count
                point = chunk.point
            while True:
                try:
                    await self.lane.put(bytes(body), count, point)
                    break
                except _LATER as error:
                    await self._put_off(error)
            self._failures, self.problem = 0, ""
            self.queued_bytes -= len(body)
            self.changes += count
            self.stored = point
            self._stored_ns = self._environment.clock.monotonic_ns()
            if not self.lag_records:
                self._caught_up_ns = self._environment.clock.monotonic_ns()
            self._moved()

    async def _put_off(self, error: RaftwoodError) -> None:
        self.problem = error.message
        if not self._failures:
            partition = self.rules.partition
            _log.warning("a partition waits", partition=partition, reason=error.message)
        await asyncio.sleep(_BACKOFF.delay_s(self._failures, self._environment.random))
        self._failures += 1

    # Where the binlog has another past, or none.

    async def _mend(self) -> None:
        rules = self.rules
        if rules.step is Step.PART:
            epochs, last = rules.known_epochs
            rules.parted(await self._kv.binlogs.common(self.place, epochs, last=last))
        elif rules.step is Step.VALUES:
            now = await self._values(list(rules.cut_keys))
            _log.info("captured records were cut", partition=rules.partition)
            self._add(rules.valued(now, time_ns=self._now()))
            self.cut_count += 1
        else:
            async with self._snapshots:
                try:
                    await self._snapshot()
                finally:
                    self.snapshot_at = None

    async def _values(self, keys: list[bytes]) -> KeysNow | None:
        writes: list[Write] = []
        position: BinlogPosition | None = None
        while len(writes) < len(keys):
            wanted = keys[len(writes) : len(writes) + VALUES_AT_ONCE]
            common = self.rules.cut_at
            found = await self._kv.binlogs.values(self.place, wanted, common=common)
            if found is None or found.position.epoch != (position or found.position).epoch:
                raise Unavailable("another master came meanwhile")
            position = found.position
            writes += found.writes
        return None if position is None else KeysNow(position, tuple(writes))

    async def _snapshot(self) -> None:
        rules = self.rules
        _log.info("a partition is captured as a whole", partition=rules.partition)
        async with await self._kv.checkpoint(rules.partition) as checkpoint:
            position = self.snapshot_at = checkpoint.position
            self._add(rules.snapshot_begun(checkpoint.slots, time_ns=self._now()))
            await self.drain()
            async for page in checkpoint.pages():
                ends = page.ends() or [0] * page.count
                writes = map(Write, page.keys(), page.values(), ends)
                self._add(rules.snapshot_page(writes, position, time_ns=self._now()))
                await self.drain()
            self._add(rules.snapshot_ended(position, time_ns=self._now()))
            self.snapshot_count += 1
