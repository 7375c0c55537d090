"""`Seat`: one log's ownership in this process, carried out.

The rules say what to do (`ownership`); here it is done, by tasks that each end in an event. Whoever
waits for a change of the seat is woken where an event has changed it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from raftwood.base.environment import Environment
from raftwood.base.errors import RaftwoodError
from raftwood.base.logs import get_logger
from raftwood.base.seams import MetaStore
from raftwood.dlog.log.log_writer import LogWriter
from raftwood.dlog.shared.owner_records import encode_owner, look_up, owner_key
from raftwood.dlog.shared.ownership import (
    Action,
    Claim,
    ClaimAnswered,
    ClaimUnknown,
    CloseWriter,
    Event,
    Look,
    OpenWriter,
    Owner,
    Ownership,
    Phase,
    RecordLeft,
    RemoveRecord,
    Rest,
    Rested,
    StopWriter,
    WriterClosed,
    WriterFailed,
    WriterOpened,
)

REST_MS: Final = 200
"""Before the next claim after a failure; at random, so that two who fence each other part."""
_PAUSE_S: Final = 0.1
_log = get_logger("dlog")


class Seat:
    """One for each log that somebody here uses."""

    def __init__(
        self,
        name: str,
        me: str,
        environment: Environment,
        store: MetaStore,
        open_writer: Callable[[str], Awaitable[LogWriter]],
    ) -> None:
        self.name = name
        self.rules = Ownership(me)
        self._environment = environment
        self._store = store
        self._open_writer = open_writer
        self._loop = asyncio.get_running_loop()
        self._writers: dict[int, LogWriter] = {}
        """By claim; one at the most but for moments."""
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._waiters: list[asyncio.Future[None]] = []
        self.tails: list[asyncio.Future[None]] = []
        """Of those who wait for more to be appended."""
        self.error: RaftwoodError | None = None
        """Why the last writer could not be opened."""
        self.used = self._loop.time()

    @property
    def writer(self) -> LogWriter | None:
        """While the log is ours."""
        rules = self.rules
        return self._writers.get(rules.claim) if rules.phase is Phase.OWNING else None

    @property
    def elsewhere(self) -> Owner | None:
        return self.rules.elsewhere

    @property
    def is_idle(self) -> bool:
        """Whether it can be forgotten."""
        return self.rules.phase is Phase.AWAY and not self._tasks and not self._waiters

    def tell(self, event: Event) -> None:
        """Something happened: do what follows from it."""
        before = self._state()
        for action in self.rules.step(event):
            self._do(action)
        if self._state() == before:
            return
        _wake(self._waiters)

        if self.rules.phase is not Phase.OWNING:
            self.advanced()

    def _state(self) -> tuple[Phase, int, Owner | None]:
        return self.rules.phase, self.rules.claim, self.rules.elsewhere

    async def changed(self, deadline: float) -> None:
        """Until something happens to the seat, or the time is over."""
        await self._woken(self._waiters, deadline)

    async def next_tail(self, deadline: float) -> None:
        """Until something was appended here, the log is not ours any more, or the time is over."""
        await self._woken(self.tails, deadline)

    async def _woken(self, waiters: list[asyncio.Future[None]], deadline: float) -> None:
        waiter = self._loop.create_future()
        waiters.append(waiter)
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except TimeoutError:
            pass
        finally:
            if waiter in waiters:
                waiters.remove(waiter)

    def acked(self, _: object) -> None:
        """An append has an outcome; whoever waits may have begun to after it was sent."""
        if self.tails:
            self.advanced()

    def advanced(self) -> None:
        """Whoever waits for more looks again."""
        _wake(self.tails)

    def look(self) -> None:
        """What is known turned out to be old."""
        self._start(self._look())

    def failed(self, writer: LogWriter) -> None:
        """The writer acks no more."""
        for claim, each in list(self._writers.items()):
            if each is writer:
                self.tell(WriterFailed(claim))

    async def close(self) -> None:
        """Stop at once; the record goes with the lease."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        writers, self._writers = self._writers, {}
        for writer in writers.values():
            await writer.abandon()

    # Actions

    def _do(self, action: Action) -> None:
        match action:
            case Claim(me, version):
                self._start(self._claim(me, version))
            case Look():
                self.look()
            case OpenWriter(claim):
                self._start(self._open(claim))
            case StopWriter(claim):
                writer = self._writers.pop(claim, None)
                if writer is not None:
                    self._start(writer.abandon())
            case CloseWriter(claim):
                self._start(self._close(claim))
            case RemoveRecord(claim):
                self._start(self._remove(claim))
            case Rest():
                delay_ms = self._environment.random.uniform(REST_MS / 2, REST_MS)
                self._start(self._rest(delay_ms / 1000))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def _claim(self, me: Owner, version: int) -> None:
        try:
            found = await self._store.compare_and_set(
                owner_key(self.name), encode_owner(me), version=version, lease=me.lease
            )
        except RaftwoodError as error:
            _log.warning("log not claimed", log=self.name, reason=error.message)
            self.tell(ClaimUnknown())
        else:
            self.tell(ClaimAnswered(found))

    async def _look(self) -> None:
        while True:
            try:
                seen = await look_up(self._store, self.name)
            except RaftwoodError as error:
                _log.warning("owner not known", log=self.name, reason=error.message)
                await asyncio.sleep(_PAUSE_S)
            else:
                self.tell(seen)
                return

    async def _open(self, claim: int) -> None:
        began = self._loop.time()
        try:
            writer = await self._open_writer(self.name)
        except RaftwoodError as error:
            self.error = error
            _log.warning("log not taken over", log=self.name, reason=error.message)
            self.tell(WriterFailed(claim))
            return
        self.error = None
        self._writers[claim] = writer
        took_ms = round((self._loop.time() - began) * 1000, 1)
        _log.info("log taken over", log=self.name, claim=claim, took_ms=took_ms)
        self.tell(WriterOpened(claim))

    async def _close(self, claim: int) -> None:
        writer = self._writers.get(claim)
        if writer is not None:
            try:
                await writer.close()
            except RaftwoodError as error:
                _log.info("log not closed", log=self.name, reason=error.message)
            self._writers.pop(claim, None)
        self.tell(WriterClosed(claim))

    async def _remove(self, claim: int) -> None:
        while True:
            try:
                as_of = await self._store.compare_and_set(owner_key(self.name), None, version=claim)
            except RaftwoodError as error:
                if self.rules.claim != claim:
                    return  # the lease has ended, and the record with it
                _log.warning("log not given back", log=self.name, reason=error.message)
                await asyncio.sleep(_PAUSE_S)
            else:
                self.tell(RecordLeft(claim, as_of))
                return

    async def _rest(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        self.tell(Rested())


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
    waiters.clear()
