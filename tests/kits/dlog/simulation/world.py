"""One seeded run: writers that contend, crash and come back; then peace, and what the log holds."""

import asyncio
import random
from contextlib import suppress

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import Conflict, NotFound, OutOfRange, RaftwoodError, Unavailable
from raftwood.base.position import Position
from raftwood.base.seams import MetaStore
from raftwood.dlog.errors import NoSuchLedger
from raftwood.dlog.ledgers.client import LedgerClient
from raftwood.dlog.ledgers.context import LedgerSettings
from raftwood.dlog.ledgers.seams import LedgerStore
from raftwood.dlog.log.dlogs import Dlogs
from raftwood.dlog.log.log_reader import LogReader, StoredMessage
from raftwood.dlog.log.log_writer import LogWriter
from raftwood.dlog.log.meta import LogConfig, LogMeta
from raftwood.dlog.log.writer_driver import LOG_PROPERTY
from raftwood.dlog.settings import DlogSettings
from raftwood.metastore.file_store import FileMetaStore
from raftwood.testing import Simulation
from tests.kits.dlog.harms import Harm
from tests.kits.dlog.memory_bookies import MemoryCluster, Weather
from tests.kits.dlog.memory_ledgers import MemoryLedgerStore
from tests.kits.dlog.simulation.faults import Client, FaultyLedgers, FaultyMeta
from tests.kits.dlog.simulation.notebook import Name, Notebook, content
from tests.kits.models import Violation, run_scenario

