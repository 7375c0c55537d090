"""Files, servers, and a network that loses, delays and doubles; a driver that obeys the rules."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from raftwood.base.codecs import Codec
from raftwood.base.errors import InvariantViolated
from raftwood.clogs.batches import LineBatch
from raftwood.clogs.client.entries import Entry
from raftwood.clogs.client.shipping_rules import Load, Locate, Send, ShippingLimits, ShippingRules
from tests.kits.clogs.shipping_model.oracle import File, Oracle
from tests.kits.clogs.shipping_model.storage import ACK, BUSY, MOVED, REFUSED
from tests.kits.models import Violation

_CHECK_EVERY = 32
_UNDER_WAY_MAX = 64
_DRAIN_STEPS_MAX = 100_000
_PRODUCER = bytes(range(16))


@dataclass(frozen=True)
class Profile:
    """Sizes, and how likely each thing is when its turn comes."""

    files: int
    servers: int
    in_flight_max: int
    waiting_max: int
    """Batches of a file that wait, at the most."""
    lost: float
    """That a batch, or its answer, does not arrive."""
    doubled: float
    """That an answer arrives twice."""
    hasty: float
    """That a shipper gives up what is still to be answered."""
    busy: float
    """That a server takes no batch now."""
    unsendable: float
    refused: float
    spooled: float
    rare: float
    """Of all events: places that move, rings that change, batches dropped or let go of."""

    @classmethod
    def choose(cls, seed: int) -> "Profile":
        source = random.Random(f"clogs shipping model {seed}")
        return cls(
            files=source.choice((1, 2, 4, 8)),
            servers=source.choice((1, 2, 3, 5)),
            in_flight_max=source.choice((1, 1, 2, 3)),
            waiting_max=source.choice((1, 3, 20)),
            lost=source.choice((0.0, 0.05, 0.3)),
            doubled=source.choice((0.0, 0.1)),
            hasty=source.choice((0.0, 0.1, 0.5)),
            busy=source.choice((0.0, 0.05, 0.3)),
            unsendable=source.choice((0.0, 0.05, 0.3)),
            refused=source.choice((0.0, 0.02)),
            spooled=source.choice((0.0, 0.2, 0.8)),
            rare=source.choice((0.002, 0.02, 0.1)),
        )


class Report(msgspec.Struct, frozen=True):
    """What a run came to."""

    events: int
    stored: int
    dropped: int
    refused: int
    repeated: int
    moved: int
    late: int
    """Acks of attempts that were given up, and counted all the same."""


class World:
    def __init__(self, seed: int, profile: Profile) -> None:
        self.rng = rng = random.Random(seed)
        self.random = rng.random
        self.profile = profile
        self.now = 1.0
        self.events = 0
        limits = ShippingLimits(
            in_flight_max=profile.in_flight_max, retry_first_s=0.1, retry_longest_s=2.0
        )
        self.servers = [f"s{number}" for number in range(profile.servers)]
        self.files = [File(f"f{number}") for number in range(profile.files)]
        self.route: dict[str, str] = {}
        self.rules = ShippingRules(limits, self.server_of)
        self.oracle = Oracle(self.rules, limits, self.files)
        self.coming: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        """Whatever arrives some time, in any order."""
        self.dropped = self.refused = self.repeated = self.moved = self.late = 0
        for file in self.files:
            for _ in range(rng.choice((0, 0, 3))):
                self.give(file, is_resumed=True)

    def run(self, events: int) -> Report:
        begun = False
        while self.events < events:
            for _ in range(_CHECK_EVERY):
                self.step()
            if not begun and self.events > 200:
                begun = True
                self.change_ring()
            self.act()
            self.oracle.check(self.now)
        self.drain()
        stored = sum(len(file.storage.stored) for file in self.files)
        given = sum(file.given for file in self.files)
        if stored + self.dropped + self.refused != given:
            raise Violation(f"of {given} batches {stored} are stored, {self.dropped} dropped")
        return Report(
            self.events, stored, self.dropped, self.refused, self.repeated, self.moved, self.late
        )

    def step(self) -> None:
        chance = self.random()
        self.events += 1
        coming = self.coming
        if chance < self.profile.rare:
            self.rare()
        elif coming and (chance < 0.8 or len(coming) > _UNDER_WAY_MAX):
            at = int(self.random() * len(coming))
            coming[at], coming[-1] = coming[-1], coming[at]
            what, about = coming.pop()
            what(*about)
        elif chance < 0.9:
            self.now += 0.1 * self.random()
        else:
            file = self.files[int(self.random() * len(self.files))]
            if len(file.waiting) < self.profile.waiting_max:
                self.give(file)
        self.act()

    def server_of(self, name: str) -> str | None:
        return self.route.get(name)

    def give(self, file: File, *, is_resumed: bool = False) -> None:
        file.given += 1
        batch = LineBatch(
            name=file.name,
            producer=_PRODUCER,
            sequence=file.given,
            count=1,
            raw_bytes=0,
            codec=Codec.NONE,
            body=b"",
            is_resumed=is_resumed,
        )
        entry = Entry(batch, _ignore)
        # From these the batch is made again when it is read back.
        entry.spool_index = file.given
        entry.spool_group = int(is_resumed)
        if is_resumed:
            entry.was_sent = True
            file.sent.add(entry)
        if is_resumed or self.random() < self.profile.spooled:
            entry.batch = None
        file.waiting.append(entry)
        self.rules.add(entry)

    # What the rules say

    def act(self) -> None:
        now = self.now
        actions = self.rules.actions(now)
        for action in actions:
            self.events += 1
            self.oracle.acted(action, now)
            if isinstance(action, Send):
                self.repeated += action.is_repeat
                self.send(action)
            elif isinstance(action, Locate):
                self.coming.append((self.locate, (action,)))
            else:
                self.coming.append((self.load, (action,)))
        if actions:
            # What could not be sent has made room for others.
            self.act()

    def send(self, action: Send) -> None:
        profile, coming = self.profile, self.coming
        if self.random() < profile.unsendable:
            file = self.oracle.files[action.lane.name]
            self.oracle.failed(file, action.attempt, self.now)
            if not action.is_repeat:
                file.sent.discard(action.entry)
            self.rules.not_sent(action, now=self.now)
            return
        is_lost = self.random() < profile.lost
        if not is_lost:
            coming.append((self.arrive, (action,)))
        if is_lost or self.random() < profile.hasty:
            coming.append((self.give_up, (action,)))

    # What arrives

    def arrive(self, action: Send) -> None:
        profile = self.profile
        chance = self.random()
        file = self.oracle.files[action.lane.name]
        answer, place = BUSY, ""
        if action.batch.sequence % 64 < 64 * profile.refused:
            answer = REFUSED
        elif chance >= profile.busy:
            answer, place = file.storage.take(action)
        if self.random() < profile.lost:
            self.coming.append((self.give_up, (action,)))
        else:
            self.coming.append((self.answered, (action, file, answer, place)))
            if self.random() < profile.doubled:
                self.coming.append((self.answered, (action, file, answer, place)))

    def answered(self, action: Send, file: File, answer: int, place: str) -> None:
        lane, entry, attempt, now = action.lane, action.entry, action.attempt, self.now
        if answer == ACK:
            is_news = file.first() is entry
            if is_news:
                self.late += file.attempt != attempt
                self.oracle.finished(file)
                file.place = place
            if self.rules.acked(lane, entry, place) != is_news:
                raise Violation(f"{file.name}: whether an ack is news is told wrongly")
        elif answer == MOVED:
            if self.oracle.failed(file, attempt, now):
                self.moved += 1
                file.place = ""
            self.rules.moved(lane, attempt, now=now)
        elif answer == REFUSED:
            is_news = bool(file.attempt) and file.attempt == attempt
            if is_news:
                self.oracle.finished(file)
                self.refused += 1
            if self.rules.refused(lane, entry, attempt) != is_news:
                raise Violation(f"{file.name}: whether a refusal is news is told wrongly")
        else:
            self.oracle.failed(file, attempt, now)
            self.rules.failed(lane, attempt, now=now)

    def give_up(self, action: Send) -> None:
        self.oracle.failed(self.oracle.files[action.lane.name], action.attempt, self.now)
        self.rules.failed(action.lane, action.attempt, now=self.now)

    def locate(self, action: Locate) -> None:
        file = self.oracle.files[action.lane.name]
        if self.random() < self.profile.lost + self.profile.busy:
            self.oracle.failed(file, action.attempt, self.now)
            self.rules.failed(action.lane, action.attempt, now=self.now)
            return
        # A server may not have heard yet that the place has moved.
        behind = self.random() < 0.1 and file.storage.place > 1
        place = str(file.storage.place - behind)
        if self.oracle.ended(file, action.attempt):
            file.place = place
        self.rules.located(action.lane, action.attempt, place)

    def load(self, action: Load) -> None:
        entry, file = action.entry, self.oracle.files[action.lane.name]
        if self.random() < self.profile.busy:
            self.oracle.failed(file, action.attempt, self.now)
            self.rules.failed(action.lane, action.attempt, now=self.now)
            return
        if entry.batch is None and not entry.is_dropped:
            self.restore(file, entry)
        self.oracle.ended(file, action.attempt)
        self.rules.loaded(action.lane, action.attempt)

    def restore(self, file: File, entry: Entry) -> None:
        entry.batch = LineBatch(
            name=file.name,
            producer=_PRODUCER,
            sequence=entry.spool_index,
            count=1,
            raw_bytes=0,
            codec=Codec.NONE,
            body=b"",
            is_resumed=bool(entry.spool_group),
        )

    # What is rare

    def rare(self) -> None:
        rng = self.rng
        file = rng.choice(self.files)
        turn = self.random()
        if turn < 0.25:
            file.storage.place += 1
        elif turn < 0.4:
            self.change_ring()
        elif turn < 0.7:
            if file.waiting:
                self.drop(file, rng.choice(file.waiting))
        elif file.waiting:
            entry = rng.choice(file.waiting)
            if not entry.is_dropped and self.profile.spooled:
                entry.batch = None

    def drop(self, file: File, entry: Entry) -> None:
        if entry.is_dropped:
            return
        if entry in file.sent:
            try:
                self.rules.dropped(entry)
            except InvariantViolated:
                return
            raise Violation(f"{file.name}: a batch that was sent is dropped")
        self.rules.dropped(entry)
        self.dropped += 1
        entry.batch = None

    def change_ring(self) -> None:
        live = self.rng.sample(self.servers, self.rng.randint(1, len(self.servers)))
        self.route = {file.name: self.rng.choice(live) for file in self.files}
        self.oracle.ring_changed(live, self.route)
        self.rules.servers_changed(live)

    # The end

    def drain(self) -> None:
        """With all well again, everything is stored within a bounded time."""
        self.profile = replace(
            self.profile, rare=0.0, lost=0.0, busy=0.0, hasty=0.0, unsendable=0.0
        )
        if not self.route:
            self.change_ring()
        for _ in range(_DRAIN_STEPS_MAX):
            if not any(file.first() for file in self.files):
                return
            if self.coming:
                what, about = self.coming.pop()
                what(*about)
            else:
                self.act()
                if not self.coming:
                    self.now = max(self.now, self.rules.due)
                    if self.now == float("inf"):
                        raise Violation("there is work, and nobody comes again for it")
            self.act()
        raise Violation("batches are not stored though all is well")


def _ignore(_: object) -> None:
    """Nobody waits for a batch of the model."""


def run(seed: int, events: int, *, profile: Profile | None = None) -> Report:
    return World(seed, profile or Profile.choose(seed)).run(events)
