"""Carries out the actions of a writer's rules, on the metastore and the store of ledgers."""

import asyncio
from collections.abc import Coroutine
from typing import Protocol

import msgspec

from raftwood.base.backoff import Backoff
from raftwood.base.environment import Environment
from raftwood.base.errors import (
    InternalError,
    InvalidInput,
    NotFound,
    RaftwoodError,
    StoreError,
)
from raftwood.base.logs import get_logger
from raftwood.base.seams import MetaStore
from raftwood.dlog.errors import Fenced
from raftwood.dlog.ledgers.seams import LedgerStore, LedgerWriter
from raftwood.dlog.log import writer_rules as on
from raftwood.dlog.log.ledger_source import LedgerSource, closed_info, rebuild_producers
from raftwood.dlog.log.meta import LedgerInfo, LogMeta, decode_meta, encode_meta, meta_key
from raftwood.dlog.log.producers import DlogProducers
from raftwood.dlog.log.writer_rules import Action, Event, WriterPhase, WriterRules
from raftwood.dlog.settings import DlogSettings

LOG_PROPERTY = "raftwood-dlog"
"""A ledger's property: the token of the log for which it was made."""
_CONTENDED_PAUSES = 4
_log = get_logger(__name__)


class LogContext(msgspec.Struct, frozen=True):
    """The stores and settings of a log's writer."""

    environment: Environment
    metastore: MetaStore
    ledgers: LedgerStore
    source: LedgerSource
    settings: DlogSettings

    def now_ms(self) -> int:
        return self.environment.clock.wall_ns() // 1_000_000


class WriterHost(Protocol):
    """The writer that owns the appends, as the driver calls it."""

    def write_to(self, ledger: LedgerWriter) -> None:
        """Writes to this ledger, once all earlier entries are acked."""
        ...

    def known_is(self, producers: DlogProducers, *, last_ms: int, appended_bytes: int) -> None:
        """Takes the producers and figures of the log that was taken over."""
        ...

    def settled(self, info: LedgerInfo) -> None:
        """Takes what a failed ledger holds; it will hold no more."""
        ...

    def closed(self, ledger: int) -> tuple[int, int]:
        """Readers go on behind a ledger now; returns the times of its first and last entry."""
        ...

    def verified(self) -> None:
        """Notes that the record names this writer."""
        ...

    def gave_up(self, error: RaftwoodError) -> None: ...
    def ended(self) -> None: ...


class TakeOverTimes(msgspec.Struct, frozen=True):
    """How long each phase of a take-over took; appends stand still for `interruption_ms`."""

    read_ms: float
    fence_ms: float
    create_ms: float
    claim_ms: float
    attempts: int

    @property
    def interruption_ms(self) -> float:
        return self.fence_ms + self.create_ms + self.claim_ms


class _Troubles:
    """Logs the first failure in a series of retries, and the sum at its end."""

    def __init__(self, log: str) -> None:
        self._log = log
        self._count = 0
        self._began = 0.0
        self._last = ""

    def add(self, event: str, error: RaftwoodError, **about: int) -> None:
        self._count += 1
        self._last = error.message
        if self._count == 1:
            self._began = asyncio.get_running_loop().time()
            _log.warning(event, log=self._log, **about, error=error.message)

    def end(self) -> None:
        if self._count > 1:
            seconds = round(asyncio.get_running_loop().time() - self._began, 1)
            _log.warning(
                "log_retries_ended",
                log=self._log,
                failures=self._count,
                seconds=seconds,
                last_error=self._last,
            )
        self._count = 0