LOG = "log"
VIRTUAL_S_MAX = 120
SETTINGS = DlogSettings(pause_ms=5, pause_max_ms=50, entry_bytes=60, open_timeout_ms=120_000)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How a run goes; the more of it, the rarer the interesting moments."""

    writers: int = 20
    sessions: int = 3
    """How often each writer opens the log."""
    messages: int = 25
    """What a session appends at the most."""
    entries_max: int = 3
    crashes: float = 0.3
    lost: float = 0.1
    delay_ms: float = 3
    grace_ms: int = 400
    """Twice what a change of the record takes at the most, and more."""
    writing_s_max: int = 30
    """Whoever writes for longer waits for ever."""
    administer_s: float = 0.1
    """The longest pause of whoever removes what nobody needs."""
    shrinks: bool = False
    bookies: int = 0
    """0: ledgers in memory; else so many simulated bookies under the quorum client."""


def choose_plan(seed: int) -> Plan:
    rng = random.Random(f"plan {seed}")
    return Plan(
        entries_max=rng.choice([1, 2, 3, 8]),
        crashes=rng.choice([0, 0.3, 0.6]),
        lost=rng.choice([0, 0.1, 0.4]),
        delay_ms=rng.choice([0.5, 3, 10]),
        messages=rng.choice([5, 25, 60]),
        shrinks=rng.random() < 0.3,
        bookies=rng.choice([0, 0, 4, 5]),
    )


class Report(msgspec.Struct, frozen=True):
    """What a run came to."""

    acked: int
    stored: int
    takeovers: int
    crashes: int
    ledgers: int
    steps: int


class World:
    def __init__(self, seed: int, plan: Plan, environment: Environment, meta: MetaStore) -> None:
        self.rng = random.Random(seed)
        self.plan = plan
        self.environment = environment
        self.meta = meta
        self.notebook = Notebook()
        self.crashes = 0
        self.steps = 0
        self.sessions = 0
        self.clients: list[Client] = []
        self.is_over = False
        self.wrong: list[Violation] = []
        """What the record says of ledgers that is not so."""
        self._memory = MemoryLedgerStore(seed=seed, delay_ms=plan.delay_ms)
        weather = Weather(delay_ms_max=plan.delay_ms, lost_answers=plan.lost / 2, timeout_ms=300)
        self.cluster = MemoryCluster(plan.bookies, weather=weather) if plan.bookies else None
        self.stores: list[LedgerStore] = []

    @property
    def has_bookies(self) -> bool:
        """That something may happen to."""
        return self.cluster is not None

    def ledgers(self) -> LedgerStore:
        """As one process has them."""
        if self.cluster is None:
            return self._memory
        seed = self.rng.random()
        store = LedgerClient(
            self.cluster.bookies(f"b{seed}"),
            self.cluster.metadata(f"m{seed}"),
            self.environment,
            LedgerSettings(
                add_timeout_ms=200,
                read_timeout_ms=200,
                change_timeout_ms=1_000,
                change_retry_ms=50,
                quarantine_ms=200,
            ),
        )
        self.stores.append(store)
        return store

    def dlogs(self) -> Dlogs:
        """Of somebody whom nothing happens to."""
        return Dlogs(self.environment, self.meta, self.ledgers(), SETTINGS)

    def client(self) -> Client:
        client = Client(self.rng, delay_ms=self.plan.delay_ms, lost=self.plan.lost)
        self.clients.append(client)
        return client

    async def write(self, producer: str) -> None:
        """A process that opens the log again and again, until all that it has is acked."""
        due: list[Name] = []
        number = 0
        for _ in range(self.plan.sessions):
            await asyncio.sleep(self.rng.random() * 0.3)
            for _ in range(self.rng.randint(1, self.plan.messages)):
                due.append((producer, number))
                number += 1
            await self._session(due)
            due = [name for name in due if name not in self.notebook.acked]

    async def _session(self, due: list[Name]) -> None:
        client = self.client()
        if self.rng.random() < self.plan.crashes:
            client.crash_at = self.rng.randrange(60)
        session, self.sessions = self.sessions, self.sessions + 1
        ledgers = FaultyLedgers(self.ledgers(), client)
        dlogs = Dlogs(self.environment, FaultyMeta(self.meta, client), ledgers, SETTINGS)
        work = asyncio.create_task(self._work(dlogs, session, list(due)))
        await asyncio.wait([work, client.crashed], return_when=asyncio.FIRST_COMPLETED)
        self.crashes += client.crashed.done()
        client.crash()  # Nobody hears of it any more in any case.
        work.cancel()
        with suppress(asyncio.CancelledError, RaftwoodError):
            await work
        self.steps += len(client.steps)
        for ledger in ledgers.created:
            self.notebook.ledgers[ledger] = session

    async def _work(self, dlogs: Dlogs, session: int, due: list[Name]) -> None:
        writer = await dlogs.open_writer(LOG)
        try:
            await self._append(writer, session, due)
            if self.rng.random() < 0.5:
                await writer.close()
        finally:
            await writer.abandon()

    async def _append(self, writer: LogWriter, session: int, due: list[Name]) -> None:
        waiting: list[asyncio.Task[None]] = []
        try:
            for name in due:
                self.notebook.send(name)
                future = writer.submit(content(name), producer=name[0], sequence=name[1])
                if not future.done():
                    self.notebook.take(session, name)
                waiting.append(asyncio.create_task(self._acked(session, name, future)))
                if self.rng.random() < 0.3:
                    await asyncio.sleep(self.rng.random() * self.plan.delay_ms / 500)
                if self.rng.random() < 0.05:
                    await writer.rotate()
            await asyncio.gather(*waiting)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _acked(self, session: int, name: Name, future: "asyncio.Future[Position]") -> None:
        self.notebook.ack(session, name, await future)

    async def follow(self) -> None:
        """A reader of all that comes, from where the log begins."""
        dlogs = self.dlogs()
        reader = await dlogs.open_reader(LOG)
        start, last = Position(0), None
        try:
            while not self.is_over:
                try:
                    found, start = await reader.read(start, bytes_max=400, wait_ms=200)
                except OutOfRange:
                    start = (await dlogs.metas.read(LOG)).meta.first
                    continue
                except Unavailable:
                    continue
                except NoSuchLedger as error:
                    raise Violation(Harm.LISTED_AND_DELETED, f"{error}") from error
                for message in found:
                    self.notebook.see(message, last)
                    last = message.position
        finally:
            await reader.close()

    async def administer(self) -> None:
        """Shrinks now and then, with crashes, and removes what nobody needs."""
        dlogs = self.dlogs()
        while not self.is_over:
            await asyncio.sleep(self.rng.random() * self.plan.administer_s)
            with suppress(Conflict, OutOfRange, Unavailable, NotFound):
                await dlogs.remove_orphans()
            if self.plan.shrinks and self.notebook.acked:
                await self._shrink(self.rng.choice(list(self.notebook.acked.values())))

    async def _shrink(self, before: Position) -> None:
        client = self.client()
        client.crash_at = self.rng.randrange(20)
        ledgers = FaultyLedgers(self.ledgers(), client)
        dlogs = Dlogs(self.environment, FaultyMeta(self.meta, client), ledgers, SETTINGS)
        work = asyncio.create_task(dlogs.shrink(LOG, before))
        await asyncio.wait([work, client.crashed], return_when=asyncio.FIRST_COMPLETED)
        client.crash()
        work.cancel()
        with suppress(asyncio.CancelledError, RaftwoodError):
            await work

    async def befall(self) -> None:
        """One bookie at a time is away for a while."""
        assert self.cluster is not None
        while not self.is_over:
            await asyncio.sleep(self.rng.random() * 0.2)
            bookie = self.cluster[self.rng.randrange(self.plan.bookies)]
            bookie.is_down = True
            await asyncio.sleep(self.rng.random() * 0.4)
            bookie.is_down = False

    async def settle(self) -> tuple[list[StoredMessage], LogMeta]:
        """In peace: end the log, and read all of it."""
        for client in self.clients:
            await asyncio.gather(*client.late)
        if self.cluster is not None:
            self.cluster.weather.lost_answers = 0
        dlogs = self.dlogs()
        try:
            end = await dlogs.terminate(LOG)
        except RaftwoodError as error:
            raise Violation(Harm.UNWRITABLE, f"it cannot be ended: {error}") from error
        info = await dlogs.info(LOG)
        await self._close_all(info.meta)
        reader = await dlogs.open_reader(LOG)
        try:
            stored = await _read_all(reader, info.first, end)
        finally:
            await reader.close()
        await dlogs.remove_orphans()
        listed = [each.ledger for each in info.meta.ledgers]
        left = await self._ledgers_of(info.meta.token, below=listed[-1])
        if not {*listed[:-1]} <= {*left}:
            raise Violation(Harm.LISTED_AND_DELETED, f"{left} are there, the list has {listed}")
        if left != listed[:-1]:
            raise Violation(Harm.LEDGERS_LEFT, f"{left} are there, the list has {listed}")
        return stored, info.meta

    async def _close_all(self, meta: LogMeta) -> None:
        """All are closed as the record has it; else that is kept for later: what became of messages
        says more.
        """
        store, password = self.ledgers(), meta.config.ledger.password
        for info in meta.ledgers:
            try:
                is_closed = (await store.info(info.ledger)).is_closed
                if not (is_closed and info.is_closed):
                    self.wrong.append(Violation(Harm.OPEN_LEDGERS, f"ledger {info.ledger}"))
                reader = await store.open(info.ledger, recover=True, password=password)
            except NoSuchLedger as error:
                raise Violation(Harm.LISTED_AND_DELETED, f"{error}") from error
            if info.is_closed and info.last_entry != reader.last_confirmed:
                detail = f"{info}, entries up to {reader.last_confirmed}"
                self.wrong.append(Violation(Harm.WRONG_RECORD, detail))
            await reader.close()

    async def _ledgers_of(self, token: bytes, *, below: int) -> list[int]:
        """Those that were made for a log and are still there."""
        ledgers = self.ledgers()
        found = [each async for each in ledgers.ledgers() if each < below]
        infos = [await ledgers.info(each) for each in found]
        return [
            ledger
            for ledger, info in zip(found, infos, strict=True)
            if info.properties.get(LOG_PROPERTY) == token
        ]

    async def close(self) -> None:
        for store in [*self.stores, self._memory]:
            await store.close()


async def _read_all(reader: LogReader, start: Position, end: Position) -> list[StoredMessage]:
    stored: list[StoredMessage] = []
    try:
        async with asyncio.timeout(60):
            while start < end:
                found, start = await reader.read(start, bytes_max=2_000, wait_ms=5_000)
                stored += found
    except TimeoutError:
        raise Violation(Harm.UNREADABLE, f"nothing comes from {start:#x} to {end:#x}") from None
    except NoSuchLedger as error:
        raise Violation(Harm.LISTED_AND_DELETED, f"{error}") from error
    except RaftwoodError as error:
        raise Violation(Harm.UNREADABLE, f"at {start:#x}: {error}") from error
    return stored


def run_dlog(seed: int, plan: Plan | None = None, *, twice: bool = False) -> Report:
    """All promises hold, or it raises; with `twice`, both runs are the same."""
    chosen = plan or choose_plan(seed)

    async def scenario(simulation: Simulation) -> Report:
        meta = await FileMetaStore.open(simulation.environment, "meta")
        world = World(seed, chosen, simulation.environment, meta)
        try:
            async with asyncio.timeout(VIRTUAL_S_MAX):
                report = await run_world(world)
        except TimeoutError:
            raise Violation(Harm.UNWRITABLE, "somebody waits for ever") from None
        except ExceptionGroup as group:
            raise _first_of(group) from group
        await world.close()
        await meta.close()
        await asyncio.sleep(0)
        return report

    return run_scenario("dlog", seed, scenario, twice=twice).result


def _first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Where several tasks failed, the first that found a promise broken, else the first."""
    found, _ = group.split(Violation)
    first: BaseException = found or group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first


async def run_world(world: World) -> Report:
    """Writers contend while others read, shrink and break; then all is looked at."""
    plan = world.plan
    await world.dlogs().create(LOG, LogConfig(entries_max=plan.entries_max, grace_ms=plan.grace_ms))
    async with asyncio.TaskGroup() as group:
        others = [group.create_task(world.follow()), group.create_task(world.administer())]
        if world.has_bookies:
            others.append(group.create_task(world.befall()))
        is_stuck = False
        try:
            async with asyncio.timeout(plan.writing_s_max), asyncio.TaskGroup() as writers:
                for number in range(plan.writers):
                    writers.create_task(world.write(f"p{number:02}"))
        except TimeoutError:
            is_stuck = True
        world.is_over = True
    stored, meta = await world.settle()
    world.notebook.check(stored, meta)
    if world.wrong:
        raise world.wrong[0]
    if is_stuck:
        raise Violation(Harm.UNWRITABLE, "a writer waits for ever")
    return Report(
        len(world.notebook.acked),
        len(stored),
        meta.takeovers,
        world.crashes,
        len(world.notebook.ledgers),
        world.steps,
    )
