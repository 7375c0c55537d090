"""A backlog under a random load, with a server that comes and goes and a disk that fills up.

After each step nothing is uncounted, memory and spool are within their bounds, and at the end the
storage has all lines in order but for exactly those that were dropped.
"""

import asyncio
import random
from collections.abc import Callable

from raftwood.base.backoff import Backoff
from raftwood.base.compression import Codec
from raftwood.base.errors import RaftwoodError, StoreDamaged
from raftwood.clogs.client.backlog import ENTRY_OVERHEAD_BYTES, Backlog
from raftwood.clogs.client.batch_builder import BatchEncoding, LineDelivery
from raftwood.clogs.client.settings import ClogsClientSettings, WhenFull
from raftwood.clogs.client.shipping_rules import (
    LoadBatch,
    LocateFile,
    ShipBatch,
    ShippingLimits,
    ShippingRules,
)
from raftwood.clogs.client.spool import Spool
from raftwood.clogs.client.status import Counters
from raftwood.clogs.frames import ClogsMessage, MessageType
from raftwood.testing import ImmediateFiles
from tests.kits.clogs.memory_sink import MemoryStorage
from tests.kits.clogs.spool import LARGER, open_spool

NAMES = [f"{number}.log" for number in range(5)]
LINE_BYTES_MAX = 1500
LINES_MAX = 12


