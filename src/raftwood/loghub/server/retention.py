"""`Retention`: frees old and surplus batches, splits hot shards, finishes interrupted work.

The rules come first: what of a shard is freed, and whether it is hot; no I/O, no clock. One gateway
at a time runs `Retention`, the one that holds a lease in the metastore. Two at once would do no
harm, but would double the work.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import NotFound, RaftwoodError
from raftwood.base.logs import get_logger
from raftwood.base.position import Position
from raftwood.base.seams import Bounds, Compare, RemoveKey
from raftwood.loghub.batches import decode_head
from raftwood.loghub.model import Logstore, Shard, ShardStatus
from raftwood.loghub.server.catalog import LogstoreReconciler
from raftwood.loghub.server.metadata import LOGSTORES, Metadata
from raftwood.loghub.server.streams import StreamMetrics, Streams
from raftwood.loghub.settings import LogHubSettings
from raftwood.loghub.shards import is_settled, writable_shards

MARKS_MAX: Final = 256
MARKS_PER_LIMIT: Final = 64
"""The precision of retention by bytes: a mark is set at each 64th of the limit."""


class RetentionMark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """At this position, so many bytes had been appended to the shard."""

    position: str
    appended_bytes: int


class RetentionMarks(msgspec.Struct, frozen=True):
    """A shard's marks in order; kept in the metastore."""

    marks: tuple[RetentionMark, ...] = ()


