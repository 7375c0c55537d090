"""Lines until they are stored: how they gather into batches, and what happens when it is too much.

Lines of a file wait for more of them while a batch of the file is under way, or for `linger_ms`; so
batches grow by themselves where servers are slow. Memory has a bound. Above it new batches go to
the spool, or the oldest that were never sent are dropped and counted, or whoever gives lines waits,
as `when_full` says. A batch that was sent is never dropped: it may be stored at any time.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from raftwood.base.errors import DiskFull, Overloaded, RaftwoodError
from raftwood.base.logs import get_logger
from raftwood.clogs.batches import LineBatch
from raftwood.clogs.client.counters import Counters
from raftwood.clogs.client.deliveries import Delivery
from raftwood.clogs.client.entries import Entry
from raftwood.clogs.client.pending import Encoding, Fields, Pending
from raftwood.clogs.client.settings import ClogsClientSettings, SpoolMode, WhenFull
from raftwood.clogs.client.shipping_rules import NEVER, ShippingRules
from raftwood.clogs.client.spool import Spool, SpoolFailed
from raftwood.clogs.errors import LinesDropped

ENTRY_OVERHEAD_BYTES: Final = 512
PRODUCERS_MAX: Final = 65_536
CUT: Final = b" [cut]"
"""Stands at the end of a line that was longer than the limit."""

_log = get_logger("clogs")


class Backlog:
    """All lines that were taken and are not stored yet."""

    def __init__(
        self,
        settings: ClogsClientSettings,
        encoding: Encoding,
        rules: ShippingRules,
        counters: Counters,
        route: Callable[[str], str | None],
        spool: Spool | None,
    ) -> None:
        self._settings = settings
        self._encoding = encoding
        self._rules = rules
        self._counters = counters
        self._route = route
        self._spool = spool
        self._pending: dict[str, Pending] = {}
        self._lingering: deque[tuple[float, Pending]] = deque()
        self._producers: dict[str, tuple[bytes, int]] = {}
        """Each file's producer, and its last sequence."""
        self._generation = 0
        self._in_memory: deque[Entry] = deque()
        """Entries that may be dropped to make room, the oldest first."""
        self._in_spool: deque[Entry] = deque()
        self._kept: list[Entry] = []
        """Entries in the spool whose bodies are in memory as well."""
        self._writing_bytes = 0
        """Of memory that comes free once the spool has written it."""
        self.held_bytes = 0
        self.on_room: Callable[[], None] = _nothing
        """Called when there is less than there was."""

    def has_room(self) -> bool:
        return self.held_bytes - self._writing_bytes < self._settings.memory_bytes_max

    @property
    def is_empty(self) -> bool:
        return not self._pending and not self.held_bytes

    # Lines come

    def take(
        self,
        name: str,
        lines: Sequence[bytes],
        *,
        time_ns: int,
        now: float,
        delivery: Delivery | None = None,
    ) -> None:
        """Lines of one file and one time."""
        longest = self._settings.line_bytes_max
        if max(map(len, lines), default=0) > longest:
            lines = [self._cut(line) if len(line) > longest else line for line in lines]
        self._counters.taken += len(lines)
        lines_max = self._settings.batch_lines_max
        for first in range(0, len(lines), lines_max):
            part = lines[first : first + lines_max]
            pending = self._pending_of(name, now)
            self.held_bytes += pending.add(part, time_ns, delivery)
            self._form_if_full(pending)
        self._relieve()

    def take_record(
        self, name: str, line: bytes, *, time_ns: int, fields: Fields, now: float
    ) -> None:
        """One line with further fields."""
        if len(line) > self._settings.line_bytes_max:
            line = self._cut(line)
        self._counters.taken += 1
        pending = self._pending_of(name, now)
        self.held_bytes += pending.add_record(line, time_ns, fields)
        self._form_if_full(pending)
        if not self.has_room():
            self._relieve()

    def _cut(self, line: bytes) -> bytes:
        self._counters.cut += 1
        return line[: self._settings.line_bytes_max - len(CUT)] + CUT

    def _pending_of(self, name: str, now: float) -> Pending:
        pending = self._pending.get(name)
        if pending is None:
            pending = self._pending[name] = Pending(name)
            self._lingering.append((now + self._settings.linger_ms / 1000, pending))
        return pending

    # Batches are made

    def form_due(self, now: float) -> float:
        """Make batches of lines that waited for long enough; when to come again."""
        lingering = self._lingering
        while lingering and lingering[0][0] <= now:
            _, pending = lingering.popleft()
            # Behind a batch that is under way lines wait for its end, and are more by then.
            is_current = self._pending.get(pending.name) is pending
            if is_current and self._rules.is_idle(pending.name):
                self._form(pending)
        return lingering[0][0] if lingering else NEVER

    def form_next(self, name: str) -> None:
        """A batch of the file is done: what has gathered meanwhile is the next one."""
        pending = self._pending.get(name)
        if pending is not None and self._rules.is_idle(name):
            self._form(pending)

    def form_all(self) -> None:
        """Nothing lingers any more."""
        for pending in list(self._pending.values()):
            self._form(pending)

    def _form_if_full(self, pending: Pending) -> None:
        settings = self._settings
        if (
            pending.size >= settings.batch_bytes_max
            or len(pending.lines) >= settings.batch_lines_max
        ):
            self._form(pending)

    def _form(self, pending: Pending) -> None:
        del self._pending[pending.name]
        producer, sequence = self._name_of_next(pending.name)
        batch = self._encoding.batch(pending, producer, sequence)
        entry = Entry(batch, _nothing_more)
        entry.done = partial(self._settle, entry, pending.deliveries)
        entry.held_bytes = entry.size + ENTRY_OVERHEAD_BYTES
        self.held_bytes += entry.held_bytes - pending.size
        is_always = self._settings.spool is SpoolMode.ALWAYS
        if is_always or (self._settings.when_full is WhenFull.SPOOL and not self.has_room()):
            self._keep(entry)
        if entry.spool is None:
            self._in_memory.append(entry)
        self._rules.add(entry)

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
        entry: Entry,
        deliveries: Sequence[tuple[Delivery, int]],
        error: RaftwoodError | None,
    ) -> None:
        """The entry is stored, refused for ever, or dropped."""
        self.held_bytes -= entry.held_bytes
        entry.held_bytes = 0
        entry.batch = None
        if entry.spool is not None:
            entry.spool.forget(entry)
        for delivery, lines in deliveries:
            delivery.settle(lines, error)
        self.on_room()

    def resume(self, entry: Entry) -> None:
        """A batch that an earlier life left in the spool."""
        entry.done = partial(self._settle, entry, ())
        self._counters.resumed += entry.count
        self._rules.add(entry)

    def loaded(self, entry: Entry, batch: LineBatch) -> None:
        """Its body is in memory again, for it is its turn."""
        entry.batch = batch
        entry.held_bytes = entry.size + ENTRY_OVERHEAD_BYTES
        self.held_bytes += entry.held_bytes

    # Room is made

    def _relieve(self) -> None:
        if self.has_room():
            return
        while self._kept and not self.has_room():
            self._let_go(self._kept.pop())
        if self._settings.when_full is WhenFull.BLOCK:
            return
        # The oldest lines first: a batch that is made now goes to the spool, if there is one.
        for pending in list(self._pending.values()):
            if self.has_room():
                return
            self._form(pending)
        while not self.has_room() and self._drop_oldest(self._in_memory):
            pass

    def keep_all(self) -> bool:
        """At the end: all that is left goes to the spool; whether there was room for it."""
        if self._spool is None:
            return self.is_empty
        self.form_all()
        return self._keep_each(self._unspooled())

    def _keep_each(self, entries: list[Entry]) -> bool:
        kept = [self._keep(entry) for entry in entries]
        return all(kept)

    def _unspooled(self) -> list[Entry]:
        return [
            entry
            for entry in self._rules.entries()
            if entry.is_keepable and entry.spool is None and entry.batch is not None
        ]

    def _keep(self, entry: Entry) -> bool:
        spool = self._spool
        if spool is None:
            return False
        while True:
            try:
                spool.keep(entry, partial(self._when_kept, entry, entry.held_bytes))
            except Overloaded:
                if self._settings.when_full is WhenFull.BLOCK:
                    return False
                if not self._drop_oldest(self._in_spool):
                    return False
            except (DiskFull, SpoolFailed) as error:
                _log.warning("the spool takes no more", reason=error.message)
                return False
            else:
                break
        self._writing_bytes += entry.held_bytes
        self._counters.server(self._route(entry.name)).spooled += entry.count
        if not entry.was_sent:
            self._in_spool.append(entry)
        return True

    def _when_kept(self, entry: Entry, writing_bytes: int) -> None:
        self._writing_bytes -= writing_bytes
        if entry.batch is None or entry.spool is None:
            return
        if self.has_room():
            self._kept.append(entry)
        else:
            self._let_go(entry)

    def _let_go(self, entry: Entry) -> None:
        """The spool has it: its body need not be in memory, unless it is on its way."""
        if entry.was_sent or entry.spool is None or entry.batch is None:
            return
        entry.batch = None
        self.held_bytes -= entry.held_bytes
        entry.held_bytes = 0

    def _drop_oldest(self, entries: deque[Entry]) -> bool:
        """Whether there was one that could be dropped."""
        while entries:
            entry = entries.popleft()
            is_over = entry.is_dropped or (entry.batch is None and entry.spool is None)
            if entry.was_sent or is_over:
                continue
            self._counters.dropped += entry.count
            self._counters.server(self._route(entry.name)).dropped += entry.count
            self._rules.dropped(entry)
            entry.done(
                LinesDropped("there was no room for lines that are not stored: they were dropped")
            )
            return True
        return False


def _nothing() -> None:
    """Nobody waits for room."""


def _nothing_more(_: RaftwoodError | None) -> None:
    """Until the entry has its own."""
