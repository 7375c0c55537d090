"""`OwnedLogs`: all logs that this process uses, and the lease under which it owns some of them.

An `OwnedLog` carries out the rules of `ownership` for one log, by tasks that each end in an event.
One watch reports the owners; one lease covers all records of this process.

`OwnerLease` ends by this process's own clock, counted from before each renewal request: before the
metastore drops the records, and also in a process that was stopped for a while.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from raftwood.base.backoff import Backoff
from raftwood.base.environment import Environment
from raftwood.base.errors import NotFound, RaftwoodError
from raftwood.base.logs import get_logger
from raftwood.base.seams import MetaStore
from raftwood.dlog.log.log_writer import LogWriter
from raftwood.dlog.owner_records import OwnerRecords, encode_owner, look_up, owner_key
from raftwood.dlog.ownership import (
    Action,
    Claim,
    ClaimAnswered,
    ClaimUnknown,
    CloseWriter,
    Event,
    GiveBack,
    LeaseBegan,
    LeaseEnded,
    LogOwner,
    OpenWriter,
    OwnerGone,
    OwnerSeen,
    Ownership,
    OwnershipPhase,
    ReadOwner,
    RecordLeft,
    RemoveRecord,
    Rest,
    Rested,
    StopWriter,
    WriterClosed,
    WriterFailed,
    WriterOpened,
)
from raftwood.dlog.peers import DlogPeers, PeerNetwork
from raftwood.dlog.settings import SharedDlogSettings

_log = get_logger("dlog")


class OwnerLease:
    """Keeps a lease: use `start`, and `close` when done; calls `began` and `ended` for each."""

    def __init__(
        self,
        store: MetaStore,
        *,
        ttl_ms: int,
        began: Callable[[int], None],
        ended: Callable[[], None],
    ) -> None:
        self._store = store
        self._ttl_ms = ttl_ms
        self._began = began
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._lease = 0
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_valid(self) -> bool:
        return self._lease != 0 and self._loop.time() < self._until

    @property
    def lease(self) -> int:
        """The lease's id; 0 if there is none."""
        return self._lease

    def start(self) -> None:
        self._task = self._loop.create_task(self._keep(), name="lease of DLOG's owner")

    async def close(self) -> None:
        """Revokes the lease, and with it all keys under it, at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        lease = self._lease
        self._end()
        if lease:
            try:
                await self._store.revoke_lease(lease)
            except RaftwoodError as error:
                _log.info("the lease ends by itself", reason=error.message)

    async def _keep(self) -> None:
        pause_s = self._ttl_ms / 3000
        while True:
            began = self._loop.time()
            try:
                if self._lease:
                    await self._store.keep_alive(self._lease)
                    self._renewed(began)
                else:
                    lease = await self._store.grant_lease(ttl_ms=self._ttl_ms)
                    self._lease = lease
                    self._renewed(began)
                    self._began(lease)
            except NotFound:
                self._end()
                continue
            except RaftwoodError as error:
                _log.warning("the lease of DLOG's owner is not renewed", reason=error.message)
            await asyncio.sleep(pause_s)

    def _renewed(self, began: float) -> None:
        if not self._lease:
            return  # The lease ended before the answer came.
        self._until = began + self._ttl_ms / 1000
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._until, self._end)

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._lease:
            self._lease, self._until = 0, 0.0
            self._ended()


REST_MS: Final = 200
"""The pause after a failed claim; random, so that two who fence each other drift apart."""
_PAUSE: Final = Backoff(first_ms=50, longest_ms=200)


class OwnedLog:
    """This process's view of one log, as writer or as client of the owner."""

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
        """The writers by claim; more than one only for moments."""
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._waiters: list[asyncio.Future[None]] = []
        self.tails: list[asyncio.Future[None]] = []
        """Wakes readers that wait for appends."""
        self.error: RaftwoodError | None = None
        """Why the last writer could not be opened."""
        self.used = self._loop.time()

    @property
    def writer(self) -> LogWriter | None:
        """The open writer, while this process owns the log; else None."""
        rules = self.rules
        return self._writers.get(rules.claim) if rules.phase is OwnershipPhase.OWNING else None

    @property
    def elsewhere(self) -> LogOwner | None:
        return self.rules.elsewhere

    @property
    def is_idle(self) -> bool:
        """Whether the entry can be dropped."""
        return self.rules.phase is OwnershipPhase.AWAY and not self._tasks and not self._waiters

    def tell(self, event: Event) -> None:
        """Passes an event to the rules and carries out the actions."""
        before = self._state()
        for action in self.rules.step(event):
            self._do(action)
        if self._state() == before:
            return
        _wake(self._waiters)

        if self.rules.phase is not OwnershipPhase.OWNING:
            self.advanced()

    def _state(self) -> tuple[OwnershipPhase, int, LogOwner | None]:
        return self.rules.phase, self.rules.claim, self.rules.elsewhere

    async def changed(self, deadline: float) -> None:
        """Waits until the ownership changes, or the time is over."""
        await self._woken(self._waiters, deadline)

    async def next_tail(self, deadline: float) -> None:
        """Waits for an append here, the loss of the log, or the deadline."""
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
        """An append has an outcome; a reader may have begun to wait after the append was sent."""
        if self.tails:
            self.advanced()

    def advanced(self) -> None:
        """Wakes readers that wait for more."""
        _wake(self.tails)

    def look(self) -> None:
        """Reads the owner again: the known one turned out to be old."""
        self._start(self._look())

    def failed(self, writer: LogWriter) -> None:
        """Reports that a writer acks no more."""
        for claim, each in list(self._writers.items()):
            if each is writer:
                self.tell(WriterFailed(claim))

    async def close(self) -> None:
        """Stops at once; the lease's end removes the record."""
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
            case ReadOwner():
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

    async def _claim(self, me: LogOwner, version: int) -> None:
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
        pauses = _PAUSE.delays_s(self._environment.random)
        while True:
            try:
                seen = await look_up(self._store, self.name)
            except RaftwoodError as error:
                _log.warning("owner not known", log=self.name, reason=error.message)
                await asyncio.sleep(next(pauses))
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
        pauses = _PAUSE.delays_s(self._environment.random)
        while True:
            try:
                as_of = await self._store.compare_and_set(owner_key(self.name), None, version=claim)
            except RaftwoodError as error:
                if self.rules.claim != claim:
                    return  # The lease has ended, and removed the record.
                _log.warning("log not given back", log=self.name, reason=error.message)
                await asyncio.sleep(next(pauses))
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