def with_mark(
    marks: RetentionMarks, *, position: int, appended_bytes: int, limit: int
) -> RetentionMarks:
    """Adds a mark if the last one is far enough behind; drops the oldest ones."""
    last = marks.marks[-1].appended_bytes if marks.marks else -limit
    if appended_bytes - last < max(1, limit // MARKS_PER_LIMIT):
        return marks
    return RetentionMarks((*marks.marks, RetentionMark(str(position), appended_bytes))[-MARKS_MAX:])


def without_freed(marks: RetentionMarks, first: int) -> RetentionMarks:
    """Drops all marks below the first position but the last of them."""
    below = [each for each in marks.marks if int(each.position) <= first]
    if len(below) <= 1:
        return marks
    return RetentionMarks(marks.marks[len(below) - 1 :])


def position_of_bytes(marks: RetentionMarks, *, appended_bytes: int, limit: int) -> int:
    """Returns the position below which all may go, with the limit still kept; 0 for nothing."""
    fitting = [
        each.position for each in marks.marks if appended_bytes - each.appended_bytes >= limit
    ]
    return int(fitting[-1]) if fitting else 0


class Freeing(msgspec.Struct, frozen=True):
    """What may be freed: all before a position, `overridden` positions despite a reader."""

    before: int
    overridden: int


def freeable(
    *,
    first: int,
    too_old_before: int,
    too_much_before: int,
    required: int | None,
    ttl_spares_readers: bool,
) -> Freeing:
    """Age frees batches that readers need, unless `ttl_spares_readers`; size never does."""
    spared = too_much_before if required is None else min(too_much_before, required)
    old = too_old_before
    if required is not None and ttl_spares_readers:
        old = min(old, required)
    before = max(first, old, spared)
    overridden = 0 if required is None else max(0, before - max(first, required))
    return Freeing(before, overridden)


class Heat:
    """Measures how fast a shard grows, from one round to the next."""

    def __init__(self, *, appended_bytes: int, time_ms: int) -> None:
        self._appended_bytes = appended_bytes
        self._time_ms = time_ms
        self._hot_rounds = 0

    def observe(self, *, appended_bytes: int, time_ms: int, limit_per_s: int) -> int:
        """Returns for how many rounds in a row the growth was above the limit."""
        passed_ms = max(1, time_ms - self._time_ms)
        rate = (appended_bytes - self._appended_bytes) * 1000 / passed_ms
        self._appended_bytes, self._time_ms = appended_bytes, time_ms
        self._hot_rounds = self._hot_rounds + 1 if rate > limit_per_s else 0
        return self._hot_rounds


def hottest(rounds: Sequence[tuple[int, int]], *, needed: int) -> int | None:
    """Picks the shard to split from (shard, rounds): hot for long enough, and for longest."""
    hot = [(count, -shard) for shard, count in rounds if count >= needed]
    return -max(hot)[1] if hot else None


TURN_KEY: Final = "loghub/retention/turn"
MARKS: Final = "loghub/retention/marks/"
_DAY_MS: Final = 86_400_000
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(RetentionMarks).decode
_log = get_logger("retention")


class RequiredPosition(msgspec.Struct, frozen=True):
    """The next position of the slowest registered reader of a shard."""

    position: int
    group: str


class RegisteredReaders(Protocol):
    """Returns how far registered readers have read."""

    async def required_positions(
        self, project: str, logstore: str
    ) -> dict[int, RequiredPosition]: ...


class Retention:
    """Call `start` first, and `close` when done."""

    def __init__(
        self,
        environment: Environment,
        metadata: Metadata,
        streams: Streams,
        readers: RegisteredReaders,
        settling: LogstoreReconciler,
        settings: LogHubSettings,
        metrics: StreamMetrics,
    ) -> None:
        self._environment = environment
        self._metadata = metadata
        self._streams = streams
        self._readers = readers
        self._settling = settling
        self._settings = settings
        self._metrics = metrics
        self._lease = 0
        self._heat: dict[str, Heat] = {}
        self._oldest: dict[str, tuple[Position, int]] = {}
        """By log: its first position, and when the batch there was received."""
        self._strays: dict[str, int] = {}
        """Logs of no shard, and since when they are known."""
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._running = asyncio.create_task(self._run(), name="retention")

    async def close(self) -> None:
        if self._running is None:
            return
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        if self._lease:
            try:
                await self._metadata.store.revoke_lease(self._lease)
            except RaftwoodError as error:
                _log.debug("the turn ends by itself", reason=error.message)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._settings.retention_ms / 1000)
            try:
                if await self._has_turn():
                    await self.work()
            except RaftwoodError as error:
                _log.warning("nothing was freed", reason=error.message)

    async def _has_turn(self) -> bool:
        store = self._metadata.store
        if self._lease:
            try:
                await store.keep_alive(self._lease)
                return True
            except NotFound:
                self._lease = 0
        if await store.get(TURN_KEY) is not None:
            return False
        lease = await store.grant_lease(ttl_ms=3 * self._settings.retention_ms + 1000)
        if await store.compare_and_set(TURN_KEY, b"", version=0, lease=lease) is None:
            await store.revoke_lease(lease)
            return False
        self._lease = lease
        self._heat.clear()
        return True

    async def work(self) -> None:
        """Handles every logstore once."""
        logs: set[str] = set()
        for logstore in self._metadata.copies(LOGSTORES, Logstore):
            logs.update(each.log for each in logstore.shards)
            try:
                await self._look_at(logstore)
            except RaftwoodError as error:
                self._warn(logstore, error)
        for log in [each for each in self._heat if each not in logs]:
            del self._heat[log]
        for log in [each for each in self._oldest if each not in logs]:
            del self._oldest[log]
        await self._remove_strays()

    def _warn(self, logstore: Logstore, error: RaftwoodError, **more: int) -> None:
        _log.warning(
            "nothing was freed",
            project=logstore.project,
            logstore=logstore.name,
            reason=error.message,
            **more,
        )

    async def _remove_strays(self) -> None:
        """Removes logs of no shard after a while, if they are empty."""
        now = self._environment.clock.monotonic_ns() // 1_000_000
        found = await self._settling.stray_logs()
        self._strays = {log: self._strays.get(log, now) for log in found}
        for log, since_ms in list(self._strays.items()):
            if now - since_ms < self._settings.stray_log_ms:
                continue
            if await self._settling.remove_stray(log):
                _log.warning("log of no shard is removed", log=log)
            else:
                self._strays[log] = now  # so that it is logged again after the same time
                _log.error("log of no shard has records and is kept", log=log)

    async def _look_at(self, logstore: Logstore) -> None:
        if not is_settled(logstore):
            settled = await self._settling.settle(logstore.project, logstore.name)
            if settled is None:
                return
            logstore = settled
        required = await self._readers.required_positions(logstore.project, logstore.name)
        heat: list[tuple[int, int]] = []
        for shard in logstore.visible():
            try:
                bounds = await self._streams.bounds(shard)
                await self._free(logstore, shard, bounds, required.get(shard.id))
            except RaftwoodError as error:
                # One shard whose log is unreachable must not stop retention of the others.
                self._warn(logstore, error, shard=shard.id)
                continue
            if shard.status is ShardStatus.READWRITE:
                heat.append((shard.id, self._heat_of(shard, bounds)))
        if logstore.auto_split and len(writable_shards(logstore)) < logstore.shards_split_max:
            hot = hottest(heat, needed=self._settings.hot_rounds)
            if hot is not None:
                _log.info("hot shard is split", logstore=logstore.name, shard=hot)
                await self._streams.split(logstore.project, logstore.name, hot)
                self._metrics.automatic_splits += 1

    def _heat_of(self, shard: Shard, bounds: Bounds) -> int:
        now = self._environment.clock.monotonic_ns() // 1_000_000
        known = self._heat.get(shard.log)
        if known is None:
            self._heat[shard.log] = Heat(appended_bytes=bounds.appended_bytes, time_ms=now)
            return 0
        return known.observe(
            appended_bytes=bounds.appended_bytes,
            time_ms=now,
            limit_per_s=self._settings.hot_bytes_per_s,
        )

    async def _free(
        self, logstore: Logstore, shard: Shard, bounds: Bounds, required: RequiredPosition | None
    ) -> None:
        old = await self._too_old(logstore, shard, bounds)
        freeing = freeable(
            first=bounds.first,
            too_old_before=old,
            too_much_before=await self._too_much(logstore, shard, bounds),
            required=None if required is None else required.position,
            ttl_spares_readers=logstore.ttl_spares_readers,
        )
        is_dead = shard.ends_at is not None and old >= shard.ends_at == freeing.before
        if freeing.before > bounds.first:
            if freeing.overridden and required is not None:
                self._metrics.overridden_positions += freeing.overridden
                _log.warning(
                    "too old, freed before it was read",
                    logstore=logstore.name,
                    shard=shard.id,
                    reader=required.group,
                    positions=freeing.overridden,
                )
            if not is_dead:
                await self._streams.truncate(shard, Position(freeing.before))
            self._metrics.truncations += 1
        if is_dead:
            # It is empty, and no records will come.
            await self._streams.delete_shard(logstore.project, logstore.name, shard.id)

    async def _too_old(self, logstore: Logstore, shard: Shard, bounds: Bounds) -> int:
        if not logstore.ttl_days:
            return 0
        cutoff_ms = self._streams.now_ms() - logstore.ttl_days * _DAY_MS
        first, received_ms = self._oldest.get(shard.log, (Position(-1), 0))
        if first != bounds.first or received_ms < cutoff_ms:
            found = await self._streams.first_batch(shard, bounds)
            if found is None:
                # An empty shard is as old as its creation.
                is_past = shard.created_s * 1000 < cutoff_ms
                return bounds.next if is_past and shard.ends_at is not None else 0
            received_ms = decode_head(found.data).received_ms
            self._oldest[shard.log] = (bounds.first, received_ms)
        if received_ms >= cutoff_ms:
            return 0
        return await self._streams.position_of_time(shard, bounds, cutoff_ms)

    async def _too_much(self, logstore: Logstore, shard: Shard, bounds: Bounds) -> int:
        limit = logstore.retained_bytes_max
        if not limit:
            return 0
        key = f"{_marks_of(logstore.project, logstore.name)}{shard.id}"
        stored = await self._metadata.store.get(key)
        marks = RetentionMarks() if stored is None else _decode(stored.value)
        new = without_freed(
            with_mark(
                marks,
                position=bounds.next,
                appended_bytes=bounds.appended_bytes,
                limit=limit,
            ),
            bounds.first,
        )
        if new != marks:
            version = 0 if stored is None else stored.version
            await self._metadata.store.compare_and_set(key, _encode(new), version=version)
        return position_of_bytes(new, appended_bytes=bounds.appended_bytes, limit=limit)

    async def forget(self, project: str, logstore: str, current: Compare) -> None:
        """Removes the marks of a logstore that is removed, as long as `current` is its value."""
        async for entry in self._metadata.entries(_marks_of(project, logstore)):
            await self._metadata.store.transact([current], [RemoveKey(entry.key)])


def _marks_of(project: str, logstore: str) -> str:
    return f"{MARKS}{project}/{logstore}/"
