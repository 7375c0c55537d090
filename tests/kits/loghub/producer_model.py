"""A hub in memory and a network that loses, delays and repeats, for the rules of a producer."""

import random
from collections import deque
from functools import partial
from typing import Any

from raftwood.loghub.client.producer_rules import (
    AskForShards,
    ProducerBatch,
    ProducerLimits,
    ProducerRecord,
    ProducerRules,
    SendToShard,
    Settle,
    ShardLane,
)
from raftwood.loghub.model import Shard, ShardStatus
from raftwood.loghub.shards import even_ranges, hash_key, middle
from tests.kits.models import CATCHES, Mutant, Plant, replaced

KEYS = 12


class ModelRecord(ProducerRecord, gc=False, eq=False):
    """A record that knows its key and its place among the records of that key."""

    key: str = ""
    number: int = 0
    outcome: str = ""


class WholeRecord(ModelRecord, gc=False, eq=False):
    """One that is a batch by itself."""

    is_whole = True


class ModelLog:
    """One shard's log: takes each sequence once, until it is sealed."""

    def __init__(self) -> None:
        self.records: list[ModelRecord] = []
        self.known: dict[int, bool] = {}
        self.is_sealed = False

    def append(self, sequence: int, records: list[ModelRecord]) -> bool:
        if sequence not in self.known:
            self.known[sequence] = not self.is_sealed
            if not self.is_sealed:
                self.records += records
        return self.known[sequence]


class Request:
    """A batch on its way; it may be carried out long after its sender gave up on the answer."""

    def __init__(self, lane: ShardLane, batch: ProducerBatch) -> None:
        self.lane = lane
        self.shard = lane.shard
        self.sequence = batch.sequence
        self.records: list[ModelRecord] = list(batch.records)  # type: ignore[arg-type]
        self.is_awaited = True
        self.answer: bool | None = None


