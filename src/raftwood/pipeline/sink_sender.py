"""Sends chunks of rows to shards, each stored once.

A lane is a shard where rows enter: each lane has one chunk under way at a time, in order, and the
lanes run side by side.

Routing decides which shard stores which rows, so that a repeated write finds them there; it does no
I/O. A row's key has a place among the key ranges. It enters at the oldest existing shard for this
place. If that shard was split or merged before the row came, the row goes on to the child that took
the place over. A shard gives the same answer to the same request for ever, so a task that runs
again takes the same way with the same rows. The producer's name is made from the way, so that rows
of different ways stay distinct.
"""

import asyncio
import hashlib
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Final

import msgspec
import numpy
import pyarrow

from raftwood.base.compression import Codec
from raftwood.base.errors import RaftwoodError
from raftwood.delivery.lanes import successor
from raftwood.loghub.arrow_batches import write_arrow_stream
from raftwood.loghub.batches import Batch, Format
from raftwood.loghub.errors import SHARD_ENDED, ShardNotFound
from raftwood.loghub.model import Shard
from raftwood.loghub.shards import contains, hash_key
from raftwood.loghub.wire import PutRequest, encode_put
from raftwood.pipeline.hub import Hub
from raftwood.pipeline.options import StreamAccess

SEQUENCES_PER_BATCH: Final = 512
"""Below the 1,024 that a shard remembers of a producer: at the end it knows a whole micro-batch."""
_NO_KEY: Final = b""


class Way(msgspec.Struct, frozen=True):
    """The way of rows to a shard: the shards before it that refused them."""

    shard: int
    through: tuple[int, ...] = ()

    def on_to(self, child: int) -> "Way":
        return Way(child, (*self.through, self.shard))


class WriteKey(msgspec.Struct, frozen=True):
    """The identity of a task's write: a repeated task has the same."""

    writer: str
    """A query, or a batch write."""
    batch: int
    partition: int

    def producer(self, way: Way, ordinal: int) -> str:
        """Returns the producer's name for the chunk with this number."""
        block = ordinal // SEQUENCES_PER_BATCH
        what = f"{self.writer}\0{self.partition}\0{block}\0{way.through}"
        return f"spark-{hashlib.sha256(what.encode()).hexdigest()[:40]}"

    def sequence(self, ordinal: int) -> int:
        return self.batch * SEQUENCES_PER_BATCH + ordinal % SEQUENCES_PER_BATCH + 1

    def place(self, ordinal: int) -> str:
        """Returns where a chunk without keys goes: anywhere, but always the same place."""
        return hash_key(f"{self.writer}/{self.batch}/{self.partition}/{ordinal}".encode())


class Entries:
    """Where rows enter: at the oldest existing shard of each place."""

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
        """Returns for each shard the rows that enter there, in their order."""
        used = numpy.unique(indices)
        shards = numpy.full(len(places), -1, dtype=numpy.int64)
        shards[used] = [self.shard(places[place]) for place in used]
        of_row = shards[indices]
        return {int(each): numpy.flatnonzero(of_row == each) for each in numpy.unique(of_row)}


def next_shard(shards: Iterable[Shard], former: int, place: str) -> Shard | None:
    """Returns the shard that took a place over from `former`; None if it does not exist yet.

    Shards of one place follow one another, so the oldest later one is the child, or the shard that
    took over from a child that is gone.
    """
    heirs = [each for each in shards if each.id > former and contains(each.begin, each.end, place)]
    return min(heirs, key=_number, default=None)


def places_of_keys(keys: Any) -> tuple[list[str], Any]:
    """Returns the distinct places of a column of keys, and each row's index among them."""
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


HELD_BYTES_MAX: Final = 16 << 20
"""Limit of a task's chunks under way."""


class _Chunk:
    """Some rows of one task, with their number and, if they have keys, their places."""

    def __init__(self, ordinal: int, table: Any, places: list[str], indices: Any | None) -> None:
        self.ordinal = ordinal
        self.table = table
        self.places = places
        self.indices = indices
        """The place index of each row; None if all rows have the same place."""

    def part(self, rows: Any) -> "_Chunk":
        assert self.indices is not None
        table = self.table.take(pyarrow.array(rows))
        return _Chunk(self.ordinal, table, self.places, self.indices[rows])

    def by_next_shard(self, shards: Sequence[Shard], former: int) -> "dict[int, _Chunk] | None":
        """Splits the rows by the shards that took over; None if one of these does not exist yet."""
        heirs = [next_shard(shards, former, place) for place in self._places_used()]
        if None in heirs:
            return None
        found = [each for each in shards if each in heirs]
        if self.indices is None or len(found) == 1:
            return {found[0].id: self}
        split = Entries(found).rows_by_shard(self.places, self.indices)
        return {shard: self.part(rows) for shard, rows in split.items()}

    def _places_used(self) -> list[str]:
        if self.indices is None:
            return self.places
        return [self.places[place] for place in sorted(set(self.indices.tolist()))]


