"""Lives of ledgers: messages are delivered in any order, bookies fail, and time has no meaning."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from raftwood.dlog.ledgers.metadata import (
    BookieId,
    EntryId,
    LedgerConfig,
    LedgerMetadata,
    LedgerState,
    Segment,
)
from tests.kits.dlog.harms import Harm
from tests.kits.dlog.ledger_model.actors import Adder, Recoverer, Request, Writer
from tests.kits.dlog.ledger_model.bookies import DOWN, ModelBookie
from tests.kits.dlog.ledger_model.oracle import Oracle
from tests.kits.models import Violation, repeatable

_RECOVERERS_MAX = 3
_ENDING_MAX = 20_000
_LATE = 0.9
_QUORUMS = [(3, 3, 2)] * 4 + [(3, 2, 2), (5, 3, 2), (4, 3, 3), (3, 3, 1), (4, 4, 2), (5, 5, 3)]


@dataclass(frozen=True)
class Profile:
    """The weather of one life; chances are per event."""

    quorums: tuple[int, int, int]
    spare_bookies: int
    lost: float
    """Of adds and of changes of metadata: done, and not answered."""
    lost_reads: float
    slow: str
    """Whom the writer's adds reach late: nobody, one, all."""
    is_one_damaged: bool
    faults: float
    appends: float
    recoveries: float
    is_one_wiped: bool = False
    """A bookie begins anew at some moment; nobody repairs it."""

    @classmethod
    def choose(cls, chance: random.Random) -> "Profile":
        return cls(
            quorums=chance.choice(_QUORUMS),
            spare_bookies=chance.randint(0, 2),
            lost=chance.choice([0, 0.02, 0.15]),
            lost_reads=chance.choice([0, 0.02, 0.3]),
            slow=chance.choice(["nobody", "one", "all"]),
            is_one_damaged=chance.random() < 0.3,
            faults=chance.choice([0, 0.01, 0.05]),
            appends=chance.choice([0.1, 0.3]),
            recoveries=chance.choice([0.002, 0.02]),
        )


@dataclass(frozen=True)
class Report:
    """What a run came to."""

    events: int
    ledgers: int
    acked: int
    changes: int
    recovered: int
    """Entries that were kept though nobody was acked for them."""


