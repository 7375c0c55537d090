"""Consumers, as SLS clients are, and the rules, which answer their heartbeats through gateways.

A consumer lists what it works on, also what it is ending; one that is cut off stops by itself
before it is thought dead. Requests and answers are lost or late; a consumer sends no heartbeat
before the last one was answered or given up.
"""

import random
from dataclasses import dataclass, field, replace
from typing import Any

from raftwood.loghub.model import Logstore
from raftwood.loghub.server import consumer_group_rules as rules
from tests.kits.loghub.group_model.oracle import check_all_are_had, check_spread
from tests.kits.loghub.group_model.stream import Stream
from tests.kits.models import Violation

SETTLE_ROUNDS = 6
READ_ROUNDS = 400


@dataclass(frozen=True)
class Profile:
    """Counts, chances, and the weights by which events are drawn."""

    consumers: int
    shards: int
    gateways: int
    is_ordered: bool
    lose_request: float
    lose_answer: float
    """It is done, and the consumer does not hear of it."""
    stale: float
    """A gateway does not look at the latest shards."""
    empty: float
    """A shard is sealed before anything was put there."""
    weights: dict[str, float]

    @classmethod
    def choose(cls, seed: int) -> "Profile":
        source = random.Random(f"consumer group {seed}")
        rare = source.choice((0.0, 0.3, 1.0))
        return cls(
            consumers=source.randint(1, 6),
            shards=source.choice((1, 2, 4, 7, 12)),
            gateways=source.randint(1, 3),
            is_ordered=source.random() < 0.7,
            lose_request=source.choice((0.0, 0.05, 0.3)),
            lose_answer=source.choice((0.0, 0.05, 0.3)),
            stale=source.choice((0.0, 0.2, 0.8)),
            empty=source.choice((0.0, 0.3)),
            weights={
                "beat": 30,
                "answer": 30,
                "end_work": source.choice((3, 10, 30)),
                "read": source.choice((3, 10, 30)),
                "crash": source.choice((0.0, 0.2, 1.0)),
                "cut_off": source.choice((0.0, 0.2, 1.0)),
                "time_out": source.choice((0.5, 2)),
                "return_": source.choice((0.5, 2)),
                "split": rare * source.choice((0.2, 1.0)),
                "merge": rare * source.choice((0.2, 1.0)),
                "hand_over": source.choice((1, 5)),
                "delete_shard": rare * source.choice((0.0, 0.5)),
                "go_back": source.choice((0.0, 0.0, 0.1)),
            },
        )


@dataclass(frozen=True)
class Report:
    events: int
    moves: int
    begun: int
    """Shards that somebody began to work on."""
    waited: int
    """Heartbeats at which a shard waited for another."""


@dataclass
class Consumer:
    name: str
    is_up: bool = True
    is_cut_off: bool = False
    told: list[int] = field(default_factory=list)
    working: set[int] = field(default_factory=set)
    answer: list[int] | None = None
    """On its way."""

    def stop(self) -> None:
        self.told, self.working, self.answer = [], set(), None

    def ending(self) -> list[int]:
        return sorted(self.working.difference(self.told))