class ChunkSender:
    """Sends the chunks of one task."""

    def __init__(self, hub: Hub, access: StreamAccess, key: WriteKey, codec: Codec) -> None:
        self._hub = hub
        self._access = access
        self._key = key
        self._codec = codec
        self._shards: list[Shard] = hub.begin(hub.shards()).result()
        self._entries = Entries(self._shards)
        self._locks: dict[int, asyncio.Lock] = {}
        self._refused: set[Way] = set()
        """Ways that ended: later chunks go on to the children."""
        self._failure: RaftwoodError | None = None
        self._under_way: deque[tuple[Future[None], int]] = deque()
        self._held = 0
        self._ordinal = 0
        self.rows = 0

    def send(self, table: Any, keys: Any | None) -> None:
        """Takes a chunk; waits while too much is under way."""
        ordinal, self._ordinal = self._ordinal, self._ordinal + 1
        self.rows += table.num_rows
        if keys is None:
            place = self._key.place(ordinal)
            chunk = _Chunk(ordinal, table, [place], None)
            self._begin(self._entries.shard(place), chunk)
        else:
            places, indices = places_of_keys(keys)
            whole = _Chunk(ordinal, table, places, indices)
            split = self._entries.rows_by_shard(places, indices)
            for shard, rows in split.items():
                self._begin(shard, whole if len(split) == 1 else whole.part(rows))
        while self._held > HELD_BYTES_MAX:
            self._wait_for_one()

    def finish(self) -> None:
        """Waits until all is stored."""
        while self._under_way:
            self._wait_for_one()

    def _begin(self, shard: int, chunk: _Chunk) -> None:
        lock = self._locks.setdefault(shard, asyncio.Lock())
        size = chunk.table.nbytes
        self._held += size
        self._under_way.append((self._hub.begin(self._in_lane(lock, shard, chunk)), size))

    def _wait_for_one(self) -> None:
        future, size = self._under_way.popleft()
        self._held -= size
        future.result()

    # On the client's loop

    async def _in_lane(self, lock: asyncio.Lock, shard: int, chunk: _Chunk) -> None:
        async with lock:
            if self._failure is not None:
                # Nothing may be stored behind a chunk that is not: see `_refused`.
                raise type(self._failure)(self._failure.message)
            try:
                await self._deliver(Way(shard), chunk)
            except RaftwoodError as error:
                self._failure = error
                raise

    async def _deliver(self, way: Way, chunk: _Chunk) -> None:
        if way not in self._refused:
            try:
                await self._put(way, chunk)
            except SHARD_ENDED:
                # For ever, and for later chunks too: a repeated task must find the same ways.
                self._refused.add(way)
            else:
                return
        for shard, part in (await self._heirs(way.shard, chunk)).items():
            await self._deliver(way.on_to(shard), part)

    async def _put(self, way: Way, chunk: _Chunk) -> None:
        key, access = self._key, self._access
        batch = Batch.packed(
            write_arrow_stream(chunk.table),
            records=chunk.table.num_rows,
            codec=self._codec,
            kind=Format.ARROW,
        )
        request = PutRequest(
            access.project,
            access.logstore,
            way.shard,
            key.producer(way, chunk.ordinal),
            key.sequence(chunk.ordinal),
            batch,
        )
        await self._hub.put(encode_put(request), shard=way.shard)

    async def _heirs(self, shard: int, chunk: _Chunk) -> dict[int, _Chunk]:
        """Returns the rows by the shards that take what one refused; waits for these."""
        access = self._access

        async def find() -> dict[int, _Chunk] | None:
            found = chunk.by_next_shard(self._shards, shard)
            if found is None:
                self._shards = await self._hub.shards()
            return found

        return await successor(
            find,
            timeout_s=access.timeout_ms / 1000,
            missing=f"shard {shard} of logstore {access.logstore} takes no more, and nobody took "
            f"over in {access.timeout_ms} ms",
        )
