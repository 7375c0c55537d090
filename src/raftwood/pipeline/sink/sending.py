"""Chunks of rows on their way into shards, each stored once.

A lane is a shard where rows enter: of one lane one chunk is under way at a time, in order, and the
lanes go on side by side.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Final

import pyarrow

from raftwood.base.codecs import Codec, compress
from raftwood.base.errors import LogSealed, RaftwoodError, Unavailable
from raftwood.loghub.arrow_batches import write_arrow_stream
from raftwood.loghub.batches import Batch, Format
from raftwood.loghub.errors import ShardNotFound, ShardReadonly
from raftwood.loghub.model import Shard
from raftwood.loghub.wire import PutRequest, encode_put
from raftwood.pipeline.hub import Hub
from raftwood.pipeline.options import StreamAccess
from raftwood.pipeline.sink.routing import (
    Entries,
    Way,
    WriteKey,
    next_shard,
    places_of_keys,
)

HELD_BYTES_MAX: Final = 16 << 20
"""Of chunks under way, of a task."""
_PAUSE_S: Final = 0.05
_REFUSED: Final = (ShardReadonly, LogSealed, ShardNotFound)


class _Chunk:
    """Some rows of one task, with their number and, where they have keys, their places."""

    def __init__(self, ordinal: int, table: Any, places: list[str], indices: Any | None) -> None:
        self.ordinal = ordinal
        self.table = table
        self.places = places
        self.indices = indices
        """Of each row its place; None where all have the same one."""

    def part(self, rows: Any) -> "_Chunk":
        assert self.indices is not None
        table = self.table.take(pyarrow.array(rows))
        return _Chunk(self.ordinal, table, self.places, self.indices[rows])

    def by_next_shard(self, shards: Sequence[Shard], former: int) -> "dict[int, _Chunk] | None":
        """The rows by who took their places over; None where somebody is not there yet."""
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


class Sender:
    """One for a task."""

    def __init__(self, hub: Hub, access: StreamAccess, key: WriteKey, codec: Codec) -> None:
        self._hub = hub
        self._access = access
        self._key = key
        self._codec = codec
        self._shards: list[Shard] = hub.begin(hub.shards()).result()
        self._entries = Entries(self._shards)
        self._locks: dict[int, asyncio.Lock] = {}
        self._refused: set[Way] = set()
        """Ways that end: whatever comes later goes on to the children."""
        self._failure: RaftwoodError | None = None
        self._under_way: deque[tuple[Future[None], int]] = deque()
        self._held = 0
        self._ordinal = 0
        self.rows = 0

    def send(self, table: Any, keys: Any | None) -> None:
        """Take a chunk, and wait where too much is under way."""
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
        """Wait until all is stored."""
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
                # Nothing may be stored behind what is not: see `_refused`.
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
            except _REFUSED:
                # For good. And for what comes later as well: all of it came later before, too.
                self._refused.add(way)
            else:
                return
        for shard, part in (await self._heirs(way.shard, chunk)).items():
            await self._deliver(way.on_to(shard), part)

    async def _put(self, way: Way, chunk: _Chunk) -> None:
        key, access = self._key, self._access
        body = write_arrow_stream(chunk.table)
        batch = Batch(
            body=compress(body, self._codec),
            format=Format.ARROW,
            codec=self._codec,
            raw_bytes=len(body),
            records=chunk.table.num_rows,
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
        """Who takes what a shard refused; those that are being made are waited for."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._access.timeout_ms / 1000
        while True:
            found = chunk.by_next_shard(self._shards, shard)
            if found is not None:
                return found
            if loop.time() > deadline:
                raise Unavailable(
                    f"shard {shard} of logstore {self._access.logstore} takes no more, and nobody "
                    f"took over in {self._access.timeout_ms} ms: is the logstore being deleted?"
                )
            await asyncio.sleep(_PAUSE_S)
            self._shards = await self._hub.shards()