class World:
    """One ledger, from its first entry to its close."""

    def __init__(self, chance: random.Random, profile: Profile) -> None:
        self.random = chance
        self.profile = profile
        ensemble, write_quorum, ack_quorum = profile.quorums
        self.config = LedgerConfig(
            ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum
        )
        names = [BookieId(f"b{each}") for each in range(ensemble + profile.spare_bookies)]
        self.bookies = {name: ModelBookie() for name in names}
        self._names = names
        self.oracle = Oracle(self.bookies)
        self.metadata = LedgerMetadata(
            config=self.config, segments=(Segment(EntryId(0), tuple(names[:ensemble])),)
        )
        self.version = 0
        self.events = 0
        self._messages: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._lost = profile.lost
        self._lost_reads = profile.lost_reads
        self._slow = {"nobody": [], "one": [chance.choice(names)], "all": names}[profile.slow]
        """The writer's adds reach these late."""
        self._damaged = chance.choice(names) if profile.is_one_damaged and ack_quorum > 1 else None
        self._wiped = names[0] if profile.is_one_wiped and ack_quorum > 1 else None
        self.writer = Writer(self, self.metadata, 0, -1)
        self.recoverers: list[Recoverer] = []

    # Messages.

    def send_add(self, adder: Adder, bookie: BookieId, request: Request) -> None:
        self._messages.append((self._add_arrived, (adder, bookie, request)))

    def _add_arrived(self, adder: Adder, bookie: BookieId, request: Request) -> None:
        target = self.bookies[bookie]
        is_new = request.entry not in target.from_writer
        error = target.add(request.entry, request.stored, is_recovery=adder.is_recovery)
        if error is None and not adder.is_recovery and is_new:
            self.oracle.stored_by_writer(request.entry, self.config, bookie)
        if self.random.random() < self._lost:
            error = DOWN
        self._messages.append((adder.added, (request.entry, bookie, error)))

    def send_publish(self, writer: Writer, bookie: BookieId, last_confirmed: int) -> None:
        self._messages.append((self._publish_arrived, (writer, bookie, last_confirmed)))

    def _publish_arrived(self, writer: Writer, bookie: BookieId, last_confirmed: int) -> None:
        error = self.bookies[bookie].publish(last_confirmed)
        if self.random.random() < self._lost:
            error = DOWN
        self.later(writer, writer.published, bookie, error)

    def send_read(
        self,
        reader: Adder,
        bookie: BookieId,
        entry: int,
        fences: bool,
        answered: Callable[..., None],
        *arguments: int,
    ) -> None:
        self._messages.append(
            (self._read_arrived, (reader, bookie, entry, fences, answered, arguments))
        )

    def _read_arrived(
        self,
        reader: Adder,
        bookie: BookieId,
        entry: int,
        fences: bool,
        answered: Callable[..., None],
        arguments: tuple[int, ...],
    ) -> None:
        answer: object = DOWN
        if self.random.random() >= self._lost_reads:
            answer = self.bookies[bookie].read(entry, fences=fences)
        self.later(reader, answered, *arguments, answer)

    def send_compare_and_set(
        self, adder: Adder, metadata: LedgerMetadata, version: int, answered: Callable[..., None]
    ) -> None:
        self._messages.append((self._compare_and_set, (adder, metadata, version, answered)))

    def _compare_and_set(
        self, adder: Adder, metadata: LedgerMetadata, version: int, answered: Callable[..., None]
    ) -> None:
        is_done = version == self.version
        if is_done:
            if self.metadata.is_closed:
                raise Violation(Harm.CLOSED_OTHERWISE, f"{metadata}")
            self.metadata, self.version = metadata, version + 1
            if metadata.state is LedgerState.CLOSED:
                self.oracle.ledger_closed(metadata)
        if self.random.random() < self._lost:
            is_done = False  # Its answer is lost: what stands there tells.
        self.later(adder, answered, is_done, self.metadata, self.version)

    def later(self, adder: Adder, action: Callable[..., None], *arguments: Any) -> None:
        self._messages.append((self._unless_dead, (adder, action, arguments)))

    def _unless_dead(
        self, adder: Adder, action: Callable[..., None], arguments: tuple[Any, ...]
    ) -> None:
        if not adder.is_dead:
            action(*arguments)

    def _deliver(self) -> None:
        messages = self._messages
        chosen = int(self.random.random() * len(messages))
        action, arguments = messages[chosen]
        if (
            action == self._add_arrived
            and arguments[1] in self._slow
            and not arguments[0].is_recovery
            and self.random.random() < _LATE
        ):
            return
        messages[chosen], messages[-1] = messages[-1], messages[chosen]
        messages.pop()
        self.events += 1
        action(*arguments)

    # Life.

    def live(self, events: int) -> None:
        draw = self.random.random
        while self.events < events:
            if self._messages:
                self._deliver()
            elif self.writer.has_ended:
                if self.metadata.is_closed:
                    return
                self._recover()
            chance = draw()
            if (chance < self.profile.appends or not self._messages) and self.writer.can_append:
                self.writer.append()
                self.events += 1
            if chance > 1 - self.profile.faults:
                self._break_something()
            elif chance > 1 - self.profile.faults - self.profile.recoveries:
                self._recover()
            elif chance > 0.97 - self.profile.faults:
                self.oracle.check_seen(self.metadata)

    def _break_something(self) -> None:
        if self._wiped is not None and self.random.random() < 0.2:
            self.bookies[self._wiped].begin_anew()
            self._wiped = None
        kind = self.random.randrange(8)
        bookie = self.random.choice(self._names)
        if kind < 2:
            self.bookies[bookie].is_down = True
        elif kind < 4:
            self.bookies[bookie].is_down = False
        elif kind < 5:
            for adder in (self.writer, *self.recoverers):
                if not adder.is_dead and bookie in adder.writing.ensemble:
                    adder.suspect(bookie)
        elif kind < 6 and self._damaged is not None:
            target = self.bookies[self._damaged]
            if target.entries:
                target.damaged.add(self.random.choice(list(target.entries)))
        elif kind == 6 and self.random.random() < 0.2:
            self.writer.is_dead = True
        elif not self.writer.is_dead:
            self.writer.writing.reconsider()
            self.writer.change_if_wanted()
            if self.random.random() < 0.1:
                self.writer.close()

    def _recover(self) -> None:
        self.recoverers = [each for each in self.recoverers if not each.is_dead]
        if len(self.recoverers) < _RECOVERERS_MAX and not self.metadata.is_closed:
            self.recoverers.append(Recoverer(self))
        elif self.recoverers:
            self.random.choice(self.recoverers).is_dead = True

    def end(self) -> None:
        """All bookies are up again: a recovery closes the ledger, whatever is still under way."""
        self._lost = self._lost_reads = 0
        for bookie in self.bookies.values():
            bookie.is_down = False
        limit = self.events + _ENDING_MAX
        while not self.metadata.is_closed:
            self.recoverers = [each for each in self.recoverers if not each.is_dead]
            if not self.recoverers:
                self.recoverers.append(Recoverer(self))
            self._deliver()
            if self.events > limit:
                raise Violation(Harm.NOT_RECOVERED, "it stays open")
        while self._messages and self.events <= limit:
            self._deliver()
        self.oracle.check_copies()


def run(seed: int, events: int, **weather: Any) -> Report:
    """Lives one after the other until so many events have happened; each chooses its profile, but
    for what `weather` names.
    """
    chance = random.Random(f"ledger model/{seed}")
    done = ledgers = acked = changes = recovered = 0
    while done < events:
        world = World(chance, replace(Profile.choose(chance), **weather))
        with repeatable("ledger_model", seed):
            world.live(chance.choice([50, 200, 600]))
            world.end()
        done += world.events
        ledgers += 1
        acked += world.oracle.acked + 1
        changes += len(world.metadata.segments) - 1
        recovered += world.metadata.last_entry - world.oracle.acked
    return Report(done, ledgers, acked, changes, recovered)