CLOSE_S_MAX: Final = 5.0
"""The time to close logs in order; the next owner recovers the rest."""
_CLOSE_PAUSE_S: Final = 0.02


class OwnedLogs:
    """All logs that this process uses. Use `start`, and `close` when done."""

    def __init__(
        self,
        environment: Environment,
        store: MetaStore,
        open_writer: Callable[[str], Awaitable[LogWriter]],
        network: PeerNetwork,
        settings: SharedDlogSettings,
        *,
        name: str,
    ) -> None:
        self.name = name
        self.environment = environment
        self._store = store
        self._open_writer = open_writer
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self.peers = DlogPeers(environment, network, name, self._gone)
        self._records = OwnerRecords(store, self._heard)
        self._tenure = OwnerLease(
            store, ttl_ms=settings.lease_ms, began=self._began, ended=self._ended
        )
        self._seats: dict[str, OwnedLog] = {}
        self._address = ""
        self._me: LogOwner | None = None
        self._sweeping: asyncio.TimerHandle | None = None

    async def start(self, address: str) -> None:
        """Begins to own logs; other processes reach this one at `address`."""
        self._address = address
        await self._records.start()
        self._tenure.start()
        self._sweep()

    @property
    def is_in_office(self) -> bool:
        """Whether this process's lease still holds, by its own clock."""
        return self._tenure.is_valid

    def seat(self, log: str) -> OwnedLog:
        seat = self._seats.get(log)
        if seat is None:
            seat = self._seats[log] = OwnedLog(
                log, self.name, self.environment, self._store, self._open_writer
            )
            if self._me is not None:
                seat.tell(LeaseBegan(self._me))
            seat.tell(self._records.known(log))
        seat.used = self._loop.time()
        return seat

    def owned(self) -> list[OwnedLog]:
        """The logs whose writer is open here."""
        return [each for each in self._seats.values() if each.rules.phase is OwnershipPhase.OWNING]

    async def close(self) -> None:
        """Gives all logs back, then revokes the lease."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        deadline = self._loop.time() + CLOSE_S_MAX
        while any(each.rules.claim for each in self._seats.values()):
            for seat in list(self._seats.values()):
                seat.tell(GiveBack())
            if self._loop.time() > deadline:
                break
            await asyncio.sleep(_CLOSE_PAUSE_S)
        await self._records.close()
        await self._tenure.close()
        for seat in self._seats.values():
            await seat.close()
        await self.peers.close()

    # Callbacks

    def _began(self, lease: int) -> None:
        self._me = LogOwner(self.name, self._address, lease)
        for seat in list(self._seats.values()):
            seat.tell(LeaseBegan(self._me))

    def _ended(self) -> None:
        self._me = None
        for seat in list(self._seats.values()):
            seat.tell(LeaseEnded())

    def _heard(self, log: str, seen: OwnerSeen) -> None:
        seat = self._seats.get(log)
        if seat is not None:
            seat.tell(seen)

    def _gone(self, owner: LogOwner) -> None:
        for seat in list(self._seats.values()):
            seat.tell(OwnerGone(owner))

    def _sweep(self) -> None:
        idle_s = self._settings.idle_ms / 1000
        self._sweeping = self._loop.call_later(idle_s / 4, self._sweep)
        before = self._loop.time() - idle_s
        for log, seat in list(self._seats.items()):
            if seat.used > before:
                continue
            if seat.is_idle:
                del self._seats[log]
            else:
                seat.tell(GiveBack())
