"""`Dlogs`: all logs of a metastore and a store of ledgers; creates, opens, shrinks, ends them."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from raftwood.base.backoff import Backoff
from raftwood.base.environment import Environment
from raftwood.base.errors import (
    AlreadyExists,
    Conflict,
    InvalidConfiguration,
    NotFound,
    OutOfRange,
    RaftwoodError,
)
from raftwood.base.position import Position, position_of_entry
from raftwood.base.seams import MetaStore
from raftwood.dlog.errors import NoSuchLedger
from raftwood.dlog.ledgers.seams import LedgerStore
from raftwood.dlog.log.cursors import LogCursors
from raftwood.dlog.log.ledger_source import LedgerSource, StoredLedgers
from raftwood.dlog.log.log_reader import EntryCache, LogReader
from raftwood.dlog.log.log_writer import LogWriter
from raftwood.dlog.log.meta import (
    KEYS,
    LedgerInfo,
    LogConfig,
    LogMeta,
    MetaCache,
    checked_properties,
    decode_meta,
    encode_meta,
    meta_key,
)
from raftwood.dlog.log.offload import OffloadedLedgers, OffloadStore, copy_ledger, object_name
from raftwood.dlog.log.retention import SPARED, offloaded, orphans, retained_from, shrunk
from raftwood.dlog.log.writer_driver import LOG_PROPERTY, LogContext
from raftwood.dlog.settings import DlogSettings

_ATTEMPTS: Final = 32
_PAUSE: Final = Backoff(first_ms=10, longest_ms=320, jitter=1)
_PAGE: Final = 1_000


class DlogInfo(msgspec.Struct, frozen=True):
    """A log as it is now: first ≤ any readable position < next."""

    name: str
    meta: LogMeta
    version: int
    first: Position
    next: Position


class Dlogs:
    """Manages logs over a shared metastore and shared ledgers, which their owner closes.

    The caller closes the writers and readers that it opens.
    """

    def __init__(
        self,
        environment: Environment,
        metastore: MetaStore,
        ledgers: LedgerStore,
        settings: DlogSettings | None = None,
        *,
        offload: OffloadStore | None = None,
    ) -> None:
        self._environment = environment
        self.metastore = metastore
        self._ledgers = ledgers
        self._settings = settings or DlogSettings()
        self._offload = offload
        self._source: LedgerSource = StoredLedgers(ledgers)
        if offload is not None:
            self._source = OffloadedLedgers(self._source, offload)
        self.metas = MetaCache(metastore)
        self._cache = EntryCache(self._settings.cache_bytes)
        self._around = LogContext(environment, metastore, ledgers, self._source, self._settings)

    async def create(self, name: str, config: LogConfig | None = None) -> None:
        """Creates an empty log; `AlreadyExists` if there is one."""
        meta = LogMeta(token=self._environment.random.randbytes(16), config=config or LogConfig())
        key = meta_key(name)
        try:
            version = await self.metastore.compare_and_set(key, encode_meta(meta), version=0)
        except RaftwoodError:
            # The answer may be lost although the log exists: its token tells whose it is.
            found = await self.metastore.get(key)
            if found is None or decode_meta(found.value, name=name).token != meta.token:
                raise
            version = found.version
        if version is None:
            raise AlreadyExists(f"there is a log {name!r} already")
        self.metas.note(name, meta, version)

    async def names(self, prefix: str = "") -> list[str]:
        """Returns the names of logs that begin with `prefix`, in order."""
        found: list[str] = []
        start: str | None = ""
        while start is not None:
            page = await self.metastore.range(prefix=KEYS + prefix, start=start, limit=_PAGE)
            found += (each.key.removeprefix(KEYS) for each in page.entries)
            start = page.next_start
        return found

    async def info(self, name: str) -> DlogInfo:
        known = await self.metas.read(name)
        reader = await self.open_reader(name)
        try:
            end = await reader.end()
        finally:
            await reader.close()
        first = known.meta.first
        return DlogInfo(name, known.meta, known.version, first, max(first, end))

    async def open_writer(self, name: str) -> LogWriter:
        """Takes the log over: fences its present writer.

        On a terminated log the writer answers known sequences, and refuses all else. `NotFound`;
        `CannotRecover` if too few bookies answer in time.
        """
        writer = LogWriter(name, self._around)
        await writer.open()
        self.metas.forget(name)
        return writer

    async def open_reader(self, name: str) -> LogReader:
        """Opens a reader; `NotFound` if there is no such log."""
        await self.metas.get(name)
        return LogReader(
            name,
            metas=self.metas,
            source=self._source,
            cache=self._cache,
            settings=self._settings,
        )

    async def terminate(self, name: str) -> Position:
        """Ends the log for ever, fencing any writer; returns its end. May be repeated."""
        writer = await self.open_writer(name)
        try:
            return await writer.terminate()
        finally:
            await writer.close()
            self.metas.forget(name)

    async def shrink(self, name: str, before: Position, *, end: Position | None = None) -> Position:
        """Frees what is below a position; returns the first readable position. The log's writer
        passes the `end`, which others look up.
        """
        last_ledger = (await self.metas.read(name)).meta.last_ledger
        # A position below the last ledger needs no look at how far that ledger goes.
        if before > position_of_entry(ledger=max(last_ledger, 0), entry=0) and before > (
            end or (await self.info(name)).next
        ):
            raise OutOfRange(f"log {name!r}: position {before} is behind its end")
        return await self._shrink(name, lambda _: before)

    async def retain(self, name: str) -> Position:
        """Frees what the log's retention allows, except what retaining cursors still need."""
        cursors = await self.cursors(name).all()
        needed = [cursor.position for cursor in cursors if cursor.retains]
        now_ms = self._around.now_ms()
        return await self._shrink(
            name, lambda meta: retained_from(meta, now_ms=now_ms, needed=needed)
        )

    async def _shrink(self, name: str, before: Callable[[LogMeta], Position]) -> Position:
        freed: Sequence[LedgerInfo] = ()

        def change(meta: LogMeta) -> LogMeta:
            nonlocal freed
            meta, freed = shrunk(meta, before(meta), now_ms=self._around.now_ms())
            if self._offload is None and any(each.is_offloaded for each in freed):
                raise _where_is_the_offload(name)
            return meta

        meta = await self.change(name, change)
        # Deleted once no record names them; a failure here leaves an orphan, found later.
        for info in freed:
            await self._delete(meta, info)
        return meta.first

    async def _delete(self, meta: LogMeta, info: LedgerInfo) -> None:
        await self._ledgers.delete(info.ledger)
        if info.is_offloaded and self._offload is not None:
            await self._offload.delete(object_name(meta, info.ledger))

    @property
    def can_offload(self) -> bool:
        """Whether there is a store to offload ledgers to."""
        return self._offload is not None

    async def offload(self, name: str) -> list[int]:
        """Copies closed ledgers, all but the last two, to the offload store and deletes them;
        returns the ledgers offloaded now.
        """
        if self._offload is None:
            raise InvalidConfiguration(
                f"log {name!r}: there is no store to offload ledgers to: set dlog.offload"
            )
        done: list[int] = []
        meta = (await self.metas.read(name)).meta
        for info in meta.ledgers[:-SPARED]:
            may_go = info.may_go(now_ms=self._around.now_ms(), grace_ms=meta.config.grace_ms)
            if info.is_offloaded or not may_go:
                continue
            reader = await self._source.open(meta, info)
            try:
                await copy_ledger(
                    reader,
                    self._offload,
                    object_name(meta, info.ledger),
                    attempt=self._environment.random.randbytes(8).hex(),
                )
            finally:
                await reader.close()
            await self.change(name, partial(offloaded, ledger=info.ledger))
            await self._ledgers.delete(info.ledger)
            done.append(info.ledger)
        return done

    async def set_properties(self, name: str, properties: dict[str, str | None]) -> dict[str, str]:
        """Sets properties, and removes those that are None; returns all properties."""

        def change(meta: LogMeta) -> LogMeta:
            merged = {**meta.properties, **properties}
            kept = {key: value for key, value in merged.items() if value is not None}
            return replace(meta, properties=checked_properties(kept))

        return (await self.change(name, change)).properties

    async def set_config(self, name: str, config: LogConfig) -> None:
        """Sets the configuration of later ledgers, for an open writer from its next rotation."""
        await self.change(name, lambda meta: replace(meta, config=config))

    def cursors(self, name: str) -> LogCursors:
        return LogCursors(self.metastore, name)

    async def change(self, name: str, change: Callable[[LogMeta], LogMeta]) -> LogMeta:
        """Changes the record by compare-and-set; an open writer stays, and adopts the change."""
        for attempt in range(_ATTEMPTS):
            known = await self.metas.read(name)
            meta = change(known.meta)
            if meta == known.meta:
                return meta
            version = await self.metastore.compare_and_set(
                meta_key(name), encode_meta(meta), version=known.version
            )
            if version is not None:
                self.metas.note(name, meta, version)
                return meta
            await asyncio.sleep(_PAUSE.delay_s(attempt, self._environment.random))
        raise Conflict(f"log {name!r} was changed by others {_ATTEMPTS} times: try again")

    async def remove(self, name: str) -> None:
        """Removes the log and its messages, and fences its writer; does nothing if it is gone."""
        for _ in range(_ATTEMPTS):
            try:
                known = await self.metas.read(name)
            except NotFound:
                return
            if self._offload is None and any(each.is_offloaded for each in known.meta.ledgers):
                raise _where_is_the_offload(name)
            for info in known.meta.ledgers[-2:]:
                await self._fence(known.meta, info)
            done = await self.metastore.compare_and_set(meta_key(name), None, version=known.version)
            if done is not None:
                break
        else:
            raise Conflict(f"log {name!r} was changed by others {_ATTEMPTS} times: try again")
        self.metas.forget(name)
        for cursor in await self.cursors(name).all():
            await self.cursors(name).remove(cursor.name)
        for info in known.meta.ledgers:
            await self._delete(known.meta, info)

    async def _fence(self, meta: LogMeta, info: LedgerInfo) -> None:
        try:
            reader = await self._ledgers.open(
                info.ledger, recover=True, password=meta.config.ledger.password
            )
        except NoSuchLedger:
            return
        await reader.close()

    async def remove_orphans(self, *, of_unknown_logs: bool = False) -> list[int]:
        """Deletes ledgers that were made for logs, are in no list, and can never be.

        Unknown logs may be removed ones, or those of another metastore over the same ledgers: their
        ledgers are deleted only if asked for.
        """
        made: dict[bytes, list[int]] = {}
        async for ledger in self._ledgers.ledgers():
            try:
                token = (await self._ledgers.info(ledger)).properties.get(LOG_PROPERTY)
            except NoSuchLedger:
                continue
            if token is not None:
                made.setdefault(token, []).append(ledger)
        # The records are read after the ledgers: a ledger that is listed meanwhile is seen there.
        metas: dict[bytes, LogMeta] = {}
        for name in await self.names():
            try:
                meta = (await self.metas.read(name)).meta
            except NotFound:
                continue
            metas[meta.token] = meta
        removed: list[int] = []
        for token, ledgers in made.items():
            if token in metas or of_unknown_logs:
                removed += orphans(metas.get(token), ledgers)
        for ledger in removed:
            await self._ledgers.delete(ledger)
        return removed


def _where_is_the_offload(name: str) -> InvalidConfiguration:
    return InvalidConfiguration(
        f"log {name!r}: ledgers to be freed were offloaded: set dlog.offload as it was then"
    )