class World:
    """Everything but the rules, by one seed."""

    def __init__(self, seed: int, *, deadlines: bool = False, linger_s: float = 0.0) -> None:
        self.chance = random.Random(seed)
        self.timeout_s = 5.0 if deadlines else 1e9
        limits = ProducerLimits(
            batch_records_max=5,
            batch_bytes_max=80,
            delivery_timeout_s=self.timeout_s,
            linger_s=linger_s,
        )
        self.rules = ProducerRules(limits)
        self.now = 100.0
        self.shards: dict[int, Shard] = {}
        self.logs: dict[int, ModelLog] = {}
        self.requests: list[Request] = []
        self.tables: list[list[Shard]] = []
        self.given: list[ModelRecord] = []
        self.next_number = dict.fromkeys([f"key-{each}" for each in range(KEYS)], 0)
        for begin, end in even_ranges(2):
            self._new_shard(begin, end, ShardStatus.READWRITE)

    # The hub

    def _new_shard(self, begin: str, end: str, status: ShardStatus) -> int:
        number = len(self.shards)
        self.logs[number] = ModelLog()
        self.shards[number] = Shard(
            id=number, log=str(number), status=status, begin=begin, end=end, created_s=0
        )
        return number

    def _close(self, number: int) -> None:
        old = self.shards[number]
        self.logs[number].is_sealed = True
        self.shards[number] = Shard(
            id=number,
            log=old.log,
            status=ShardStatus.READONLY,
            begin=old.begin,
            end=old.end,
            created_s=0,
        )

    def writable(self) -> list[Shard]:
        found = [each for each in self.shards.values() if each.status is ShardStatus.READWRITE]
        return sorted(found, key=lambda each: each.begin)

    def split(self) -> None:
        shard = self.chance.choice(self.writable())
        if len(self.writable()) < 6:
            self._close(shard.id)
            cut = middle(shard.begin, shard.end)
            self._new_shard(shard.begin, cut, ShardStatus.READWRITE)
            self._new_shard(cut, shard.end, ShardStatus.READWRITE)

    def merge(self) -> None:
        shards = self.writable()
        if len(shards) > 1:
            place = self.chance.randrange(len(shards) - 1)
            first, second = shards[place], shards[place + 1]
            self._close(first.id)
            self._close(second.id)
            self._new_shard(first.begin, second.end, ShardStatus.READWRITE)

    def seal_early(self) -> None:
        """A log is sealed a while before the list says so."""
        self.logs[self.chance.choice(self.writable()).id].is_sealed = True

    def finish_sealed(self) -> None:
        for shard in self.writable():
            if self.logs[shard.id].is_sealed:
                self._close(shard.id)
                self._new_shard(shard.begin, shard.end, ShardStatus.READWRITE)

    # The producer

    def give(self) -> None:
        key = f"key-{self.chance.randrange(KEYS)}"
        has_key = key != "key-0"
        number = self.next_number[key]
        kind = WholeRecord if number % 11 == 0 else ModelRecord
        record = kind(
            b"x" * 10,
            10,
            hash_key(key.encode()) if has_key else None,
            b"odd" if number % 7 == 0 else b"",
            deadline=self.now + self.timeout_s,
            key=key,
            number=number,
        )
        self.next_number[key] += 1
        self.given.append(record)
        self.rules.add(record)

    def act(self) -> None:
        for action in self.rules.actions(self.now):
            if isinstance(action, SendToShard):
                is_sent = self.chance.random() > 0.1
                if is_sent:
                    action.batch.was_sent = True
                    self.requests.append(Request(action.lane, action.batch))
                else:
                    self.rules.put_off(action.lane, now=self.now)
            elif isinstance(action, AskForShards):
                self.tables.append([])
            elif isinstance(action, Settle):
                for record in action.records:
                    self._settle(record, "unknown" if action.is_unknown else "not stored")

    @staticmethod
    def _settle(record: ProducerRecord, outcome: str) -> None:
        assert isinstance(record, ModelRecord)
        record.outcome = record.outcome or outcome

    # The network

    def carry_out(self) -> None:
        waiting = [each for each in self.requests if each.answer is None]
        if waiting:
            request = self.chance.choice(waiting)
            request.answer = self.logs[request.shard].append(request.sequence, request.records)

    def answer(self) -> None:
        answered = [each for each in self.requests if each.answer is not None]
        if not answered:
            return
        request = self.chance.choice(answered)
        self.requests.remove(request)
        if not request.is_awaited:
            return
        if request.answer:
            for record in self.rules.stored(request.lane).records:
                self._settle(record, "stored")
        else:
            self.rules.readonly(request.lane)

    def lose(self) -> None:
        """An answer is not waited for any longer; the request itself may still arrive."""
        awaited = [each for each in self.requests if each.is_awaited]
        if awaited:
            request = self.chance.choice(awaited)
            request.is_awaited = False
            self.rules.lost(request.lane, now=self.now)

    def put_off(self) -> None:
        awaited = [each for each in self.requests if each.is_awaited and each.answer is None]
        if awaited:
            request = self.chance.choice(awaited)
            self.requests.remove(request)
            self.rules.put_off(request.lane, now=self.now)

    def tell_shards(self) -> None:
        if self.tables:
            self.tables.pop()
            if self.chance.random() < 0.2:
                self.rules.not_learned(now=self.now)
            else:
                self.rules.learned(self.shards.values(), now=self.now)

    def pass_time(self) -> None:
        self.now += self.chance.random() * self.chance.choice([0.01, 0.1, 2.0])

    # Runs

    def run(self, steps: int) -> None:
        moves = [
            *[self.give] * 12,
            *[self.carry_out] * 8,
            *[self.answer] * 8,
            *[self.pass_time] * 4,
            *[self.tell_shards] * 3,
            *[self.lose] * 2,
            self.put_off,
            self.split,
            self.merge,
            self.seal_early,
            self.finish_sealed,
        ]
        for _ in range(steps):
            self.chance.choice(moves)()
            self.act()

    def settle_all(self) -> None:
        """Faults are over: all that is still to be stored comes to be."""
        for _ in range(2000):
            self.finish_sealed()
            self.tell_shards()
            self.carry_out()
            self.answer()
            self.now += 0.3
            self.act()
            if all(record.outcome for record in self.given) and not self.requests:
                return
        raise AssertionError("not all records were settled")

    def check(self) -> None:
        stored = [record for number in sorted(self.logs) for record in self.logs[number].records]
        assert len(stored) == len(set(map(id, stored))), "a record is stored twice"
        there = set(map(id, stored))
        for record in self.given:
            if record.outcome == "stored":
                assert id(record) in there, "an acked record is not stored"
            elif record.outcome == "not stored":
                assert id(record) not in there, "a record is stored against its answer"
        for key in self.next_number:
            if key != "key-0":
                numbers = [record.number for record in stored if record.key == key]
                assert numbers == sorted(numbers), f"{key} is out of order"


