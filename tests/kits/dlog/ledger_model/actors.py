"""Who drives the rules in the model: adds of any kind, the writer, recoveries."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raftwood.base.errors import Conflict, RaftwoodError
from raftwood.dlog.errors import BadDigest, Fenced, NoSuchEntry
from raftwood.dlog.ledgers.digests import ANY_ENTRY, UnpackedEntry
from raftwood.dlog.ledgers.metadata import (
    BookieId,
    LedgerMetadata,
    closed_by_recovery,
    closed_by_writer,
    marked,
    with_ensemble,
    with_segment,
)
from raftwood.dlog.ledgers.rules import (
    FenceRound,
    PendingAdd,
    PublishedWriteRules,
    RecoveredEntry,
    RecoveryRound,
    WriteRules,
)
from tests.kits.dlog.ledger_model.bookies import Stored
from tests.kits.dlog.ledger_model.oracle import data_of

if TYPE_CHECKING:
    from tests.kits.dlog.ledger_model.world import World

WINDOW = 4
UNDER_WAY_MAX = 8


class Request:
    """An add, and what it carries."""

    __slots__ = ("entry", "stored")

    def __init__(self, entry: int, stored: Stored) -> None:
        self.entry = entry
        self.stored = stored


class Adder:
    """What a writer and a recovery have in common: the rules of writing."""

    is_recovery = False
    rules: type[WriteRules] = WriteRules

    def __init__(self, world: "World", metadata: LedgerMetadata, version: int, last: int) -> None:
        self.world = world
        self.metadata = metadata
        self.version = version
        self.is_dead = False
        self.writing = self.rules(
            metadata.config,
            metadata.segments[-1].bookies,
            last_confirmed=last,
            add_timeout_ms=1,
            lag_bytes_max=1 << 30,
        )

    def add(self, stored: Stored, length_bytes: int) -> None:
        entry = self.writing.next_entry
        request = Request(entry, stored)
        pending = PendingAdd(entry, length_bytes, len(stored[0]), request, None, carried=stored[1])
        for bookie in self.writing.append(pending):
            self.world.send_add(self, bookie, request)
        self.change_if_wanted()

    def added(self, entry: int, bookie: BookieId, error: RaftwoodError | None) -> None:
        if self.is_dead:
            return
        if error is None:
            if self.writing.stored(entry, bookie):
                self.ack()
        elif isinstance(error, Fenced):
            self.give_up()
        else:
            self.suspect(bookie)

    def suspect(self, bookie: BookieId) -> None:
        """It failed, or hangs."""
        self.writing.fail(bookie)
        self.change_if_wanted()

    def ack(self) -> None:
        while (pending := self.writing.next_acked()) is not None:
            self.acked(pending.entry)

    def acked(self, entry: int) -> None:
        pass

    def give_up(self) -> None:
        self.is_dead = True
        self.writing.give_up()

    def change_if_wanted(self) -> None:
        if self.writing.wants_change:
            self.writing.begin_change()
            self.change()

    def change(self) -> None:
        first, places = self.writing.begin_change()
        before = self.writing.ensemble
        others = [each for each in self.world.bookies if each not in before]
        self.world.random.shuffle(others)
        replaced = dict(zip(places, others, strict=False))
        for place in places:
            if place not in replaced and self.world.random.random() < 0.5:
                replaced[place] = before[place]
        after = tuple(replaced.get(place, bookie) for place, bookie in enumerate(before))
        if after == before:
            self.changed(replaced)
        else:
            self.persist(first, before, after, lambda: self.changed(replaced))

    def persist(
        self,
        first: int,
        before: tuple[BookieId, ...],
        after: tuple[BookieId, ...],
        then: Callable[[], None],
    ) -> None:
        raise NotImplementedError

    def changed(self, replaced: dict[int, BookieId]) -> None:
        for pending, bookie in self.writing.changed(replaced, now_ms=0):
            request: Any = pending.request
            self.world.send_add(self, bookie, request)
        if self.writing.is_enough:
            self.writing.end_change()
            self.ack()
            self.change_if_wanted()
        else:
            self.world.later(self, self.change)


class Writer(Adder):
    """Appends until it is fenced, dies or closes its ledger."""

    length_bytes = 0
    is_closing = False
    rules = PublishedWriteRules
    writing: PublishedWriteRules

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.publishing: dict[BookieId, int] = {}

    @property
    def has_ended(self) -> bool:
        return self.is_dead or self.is_closing

    @property
    def can_append(self) -> bool:
        return not self.has_ended and len(self.writing.pending) < UNDER_WAY_MAX

    def append(self) -> None:
        data = data_of(self.writing.next_entry)
        self.length_bytes += len(data)
        self.add((data, self.writing.last_confirmed), self.length_bytes)

    def ack(self) -> None:
        super().ack()
        if self.writing.is_to_publish:
            for bookie in self.writing.ensemble:
                self.publish(bookie)

    def publish(self, bookie: BookieId) -> None:
        """One at a time to each bookie."""
        if bookie not in self.publishing:
            self.publishing[bookie] = self.writing.last_confirmed
            self.world.send_publish(self, bookie, self.writing.last_confirmed)

    def published(self, bookie: BookieId, error: RaftwoodError | None) -> None:
        last_confirmed = self.publishing.pop(bookie)
        if error is not None:
            self.suspect(bookie)
            return
        if self.writing.heard(bookie, last_confirmed):
            self.ack()
        if self.writing.is_to_publish and last_confirmed < self.writing.last_confirmed:
            self.publish(bookie)

    def acked(self, entry: int) -> None:
        self.world.oracle.entry_acked(entry)
        self.world.oracle.check_seen(self.world.metadata)

    def persist(
        self,
        first: int,
        before: tuple[BookieId, ...],
        after: tuple[BookieId, ...],
        then: Callable[[], None],
    ) -> None:
        self.update(
            lambda metadata: with_ensemble(metadata, before=before, first=first, after=after), then
        )

    def update(
        self,
        change: Callable[[LedgerMetadata], LedgerMetadata | None],
        then: Callable[[], None],
    ) -> None:
        try:
            wanted = change(self.metadata)
        except Fenced:
            self.give_up()
            return
        if wanted is None:
            then()
            return

        def answered(is_done: bool, metadata: LedgerMetadata, version: int) -> None:
            self.metadata, self.version = metadata, version
            if is_done:
                then()
            else:
                self.update(change, then)

        self.world.send_compare_and_set(self, wanted, self.version, answered)

    def close(self) -> None:
        if self.writing.pending or self.is_closing:
            return
        self.is_closing = True
        last, length_bytes = self.writing.last_confirmed, self.writing.confirmed_bytes
        self.update(
            lambda metadata: closed_by_writer(metadata, last_entry=last, length_bytes=length_bytes),
            self.closed,
        )

    def closed(self) -> None:
        for pending in self.writing.closed():
            self.acked(pending.entry)
        self.give_up()


class Recoverer(Adder):
    """Marks, fences, finds, adds again, closes; as `recovery` does."""

    is_recovery = True
    reads_fence = True
    damage_is_silence = True

    def __init__(self, world: "World") -> None:
        super().__init__(world, world.metadata, world.version, -1)
        self.base = -1
        self.finding: RecoveryRound | None = None
        self.segments = world.metadata.segments
        self.is_closing = False
        self.mark()

    def mark(self) -> None:
        if self.metadata.is_closed:
            self.is_dead = True
            return
        wanted = marked(self.metadata)
        if wanted is None:
            self.fence()
        else:
            self.world.send_compare_and_set(self, wanted, self.version, self.marked)

    def marked(self, is_done: bool, metadata: LedgerMetadata, version: int) -> None:
        self.metadata, self.version = metadata, version
        if is_done:
            self.fence()
        else:
            self.mark()

    def fence(self) -> None:
        last = self.metadata.segments[-1]
        self.segments = self.metadata.segments
        fencing = FenceRound(self.metadata.config, first=last.first)

        def answered(place: int, answer: tuple[int, Stored] | RaftwoodError) -> None:
            if self.finding is not None:
                return
            if isinstance(answer, tuple):
                fencing.fenced(place, answer[1][1])
            elif isinstance(answer, NoSuchEntry | BadDigest):
                fencing.fenced(place, -1)
            else:
                fencing.failed(place)
            if fencing.is_done:
                self.fenced(fencing.last_confirmed)
            elif fencing.is_lost:
                self.is_dead = True

        for place, bookie in enumerate(last.bookies):
            self.world.send_read(self, bookie, ANY_ENTRY, True, answered, place)

    def fenced(self, last_confirmed: int) -> None:
        self.world.oracle.fenced = self.metadata.segments[-1]
        self.base = last_confirmed
        self.writing = WriteRules(
            self.metadata.config,
            self.metadata.segments[-1].bookies,
            last_confirmed=last_confirmed,
            add_timeout_ms=1,
            lag_bytes_max=1 << 30,
        )
        self.finding = RecoveryRound(self.metadata.config, first=last_confirmed + 1, window=WINDOW)
        self.go_on()

    def go_on(self) -> None:
        finding = self.finding
        assert finding is not None
        while (found := finding.next_found()) is not None:
            self.add((found.unpacked.data, found.unpacked.last_confirmed), found.unpacked[2])
        bookies = self.metadata.segments[-1].bookies
        while len(self.writing.pending) < WINDOW and (entry := finding.next_read()) is not None:
            for place in self.metadata.config.places(entry):
                self.world.send_read(
                    self, bookies[place], entry, self.reads_fence, self.answered, place, entry
                )
        if finding.undecidable is not None:
            self.is_dead = True
        elif finding.is_ended and not self.writing.pending and not self.is_closing:
            self.close()

    def answered(self, place: int, entry: int, answer: tuple[int, Stored] | RaftwoodError) -> None:
        finding = self.finding
        assert finding is not None
        if isinstance(answer, tuple):
            data, last_confirmed = answer[1]
            length_bytes = sum(len(data_of(each)) for each in range(entry + 1))
            unpacked = UnpackedEntry(entry, last_confirmed, length_bytes, data)
            finding.found(place, RecoveredEntry(entry, b"", unpacked))
        elif isinstance(answer, NoSuchEntry) or (
            isinstance(answer, BadDigest) and not self.damage_is_silence
        ):
            finding.missing(place, entry)
        else:
            finding.unknown(place, entry)
        self.go_on()

    def acked(self, entry: int) -> None:  # noqa: ARG002
        self.world.later(self, self.go_on)

    def persist(
        self,
        first: int,
        before: tuple[BookieId, ...],  # noqa: ARG002
        after: tuple[BookieId, ...],
        then: Callable[[], None],
    ) -> None:
        self.segments = with_segment(self.segments, first, after)
        then()

    def close(self) -> None:
        self.is_closing = True
        last = self.writing.last_confirmed
        found = self.metadata

        def close_once(metadata: LedgerMetadata, version: int) -> None:
            try:
                wanted = closed_by_recovery(
                    metadata,
                    found=found,
                    segments=self.segments,
                    last_entry=last,
                    length_bytes=sum(len(data_of(each)) for each in range(last + 1)),
                )
            except Conflict:
                self.is_dead = True
                return
            if wanted is None:
                self.is_dead = True
            else:
                self.world.send_compare_and_set(self, wanted, version, answered)

        def answered(is_done: bool, metadata: LedgerMetadata, version: int) -> None:
            if is_done:
                self.is_dead = True
            else:
                close_once(metadata, version)

        close_once(self.metadata, self.version)
