"""`Backlog`: lines that are not stored yet: how they gather into batches, and their limits."""

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Final

from raftwood.base.errors import DiskFull, Overloaded, RaftwoodError, ShuttingDown
from raftwood.base.logs import get_logger
from raftwood.clogs.client.batch_builder import (
    BatchEncoding,
    Fields,
    LineDelivery,
    PendingLines,
    parts_of,
)
from raftwood.clogs.client.settings import ClogsClientSettings, SpoolMode, WhenFull
from raftwood.clogs.client.shipping_rules import QueuedBatch, ShippingRules
from raftwood.clogs.client.spool import Spool, SpoolFailed, SpoolFull
from raftwood.clogs.client.status import Counters
from raftwood.clogs.errors import LinesDropped
from raftwood.clogs.frames import LineBatch
from raftwood.delivery.pump import NEVER

_STALE_MAX: Final = 64


class BatchesByAge:
    """Entries by age. They arrive in any order, because the newest in memory are spooled first."""

    def __init__(self) -> None:
        self._orders: dict[QueuedBatch, int] = {}
        self._heap: list[tuple[int, QueuedBatch]] = []

    def add(self, entry: QueuedBatch, order: int) -> None:
        self._orders[entry] = order
        if len(self._heap) > 2 * len(self._orders) + _STALE_MAX:
            self._heap = [(each, found) for found, each in self._orders.items()]
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, (order, entry))

    def remove(self, entry: QueuedBatch) -> int:
        """Removes an entry; returns its order, or 0 if it is not there."""
        return self._orders.pop(entry, 0)

    def oldest(self) -> tuple[int, QueuedBatch] | None:
        while self._heap and self._heap[0][1] not in self._orders:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None


ENTRY_OVERHEAD_BYTES: Final = 512
PRODUCERS_MAX: Final = 65_536
CUT: Final = b" [cut]"
"""Appended to a line that was cut because it is above the limit."""
_TIME_NS_MAX: Final = (1 << 32) * 1_000_000_000 - 1
"""A record's seconds have 32 bits."""

_log = get_logger("clogs")


class _Kept(Enum):
    """The result of an attempt to write a batch to the spool."""

    YES = 1
    FULL = 2
    """There is room once a batch in the spool is dropped."""
    UNABLE = 3
    """Dropping batches would not help: the disk is full, slow or failed, or there is no spool."""


