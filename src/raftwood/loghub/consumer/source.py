"""The seam to what workers consume: a source with shards, each a sequence of batches.

Positions are text that only the source interprets. Batches are passed on undecoded; they are
decoded when the user's code asks for its records.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec


class SourceShard(msgspec.Struct, frozen=True):
    """A shard; it may have ended and still be readable."""

    id: str
    parents: tuple[str, ...] = ()
    """Shards that are read to their ends first."""


class ShardBatch(Protocol):
    """What the batches of every source have."""

    @property
    def shard_id(self) -> str: ...

    @property
    def next_position(self) -> str:
        """Returns the position to read next."""
        ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def received_ms(self) -> int:
        """Returns when the source received it, in milliseconds since 1970; 0 if unknown."""
        ...

    def records(self) -> Sequence[Any]:
        """Decodes and returns the records."""
        ...


class ShardRead(msgspec.Struct, frozen=True):
    """The result of a read."""

    batches: Sequence[ShardBatch]
    next: str
    """The position of the next read."""
    is_ended: bool = False
    """Nothing follows, now or ever."""


class ShardSource(Protocol):
    """A logstore or a topic. The caller retries after retriable errors."""

    async def list_shards(self) -> Sequence[SourceShard]: ...

    async def begin(self, shard: str) -> str:
        """Returns the position of the first batch that is not freed."""
        ...

    async def end(self, shard: str) -> str:
        """Returns the position behind the last batch."""
        ...

    async def next_received_ms(self, shard: str, position: str) -> int | None:
        """Returns when the next batch at this position was received; None at the end."""
        ...

    async def read(self, shard: str, position: str) -> ShardRead:
        """Reads a bounded amount from a position on; waits a while if nothing is there yet.

        It may be cancelled at any moment.
        """
        ...

    def leave(self, shard: str) -> None:
        """Releases the resources of a shard that is another worker's, or over. Does not wait."""
        ...
