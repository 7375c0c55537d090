"""`Streams`: puts and pulls batches of shards; splits and merges shards.

A batch is stored unchanged, behind a small head. The copy of the metadata says which shard takes
it. If the copy is too old, the shard's log is sealed and refuses the batch, and the new shards are
looked up. `StreamMetrics` counts in plain integers, because it runs for every batch.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Literal, TypeVar

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import LogSealed, NotFound, OutOfRange, Unavailable
from raftwood.base.files import Buffer
from raftwood.base.metrics import Metrics
from raftwood.base.position import Position
from raftwood.base.seams import Bounds, Log, Logs, StoredBatch
from raftwood.loghub.batches import HEAD_BYTES, Batch, decode_head, encode_batch
from raftwood.loghub.errors import (
    BatchTooLarge,
    InvalidCursor,
    InvalidParameter,
    LogstoreNotFound,
    ShardReadonly,
)
from raftwood.loghub.model import Logstore, Shard, check_stream_names
from raftwood.loghub.server.catalog import Catalog, LogstoreReconciler, no_logstore
from raftwood.loghub.server.metadata import Metadata, logstore_key
from raftwood.loghub.shards import (
    begin_delete,
    begin_merge,
    begin_split,
    checked_key,
    shard_of_key,
    visible_shard,
    writable_shards,
)
from raftwood.loghub.wire import Pulled


class StreamMetrics:
    """Metrics of all projects together; a label for each project could mean too many series."""

    def __init__(self, metrics: Metrics) -> None:
        self.put_batches = 0
        self.put_bytes = 0
        self.put_records = 0
        self.pulled_batches = 0
        self.pulled_bytes = 0
        self.sealed_puts = 0
        self.truncations = 0
        self.overridden_positions = 0
        self.automatic_splits = 0
        counters = {
            "loghub_put_batches_total": ("Batches that were put.", lambda: self.put_batches),
            "loghub_put_bytes_total": ("Bytes that were put.", lambda: self.put_bytes),
            "loghub_put_records_total": (
                "Records that were put, as far as producers counted them.",
                lambda: self.put_records,
            ),
            "loghub_pulled_batches_total": (
                "Batches that were pulled.",
                lambda: self.pulled_batches,
            ),
            "loghub_pulled_bytes_total": ("Bytes that were pulled.", lambda: self.pulled_bytes),
            "loghub_sealed_puts_total": (
                "Puts that met a shard which was split or merged, and were routed anew or refused.",
                lambda: self.sealed_puts,
            ),
            "loghub_truncations_total": ("Times that a shard was cut.", lambda: self.truncations),
            "loghub_overridden_positions_total": (
                "Positions that a registered reader had not read, and that were too old.",
                lambda: self.overridden_positions,
            ),
            "loghub_automatic_splits_total": (
                "Hot shards that were split.",
                lambda: self.automatic_splits,
            ),
        }
        for name, (text, read) in counters.items():
            metrics.pull_counter(name, text, read)


@asynccontextmanager
async def until_end(metadata: Metadata, key: str, shard: int) -> AsyncIterator[None]:
    """Interrupts its block by a `TimeoutError` once the metadata's copy has the shard's end."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as patience:

        def look() -> None:
            known = metadata.copy(key, Logstore)
            found = None if known is None else known.shard(shard)
            if found is None or found.ends_at is not None:
                patience.reschedule(loop.time())

        with metadata.heard(key, look):
            yield


GAP_BYTES: Final = 64 << 10
"""Read in one step while there is nothing but gaps."""


async def next_batch(log: Log, start: Position, end: Position) -> StoredBatch | None:
    """Returns the first batch from a position on, below `end`; a read may find nothing but gaps."""
    bytes_max = 1
    while start < end:
        batches, following = await log.read(start, bytes_max=bytes_max)
        if batches:
            return batches[0] if batches[0].position < end else None
        if following <= start:
            return None
        start, bytes_max = following, GAP_BYTES
    return None


