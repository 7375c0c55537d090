"""One ledger's life: written, tailed, taken over by several at once, while bookies fail."""

import asyncio
import random
from dataclasses import dataclass, replace
from typing import Any

from raftwood.base.errors import DeadlineExceeded, RaftwoodError, Unavailable
from raftwood.dlog.ledgers.client import LedgerClient
from raftwood.dlog.ledgers.context import LedgerSettings
from raftwood.dlog.ledgers.metadata import LedgerConfig
from raftwood.dlog.ledgers.writer import QuorumWriter
from raftwood.testing import Simulation, SimulationReport
from tests.kits.dlog.harms import Harm
from tests.kits.dlog.ledgers.oracle import Oracle
from tests.kits.dlog.memory_bookies import MemoryBookie, MemoryBookies, MemoryCluster, Weather
from tests.kits.models import Violation, run_scenario

_SETTINGS = LedgerSettings(
    add_timeout_ms=400,
    read_timeout_ms=500,
    speculative_read_ms=10,
    change_timeout_ms=2_000,
    change_retry_ms=100,
    quarantine_ms=1_000,
    read_window=8,
    metadata_tries=8,
)
_PASSWORD = b"p"
_QUORUMS = [(3, 3, 2)] * 4 + [(3, 2, 2), (5, 3, 2), (4, 3, 3), (3, 3, 1), (4, 4, 2), (1, 1, 1)]


@dataclass(frozen=True)
class Profile:
    """The weather of one run."""

    quorums: tuple[int, int, int]
    spare_bookies: int
    appends: int
    burst: int
    recoverers: int
    recover_after_ms: int
    delay_ms_max: float
    stutters: float
    stutter_ms: float
    lost_answers: float
    faults: int
    is_corrupt: bool
    writer_pause_ms: float
    wipes: int = 0
    """So often a bookie loses all, and is repaired before another one does."""

    @classmethod
    def choose(cls, seed: int) -> "Profile":
        chance = random.Random(f"ledgers/{seed}")
        quorums = chance.choice(_QUORUMS)
        return cls(
            quorums=quorums,
            spare_bookies=chance.randint(0, 2),
            appends=chance.randint(5, 60),
            burst=chance.choice([1, 3, 10]),
            recoverers=chance.randint(1, 3),
            recover_after_ms=chance.choice([200, 1_000, 4_000]),
            delay_ms_max=chance.choice([0.5, 5, 30]),
            stutters=chance.choice([0, 0.02, 0.1]),
            stutter_ms=chance.choice([20, 100, 1000]),
            lost_answers=chance.choice([0, 0, 0.1]),
            faults=chance.choice([0, 6, 20]),
            is_corrupt=quorums[2] > 1 and chance.random() < 0.3,
            writer_pause_ms=chance.choice([1, 20, 100]),
        )

    @property
    def is_repairable(self) -> bool:
        """One copy may be lost, and no other is damaged."""
        return self.quorums[2] > 1 and not self.is_corrupt

    @property
    def is_faulty(self) -> bool:
        return bool(self.faults or self.lost_answers or self.stutters or self.is_corrupt)

    @property
    def config(self) -> LedgerConfig:
        ensemble, write_quorum, ack_quorum = self.quorums
        return LedgerConfig(
            ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum, password=_PASSWORD
        )


@dataclass(frozen=True)
class Report:
    """What a run came to: one in which nothing happens proves nothing."""

    acked: int
    seen: int
    recoveries: int
    segments: int
    repaired: int
    """Entries that were copied."""
    faults_s: float
    """Until all was healed."""