class Backlog:
    """All accepted lines that are not stored yet."""

    def __init__(
        self,
        settings: ClogsClientSettings,
        encoding: BatchEncoding,
        rules: ShippingRules,
        counters: Counters,
        route: Callable[[str], str | None],
    ) -> None:
        self._settings = settings
        self._encoding = encoding
        self._rules = rules
        self._counters = counters
        self._route = route
        self._spool: Spool | None = None
        self._pending: OrderedDict[str, PendingLines] = OrderedDict()
        """By file, those that were begun first at first."""
        self._lingering: deque[tuple[float, PendingLines]] = deque()
        self._producers: dict[str, tuple[bytes, int]] = {}
        """Each file's producer, and its last sequence."""
        self._generation = 0
        self._formed = 0
        self._in_memory: OrderedDict[QueuedBatch, int] = OrderedDict()
        """Entries outside the spool, the oldest first, each with its number among all."""
        self._in_spool = BatchesByAge()
        """Entries in the spool that were never sent."""
        self._kept: OrderedDict[QueuedBatch, None] = OrderedDict()
        """Entries in the spool whose bodies are in memory as well, though they need not be."""
        self._writing: dict[QueuedBatch, int] = {}
        """Entries on their way to the spool, and the bytes that are freed once they are there."""
        self._writing_bytes = 0
        self._is_told = False
        self._is_over = False
        self.kept_batches = 0
        """The number of batches given to the spool so far."""
        self.held_bytes = 0
        self.held_lines = 0
        """Lines taken or resumed that are not acked, dropped or refused yet."""
        self.on_room: Callable[[], None] = _nothing
        """Called when memory is freed."""

    def has_room(self) -> bool:
        return self.held_bytes - self._writing_bytes < self._settings.memory_bytes_max

    # Lines come

    def take(
        self,
        name: str,
        lines: Sequence[bytes],
        *,
        time_ns: int,
        now: float,
        delivery: LineDelivery | None = None,
    ) -> None:
        """Takes lines of one file and one time."""
        lines = self._cut_long(lines)
        self._counters.taken += len(lines)
        self.held_lines += len(lines)
        time_ns = min(max(time_ns, 0), _TIME_NS_MAX)
        for part in parts_of(lines, self._settings):
            pending = self._pending_of(name, now)
            self.held_bytes += pending.add(part, time_ns, delivery)
            self._form_if_full(pending)
            if not self.has_room():
                self._relieve()

    def take_records(
        self,
        name: str,
        lines: Sequence[bytes],
        *,
        times_ns: Sequence[int],
        fields: Sequence[Fields],
        now: float,
    ) -> None:
        """Takes lines of one file with a time and further fields each."""
        lines = self._cut_long(lines)
        self._counters.taken += len(lines)
        self.held_lines += len(lines)
        if min(times_ns) < 0 or max(times_ns) > _TIME_NS_MAX:
            times_ns = [min(max(each, 0), _TIME_NS_MAX) for each in times_ns]
        first = 0
        for part in parts_of(lines, self._settings):
            end = first + len(part)
            pending = self._pending_of(name, now)
            self.held_bytes += pending.add_records(part, times_ns[first:end], fields[first:end])
            first = end
            self._form_if_full(pending)
            if not self.has_room():
                self._relieve()

    def _cut_long(self, lines: Sequence[bytes]) -> Sequence[bytes]:
        longest = self._settings.line_bytes_max
        if max(map(len, lines), default=0) <= longest:
            return lines
        return [self._cut(line) if len(line) > longest else line for line in lines]

    def _cut(self, line: bytes) -> bytes:
        self._counters.cut += 1
        if self._encoding.mask is not None:
            # Mask before the cut: half of a card number would not be recognized.
            (line,) = self._encoding.mask([line])
            if len(line) <= self._settings.line_bytes_max:
                return line
        return line[: self._settings.line_bytes_max - len(CUT)] + CUT

    def _pending_of(self, name: str, now: float) -> PendingLines:
        pending = self._pending.get(name)
        if pending is None:
            pending = self._pending[name] = PendingLines(name)
            self._lingering.append((now + self._settings.linger_ms / 1000, pending))
        return pending

    # Batches are made

    def form_due(self, now: float) -> float:
        """Makes batches of lines that waited long enough; returns when to call again."""
        lingering = self._lingering
        while lingering and lingering[0][0] <= now:
            _, pending = lingering.popleft()
            # Behind a batch under way lines wait for its answer, and gather until then.
            is_current = self._pending.get(pending.name) is pending
            if is_current and self._rules.is_idle(pending.name):
                self._form(pending)
        return lingering[0][0] if lingering else NEVER

    def form_next(self, name: str) -> None:
        """A batch of the file is done: makes the next one of the lines gathered meanwhile."""
        pending = self._pending.get(name)
        if pending is not None and self._rules.is_idle(name):
            self._form(pending)

    def form_all(self) -> None:
        """Makes batches of all lines, without further waiting."""
        while self._pending:
            self._form(next(iter(self._pending.values())))

    def _form_if_full(self, pending: PendingLines) -> None:
        settings = self._settings
        if (
            pending.size >= settings.batch_bytes_max
            or len(pending.lines) >= settings.batch_lines_max
        ):
            self._form(pending)

    def _form(self, pending: PendingLines) -> QueuedBatch:
        del self._pending[pending.name]
        producer, sequence = self._name_of_next(pending.name)
        batch = self._encoding.batch(pending, producer, sequence)
        entry = QueuedBatch(batch, _nothing_more)
        entry.done = partial(self._settle, entry, pending.deliveries)
        entry.held_bytes = entry.size + ENTRY_OVERHEAD_BYTES
        self.held_bytes += entry.held_bytes - pending.size
        pending.clear()  # it may stand among those that linger for a while
        self._formed += 1
        self._in_memory[entry] = self._formed
        self._rules.add(entry)
        if self._settings.spool is SpoolMode.ALWAYS:
            self._keep_or_drop(entry)
        return entry

    def _name_of_next(self, name: str) -> tuple[bytes, int]:
        known = self._producers.get(name)
        if known is None:
            if len(self._producers) >= PRODUCERS_MAX:
                # No sequence is used twice: all producers of this shipper get other names.
                self._producers.clear()
                self._generation += 1
            known = (self._encoding.producer(name, self._generation), 0)
        producer, sequence = known
        self._producers[name] = (producer, sequence + 1)
        return producer, sequence + 1

    # Batches end

    def _settle(
        self,
        entry: QueuedBatch,
        deliveries: Sequence[tuple[LineDelivery, int]],
        error: RaftwoodError | None,
    ) -> None:
        """The entry is stored, refused for ever, dropped, or left to the next life."""
        self.held_bytes -= entry.held_bytes
        entry.held_bytes = 0
        entry.batch = None
        self._forget(entry)
        if error is None:
            self._is_told = False
        if entry.spool is None or not self._is_over:
            self.held_lines -= entry.count
            if entry.spool is not None:
                entry.spool.forget(entry)
        for delivery, lines in deliveries:
            delivery.settle(lines, error)
        self.on_room()

    def _forget(self, entry: QueuedBatch) -> None:
        self._in_memory.pop(entry, None)
        self._in_spool.remove(entry)
        self._kept.pop(entry, None)
        self._writing_bytes -= self._writing.pop(entry, 0)

    def resume(self, entry: QueuedBatch) -> None:
        """Takes over a batch that an earlier life left in the spool."""
        entry.done = partial(self._settle, entry, ())
        self._counters.resumed += entry.count
        self.held_lines += entry.count
        self._rules.add(entry)

    def loaded(self, entry: QueuedBatch, batch: LineBatch) -> None:
        """Its body is in memory again, because it is its turn."""
        entry.batch = batch
        entry.held_bytes = entry.size + ENTRY_OVERHEAD_BYTES
        self.held_bytes += entry.held_bytes

    def failed(self, entry: QueuedBatch) -> None:
        """It must be sent again: if the spool has it, its body can leave memory."""
        if entry.spool is None:
            if not entry.was_sent and entry.is_keepable and entry not in self._in_memory:
                # It was about to be sent when others were dropped, and was not.
                self._in_memory[entry] = 0
                self._in_memory.move_to_end(entry, last=False)
        elif entry.batch is not None and entry not in self._writing:
            self._kept[entry] = None
            if not self.has_room():
                self._relieve()

    def lost(self, entry: QueuedBatch, error: RaftwoodError) -> None:
        """The spool cannot return the batch."""
        self._count_dropped(entry)
        entry.done(LinesDropped(f"lines in the spool cannot be read any more: {error.message}"))

    def give_up(self) -> int:
        """At the end, drops what is neither stored nor in a spool; returns the number of lines."""
        dropped = 0
        self.form_all()
        self._is_over = True
        for entry in self._rules.entries():
            if entry.spool is not None:
                reason = "the shipper was closed: the lines are in the spool, for the next one"
            else:
                reason = "the shipper was closed before the lines were stored"
                if entry.is_keepable:
                    dropped += entry.count
                    self._count_dropped(entry)
            entry.done(ShuttingDown(reason))
        return dropped

    # Room is made

    def _relieve(self) -> None:
        while self._kept and not self.has_room():
            self._let_go(self._kept.popitem()[0])  # the newest: the oldest are sent next
        if self._settings.when_full is WhenFull.BLOCK:
            return
        # Free a good piece at once: else each new line would be a batch of its own.
        enough = self._settings.memory_bytes_max
        if self._settings.when_full is WhenFull.SPOOL:
            enough = enough * 3 // 4
        while self.held_bytes - self._writing_bytes > enough:
            kept = self._spool_one()
            if kept is _Kept.YES:
                continue
            # Lines are dropped only for lack of room, and not to make larger batches.
            if self.has_room() or not self._drop_oldest(with_spool=kept is _Kept.FULL):
                return

    def _spool_one(self) -> _Kept:
        """Spools the newest batch, because the oldest go next; or lines that are no batch yet."""
        if self._settings.when_full is not WhenFull.SPOOL:
            return _Kept.UNABLE
        if self._in_memory:
            return self._keep(next(reversed(self._in_memory)))
        if self._pending:
            entry = self._form(next(iter(self._pending.values())))
            return self._keep(entry) if entry in self._in_memory else _Kept.YES
        return _Kept.UNABLE

    def _drop_oldest(self, *, with_spool: bool) -> bool:
        """Drops the oldest batch, `with_spool` of the spool too; returns whether there was one."""
        while True:
            memory = next(((order, entry) for entry, order in self._in_memory.items()), None)
            spool = self._in_spool.oldest() if with_spool else None
            if memory is None and spool is None:
                if not self._pending:
                    return False
                self._form(next(iter(self._pending.values())))
                continue
            _, entry = min(each for each in (memory, spool) if each is not None)
            self._in_memory.pop(entry, None)
            self._in_spool.remove(entry)
            if not entry.was_sent:
                self._drop(entry)
                return True

    def _drop(self, entry: QueuedBatch) -> None:
        self._count_dropped(entry)
        self._rules.dropped(entry)
        entry.done(LinesDropped("there was no room for lines that are not stored: raise a bound"))
        pending = self._pending.get(entry.name)
        if pending is not None and self._rules.is_idle(entry.name):
            # They waited behind the batch, and no answer to it will come.
            self._lingering.appendleft((0.0, pending))

    def _count_dropped(self, entry: QueuedBatch) -> None:
        self._counters.dropped += entry.count
        self._counters.server(self._route(entry.name)).dropped += entry.count

    # The spool

    def use(self, spool: Spool) -> None:
        """Uses this spool from now on."""
        self._spool = spool

    def keep_all(self) -> bool:
        """Spools all that is left; returns whether there was room in the spool and on the way."""
        if self._spool is None:
            return not self.held_lines
        self.form_all()
        is_whole = True
        for entry in self._rules.entries():
            if entry.is_keepable and entry.spool is None and entry.batch is not None:
                is_whole = self._keep_or_drop(entry) and is_whole
        return is_whole

    def _keep_or_drop(self, entry: QueuedBatch) -> bool:
        """Spools the entry; if the policy says so, drops older ones. Returns whether it is in."""
        while True:
            kept = self._keep(entry)
            may_drop = kept is _Kept.FULL and self._settings.when_full is not WhenFull.BLOCK
            if not may_drop or not self._drop_oldest(with_spool=True) or entry.is_dropped:
                return kept is _Kept.YES

    def _keep(self, entry: QueuedBatch) -> _Kept:
        if self._spool is None:
            return _Kept.UNABLE
        try:
            self._spool.keep(entry, partial(self._when_kept, entry))
        except SpoolFull as error:
            self._tell(error)
            return _Kept.FULL
        except (DiskFull, Overloaded, SpoolFailed) as error:
            self._tell(error)
            return _Kept.UNABLE
        order = self._in_memory.pop(entry, None)
        if order is not None and not entry.was_sent:
            self._in_spool.add(entry, order)
        self.kept_batches += 1
        self._writing[entry] = entry.held_bytes
        self._writing_bytes += entry.held_bytes
        self._counters.server(self._route(entry.name)).spooled += entry.count
        return _Kept.YES

    def _tell(self, error: RaftwoodError) -> None:
        """Logs an error once, until a batch is stored again."""
        if not self._is_told:
            self._is_told = True
            _log.warning("the spool takes no more for now", reason=error.message)

    def _when_kept(self, entry: QueuedBatch) -> None:
        held_bytes = self._writing.pop(entry, None)
        if held_bytes is None:
            return  # it is over by now
        self._writing_bytes -= held_bytes
        self._kept[entry] = None
        if not self.has_room():
            self._let_go(self._kept.popitem()[0])
        if self._settings.spool is SpoolMode.ALWAYS:
            # Some may have been refused because too many bytes were on their way to the disk.
            while self._in_memory and self._keep(next(iter(self._in_memory))) is _Kept.YES:
                pass

    def _let_go(self, entry: QueuedBatch) -> None:
        """The spool has the entry: its body can leave memory."""
        entry.batch = None
        self.held_bytes -= entry.held_bytes
        entry.held_bytes = 0
        self.on_room()

    def spool_failed(self, spool: Spool) -> None:
        """Continues with what is in memory; the rest is read as long as the disk can be read.

        A later life may find batches in the spool that were stored meanwhile: logs recognize their
        sequences.
        """
        for entry in self._rules.entries():
            if entry.spool is spool and entry.batch is not None:
                entry.spool = None
                entry.was_sent = True  # a later life may find it there: it is not dropped any more
                order = self._in_spool.remove(entry)
                self._forget(entry)
                self._in_memory[entry] = order
        self._in_memory = OrderedDict(sorted(self._in_memory.items(), key=_order))
        if self._spool is spool:
            self._spool = None


def _order(made: tuple[QueuedBatch, int]) -> int:
    return made[1]


def _nothing() -> None:
    """No caller waits for room."""


def _nothing_more(_: RaftwoodError | None) -> None:
    """The default until the entry has its own callback."""
