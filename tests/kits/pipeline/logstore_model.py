"""A logstore in a few lines, for the rules of planning: shards of batches, split and merged."""

from random import Random

import msgspec

from raftwood.base.position import Position
from raftwood.pipeline.offsets import AdmissionStep, ShardExtent, ShardRange

KEYS = 64


class ModelShard(msgspec.Struct):
    id: int
    low: int
    high: int
    parents: tuple[int, ...] = ()
    first: int = 1
    next: int = 1
    is_ended: bool = False
    batches: dict[int, list[tuple[int, int]]] = {}
    """By position: (key, number) of each record."""


class ModelLogstore:
    """Grows by chance; every record has a number, rising for each key."""

    def __init__(self, random: Random, shards: int) -> None:
        self.random = random
        cuts = [KEYS * place // shards for place in range(shards + 1)]
        self.shards = [ModelShard(place, cuts[place], cuts[place + 1]) for place in range(shards)]
        self.records = 0
        self.where: dict[int, int] = {}
        """The shard of each record."""

    def views(self) -> list[ShardExtent]:
        return [
            ShardExtent(
                id=each.id,
                parents=each.parents,
                first=Position(each.first),
                next=Position(each.next),
                is_ended=each.is_ended,
            )
            for each in self.shards
        ]

    def open(self) -> list[ModelShard]:
        return [each for each in self.shards if not each.is_ended]

    def append(self) -> None:
        shard = self.random.choice(self.open())
        if self.random.random() < 0.2:
            shard.next += self.random.randint(1, 3)  # positions that no reader sees
        batch = []
        for _ in range(self.random.randint(1, 6)):
            batch.append((self.random.randrange(shard.low, shard.high), self.records))
            self.where[self.records] = shard.id
            self.records += 1
        shard.batches[shard.next] = batch
        shard.next += 1

    def split(self) -> None:
        wide = [each for each in self.open() if each.high - each.low > 1]
        if wide:
            parent = self.random.choice(wide)
            cut = self.random.randrange(parent.low + 1, parent.high)
            parent.is_ended = True
            number = len(self.shards)
            self.shards += [
                ModelShard(number, parent.low, cut, (parent.id,)),
                ModelShard(number + 1, cut, parent.high, (parent.id,)),
            ]

    def merge(self) -> None:
        by_low = {each.low: each for each in self.open()}
        pairs = [(each, by_low[each.high]) for each in self.open() if each.high in by_low]
        if pairs:
            one, other = self.random.choice(pairs)
            one.is_ended = other.is_ended = True
            parents = (one.id, other.id)
            self.shards.append(ModelShard(len(self.shards), one.low, other.high, parents))

    def change(self) -> None:
        self.random.choice([self.append] * 8 + [self.split, self.merge])()

    def read(self, wanted: ShardRange) -> list[tuple[int, int]]:
        shard = self.shards[wanted.shard]
        return [
            record
            for position in range(max(wanted.begin, shard.first), wanted.end)
            for record in shard.batches.get(position, [])
        ]

    def steps(self, wanted: ShardRange, count: int) -> tuple[list[AdmissionStep], Position]:
        """As many batches as one answer has."""
        shard = self.shards[wanted.shard]
        found: list[AdmissionStep] = []
        for position in range(wanted.begin, shard.next):
            if position in shard.batches:
                if len(found) == count:
                    return found, Position(position)
                found.append(AdmissionStep(Position(position), len(shard.batches[position])))
        return found, Position(shard.next)