class BacklogRun:
    """`run` it, once."""

    def __init__(
        self,
        settings: ClogsClientSettings,
        seed: int,
        *,
        kind: type[Backlog] = Backlog,
        files: ImmediateFiles | None = None,
    ) -> None:
        self.settings = settings
        self.counters = Counters()
        self.storage = MemoryStorage()
        self.files = files or ImmediateFiles()
        self.spool: Spool | None = None
        self._kind = kind
        self._random = random.Random(seed)
        self._now = 0.0
        self._is_up = True
        self.stored_when_down = 0.1
        """How often a server stores something before it goes."""
        self._given: dict[str, list[bytes]] = {name: [] for name in NAMES}
        self._deliveries: list[tuple[str, list[bytes], LineDelivery]] = []

    async def open(self) -> None:
        limits = ShippingLimits(in_flight_max=3, retry=Backoff(first_ms=100, longest_ms=500))
        self.rules = ShippingRules(limits, lambda _: "server")
        encoding = BatchEncoding(life=self._random.randbytes(16), codec=Codec.NONE, source="host")
        if self.settings.spool_folder:
            self.spool = await open_spool(
                self.files, bytes_max=self.settings.spool_bytes_max, log_settings=LARGER
            )
        self.backlog = self._kind(
            self.settings, encoding, self.rules, self.counters, lambda _: "server"
        )
        if self.spool is not None:
            self.backlog.use(self.spool)
            self.spool.on_failed = self.backlog.spool_failed
            for entry in self.spool.recover():
                self.backlog.resume(entry)
        self.rules.servers_changed(["server"])

    async def run(self, turns: int, fault: Callable[[int], None] | None = None) -> None:
        await self.open()
        for turn in range(turns):
            if self._random.random() < 0.03:
                self._is_up = not self._is_up
            if fault is not None:
                fault(turn)
            for _ in range(self._random.randrange(4)):
                self._take()
            await self._pump()
            self.check()
        await self.settle_all()
        self.check_lines()

    async def settle_all(self) -> None:
        """The server is there for long enough."""
        self._is_up = True
        self.backlog.form_all()
        for turn in range(100_000):
            await self._pump()
            if turn % 20 == 0:
                self.check()
                if not self.rules.entries():
                    break
        if self.spool is not None:
            await self.spool.close()

    def _take(self) -> None:
        if self.settings.when_full is WhenFull.BLOCK and not self.backlog.has_room():
            return
        name = self._random.choice(NAMES)
        given = self._given[name]
        lines = [
            b"%d %b" % (len(given) + number, self._random.randbytes(400).hex().encode())
            for number in range(self._random.randrange(1, LINES_MAX))
        ]
        given += lines
        delivery = LineDelivery(len(lines))
        self._deliveries.append((name, lines, delivery))
        self.backlog.take(name, lines, time_ns=10**18, now=self._now, delivery=delivery)

    async def _pump(self) -> None:
        self._now += 0.02
        await asyncio.sleep(0.02)  # the disk goes on
        self.backlog.form_due(self._now)
        for action in self.rules.actions(self._now):
            if isinstance(action, LocateFile):
                self.rules.located(action.lane, action.attempt, f"{action.lane.name}#0")
            elif isinstance(action, LoadBatch):
                await self._load(action)
            else:
                self._send(action)

    async def _load(self, action: LoadBatch) -> None:
        entry = action.entry
        assert entry.spool is not None
        try:
            batch = await entry.spool.load(entry)
        except StoreDamaged as error:
            if self.rules.refused(action.lane, entry, action.attempt):
                self.backlog.lost(entry, error)
                self.backlog.form_next(entry.name)
            return
        if entry.batch is None:
            self.backlog.loaded(entry, batch)
        self.rules.loaded(action.lane, action.attempt)

    def _send(self, action: ShipBatch) -> None:
        is_stored = self._is_up or self._random.random() < self.stored_when_down
        if is_stored:
            message = action.batch.message(system=0, place=action.place)
            assert message.type is MessageType.DATA
            self._store(message)
        if is_stored and self._random.random() < 0.9:
            for entry in self.rules.acked(action.lane, action.entry, f"{action.lane.name}#0"):
                self.counters.acked += entry.count
                entry.done(None)
                self.backlog.form_next(entry.name)
        else:
            self.rules.failed(action.lane, action.entry, action.attempt, now=self._now)
            self.backlog.failed(action.entry)

    def _store(self, message: ClogsMessage) -> None:
        self.storage.of(message.name)[0].append(message)

    # What holds at all times

    def held_lines(self) -> int:
        waiting = sum(len(each.lines) for each in self.backlog._pending.values())
        return waiting + sum(entry.count for entry in self.rules.entries())

    def check(self) -> None:
        counters, backlog = self.counters, self.backlog
        held = self.held_lines()
        over = counters.acked + counters.dropped + counters.refused
        assert counters.taken + counters.resumed == over + held, "a line is uncounted"
        assert backlog.held_lines == held
        slack = (LINE_BYTES_MAX * LINES_MAX) * 2 + 3 * self.settings.batch_bytes_max * 2
        if self.spool is not None:
            slack += LARGER.pending_bytes_max + LARGER.flush_bytes_max // 64
            assert self.spool.held_bytes <= self.settings.spool_bytes_max, "the spool is too large"
        bound = self.settings.memory_bytes_max + slack + ENTRY_OVERHEAD_BYTES
        assert backlog.held_bytes <= bound, "memory is above its bound"
        pinned = sum(entry.held_bytes for entry in self.rules.entries())
        waiting = sum(each.size for each in backlog._pending.values())
        assert backlog.held_bytes == pinned + waiting, "memory is not what is held"
        assert backlog._writing_bytes == sum(backlog._writing.values())

    def check_lines(self) -> None:
        missing = 0
        for name in NAMES:
            stored = self.storage.lines(name)
            given = self._given[name]
            order = {line: at for at, line in enumerate(given)}
            places = [order[line] for line in stored]
            assert places == sorted(set(places)), "a line is there twice, or in another order"
            missing += len(given) - len(stored)
        assert missing == self.counters.dropped, "drops are not what is missing"
        for name, lines, delivery in self._deliveries:
            assert delivery.is_done
            is_whole = set(lines) <= set(self.storage.lines(name)) if len(lines) < 3 else None
            if is_whole is not None:
                assert is_whole == (outcome(delivery) is None), "a delivery tells something else"


def outcome(delivery: LineDelivery) -> RaftwoodError | None:
    try:
        delivery.result()
    except RaftwoodError as error:
        return error
    return None