class World:
    """All that takes part in one run."""

    def __init__(self, simulation: Simulation, seed: int, profile: Profile) -> None:
        self.simulation = simulation
        self.seed = seed
        self.profile = profile
        self.random = random.Random(f"world/{seed}")
        self.oracle = Oracle()
        self.cluster = MemoryCluster(
            profile.config.ensemble + profile.spare_bookies,
            weather=Weather(
                delay_ms_max=profile.delay_ms_max,
                stutters=profile.stutters,
                stutter_ms=profile.stutter_ms,
                lost_answers=profile.lost_answers,
                timeout_ms=600,
            ),
        )
        self.ledger = -1
        self.is_over = False
        self.repaired = 0
        self._clients: list[LedgerClient] = []

    def client(self) -> tuple[LedgerClient, MemoryBookies]:
        name = f"{self.seed}/{len(self._clients)}"
        bookies = self.cluster.bookies(name)
        client = LedgerClient(
            bookies, self.cluster.metadata(name), self.simulation.environment, _SETTINGS
        )
        self._clients.append(client)
        return client, bookies

    async def sleep_ms(self, most: float) -> None:
        await asyncio.sleep(self.random.random() * most / 1000)

    async def main(self) -> Report:
        client, bookies = self.client()
        writer = None
        while writer is None:
            try:
                writer = await client.create(self.profile.config)
            except Unavailable:
                await self.sleep_ms(100)
        self.ledger = writer.ledger
        recoverers = [
            asyncio.create_task(self.recover(number)) for number in range(self.profile.recoverers)
        ]
        others = [
            asyncio.create_task(self.break_bookies(bookies)),
            asyncio.create_task(self.tail()),
            asyncio.create_task(self.look()),
        ]
        wiping = asyncio.create_task(self.wipe_and_repair())
        began = self.simulation.now
        try:
            await self.write(writer)
            await asyncio.gather(*recoverers, wiping)
            others[0].cancel()
            await asyncio.gather(others[0], return_exceptions=True)
            bookies.is_cut_off = False
            faults_s = self.simulation.now - began
            self.heal()
            await self.settle()
        finally:
            self.is_over = True
            for task in (*recoverers, *others, wiping):
                task.cancel()
            outcomes = await asyncio.gather(*recoverers, *others, wiping, return_exceptions=True)
            for each in self._clients:
                await each.close()
        for outcome in outcomes:
            if isinstance(outcome, AssertionError):
                raise outcome
        closed = self.oracle.closed
        assert closed is not None
        return Report(
            acked=self.oracle.acked + 1,
            seen=self.oracle.seen + 1,
            recoveries=self.oracle.recoveries,
            segments=len(closed.segments),
            repaired=self.repaired,
            faults_s=faults_s if self.profile.is_faulty else 0.0,
        )

    async def write(self, writer: QuorumWriter) -> None:
        under_way: list[asyncio.Task[bool]] = []
        for number in range(self.profile.appends):
            data = b"%d/%d" % (number, self.random.getrandbits(20))
            self.oracle.appended.append(data)
            appended = writer.append(data)
            under_way.append(asyncio.create_task(self.await_ack(appended, data)))
            if number % self.profile.burst == 0:
                await self.sleep_ms(self.profile.writer_pause_ms)
            if appended.done() and appended.exception() is not None:
                break
        await asyncio.gather(*under_way)
        fate = self.random.random()
        if fate < 0.3:
            await writer.abandon()
        elif fate < 0.6:
            try:
                await writer.close()
                self.oracle.ledger_closed(writer.metadata)
            except (RaftwoodError, DeadlineExceeded):
                pass

    async def await_ack(self, appended: "asyncio.Future[int]", data: bytes) -> bool:
        try:
            self.oracle.entry_acked(await appended, data)
        except RaftwoodError:
            return False
        return True

    async def recover(self, number: int) -> None:
        """After a while, again and again until it is done; some die on the way."""
        await self.sleep_ms(self.profile.recover_after_ms)
        client, _ = self.client()
        if number and self.random.random() < 0.3:
            patience_ms = self.random.choice([5, 50, 500])
            try:
                async with asyncio.timeout(patience_ms / 1000):
                    await client.open(self.ledger, recover=True, password=_PASSWORD)
            except (TimeoutError, RaftwoodError):
                return
        for _ in range(20):
            try:
                reader = await client.open(self.ledger, recover=True, password=_PASSWORD)
            except Unavailable:
                await self.sleep_ms(300)
            else:
                self.oracle.ledger_closed(reader.metadata)
                return

    async def tail(self) -> None:
        """Read what is confirmed as soon as it can be heard of."""
        client, _ = self.client()
        reader = None
        position = 0
        while not self.is_over:
            try:
                if reader is None:
                    reader = await client.open(self.ledger, recover=False, password=_PASSWORD)
                last, is_closed = await reader.wait(after=position - 1, timeout_ms=300)
                if last >= position:
                    self.oracle.entries_read(await reader.read(first=position, last=last))
                    position = last + 1
                elif is_closed:
                    return
            except Unavailable:
                await self.sleep_ms(50)
            except RaftwoodError:
                reader = None
                await self.sleep_ms(50)

    async def look(self) -> None:
        """Open the ledger again and again: what was acked before is always seen."""
        client, _ = self.client()
        while not self.is_over:
            acked = self.oracle.acked
            try:
                reader = await client.open(self.ledger, recover=False, password=_PASSWORD)
                last, _ = await reader.wait(after=acked, timeout_ms=0)
                self.oracle.end_seen(last, acked=acked)
            except Unavailable:
                pass
            await self.sleep_ms(20)

    async def break_bookies(self, of_writer: MemoryBookies) -> None:
        bookies = list(self.cluster.bookies_by_id.values())
        corrupt = self.random.choice(bookies)
        for _ in range(self.profile.faults):
            await self.sleep_ms(100)
            bookie = self.random.choice(bookies)
            fault = self.random.choice(
                ["is_down", "is_hanging", "is_read_only", "overloads", "cut"]
            )
            if fault == "overloads":
                bookie.overloads = 5
            elif fault == "cut":
                of_writer.is_cut_off = True
                await self.sleep_ms(200)
                of_writer.is_cut_off = False
            else:
                setattr(bookie, fault, True)
                await self.sleep_ms(self.random.choice([100, 1_000]))
                setattr(bookie, fault, False)
            self.damage(corrupt)
        while self.profile.is_corrupt:
            await self.sleep_ms(50)
            self.damage(corrupt)

    async def wipe_and_repair(self) -> None:
        """A bookie begins anew, or is away for good; a repair may die on the way, and is done again
        until it ends well.
        """
        bookies = list(self.cluster.bookies_by_id.values())
        for _ in range(self.profile.wipes if self.profile.is_repairable else 0):
            await self.sleep_ms(1_000)
            bookie = self.random.choice(bookies)
            bookie.begin_anew(self.cluster.next_ledger)
            self.oracle.is_repaired = True
            bookie.is_registered = self.random.random() < 0.5
            bookie.is_down = bookie.is_down or not bookie.is_registered
            await self.sleep_ms(500)
            await self.repair(bookie)
            bookie.is_registered = True
            bookie.is_down = False

    async def repair(self, bookie: MemoryBookie) -> None:
        client, _ = self.client()
        for number in range(200):
            try:
                # The first ones are killed.
                async with asyncio.timeout(self.random.choice([0.02, 0.1]) if number < 2 else 30):
                    results = await client.repair(bookie.info.id)
            except (TimeoutError, Unavailable):
                await self.sleep_ms(100)
                continue
            self.repaired += sum(each.copied for each in results)
            if not any(each.problem for each in results):
                bookie.limbo.doubts_below = 0
                return
            bookie.is_registered = True  # Where nobody else can have its place, it comes back.
            bookie.is_down = False
            await self.sleep_ms(100)
        raise Violation(Harm.NOT_REPAIRED, f"{results}")

    def damage(self, bookie: MemoryBookie) -> None:
        entries = bookie.entries_of(self.ledger)
        if self.profile.is_corrupt and entries:
            bookie.corrupt(self.ledger, self.random.choice(list(entries)))

    def heal(self) -> None:
        weather = self.cluster.weather
        weather.lost_answers = weather.stutters = 0
        for bookie in self.cluster.bookies_by_id.values():
            bookie.is_down = bookie.is_hanging = bookie.is_read_only = False
            bookie.overloads = 0

    async def settle(self) -> None:
        """Everything works again: the ledger is closed, and all of it can be read."""
        client, _ = self.client()
        reader = await client.open(self.ledger, recover=True, password=_PASSWORD)
        self.oracle.ledger_closed(reader.metadata)
        self.oracle.check_copies(self.cluster, self.ledger)
        if reader.last_confirmed >= 0:
            entries = await reader.read(first=0, last=reader.last_confirmed)
            assert [entry.id for entry in entries] == list(range(reader.last_confirmed + 1))
            self.oracle.entries_read(entries)


def run(seed: int, *, twice: bool = False, **weather: Any) -> SimulationReport[Report]:
    """One run of one seed, which chooses its profile, but for what `weather` names."""
    profile = replace(Profile.choose(seed), **weather)

    async def scenario(simulation: Simulation) -> Report:
        return await World(simulation, seed, profile).main()

    return run_scenario("ledgers", seed, scenario, twice=twice)
