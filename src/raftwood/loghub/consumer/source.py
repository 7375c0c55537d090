"""The seam to what is consumed: something with shards, each a row of batches with positions.

Positions are text, and nobody but the source looks into them. A batch is handed on as it came; it
is decoded where the user's code asks for its records.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec


class SourceShard(msgspec.Struct, frozen=True):
    """A shard, also one that has ended and can still be read."""

    id: str
    parents: tuple[str, ...] = ()
    """They are read to their ends first."""


class ShardBatch(Protocol):
    """What every source's batches have."""

    @property
    def shard_id(self) -> str: ...

    @property
    def next_position(self) -> str:
        """Where to read on behind it."""
        ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def received_ms(self) -> int:
        """When the source took it, since 1970; 0 where that is not known."""
        ...

    def records(self) -> Sequence[Any]:
        """Decoded now."""
        ...


class ShardRead(msgspec.Struct, frozen=True):
    """What a read found."""

    batches: Sequence[ShardBatch]
    next: str
    """Where the next read begins."""
    is_ended: bool = False
    """Nothing follows, now or ever."""


class ShardSource(Protocol):
    """A logstore, a topic. Errors that are retriable are tried again by the caller."""

    async def list_shards(self) -> Sequence[SourceShard]: ...

    async def begin(self, shard: str) -> str:
        """The position of the first batch that is left."""
        ...

    async def end(self, shard: str) -> str:
        """The position behind the last batch."""
        ...

    async def next_received_ms(self, shard: str, position: str) -> int | None:
        """When the batch was taken that is read next there; None at the end."""
        ...

    async def read(self, shard: str, position: str) -> ShardRead:
        """A bounded amount from there on; waits a while where nothing is there yet.

        It may be cancelled at any moment.
        """
        ...

    def leave(self, shard: str) -> None:
        """It is another worker's, or over: what is held for reading it can go. Does not wait."""
        ...
