"""`Capture`: a table's changes into a logstore, until it is stopped.

    capture = await Capture.start(environment, settings, polling=kv, asking=other, hub=client)
    await capture.run()

One request asks a master for the records of all its partitions; the master answers when it has
some. Bytes that are read and not yet stored are bounded, for each partition and for all together.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Final, Self

import msgspec

from raftwood.base.backoff import Backoff
from raftwood.base.environment import Environment
from raftwood.base.errors import (
    Conflict,
    ConnectionLost,
    DeadlineExceeded,
    RaftwoodError,
    Unavailable,
)
from raftwood.base.logs import get_logger
from raftwood.base.metrics import Metrics
from raftwood.base.names import checked_name
from raftwood.base.position import Position
from raftwood.capture.events import Point
from raftwood.capture.lane import CaptureLane, HubStream, LaneOwner, place_of
from raftwood.capture.rules import CHUNK_BYTES, CaptureStep, Chunk, PartitionRules, root_of
from raftwood.capture.takeover import ReadBack, ResumePoint, take_over
from raftwood.loghub.client.hub_client import AsyncLogHubClient
from raftwood.zeppelin.client import AsyncKv
from raftwood.zeppelin.client.binlogs import (
    BinlogAnswer,
    BinlogWant,
    KeysNow,
    PartitionSlots,
    TableBinlogs,
)
from raftwood.zeppelin.records import BinlogPosition, KeyWrite
from raftwood.zeppelin.resp import ErrorAnswer

QUEUE_BYTES_MAX: Final = 2 << 20
"""A partition with more bytes queued is not read until some of them are stored."""
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
        lane: CaptureLane,
        *,
        snapshots: asyncio.Semaphore,
        moved: Callable[[], None],
    ) -> None:
        """Calls `moved` when there is room in the queue or more work to do."""
        self._environment = environment
        self._kv = kv
        self._snapshots = snapshots
        self._moved = moved
        self.rules = rules
        self.lane = lane
        self.stored = rules.point
        """Every record up to this point is in the stream."""
        self.changes = 0
        self.snapshot_count = self.cut_count = 0
        self.queued_bytes = 0
        self.snapshot_at: BinlogPosition | None = None
        """Position of the running snapshot; None: no snapshot is running."""
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
        """Like `stored`, but also counts records without changes."""
        return self.stored if self.queued_bytes else self.rules.point

    def follow(self, parent: "CapturedPartition") -> None:
        """Starts at the split, once the parent is captured that far."""
        captured = parent.captured
        if captured is not None:
            self._add(self.rules.follow(parent.rules, captured, time_ns=self._now()))
            self._has_work.set()

    def restamp(self) -> None:
        """Repeats the point if nothing was stored for a while. Otherwise the next process has to
        read back everything since then.
        """
        now_ns = self._environment.clock.monotonic_ns()
        if not self._queue and now_ns - self._stored_ns > RESTAMP_NS:
            self._stored_ns = now_ns
            self._add(self.rules.still(time_ns=self._now()))
            self._has_work.set()

    @property
    def may_read(self) -> bool:
        return self.rules.step is CaptureStep.READ and self.queued_bytes < QUEUE_BYTES_MAX

    @property
    def needed(self) -> BinlogWant:
        """The records that the binlog must keep: a running snapshot needs those behind it."""
        at = self.snapshot_at
        if at is None:
            return self.rules.want
        return BinlogWant(self.rules.partition, at, at.sequence + 1)

    @property
    def lag_records(self) -> int:
        """Number of records that are done but not yet in the stream."""
        stored = 0 if self.stored is None else self.stored.sequence
        return max(0, self.rules.reached - stored) if self.queued_bytes else self.rules.behind

    @property
    def lag_s(self) -> float:
        """Seconds since the stream last held all records that were done."""
        if self.rules.step is CaptureStep.READ and not self.lag_records:
            return 0.0
        return (self._environment.clock.monotonic_ns() - self._caught_up_ns) / 1e9

    def answered(self, want: BinlogWant, answer: BinlogAnswer) -> None:
        """Handles a master's answer to a read, unless the wanted position has changed."""
        rules = self.rules
        if rules.step is not CaptureStep.READ or rules.want != want:
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
        if rules.step is not CaptureStep.READ or self._queue:
            self._has_work.set()

    def _add(self, chunks: list[Chunk]) -> None:
        self._queue.extend(chunks)
        self.queued_bytes += sum(len(chunk.body) for chunk in chunks)

    def _now(self) -> int:
        return self._environment.clock.wall_ns()

    def wake(self) -> None:
        """Wakes `run`: there may be work that comes before the next read."""
        self._has_work.set()

    async def run(self) -> None:
        """Stores what was read and does the repairs that the rules ask for, for ever."""
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            await self.drain()
            while self.rules.step not in (CaptureStep.READ, CaptureStep.WAIT):
                try:
                    await self._mend()
                    self._failures, self.problem = 0, ""
                except _LATER as error:
                    await self._put_off(error)
                    self.rules.again()
                await self.drain()

    async def drain(self) -> None:
        """Stores all chunks in the queue."""
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

    # When the binlog no longer continues from our point.

    async def _mend(self) -> None:
        rules = self.rules
        if rules.step is CaptureStep.PART:
            epochs, last = rules.known_epochs
            rules.parted(await self._kv.binlogs.common(self.place, epochs, last=last))
        elif rules.step is CaptureStep.VALUES:
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
        writes: list[KeyWrite] = []
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
                writes = map(KeyWrite, page.keys(), page.values(), ends)
                self._add(rules.snapshot_page(writes, position, time_ns=self._now()))
                await self.drain()
            self._add(rules.snapshot_ended(position, time_ns=self._now()))
            self.snapshot_count += 1


