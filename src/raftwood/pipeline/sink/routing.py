"""Which shard stores which rows, so that a repetition finds them where they are. No I/O.

A row's key has a place among the key ranges. It enters at the oldest shard that is there for this
place, and where that one was split or merged before the row came, goes on to the child that took
the place over. What a shard was asked to store it answers the same way for ever, so that a task
that is run again takes the same way with the same rows; what came by different ways is told apart
by the producer's name, which is made of the way.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import numpy
import pyarrow

from raftwood.loghub.errors import ShardNotFound
from raftwood.loghub.key_ranges import contains, hash_key
from raftwood.loghub.model import Shard

SEQUENCES_PER_BATCH: Final = 512
"""Below what a shard remembers of a producer, 1024: all of a micro-batch is known at its end."""
_NO_KEY: Final = b""


class Way(msgspec.Struct, frozen=True):
    """How rows came to a shard: through which others, that did not take them."""

    shard: int
    through: tuple[int, ...] = ()

    def on_to(self, child: int) -> "Way":
        return Way(child, (*self.through, self.shard))


class WriteKey(msgspec.Struct, frozen=True):
    """What a task writes: the same again has the same."""

    writer: str
    """A query, or a batch write."""
    batch: int
    partition: int

    def producer(self, way: Way, ordinal: int) -> str:
        """Who stores the chunk with this number, as a shard knows it."""
        block = ordinal // SEQUENCES_PER_BATCH
        what = f"{self.writer}\0{self.partition}\0{block}\0{way.through}"
        return f"spark-{hashlib.sha256(what.encode()).hexdigest()[:40]}"

    def sequence(self, ordinal: int) -> int:
        return self.batch * SEQUENCES_PER_BATCH + ordinal % SEQUENCES_PER_BATCH + 1

    def place(self, ordinal: int) -> str:
        """Where a chunk without keys goes: anywhere, but there always."""
        return hash_key(f"{self.writer}/{self.batch}/{self.partition}/{ordinal}".encode())


class Entries:
    """Where rows enter: of each place the oldest shard that is there for it."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._begins = sorted({each.begin for each in shards} | {each.end for each in shards})
        by_age = sorted(shards, key=_number)
        self._oldest = [
            next((each.id for each in by_age if contains(each.begin, each.end, begin)), None)
            for begin in self._begins
        ]

    def shard(self, place: str) -> int:
        at = bisect_right(self._begins, place) - 1
        found = self._oldest[at] if at >= 0 else None
        if found is None:
            raise ShardNotFound("the logstore has no shard for some keys: is it being made?")
        return found

    def rows_by_shard(self, places: list[str], indices: Any) -> dict[int, Any]:
        """Of each shard, which rows enter there; in the order of their coming."""
        used = numpy.unique(indices)
        shards = numpy.full(len(places), -1, dtype=numpy.int64)
        shards[used] = [self.shard(places[place]) for place in used]
        of_row = shards[indices]
        return {int(each): numpy.flatnonzero(of_row == each) for each in numpy.unique(of_row)}


def next_shard(shards: Iterable[Shard], former: int, place: str) -> Shard | None:
    """Who took a place over from a shard; None where nobody is there yet.

    Shards of one place come one after the other, so that the oldest one since is the child, or who
    took over from a child that is gone.
    """
    heirs = [each for each in shards if each.id > former and contains(each.begin, each.end, place)]
    return min(heirs, key=_number, default=None)


def places_of_keys(keys: Any) -> tuple[list[str], Any]:
    """The places of a column of keys: those that there are, and which one each row has."""
    encoded = keys.dictionary_encode()
    unique = encoded.dictionary.cast(pyarrow.binary()).to_pylist()
    places = [hash_key(_NO_KEY if each is None else each) for each in unique]
    indices = encoded.indices
    if indices.null_count:
        places.append(hash_key(_NO_KEY))
        indices = indices.fill_null(len(places) - 1)
    return places, indices.to_numpy(zero_copy_only=False)


def _number(shard: Shard) -> int:
    return shard.id