async def position_of_time(log: Log, bounds: Bounds, time_ms: int) -> Position:
    """Finds by bisection the first batch that was received at a time or later."""
    low, high = bounds.first, bounds.next
    while low < high:
        middle = Position((low + high) // 2)
        try:
            found = await next_batch(log, middle, high)
        except OutOfRange:
            low = (await log.bounds()).first  # it was truncated meanwhile
            if low <= middle:
                raise
            continue
        if found is None or decode_head(found.data).received_ms >= time_ms:
            high = middle
        else:
            low = Position(found.position + 1)
    return low


ATTEMPTS_MAX: Final = 10
"""Limit of attempts to find a writable shard, while shards are split and merged all the time."""
PULL_BYTES_MAX: Final = 16 << 20
PULL_BATCHES_MAX: Final = 10_000
WAIT_MS_MAX: Final = 60_000
LANE_STEP: Final = 1 << 12
"""The distance between sequences, so that a log does not keep the former ones."""
PRODUCER_CHARACTERS_MAX: Final = 128

_Result = TypeVar("_Result")


class PutResult(msgspec.Struct, frozen=True):
    """Where a batch is stored."""

    shard: int
    position: Position


class _Lane(msgspec.Struct):
    """A producer name of the gateway's own, for one batch at a time. If a batch waits for its
    answer, later batches use other lanes, so that the log does not forget its sequence.
    """

    producer: bytes
    sequence: int = 0


class StreamLimits(msgspec.Struct, frozen=True):
    """Limits of what a gateway accepts."""

    stored_bytes_max: int = 4 << 20
    """Limit of a stored batch: the size of one entry of a log."""
    raw_bytes_max: int = 10 << 20
    """Limit of a decompressed batch."""


class Streams:
    """The streams of all logstores. Each gateway has one."""

    def __init__(
        self,
        environment: Environment,
        metadata: Metadata,
        catalog: Catalog,
        settling: LogstoreReconciler,
        logs: Logs,
        limits: StreamLimits,
        metrics: StreamMetrics,
    ) -> None:
        self._environment = environment
        self._metadata = metadata
        self._catalog = catalog
        self._settling = settling
        self._logs = logs
        self.limits = limits
        self._metrics = metrics
        self._producer = f"gateway-{environment.random.randbytes(12).hex()}"
        self._lanes: list[_Lane] = []
        """Lanes that no batch uses now."""
        self._lane_count = 0
        self._turn = 0

    def _now_s(self) -> int:
        return self._environment.clock.wall_ns() // 1_000_000_000

    def now_ms(self) -> int:
        """Returns the receipt time of a batch that arrives now."""
        return self._environment.clock.wall_ns() // 1_000_000

    async def logstore(self, project: str, name: str) -> Logstore:
        """Returns the copy of a logstore, or else reads it."""
        known = self._metadata.copy(logstore_key(project, name), Logstore)
        if known is not None and not known.is_deleting:
            return known
        return await self._catalog.logstore(project, name)

    # Putting

    async def put(
        self,
        project: str,
        logstore: str,
        batch: Batch,
        *,
        key: str | None = None,
        shard: int | None = None,
        producer: str = "",
        sequence: int = 0,
    ) -> PutResult:
        """Stores a batch; it is durable on return.

        With a `shard`, the batch goes there or nowhere; `ShardReadonly` says that it is not stored.
        With a `producer`, a repeated sequence is stored once in that shard.
        """
        if producer and shard is None:
            raise InvalidParameter("a producer that numbers its batches names the shard as well")
        if len(producer) > PRODUCER_CHARACTERS_MAX:
            raise InvalidParameter(
                f"a producer's name has up to {PRODUCER_CHARACTERS_MAX} characters"
            )
        pieces = self.encoded(batch)
        known = await self.logstore(project, logstore)
        if shard is not None:
            result = await self._put_to(known, shard, pieces, producer.encode(), sequence)
        else:
            result = await self._put_anywhere(known, pieces, key)
        self.count_put(batch)
        return result

    def encoded(self, batch: Batch) -> Sequence[Buffer]:
        """Returns the pieces of a batch in its stored form; raises if it exceeds the limits."""
        self._check_batch(batch)
        return encode_batch(batch, received_ms=self.now_ms())

    def count_put(self, batch: Batch) -> None:
        metrics = self._metrics
        metrics.put_batches += 1
        metrics.put_bytes += HEAD_BYTES + len(batch.body)
        metrics.put_records += batch.records

    async def _put_anywhere(
        self, known: Logstore, pieces: Sequence[Buffer], key: str | None
    ) -> PutResult:
        key = None if key is None else checked_key(key)
        if not writable_shards(known):
            known = await self._settled(known.project, known.name)  # it was just being created
        for _ in range(ATTEMPTS_MAX):
            target = shard_of_key(known, key) if key is not None else self._next_shard(known)
            try:
                position = await self._append_once(target, pieces)
            except (LogSealed, NotFound):
                self._metrics.sealed_puts += 1
                known = await self._settled(known.project, known.name)
                continue
            return PutResult(target.id, position)
        raise Unavailable(
            f"the shards of logstore {known.name} change all the time: try again in a moment"
        )

    async def _put_to(
        self,
        known: Logstore,
        number: int,
        pieces: Sequence[Buffer],
        producer: bytes,
        sequence: int,
    ) -> PutResult:
        shard = await self._shard(known, number)
        for _ in range(ATTEMPTS_MAX):
            try:
                if producer:
                    position = await self._append(shard, pieces, producer, sequence)
                else:
                    position = await self._append_once(shard, pieces)
            except (LogSealed, NotFound) as error:
                self._metrics.sealed_puts += 1
                known = await self._settled(known.project, known.name)
                former, shard = shard, visible_shard(known, number)
                if shard.log != former.log:
                    continue  # another logstore was created under this name since
                if isinstance(error, NotFound):
                    raise
                raise ShardReadonly(
                    f"shard {number} of logstore {known.name} was split or merged, and nothing was "
                    "put: ask for the shards again"
                ) from error
            return PutResult(number, position)
        raise Unavailable(f"logstore {known.name} is made anew all the time: try again in a moment")

    def _next_shard(self, logstore: Logstore) -> Shard:
        shards = writable_shards(logstore)
        self._turn += 1
        return shards[self._turn % len(shards)]

    async def _append_once(self, shard: Shard, pieces: Sequence[Buffer]) -> Position:
        """Appends under a producer name and sequence of the gateway's own."""
        lane = self._lanes.pop() if self._lanes else self._new_lane()
        lane.sequence += LANE_STEP
        try:
            return await self._append(shard, pieces, lane.producer, lane.sequence)
        finally:
            self._lanes.append(lane)

    def _new_lane(self) -> "_Lane":
        self._lane_count += 1
        return _Lane(f"{self._producer}-{self._lane_count}".encode())

    async def _append(
        self, shard: Shard, pieces: Sequence[Buffer], producer: bytes, sequence: int
    ) -> Position:
        log = await self._logs.open(shard.log)
        return await log.append(pieces, producer=producer, sequence=sequence)

    async def _settled(self, project: str, name: str) -> Logstore:
        known = await self._settling.settle(project, name)
        if known is None:
            await self._catalog.project(project)
            raise no_logstore(project, name)
        return known

    def _check_batch(self, batch: Batch) -> None:
        limits = self.limits
        if len(batch.body) > limits.stored_bytes_max - HEAD_BYTES:
            raise BatchTooLarge(
                f"a batch of {len(batch.body)} bytes is above the limit of "
                f"{limits.stored_bytes_max - HEAD_BYTES}: put smaller ones"
            )
        if batch.raw_bytes > limits.raw_bytes_max:
            raise BatchTooLarge(
                f"a batch of {batch.raw_bytes} bytes, decompressed, is above the limit of "
                f"{limits.raw_bytes_max}: put smaller ones"
            )
        if batch.raw_bytes < 0 or not 0 <= batch.records < 1 << 32:
            raise InvalidParameter("a batch says of itself that it has a negative size")

    # Pulling

    async def pull(
        self,
        project: str,
        logstore: str,
        shard: int,
        start: int,
        *,
        batches_max: int = PULL_BATCHES_MAX,
        bytes_max: int = PULL_BYTES_MAX,
        end: int | None = None,
        wait_ms: int = 0,
    ) -> Pulled:
        """Returns batches from a position on, below `end`; waits up to `wait_ms` for some."""
        if batches_max < 1 or bytes_max < 1 or wait_ms < 0:
            raise InvalidParameter("ask for 1 batch, 1 byte and 0 ms at least")

        async def pull(known: Shard) -> Pulled:
            return await self._pull(known, start, batches_max, bytes_max, end, wait_ms)

        async def pull_until_end(known: Shard) -> Pulled:
            if not wait_ms or known.ends_at is not None:
                return await pull(known)
            try:
                async with until_end(self._metadata, logstore_key(project, logstore), shard):
                    return await pull(known)
            except TimeoutError:
                return await pull(await self._shard(await self.logstore(project, logstore), shard))

        return await self._on_shard(project, logstore, shard, pull_until_end)

    async def _pull(
        self,
        known: Shard,
        start: int,
        batches_max: int,
        bytes_max: int,
        end: int | None,
        wait_ms: int,
    ) -> Pulled:
        ends_at = known.ends_at
        limit = min((each for each in (end, ends_at) if each is not None), default=None)
        log = await self._open(known)
        if (ends_at is not None and start >= ends_at) or (end is not None and start >= end):
            return await self._nothing(known, log, start, end)
        try:
            batches, following = await log.read(
                Position(start),
                bytes_max=min(bytes_max, PULL_BYTES_MAX),
                wait_ms=min(wait_ms, WAIT_MS_MAX),
            )
            first = Position(start)
        except OutOfRange as error:
            bounds = await log.bounds()
            if start >= bounds.first:
                raise _bad_cursor(known.id, start, bounds) from error
            # Batches at the position were freed; the reader sees this by `first`.
            first = bounds.first
            batches, following = await log.read(first, bytes_max=min(bytes_max, PULL_BYTES_MAX))
        batches_max = min(batches_max, PULL_BATCHES_MAX)
        batches, following = _cut(batches, following, limit, batches_max)
        is_ended = ends_at is not None and following >= ends_at
        self._metrics.pulled_batches += len(batches)
        self._metrics.pulled_bytes += sum([len(each.data) for each in batches])
        return Pulled(batches, following, first, is_ended)

    async def _nothing(self, shard: Shard, log: Log, start: int, end: int | None) -> Pulled:
        bounds = await log.bounds()
        ends_at = shard.ends_at
        if start > (bounds.next if ends_at is None else ends_at):
            raise _bad_cursor(shard.id, start, bounds)
        is_ended = ends_at is not None and start >= ends_at
        return Pulled(
            [], Position(start if end is None else min(start, end)), Position(start), is_ended
        )

    async def _shard(self, known: Logstore, number: int) -> Shard:
        """Finds the shard in the known value, or else reads the logstore: the shard may be new."""
        if known.shard(number) not in known.visible():
            known = await self._catalog.logstore(known.project, known.name)
        return visible_shard(known, number)

    async def _on_shard(
        self, project: str, logstore: str, number: int, use: Callable[[Shard], Awaitable[_Result]]
    ) -> _Result:
        """Repeats the call if the logstore turns out to be a new one of the same name."""
        shard = await self._shard(await self.logstore(project, logstore), number)
        try:
            return await use(shard)
        except NotFound:
            found = visible_shard(await self._catalog.logstore(project, logstore), number)
            if found.log == shard.log:
                raise
        return await use(found)

    async def _open(self, shard: Shard) -> Log:
        return await self._logs.open(shard.log)

    async def bounds(self, shard: Shard) -> Bounds:
        """Returns the range of a shard's positions that can be read."""
        bounds = await (await self._open(shard)).bounds()
        ends_at = shard.ends_at
        return bounds if ends_at is None else msgspec.structs.replace(bounds, next=ends_at)

    # Cursors

    async def cursor(
        self, project: str, logstore: str, shard: int, at: Literal["begin", "end"] | int
    ) -> Position:
        """Returns the first position, the one behind the last, or the first received at or after a
        time in seconds. Gateways' clocks may differ, which limits the precision of times.
        """
        return await self._on_shard(project, logstore, shard, lambda known: self._cursor(known, at))

    async def _cursor(self, shard: Shard, at: Literal["begin", "end"] | int) -> Position:
        bounds = await self.bounds(shard)
        if at == "begin":
            return bounds.first
        if at == "end" or at * 1000 > self.now_ms():
            return bounds.next
        return await self.position_of_time(shard, bounds, at * 1000)

    async def position_of_time(self, shard: Shard, bounds: Bounds, time_ms: int) -> Position:
        """Returns the position of the first batch that was received at a time or later."""
        return await position_of_time(await self._open(shard), bounds, time_ms)

    async def first_batch(self, shard: Shard, bounds: Bounds) -> StoredBatch | None:
        """Returns the oldest batch that can be read; None if there is none."""
        return await next_batch(await self._open(shard), bounds.first, bounds.next)

    async def truncate(self, shard: Shard, before: Position) -> None:
        """Frees all batches before a position."""
        await (await self._open(shard)).truncate(before)

    async def truncate_shard(
        self, project: str, logstore: str, number: int, before: Position
    ) -> Position:
        """Frees all batches before a position; returns the first that is left."""
        shard = visible_shard(await self._catalog.logstore(project, logstore), number)
        bounds = await self.bounds(shard)
        if before > bounds.next:
            raise _bad_cursor(number, before, bounds)
        if before > bounds.first:
            await self.truncate(shard, before)
            self._metrics.truncations += 1
        return max(before, bounds.first)

    async def cursor_time(self, project: str, logstore: str, shard: int, position: int) -> int:
        """Returns the time of receipt at a position, in seconds; behind the last batch: now."""
        return await self._on_shard(
            project, logstore, shard, lambda known: self._cursor_time(known, Position(position))
        )

    async def _cursor_time(self, shard: Shard, position: Position) -> int:
        bounds = await self.bounds(shard)
        if position > bounds.next:
            raise _bad_cursor(shard.id, position, bounds)
        left = msgspec.structs.replace(bounds, first=max(position, bounds.first))
        found = await self.first_batch(shard, left)
        return self._now_s() if found is None else decode_head(found.data).received_ms // 1000

    # Shards

    async def shards(self, project: str, logstore: str) -> list[Shard]:
        """Returns the shards that clients see, as they are now."""
        return (await self._catalog.logstore(project, logstore)).visible()

    async def split(
        self, project: str, logstore: str, shard: int, key: str | None = None
    ) -> list[Shard]:
        """Splits a shard at a key or in the middle; returns it and the two that take over."""
        cut = None if key is None else checked_key(key)
        now = self._now_s()

        def begin(known: Logstore) -> Logstore:
            logs = (self._settling.new_log(known.log), self._settling.new_log(known.log))
            return begin_split(known, shard, cut, logs, now_s=now)

        return await self._reshard(project, logstore, begin)

    async def merge(self, project: str, logstore: str, shard: int) -> list[Shard]:
        """Merges a shard with the next one; returns the two and the one that takes over."""
        now = self._now_s()

        def begin(known: Logstore) -> Logstore:
            return begin_merge(known, shard, self._settling.new_log(known.log), now_s=now)

        return await self._reshard(project, logstore, begin)

    async def delete_shard(self, project: str, logstore: str, shard: int) -> None:
        await self._change(project, logstore, lambda known: begin_delete(known, shard))
        await self._settled(project, logstore)

    async def _reshard(
        self, project: str, logstore: str, begin: Callable[[Logstore], Logstore]
    ) -> list[Shard]:
        before = await self._change(project, logstore, begin)
        newest = max(each.id for each in before.shards)
        parents = next(each.parents for each in before.shards if each.id == newest)
        after = await self._settled(project, logstore)
        return [each for each in after.shards if each.id in parents or each.parents == parents]

    async def _change(
        self, project: str, logstore: str, change: Callable[[Logstore], Logstore]
    ) -> Logstore:
        check_stream_names(project, logstore)

        def checked(known: Logstore | None) -> Logstore:
            if known is None or known.is_deleting:
                raise no_logstore(project, logstore)
            return change(known)

        try:
            changed = await self._metadata.change(
                logstore_key(project, logstore), Logstore, checked
            )
        except LogstoreNotFound:
            await self._catalog.project(project)
            raise
        assert changed is not None
        return changed


def _cut(
    batches: list[StoredBatch], following: Position, end: int | None, batches_max: int
) -> tuple[list[StoredBatch], Position]:
    if end is not None and following > end:
        batches = [each for each in batches if each.position < end]
        following = Position(end)
    if len(batches) > batches_max:
        following = batches[batches_max].position
        batches = batches[:batches_max]
    return batches, following


def _bad_cursor(shard: int, position: int, bounds: Bounds) -> InvalidCursor:
    return InvalidCursor(
        f"shard {shard} has no position {position}: {bounds.first} to {bounds.next} can be read"
    )