HELD_BYTES_MAX: Final = 64 << 20
"""Bytes read but not yet stored, of all partitions; one answer of each master comes on top."""
RECENT_BYTES_MAX: Final = 128 << 20
"""Bytes of recent keys, of all partitions; a repair after a cut needs them."""
READ_BYTES: Final = 1 << 20
WAIT_MS: Final = 1_000
SOON_MS: Final = 10
SNAPSHOTS_AT_ONCE: Final = 4
NOTE_S: Final = 5.0
LOOK_S: Final = 1.0
RENEW_S: Final = 60.0
_AGAIN_S: Final = 0.05


class CaptureSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What to capture, where to store it, and the name that the next process resumes it by."""

    name: str
    project: str
    logstore: str
    wait_ms: int = WAIT_MS
    """How long a read waits for records."""


class Capture:
    """Captures a table. Call `start`, then `run`."""

    def __init__(
        self,
        environment: Environment,
        settings: CaptureSettings,
        table: TableBinlogs,
        *,
        polling: AsyncKv,
        asking: AsyncKv,
        hub: AsyncLogHubClient,
    ) -> None:
        self._environment = environment
        self._settings = settings
        self._table = table
        self._polling = polling
        self._asking = asking
        process = environment.random.randbytes(12).hex()
        self._owner = LaneOwner(
            name=settings.name,
            process=process,
            table=table.table,
            incarnation=table.incarnation,
        )
        self._stream = HubStream(hub, project=settings.project, logstore=settings.logstore)
        self._notes = hub.checkpoints_of(
            settings.project, settings.logstore, f"capture-{settings.name}"
        )
        self._snapshots = asyncio.Semaphore(SNAPSHOTS_AT_ONCE)
        self._partitions: dict[int, CapturedPartition] = {}
        self._noted: dict[int, tuple[int, Position]] = {}
        """For each partition: its shard, and the position of the last batch with a point."""
        self._reader = f"capture-{settings.name}"[:64]
        """The reader's name, under which masters keep their binlogs."""
        self._tenure = 0
        self._polls: dict[str, asyncio.Task[None]] = {}
        self._has_room = asyncio.Event()
        self._is_to_look = asyncio.Event()

    @classmethod
    async def start(
        cls,
        environment: Environment,
        settings: CaptureSettings,
        *,
        polling: AsyncKv,
        asking: AsyncKv,
        hub: AsyncLogHubClient,
    ) -> Self:
        """Takes over from the process that captured under this name before.

        `polling` spends its time waiting for records, so it serves nothing else.
        """
        checked_name("capture", settings.name)
        table = await asking.binlogs.partitions()
        capture = cls(environment, settings, table, polling=polling, asking=asking, hub=hub)
        await capture._take_over()
        return capture

    async def _take_over(self) -> None:
        owner, table = self._owner, self._table
        noted = await self._notes.load()
        back = ReadBack(self._stream, owner, noted, recent_bytes_max=self._recent_bytes_max)
        lanes = {each.number: self._lane(table, each.number) for each in table.partitions}
        self._tenure = await take_over(self._environment, back, lanes, owner)
        for number, lane in lanes.items():
            found = back.found[number]
            if found.shard is not None:
                self._noted[number] = (found.shard, found.stored_at)
            self._add(lane, found)
        _log.info("capturing", table=table.table, name=owner.name, tenure=self._tenure)

    @property
    def _recent_bytes_max(self) -> int:
        return RECENT_BYTES_MAX // len(self._table.partitions)

    def _lane(self, table: TableBinlogs, partition: int) -> CaptureLane:
        # A split-off partition uses its parent's shard, behind the parent's records.
        root = root_of(table.partitions, partition)
        place = place_of(table.table, table.incarnation, root)
        return CaptureLane(self._stream, self._owner, partition, place=place)

    def _add(self, lane: CaptureLane, found: ResumePoint) -> CapturedPartition:
        table, number = self._table, lane.partition
        rules = PartitionRules(number, table.partitions, recent=found.recent)
        if found.point is not None or table.partitions[number].parent is None:
            rules.begin(found.point)
        captured = self._partitions[number] = CapturedPartition(
            self._environment,
            self._asking,
            rules,
            lane,
            snapshots=self._snapshots,
            moved=self._has_room.set,
        )
        captured.wake()
        return captured

    def show(self, metrics: Metrics) -> None:
        """Registers the metrics."""
        partitions = self._partitions
        metrics.pull_counter(
            "capture_changes_total",
            "Records put into the stream.",
            lambda: sum(each.changes for each in partitions.values()),
        )
        metrics.pull_counter(
            "capture_snapshots_total",
            "Partitions that were captured as a whole.",
            lambda: sum(each.snapshot_count for each in partitions.values()),
        )
        metrics.pull_counter(
            "capture_cuts_total",
            "Captured records that a failover took back, by occasion.",
            lambda: sum(each.cut_count for each in partitions.values()),
        )
        metrics.pull_gauges(
            "capture_lag_records",
            "Records of the binlog that are done and not in the stream.",
            "partition",
            lambda: {str(number): each.lag_records for number, each in partitions.items()},
        )
        metrics.pull_gauges(
            "capture_lag_seconds",
            "For how long the stream has been behind.",
            "partition",
            lambda: {str(number): each.lag_s for number, each in partitions.items()},
        )

    @property
    def table(self) -> str:
        return self._table.table

    def problem(self) -> str:
        """Why capturing does not progress; empty if it does."""
        return next((each.problem for each in self._partitions.values() if each.problem), "")

    # Running.

    async def run(self) -> None:
        """Captures until cancelled; `LaneTakenOver` if another process captures under the name."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for each in self._partitions.values():
                    tasks.create_task(each.run())
                tasks.create_task(self._note())
                tasks.create_task(self._look(tasks))
        except BaseExceptionGroup as group:
            # The first error ended the group; the others follow from it.
            raise group.exceptions[0] from group

    async def _look(self, tasks: asyncio.TaskGroup) -> None:
        """Keeps one poll running for each master."""
        while True:
            self._is_to_look.clear()
            with contextlib.suppress(Unavailable, DeadlineExceeded):
                await self._polling.binlogs.look()
                await self._learn(tasks)
            for address in self._polling.binlogs.by_master(self._table.partitions):
                polling = None if address is None else self._polls.get(address)
                if address is not None and (polling is None or polling.done()):
                    self._polls[address] = tasks.create_task(self._poll(address))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._is_to_look.wait()
            await asyncio.sleep(_AGAIN_S)

    async def _learn(self, tasks: asyncio.TaskGroup) -> None:
        """Starts to capture partitions that were split off."""
        table = await self._asking.binlogs.partitions()
        if table.incarnation != self._table.incarnation:
            raise Conflict(f"table {table.table} was made anew: start another process for it")
        lanes = [
            self._lane(table, number)
            for number in range(len(self._partitions), len(table.partitions))
        ]
        for lane in lanes:
            await lane.join(self._tenure, time_ns=self._environment.clock.wall_ns())
        if lanes:
            self._table = table
            for captured in self._partitions.values():
                captured.rules.family = table.partitions
        for lane in lanes:
            tasks.create_task(self._add(lane, ResumePoint(self._recent_bytes_max)).run())
        for each in self._table.partitions:
            if each.parent is not None:
                self._partitions[each.number].follow(self._partitions[each.parent])

    async def _poll(self, address: str) -> None:
        """Reads from one node for as long as it is a master."""
        binlogs, settings = self._polling.binlogs, self._settings
        loop = asyncio.get_running_loop()
        renewed_at = loop.time()
        held: list[BinlogPosition] = []
        """Positions of snapshots; the master knows that their records are needed."""
        while True:
            mine = binlogs.by_master(self._table.partitions).get(address, [])
            if not mine:
                return
            queued = sum(each.queued_bytes for each in self._partitions.values())
            captured = [self._partitions[each.number] for each in mine]
            ready = [each for each in captured if each.may_read and queued < HELD_BYTES_MAX]
            begun = [each.snapshot_at for each in captured if each.snapshot_at is not None]
            is_due = loop.time() > renewed_at + RENEW_S or begun != held
            if len(ready) < len(mine) and is_due:
                # A partition without room is not read, but its records must stay in the binlog.
                renewed_at, held = loop.time(), begun
                await binlogs.read(
                    address, self._reader, [each.needed for each in captured], bytes_max=0
                )
            if not ready:
                self._has_room.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_AGAIN_S):
                        await self._has_room.wait()
                continue
            # The first partition gets most of an answer; the shuffle gives each its turn.
            self._environment.random.shuffle(ready)
            asked = {each.rules.partition: each.rules.want for each in ready}
            answers = await binlogs.read(
                address,
                self._reader,
                list(asked.values()),
                bytes_max=READ_BYTES,
                wait_ms=settings.wait_ms if len(ready) == len(mine) else SOON_MS,
            )
            if isinstance(answers, ErrorAnswer):
                self._is_to_look.set()
                await asyncio.sleep(_AGAIN_S)
                continue
            if answers.partitions > len(self._table.partitions):
                # After a split, take no records before we know which slots the partition still
                # has.
                self._is_to_look.set()
                await asyncio.sleep(_AGAIN_S)
                continue
            for answer in answers.answers:
                self._partitions[answer.partition].answered(asked[answer.partition], answer)
            if any(answer.state == "moved" for answer in answers.answers):
                self._is_to_look.set()
                await asyncio.sleep(_AGAIN_S)

    async def _note(self) -> None:
        """Notes from which position of each shard the next process has to read back."""
        while True:
            await asyncio.sleep(NOTE_S)
            positions: dict[int, Position] = {}
            for number, each in self._partitions.items():
                if each.changes and each.lane.shard is not None:
                    self._noted[number] = (each.lane.shard, each.lane.stored_at)
            newest: dict[int, Position] = {}
            for shard, position in self._noted.values():
                positions[shard] = min(position, positions.get(shard, position))
                newest[shard] = max(position, newest.get(shard, position))
            for number, (shard, position) in self._noted.items():
                if position < newest[shard]:
                    self._partitions[number].restamp()
            try:
                await self._notes.commit(positions)
            except RaftwoodError as error:
                _log.warning("not noted where to read back", reason=error.message)
