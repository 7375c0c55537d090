"""Files, servers, and a network that loses, delays and doubles; a driver that obeys the rules."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from raftwood.base.backoff import Backoff
from raftwood.base.compression import Codec
from raftwood.base.errors import InvariantViolated
from raftwood.clogs.client.shipping_rules import (
    LoadBatch,
    LocateFile,
    QueuedBatch,
    ShipBatch,
    ShippingLimits,
    ShippingRules,
)
from raftwood.clogs.frames import LineBatch
from raftwood.clogs.receiver import Ordering
from tests.kits.clogs.shipping_model.oracle import File, Oracle, sequence_of
from tests.kits.clogs.shipping_model.storage import ACK, BUSY, MOVED, OUT_OF_ORDER, REFUSED
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
    file_in_flight_max: int
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
            in_flight_max=source.choice((1, 2, 3, 20)),
            file_in_flight_max=source.choice((1, 2, 4, 8)),
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
    followed: int
    """Batches that were acked though they were sent before the one in front was."""
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
            in_flight_max=profile.in_flight_max,
            file_in_flight_max=profile.file_in_flight_max,
            retry=Backoff(first_ms=100, longest_ms=2_000),
        )
        self.servers = [f"s{number}" for number in range(profile.servers)]
        self.orders = {server: Ordering() for server in self.servers}
        self.windows = {server: rng.choice((0, 2, 16)) for server in self.servers}
        """How many batches of a file each keeps in order: one of release 0.1.0 tells of none."""
        self.files = [File(f"f{number}") for number in range(profile.files)]
        self.route: dict[str, str] = {}
        self.rules = ShippingRules(limits, self.server_of)
        self.oracle = Oracle(self.rules, limits, self.files)
        self.coming: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        """Whatever arrives some time, in any order."""
        self.dropped = self.refused = self.repeated = self.moved = self.late = self.followed = 0
        self.kept = frozenset(file.name for file in self.files if rng.random() < 0.3)
        """Files whose batches somebody else keeps, and gives again after a refusal."""
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
            self.events,
            stored,
            self.dropped,
            self.refused,
            self.repeated,
            self.moved,
            self.followed,
            self.late,
        )

    def step(self) -> None:
        chance = self.random()
        self.events += 1
        coming = self.coming
        if chance < self.profile.rare:
            self.rare()
        elif coming and (chance < 0.8 or len(coming) > _UNDER_WAY_MAX):
            at = self.in_turn(int(self.random() * len(coming)))
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

    def in_turn(self, at: int) -> int:
        """What is sent to a server by one connection mostly arrives in order."""
        what, about = self.coming[at]
        if what != self.arrive or self.random() < 0.2:
            return at
        action = about[0]
        assert isinstance(action, ShipBatch)
        sequences = {
            other[0].batch.sequence: number
            for number, (kind, other) in enumerate(self.coming)
            if kind == self.arrive
            and isinstance(other[0], ShipBatch)
            and (other[0].lane, other[0].attempt) == (action.lane, action.attempt)
        }
        return sequences[min(sequences)]

    def server_of(self, name: str) -> str | None:
        return self.route.get(name)

    def give(self, file: File, *, is_resumed: bool = False) -> None:
        file.given += 1
        self.add(file, file.given, is_resumed=is_resumed)

    def add(self, file: File, sequence: int, *, is_resumed: bool) -> None:
        is_kept = file.name in self.kept
        entry = QueuedBatch(_batch(file, sequence, is_resumed), _ignore, is_keepable=not is_kept)
        # From these the batch is made again when it is read back.
        entry.spool_index = sequence
        entry.spool_group = int(is_resumed)
        if is_resumed:
            entry.was_sent = True
            file.sent.add(entry)
        if not is_kept and (is_resumed or self.random() < self.profile.spooled):
            entry.batch = None
        file.waiting.append(entry)
        self.rules.add(entry)

    # What the rules say

    def act(self) -> None:
        now = self.now
        actions = self.rules.actions(now)
        self.oracle.decided = dict(self.oracle.windows)
        for action in actions:
            self.events += 1
            if isinstance(action, ShipBatch) and not self.rules.is_wanted(action):
                # The one before it could not be sent.
                self.rules.not_sent(action, now=now)
                continue
            file = self.oracle.files[action.lane.name]
            was_at = file.places.get(action.entry, "") if isinstance(action, ShipBatch) else ""
            self.oracle.acted(action, now)
            if isinstance(action, ShipBatch):
                self.repeated += action.is_repeat
                self.send(action, was_at)
            elif isinstance(action, LocateFile):
                self.coming.append((self.locate, (action,)))
            else:
                self.coming.append((self.load, (action,)))
        if actions:
            # What could not be sent has made room for others.
            self.act()

    def send(self, action: ShipBatch, was_at: str) -> None:
        profile, coming = self.profile, self.coming
        if self.random() < profile.unsendable:
            file = self.oracle.files[action.lane.name]
            self.oracle.failed(file, action.entry, action.attempt, self.now)
            if not action.is_repeat:
                file.sent.discard(action.entry)
            file.places.pop(action.entry, None)
            if was_at:
                file.places[action.entry] = was_at
            self.rules.not_sent(action, now=self.now)
            return
        is_lost = self.random() < profile.lost
        if not is_lost:
            coming.append((self.arrive, (action,)))
        if is_lost or self.random() < profile.hasty:
            coming.append((self.give_up, (action,)))

    # What arrives

    def arrive(self, action: ShipBatch) -> None:
        profile = self.profile
        chance = self.random()
        file = self.oracle.files[action.lane.name]
        answer, place = BUSY, ""
        if action.batch.sequence % 64 < 64 * profile.refused:
            answer = REFUSED
        elif chance >= profile.busy:
            answer, place = self.take(file, action)
        if self.random() < profile.lost:
            self.coming.append((self.give_up, (action,)))
        else:
            self.coming.append((self.answered, (action, file, answer, place)))
            if self.random() < profile.doubled:
                self.coming.append((self.answered, (action, file, answer, place)))

    def take(self, file: File, action: ShipBatch) -> tuple[int, str]:
        """What a server does with a batch."""
        order = self.orders[action.server]
        message = action.batch.message(system=0, place=action.place, follows=action.follows)
        if action.follows:
            if not self.windows[action.server]:
                return BUSY, ""  # it does not know the flag
            if not order.is_behind(file.name, message):
                return OUT_OF_ORDER, ""
        answer, place = file.storage.take(action)
        if answer == ACK and action.place:
            order.stored(file.name, message)
        return answer, place

    def answered(self, action: ShipBatch, file: File, answer: int, place: str) -> None:
        lane, entry, attempt, now = action.lane, action.entry, action.attempt, self.now
        if answer == ACK:
            self.tell(action.server)
            is_late = file.attempt != attempt
            over = self.oracle.acked(file, entry, place)
            self.late += is_late and bool(over)
            self.followed += action.follows and bool(over)
            if self.rules.acked(lane, entry, place) != over:
                raise Violation(f"{file.name}: what an ack has brought is told wrongly")
        elif answer == MOVED:
            self.moved += self.oracle.moved(file, entry, attempt, now)
            self.rules.moved(lane, entry, attempt, now=now)
        elif answer == OUT_OF_ORDER:
            if self.oracle.taken_back(file, entry, attempt):
                self.oracle.wait(file, now)
            self.rules.out_of_order(lane, entry, attempt, now=now)
        elif answer == REFUSED:
            self.refuse(action, file)
        else:
            self.oracle.failed(file, entry, attempt, now)
            self.rules.failed(lane, entry, attempt, now=now)

    def tell(self, server: str) -> None:
        self.oracle.windows[server] = self.windows[server]
        self.rules.told(server, self.windows[server])

    def refuse(self, action: ShipBatch, file: File) -> None:
        entry, over = action.entry, []
        if self.oracle.taken_back(file, entry, action.attempt):
            waiting = [each for each in file.waiting if not each.is_dropped]
            behind = waiting[waiting.index(entry) + 1 :] if file.name in self.kept else []
            over = [entry, *behind]
            for each in over:
                self.oracle.finished(file, each)
            self.refused += 1
        if self.rules.refused(action.lane, entry, action.attempt) != over:
            raise Violation(f"{file.name}: what a refusal has brought is told wrongly")
        for each in over[1:]:
            self.oracle.over -= 1
            self.add(file, sequence_of(each), is_resumed=bool(each.spool_group))

    def give_up(self, action: ShipBatch) -> None:
        file = self.oracle.files[action.lane.name]
        self.oracle.failed(file, action.entry, action.attempt, self.now)
        self.rules.failed(action.lane, action.entry, action.attempt, now=self.now)

    def locate(self, action: LocateFile) -> None:
        file = self.oracle.files[action.lane.name]
        if self.random() < self.profile.lost + self.profile.busy:
            self.oracle.failed(file, None, action.attempt, self.now)
            self.rules.failed(action.lane, None, action.attempt, now=self.now)
            return
        # A server may not have heard yet that the place has moved.
        behind = self.random() < 0.1 and file.storage.place > 1
        place = str(file.storage.place - behind)
        self.tell(action.server)
        if self.oracle.answered(file, action.attempt):
            file.place = place
        self.rules.located(action.lane, action.attempt, place)

    def load(self, action: LoadBatch) -> None:
        entry, file = action.entry, self.oracle.files[action.lane.name]
        if self.random() < self.profile.busy:
            self.oracle.failed(file, None, action.attempt, self.now)
            self.rules.failed(action.lane, None, action.attempt, now=self.now)
            return
        if entry.batch is None and not entry.is_dropped:
            entry.batch = _batch(file, sequence_of(entry), bool(entry.spool_group))
        self.oracle.answered(file, action.attempt)
        self.rules.loaded(action.lane, action.attempt)

    # What is rare

    def rare(self) -> None:
        rng = self.rng
        file = rng.choice(self.files)
        turn = self.random()
        if turn < 0.25:
            file.storage.place += 1
        elif turn < 0.35:
            self.change_ring()
        elif turn < 0.4:
            # A server starts anew, perhaps as another release.
            server = rng.choice(self.servers)
            self.orders[server] = Ordering()
            self.windows[server] = rng.choice((0, 2, 16))
        elif turn < 0.7:
            if file.waiting and file.name not in self.kept:
                self.drop(file, rng.choice(file.waiting))
        elif file.waiting:
            entry = rng.choice(file.waiting)
            if not entry.is_dropped and self.profile.spooled and entry.is_keepable:
                entry.batch = None

    def drop(self, file: File, entry: QueuedBatch) -> None:
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


def _batch(file: File, sequence: int, is_resumed: bool) -> LineBatch:
    return LineBatch(
        name=file.name,
        producer=_PRODUCER,
        sequence=sequence,
        count=1,
        raw_bytes=0,
        codec=Codec.NONE,
        body=b"",
        is_resumed=is_resumed,
    )


def _ignore(_: object) -> None:
    """Nobody waits for a batch of the model."""


def run(seed: int, events: int, *, profile: Profile | None = None) -> Report:
    return World(seed, profile or Profile.choose(seed)).run(events)