class World:
    def __init__(self, seed: int, profile: Profile) -> None:
        self.random = random.Random(seed)
        self.profile = profile
        self.stream = Stream(self.random, shards=profile.shards, empty=profile.empty)
        self.tenures: dict[int, rules.ShardTenure] = {}
        self.alive: set[str] = set()
        self.consumers = [Consumer(f"c{number}") for number in range(profile.consumers)]
        self.views: list[Logstore] = [self.stream.now] * profile.gateways
        self.moves = self.begun = self.waited = 0

    # What happens, by name.

    def beat(self) -> None:
        consumer = self._one(is_cut_off=False)
        if consumer is None or consumer.answer is not None:
            return
        if self.random.random() < self.profile.lose_request:
            return
        consumer.answer = self._heartbeat(consumer, self._view())
        if self.random.random() < self.profile.lose_answer:
            consumer.answer = None

    def _view(self) -> Logstore:
        """What a gateway sees; it never goes back."""
        gateway = self.random.randrange(len(self.views))
        if self.random.random() >= self.profile.stale:
            self.views[gateway] = self.stream.now
        return self.views[gateway]

    def _heartbeat(self, consumer: Consumer, view: Logstore) -> list[int]:
        self.alive.add(consumer.name)
        before, held = self.tenures, sorted(consumer.working)
        facts = rules.facts_of(
            view,
            before,
            over=self.stream.over(view),
            alive=self.alive,
            is_ordered=self.profile.is_ordered,
        )
        after = rules.after_heartbeat(before, consumer=consumer.name, held=held, facts=facts)
        self._check(before, after, consumer.name, held, facts)
        self.tenures = after
        return rules.told(after, consumer.name)

    def _check(
        self,
        before: rules.Tenures,
        after: rules.Tenures,
        consumer: str,
        held: list[int],
        facts: rules.GroupFacts,
    ) -> None:
        check_all_are_had(before, after, consumer=consumer, held=held, facts=facts)
        free = [shard for shard in after if shard not in before]
        adopted = [shard for shard in held if shard in free]
        self.moves += check_spread(before, after, adopted=adopted, consumer=consumer, facts=facts)
        if self.profile.is_ordered:
            for shard in free:
                unread = self.stream.unread_ancestors(shard)
                if unread:
                    raise Violation(f"shard {shard} begins before {unread} are read")
            self.waited += any(
                rules.shard_state(after, each, facts) is rules.GroupShardState.WAIT
                for each in facts.shards.values()
            )

    def answer(self) -> None:
        waiting = [each for each in self.consumers if each.answer is not None]
        if waiting:
            self._deliver(self.random.choice(waiting))

    def _deliver(self, consumer: Consumer) -> None:
        assert consumer.answer is not None
        consumer.told, consumer.answer = consumer.answer, None
        for shard in consumer.told:
            if shard not in consumer.working:
                self._begin(consumer, shard)

    def _begin(self, consumer: Consumer, shard: int) -> None:
        others = [each.name for each in self.consumers if shard in each.working]
        if others:
            raise Violation(f"{consumer.name} begins shard {shard}, where {others} are at work")
        consumer.working.add(shard)
        self.begun += 1

    def end_work(self) -> None:
        ending = [(each, shard) for each in self.consumers for shard in each.ending()]
        if ending:
            consumer, shard = self.random.choice(ending)
            consumer.working.discard(shard)

    def read(self) -> None:
        reading = [(each, shard) for each in self.consumers for shard in sorted(each.working)]
        if reading:
            self.stream.read(self.random.choice(reading)[1])

    def crash(self) -> None:
        consumer = self._one()
        if consumer is not None:
            consumer.is_up = False
            consumer.stop()

    def cut_off(self) -> None:
        """Its own deadline is over before the store's."""
        consumer = self._one()
        if consumer is not None:
            consumer.is_cut_off = True
            consumer.stop()

    def time_out(self) -> None:
        silent = [each.name for each in self.consumers if not each.is_up or each.is_cut_off]
        if silent:
            self.alive.discard(self.random.choice(silent))

    def return_(self) -> None:
        """Under its name, before it is thought dead or after it."""
        away = [each for each in self.consumers if not each.is_up or each.is_cut_off]
        if away:
            consumer = self.random.choice(away)
            consumer.is_up, consumer.is_cut_off = True, False

    def go_back(self) -> None:
        """Somebody sets a checkpoint by hand."""
        if self.stream.read_to:
            self.stream.read_to[self.random.choice(sorted(self.stream.read_to))] = 0

    def _one(self, *, is_cut_off: bool | None = None) -> Consumer | None:
        found = [
            each for each in self.consumers if each.is_up and is_cut_off in (None, each.is_cut_off)
        ]
        return self.random.choice(found) if found else None

    def event(self, name: str) -> None:
        if name in ("split", "merge", "hand_over", "delete_shard"):
            getattr(self.stream, name)()
        else:
            getattr(self, name)()

    # How it ends: nothing goes wrong any more.

    def end(self) -> None:
        self.stream.hand_over()
        for consumer in self.consumers:
            if not consumer.is_up or consumer.is_cut_off:
                consumer.stop()
                self.alive.discard(consumer.name)
        if not any(each.is_up and not each.is_cut_off for each in self.consumers):
            self.consumers[0].is_up, self.consumers[0].is_cut_off = True, False
        for _ in range(SETTLE_ROUNDS):
            self._round()
        self._check_settled()
        moves = self.moves
        for _ in range(3):
            settled = self.tenures
            self._round()
            if self.tenures != settled or self.moves != moves:
                raise Violation("what is settled moves")
        self._read_all()

    def _round(self) -> None:
        for consumer in self.consumers:
            if consumer.is_up and not consumer.is_cut_off:
                if consumer.answer is None:
                    consumer.answer = self._heartbeat(consumer, self.stream.now)
                self._deliver(consumer)
                for shard in consumer.ending():
                    consumer.working.discard(shard)

    def _check_settled(self) -> None:
        facts = rules.facts_of(
            self.stream.now,
            self.tenures,
            over=self.stream.over(self.stream.now),
            alive=self.alive,
            is_ordered=self.profile.is_ordered,
        )
        for shard in self.stream.now.visible():
            workers = [each for each in self.consumers if shard.id in each.working]
            state = rules.shard_state(self.tenures, facts.shards[shard.id], facts)
            if state is rules.GroupShardState.WAIT and self.stream.unread_ancestors(shard.id):
                expected = 0
            else:
                expected = 0 if self.stream.is_over(shard) else 1
            if len(workers) != expected:
                raise Violation(f"shard {shard.id} is {state}, and {workers} are at work")

    def _read_all(self) -> None:
        """Readers go on until nothing is left that somebody could wait for."""
        for _ in range(READ_ROUNDS):
            left = [
                each
                for each in self.stream.now.visible()
                if each.end_position is not None and not self.stream.is_over(each)
            ]
            if not left:
                break
            for consumer in self.consumers:
                for shard in sorted(consumer.working):
                    self.stream.read(shard)
            self._round()
        else:
            raise Violation(f"shards {[each.id for each in left]} are never read")
        for _ in range(SETTLE_ROUNDS):
            self._round()
        self._check_settled()


def run(seed: int, events: int, **weather: Any) -> Report:
    """The seed chooses the profile, but for what `weather` names."""
    profile = replace(Profile.choose(seed), **weather)
    world = World(seed, profile)
    names, weights = list(profile.weights), list(profile.weights.values())
    for name in world.random.choices(names, weights, k=events):
        world.event(name)
    world.end()
    return Report(events, world.moves, world.begun, world.waited)
