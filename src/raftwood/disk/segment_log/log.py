"""`SegmentLog`: one write-ahead log that many groups share, one sync for all of them.

Start here, then `committer` (writing), `recovery` (reading back) and `compaction` (freeing room).
Everything below runs on one event loop and is not thread-safe.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from raftwood.base import files as seam
from raftwood.base.environment import Environment
from raftwood.base.errors import (
    InvariantViolated,
    NotFound,
    Overloaded,
    ShuttingDown,
    StoreDamaged,
    TooLarge,
)
from raftwood.base.files import NO_ROOM, Buffer, perform
from raftwood.base.logs import get_logger
from raftwood.disk.segment_log import reader
from raftwood.disk.segment_log.committer import Committer, SyncTime
from raftwood.disk.segment_log.compaction import Compactor
from raftwood.disk.segment_log.format import (
    KIND_DROP,
    KIND_HEAD,
    KIND_RUN,
    KIND_STATE,
    KIND_TAIL,
    RECORD_HEADER_BYTES,
    encode_record_header,
    seed_of_log,
    segment_of,
)
from raftwood.disk.segment_log.horizon import HorizonFile
from raftwood.disk.segment_log.index import GroupIndex, LiveBytes, RunLocation
from raftwood.disk.segment_log.records import (
    COUNT_MAX,
    NUMBER_MAX,
    DropGroup,
    GroupBounds,
    LogStatistics,
    Record,
    Run,
    SetState,
    StoredRun,
    TruncateHead,
    TruncateTail,
    check_records,
)
from raftwood.disk.segment_log.recovery import Recovered, recover
from raftwood.disk.segment_log.segments import LogSettings, Segments

_log = get_logger("disk")


class SegmentLog:
    """Many groups' entries and small states, in one durable log.

    A write is atomic: after a crash all of its records are there, or none. Writes become durable in
    order. Written records can be read at once; `done` is called when they are durable.
    """

    def __init__(
        self, environment: Environment, settings: LogSettings, folder: str, recovered: Recovered
    ) -> None:
        log_id = recovered.log_id or environment.random.randbytes(16)
        self._files = environment.files
        self._settings = settings
        # A copy, since each record needs it.
        self.write_bytes_max = settings.write_bytes_max
        self._runs_live_max = settings.runs_live_max
        self._folder = folder
        self._groups: dict[int, GroupIndex] = recovered.groups
        self._live: LiveBytes = recovered.live
        self._run_count = sum(index.run_count for index in self._groups.values())
        self._unusable: Exception | None = None
        self._segments = Segments(
            environment,
            settings,
            folder,
            log_id=log_id,
            used_bytes=recovered.used_bytes,
            record_bytes=recovered.record_bytes,
            active=recovered.next_segment,
        )
        self._horizon = HorizonFile(folder, log_id=log_id, last=recovered.horizon)
        self.was_closed = recovered.was_closed
        """Whether nothing can be missing: the log is new, or its last process closed it.

        After a crash the disk may have lost the last acked flushes, and the note of them too. Raft
        then asks the other stores before it votes (decision 0033).
        Test: test_log_horizon::test_a_log_knows_whether_it_was_closed
        """
        self._committer = Committer(
            environment,
            settings,
            self._segments,
            self._horizon,
            log_seed=seed_of_log(log_id),
            previous_end=recovered.end,
        )
        self._segments.on_prepared = self._committer.pump
        self._compactor = Compactor(
            self._files,
            settings,
            self._segments,
            self._committer,
            self._groups,
            self._live,
            log_seed=seed_of_log(log_id),
        )
        self._segments.on_sealed = self._compactor.wake
        self._compaction: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls, environment: Environment, folder: str, settings: LogSettings | None = None
    ) -> "SegmentLog":
        """Recovers the log in a folder, or begins one there.

        `StoreDamaged` if synced data is bad or missing, `DiskFull` if there is no room.
        """
        files = environment.files
        await perform(files, seam.MakeDirectory(folder), seam.SyncDirectory(_parent(folder)))
        recovered = await recover(files, folder)
        log = cls(environment, settings or LogSettings(), folder, recovered)
        await log._segments.create_first()
        await log._open_horizon(recovered.end)
        _log.info("log opened", folder=folder, **msgspec.structs.asdict(log.statistics()))
        log._compaction = asyncio.create_task(log._compact(), name=f"compaction of {folder}")
        return log

    def append(
        self,
        group: int,
        *,
        term: int,
        first_index: int,
        count: int,
        payload: Buffer,
        done: Callable[[], None] | None = None,
    ) -> None:
        """Adds one run behind a group's last entry: like `write` of one `Run`, but faster."""
        index = self._groups.get(group)
        if (
            index is None
            or first_index != index.next_index
            or not 0 < count <= COUNT_MAX
            or not 0 <= term <= NUMBER_MAX
            or first_index + count > NUMBER_MAX
            or self._run_count >= self._runs_live_max
            or self._unusable is not None
        ):
            # A new group, or a mistake: `write` creates the group, or raises the error.
            self.write((Run(group, term, first_index, count, payload),), done)
            return
        payload_bytes = len(payload)
        record_bytes = RECORD_HEADER_BYTES + payload_bytes
        if record_bytes > self.write_bytes_max:
            raise self._too_large(record_bytes)
        header = encode_record_header(KIND_RUN, 0, group, term, first_index, count, payload)
        position = self._committer.take((header, payload), record_bytes, 1, done)
        index.append(first_index, count, term, position, payload_bytes)
        self._live.add(position, record_bytes)
        self._run_count += 1

    def write(
        self,
        records: Sequence[Record],
        done: Callable[[], None] | None = None,
        *,
        written: Callable[[], None] | None = None,
    ) -> None:
        """Adds records of any kind and group, all or none; calls `done` when they are durable.

        `written` is called when the operating system has the records. With `written` alone they
        become durable with the next write that has a `done`, or by `when_durable` or `sync`.

        Raises and changes nothing: `InvalidInput` (does not fit the log), `TooLarge`, `DiskFull`,
        `Overloaded`. When the disk is full, writes without a `Run` may use a reserve.
        """
        self._check_usable()
        run_count = check_records(records, self._groups)
        if self._run_count + run_count > self._settings.runs_live_max:
            raise Overloaded(
                f"the log's index is full with {self._run_count} runs: truncate groups, write "
                "larger batches, or raise runs_live_max"
            )
        buffers: list[Buffer] = []
        payload_sizes = []
        for record in records:
            buffers += _encode(record)
            payload_sizes.append(len(buffers[-1]))
        record_bytes = RECORD_HEADER_BYTES * len(records) + sum(payload_sizes)
        if record_bytes > self.write_bytes_max:
            raise self._too_large(record_bytes)
        position = self._committer.take(
            buffers,
            record_bytes,
            len(records),
            done,
            written=written,
            may_use_reserve=not run_count,
        )
        for record, payload_bytes in zip(records, payload_sizes, strict=True):
            self._apply(record, position, payload_bytes)
            position += RECORD_HEADER_BYTES + payload_bytes

    async def commit(self, *records: Record) -> None:
        """Writes records and waits until they are durable."""
        durable = asyncio.Event()
        self.write(records, durable.set)
        await durable.wait()

    @contextmanager
    def flushing(self) -> Iterator[None]:
        """Sends the block's writes to the disk at its end, not in the loop's next turn."""
        self._committer.hold()
        try:
            yield
        finally:
            self._committer.pump()

    async def sync(self) -> None:
        """Waits until everything written so far is durable."""
        if isinstance(self._unusable, ShuttingDown):
            raise self._unusable
        durable = asyncio.Event()
        self._committer.when_durable(durable.set)
        await durable.wait()

    def when_durable(self, done: Callable[[], None]) -> None:
        """Calls `done` when everything written so far is durable, never within this call."""
        self._committer.when_durable(done)

    def read_cached(
        self, group: int, first_index: int, *, bytes_max: int = 1 << 20
    ) -> list[StoredRun] | None:
        """Like `read`, at once; None if the disk must be read."""
        chosen = reader.plan(self._group(group), first_index, bytes_max)
        runs = reader.from_memory(self._committer, chosen)
        found = [run for run in runs if run is not None]
        return found if len(found) == len(runs) else None

    async def read(
        self, group: int, first_index: int, *, bytes_max: int = 1 << 20
    ) -> list[StoredRun]:
        """Returns runs from the one that holds an index: at least one, more up to `bytes_max`.

        Runs are never split: the first one may begin before `first_index`. Views stay valid as long
        as they are held.
        """

        def find() -> list[tuple[RunLocation, int]]:
            return reader.plan(self._group(group), first_index, bytes_max)

        return await reader.read_runs(self._files, self._committer, self._segments.path, find)

    def groups(self) -> list[int]:
        return sorted(self._groups)

    def bounds(self, group: int) -> GroupBounds:
        index = self._group(group)
        return GroupBounds(index.head, index.next_index)

    def next_index(self, group: int) -> int:
        """The index after the group's last entry, as in `bounds`."""
        return self._group(group).next_index

    def term_of(self, group: int, index: int) -> int:
        """The term of one entry; `OutOfRange` if it is not in the log."""
        return self._group(group).term_of(index)

    def terms(self, group: int) -> Sequence[int]:
        """The term of each run, in order."""
        return self._group(group).terms

    def sizes(self, group: int) -> Sequence[int]:
        """The bytes of each run, in order."""
        return self._group(group).sizes

    def size_of(self, group: int) -> int:
        """The bytes of a group's runs."""
        return self._group(group).payload_bytes

    def run_start(self, group: int, index: int) -> int:
        """The first index of the run that holds an index; `OutOfRange` if none does."""
        return self._group(group).run_start(index)

    def index_within(self, group: int, bytes_max: int) -> int:
        """The first index of a group's last runs that have at most `bytes_max` together."""
        return self._group(group).index_within(bytes_max)

    def state(self, group: int) -> bytes | None:
        """The group's latest state, if it has one."""
        return self._group(group).state

    @property
    def sync_time(self) -> SyncTime:
        """How long the disk takes to make a write durable."""
        return self._committer.sync_time

    @property
    def is_full(self) -> bool:
        """Whether the disk had no room for another segment."""
        return self._segments.is_full

    def statistics(self) -> LogStatistics:
        segments = self._segments
        return LogStatistics(
            segments=len(segments.used_bytes) + 1,
            disk_bytes=segments.sealed_bytes + self._settings.segment_bytes,
            live_bytes=self._live.total,
            pending_bytes=self._committer.pending_bytes,
            flushes=self._committer.flush_count,
            groups=len(self._groups),
            runs=self._run_count,
            is_full=segments.is_full,
        )

    async def close(self) -> None:
        """Makes everything durable and stops; the log may be opened again afterwards.

        Runs to its end even if the caller is cancelled; another call waits for the first one's end.
        `DiskFull` if writes wait for room: they are given up, and the log is closed all the
        same.
        """
        if self._closing is None:
            self._unusable = ShuttingDown(f"the log in {self._folder} is closed")
            loop = asyncio.get_running_loop()
            self._closing = loop.create_task(self._close(), name=f"closing of {self._folder}")
        await asyncio.shield(self._closing)

    async def abandon(self) -> None:
        """Stops as a crash would: for an owner whose `end_process` does not end the process."""
        self._unusable = ShuttingDown(f"the log in {self._folder} was given up")
        if self._closing is not None:
            self._closing.cancel()  # It waits for writes that never end.
            await asyncio.wait([self._closing])
            return
        await self._stop_compaction()
        self._committer.abandon()
        await self._close_files()

    async def _close(self) -> None:
        await self._stop_compaction()
        try:
            await self._committer.close()
        finally:
            await self._close_files()

    async def _open_horizon(self, end: int) -> None:
        operations = self._horizon.opening(synced=end, begun=self._segments.active)
        try:
            await perform(self._files, *operations)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            raise self._segments.disk_full() from error

    async def _stop_compaction(self) -> None:
        if self._compaction is not None:
            self._compaction.cancel()
            await asyncio.gather(self._compaction, return_exceptions=True)

    async def _close_files(self) -> None:
        segments = self._segments
        segments.close()
        # From the segment last written to the one that was prepared.
        numbers = range(segment_of(self._committer.synced), segments.active + 2)
        paths = (segments.path(number) for number in numbers)
        await perform(self._files, *map(seam.Close, (*paths, self._horizon.path)))

    def _group(self, group: int) -> GroupIndex:
        index = self._groups.get(group)
        if index is None:
            raise NotFound(f"the log in {self._folder} has no group {group}")
        return index

    def _check_usable(self) -> None:
        if self._unusable is not None:
            raise self._unusable

    def _too_large(self, record_bytes: int) -> TooLarge:
        return TooLarge(
            f"a write of {record_bytes} bytes is above the limit of "
            f"{self.write_bytes_max}: split it, or raise segment_bytes"
        )

    def _apply(self, record: Record, position: int, payload_bytes: int) -> None:
        if isinstance(record, DropGroup):
            self._drop(record.group)
            return
        index = self._groups.get(record.group)
        if index is None:
            index = self._groups[record.group] = GroupIndex()
        record_bytes = RECORD_HEADER_BYTES + payload_bytes
        if type(record) is Run:
            index.append(record.first_index, record.count, record.term, position, payload_bytes)
            self._run_count += 1
            self._live.add(position, record_bytes)
            return
        match record:
            case SetState(_, data):
                self._forget_state(index)
                index.state, index.state_position = data, position
                self._live.add(position, record_bytes)
            case TruncateHead(_, up_to) if up_to >= index.head - 1:
                if index.head_position is not None:
                    self._live.remove(index.head_position, RECORD_HEADER_BYTES)
                self._forget_runs(index.cut_head(up_to))
                index.head_position = position
                self._live.add(position, RECORD_HEADER_BYTES)
                self._compactor.wake()
            case TruncateTail(_, from_index):
                self._forget_runs(index.cut_tail(from_index))
                if index.is_empty:
                    del self._groups[record.group]

    def _drop(self, group: int) -> None:
        index = self._groups.pop(group, None)
        if index is None:
            return  # a cut in the same write has removed all of it
        self._forget_state(index)
        if index.head_position is not None:
            self._live.remove(index.head_position, RECORD_HEADER_BYTES)
        self._forget_runs(list(index.locations()))
        self._compactor.wake()

    def _forget_state(self, index: GroupIndex) -> None:
        if index.state is not None and index.state_position is not None:
            self._live.remove(index.state_position, RECORD_HEADER_BYTES + len(index.state))

    def _forget_runs(self, locations: Sequence[RunLocation]) -> None:
        for location in locations:
            self._live.remove(location.position, location.record_bytes)
        self._run_count -= len(locations)

    async def _compact(self) -> None:
        try:
            await self._compactor.run()
        except (StoreDamaged, InvariantViolated) as error:
            # Reads of other places go on, and recovery of the owner's groups may need them. A write
            # would be acked in a log that a restart refuses.
            # Test: test_log_compaction::test_damage_in_what_is_needed_stops_the_log
            self._unusable = error
            _log.error("the log takes no more writes", folder=self._folder, reason=error.message)


def _encode(record: Record) -> tuple[bytes, Buffer]:
    if type(record) is Run:  # nearly all are, and need no match
        payload = record.payload
        header = encode_record_header(
            KIND_RUN, 0, record.group, record.term, record.first_index, record.count, payload
        )
        return header, payload
    kind, index = 0, 0
    payload = b""
    match record:
        case SetState(_, payload):
            kind = KIND_STATE
        case TruncateHead(_, index):
            kind = KIND_HEAD
        case TruncateTail(_, index):
            kind = KIND_TAIL
        case DropGroup():
            kind = KIND_DROP
    return encode_record_header(kind, 0, record.group, 0, index, 0, payload), payload


def _parent(folder: str) -> str:
    return folder.rpartition("/")[0] or "/" if "/" in folder else "."