class WriterDriver:
    """Drives one writer's rules; reports results to the host."""

    def __init__(self, name: str, around: LogContext, host: WriterHost) -> None:
        self.name = name
        self._around = around
        self._host = host
        environment, settings = around.environment, around.settings
        self.rules = WriterRules(
            environment.random.randbytes(16), preallocates=settings.preallocates
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._untidy: set[asyncio.Task[None]] = set()
        """Tasks that create a ledger, which may come too late to be used, or delete one."""
        self._writers: dict[int, LedgerWriter] = {}
        self._pauses = 0
        self._troubles = _Troubles(name)
        self._phase_ms: dict[WriterPhase, float] = {}
        self._phase_since = asyncio.get_running_loop().time()
        self.verified_ns = 0
        """When the last read of the record was sent that found this writer in it."""

    @property
    def take_over(self) -> TakeOverTimes:
        spent = self._phase_ms
        return TakeOverTimes(
            spent.get(WriterPhase.READING, 0.0),
            spent.get(WriterPhase.FENCING, 0.0),
            spent.get(WriterPhase.CREATING, 0.0),
            spent.get(WriterPhase.CLAIMING, 0.0),
            self.rules.attempts + 1,
        )

    def tell(self, event: Event) -> None:
        """Passes an event to the rules and carries out the actions."""
        phase, now = self.rules.phase, asyncio.get_running_loop().time()
        spent_ms = (now - self._phase_since) * 1000
        self._phase_ms[phase] = self._phase_ms.get(phase, 0.0) + spent_ms
        self._phase_since = now
        for action in self.rules.step(event):
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case on.ReadMeta():
                self._start(self._read_meta())
            case on.SetMeta():
                self._start(self._set_meta(action.meta, action.version))
            case on.RecoverLedger():
                self._start(self._recover(action.ledger))
            case on.RebuildProducers():
                self._start(self._rebuild(action))
            case on.CreateLedger():
                self._untidy.add(self._start(self._create()))
            case on.CloseLedger():
                self._start(self._close(action.ledger))
            case on.DeleteLedger():
                self._untidy.add(self._start(self._delete(action.ledger)))
            case on.WriteToLedger():
                self._pauses = 0
                self._troubles.end()
                self._host.write_to(self._writers[action.ledger])
            case on.PauseWriter():
                self._start(self._pause(action))
            case on.GiveUp():
                kind = NotFound if action.is_missing else Fenced
                self._host.gave_up(kind(f"log {self.name!r}: {action.reason}"))
            case on.EndWriter():
                self._host.ended()

    def _start(self, work: Coroutine[None, None, Event | None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._untidy.discard)
        # A task cancelled before it began never ran its coroutine, which would complain.
        task.add_done_callback(lambda _: work.close())
        return task

    async def _guarded(self, work: Coroutine[None, None, Event | None]) -> None:
        asked_ns = self._around.environment.clock.monotonic_ns()
        try:
            event = await work
            if event is not None:
                self.tell(event)
            if isinstance(event, on.MetaRead | on.MetaSet) and self._is_writer():
                self.verified_ns = asked_ns
                self._host.verified()
        except RaftwoodError as error:
            self._host.gave_up(error)
        except Exception as error:
            self._host.gave_up(InternalError(f"log {self.name!r}: {error!r}"))
            raise

    def _is_writer(self) -> bool:
        rules = self.rules
        is_in_office = rules.phase in (WriterPhase.CLAIMING, WriterPhase.WRITING)
        return is_in_office and rules.meta is not None and rules.meta.writer == rules.writer

    async def _read_meta(self) -> Event:
        while True:
            try:
                found = await self._around.metastore.get(meta_key(self.name))
            except RaftwoodError as error:
                await self._wait_after(error)
                continue
            if found is None:
                return on.MetaRead(None, 0)
            return on.MetaRead(decode_meta(found.value, name=self.name), found.version)

    async def _set_meta(self, meta: LogMeta, version: int) -> Event:
        try:
            found = await self._around.metastore.compare_and_set(
                meta_key(self.name), encode_meta(meta), version=version
            )
        except InvalidInput:
            raise
        except RaftwoodError as error:
            await self._wait_after(error)
            return on.MetaNotSet()
        return on.MetaNotSet() if found is None else on.MetaSet(found)

    async def _recover(self, ledger: int) -> Event:
        meta = self._meta()
        try:
            reader = await self._around.ledgers.open(
                ledger, recover=True, password=meta.config.ledger.password
            )
            try:
                place = meta.place_of(ledger)
                info = LedgerInfo(ledger, 0) if place is None else meta.ledgers[place]
                info = await closed_info(reader, info)
            finally:
                await reader.close()
        except StoreError:
            raise
        except RaftwoodError as error:
            self._troubles.add("ledger_not_recovered", error, ledger=ledger)
            return on.RecoveryFailed(ledger)
        writer = self._writers.pop(ledger, None)
        if writer is not None:
            await writer.abandon()
        self._host.settled(info)
        return on.LedgerRecovered(info)

    async def _rebuild(self, action: on.RebuildProducers) -> Event:
        while True:
            try:
                producers, last_ms, appended_bytes = await rebuild_producers(
                    self._around.source, self._meta(), action.ledgers
                )
            except StoreError:
                raise
            except RaftwoodError as error:
                await self._wait_after(error)
                continue
            if action.attempt == self.rules.attempts:
                self._host.known_is(producers, last_ms=last_ms, appended_bytes=appended_bytes)
            return on.ProducersRebuilt(action.attempt)

    async def _create(self) -> Event:
        meta = self._meta()
        try:
            writer = await self._around.ledgers.create(
                meta.config.ledger, properties={LOG_PROPERTY: meta.token}
            )
        except InvalidInput:
            raise
        except RaftwoodError as error:
            self._troubles.add("ledger_not_created", error)
            return on.CreationFailed()
        self._writers[writer.ledger] = writer
        if self.rules.phase is WriterPhase.WRITING:
            self._troubles.end()  # It was created ahead of need: no `WriteToLedger` follows soon.
        return on.LedgerCreated(writer.ledger, self._around.now_ms())

    async def _close(self, ledger: int) -> Event:
        writer = self._writers[ledger]
        try:
            await writer.close()
        except (Fenced, NotFound):
            return on.LedgerFenced(ledger)
        except RaftwoodError:
            return on.LedgerFailed(ledger)
        del self._writers[ledger]
        first_ms, last_ms = self._host.closed(ledger)
        meta = self._meta()
        place = meta.place_of(ledger)
        created_ms = 0 if place is None else meta.ledgers[place].created_ms
        return on.LedgerEnded(
            LedgerInfo(
                ledger,
                created_ms,
                is_closed=True,
                last_entry=writer.last_confirmed,
                bytes=writer.length_bytes,
                first_ms=first_ms,
                last_ms=last_ms,
            )
        )

    async def _delete(self, ledger: int) -> None:
        writer = self._writers.pop(ledger, None)
        if writer is not None:
            await writer.abandon()
        try:
            await self._around.ledgers.delete(ledger)
        except RaftwoodError as error:
            _log.warning("ledger_not_deleted", log=self.name, ledger=ledger, error=error.message)

    async def _pause(self, action: on.PauseWriter) -> Event:
        if action.is_contended:
            # The writer that lost most often waits least: growing pauses favour newcomers.
            longest_ms = _CONTENDED_PAUSES * self._around.settings.pause_ms / self.rules.attempts
            await asyncio.sleep(self._around.environment.random.random() * longest_ms / 1000)
        else:
            await self._wait()
        return on.PauseEnded()

    async def _wait_after(self, error: RaftwoodError) -> None:
        self._troubles.add("log_meta_unavailable", error)
        await self._wait()

    async def _wait(self) -> None:
        settings, random_source = self._around.settings, self._around.environment.random
        backoff = Backoff(first_ms=settings.pause_ms, longest_ms=settings.pause_max_ms)
        await asyncio.sleep(backoff.delay_s(self._pauses, random_source))
        self._pauses += 1

    def _meta(self) -> LogMeta:
        assert self.rules.meta is not None
        return self.rules.meta

    async def cleaned_up(self) -> None:
        """Waits until unneeded ledgers are deleted, also one being created; each call of the store
        is bounded.
        """
        while self._untidy:
            await asyncio.wait(self._untidy)

    async def close(self) -> None:
        """Stops at once, as a crash would."""
        self._troubles.end()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in self._writers.values():
            await writer.abandon()
        self._writers.clear()