def run(seed: int, *, deadlines: bool = False, linger_s: float = 0.0) -> World:
    """One seed; raises where a record is not as it was told."""
    world = World(seed, deadlines=deadlines, linger_s=linger_s)
    world.run(400)
    world.settle_all()
    world.check()
    return world


# Planted bugs


def _behind_the_others(self: ProducerRules, lane: ShardLane) -> None:
    lane.queue.extend(self._take(lane).records)
    self._seal(lane)


def _gathered_anew(self: ProducerRules, lane: ShardLane, *, now: float) -> None:
    self._try_later(lane, now)
    lane.queue.extendleft(reversed(self._take(lane).records))
    self._move_on()


def _past_the_retired(self: ProducerRules, route: str) -> ShardLane | None:
    retired, self._retired = self._retired, []
    lane = _lane_of(self, route)
    self._retired = retired
    self._routes.clear()
    return lane


_lane_of = ProducerRules._lane_of


def _without_waiting(self: ProducerRules) -> None:
    self._routes.clear()
    for lane in self._retired:
        moved, lane.queue = lane.queue, deque()
        for record in moved:
            _add_to_table(self, record)
    self._retired = [lane for lane in self._retired if lane.batch is not None]


def _add_to_table(self: ProducerRules, record: ProducerRecord) -> None:
    retired, self._retired = self._retired, []
    self.add(record)
    self._retired = retired
    self._routes.clear()


def _same_sequence(self: ProducerRules, lane: ShardLane) -> ProducerBatch:
    batch = _gather(self, lane)
    self._sequences[lane.shard] -= 1
    return batch


_gather = ProducerRules._gather


def _newest_first(self: ProducerRules) -> None:
    self._retired.reverse()
    for lane in self._retired:
        lane.queue.reverse()
    _move_on(self)


_move_on = ProducerRules._move_on


def _unsealed(self: ProducerRules, lane: ShardLane) -> None:
    lane.queue.clear()
    self._move_on()


def _dropped_in_doubt(
    self: ProducerRules,
    lane: ShardLane,
    batch: ProducerBatch,
    now: float,
    late: list[ProducerRecord],
    actions: Any,
) -> None:
    batch.is_doubtful = False
    _expire_batch(self, lane, batch, now, late, actions)


_expire_batch = ProducerRules._expire_batch


def _of(plant: Plant) -> Mutant:
    # What is taken from an empty lane is a sign, too.
    return Mutant(run, plant, catches=(*CATCHES, IndexError))


MUTANTS = {
    "behind the others": _of(replaced(ProducerRules, readonly=_behind_the_others)),
    "gathered anew": _of(replaced(ProducerRules, lost=_gathered_anew)),
    "past the retired": _of(replaced(ProducerRules, _lane_of=_past_the_retired)),
    "without waiting": _of(replaced(ProducerRules, _move_on=_without_waiting)),
    "newest first": _of(replaced(ProducerRules, _move_on=_newest_first)),
    "the same sequence": _of(replaced(ProducerRules, _gather=_same_sequence)),
    "unsealed": _of(replaced(ProducerRules, _seal=_unsealed)),
    "dropped in doubt": Mutant(
        partial(run, deadlines=True), replaced(ProducerRules, _expire_batch=_dropped_in_doubt)
    ),
}
