"""Checkpoints of partitions, which a client reads in pages from the node that has them.

    async with await kv.checkpoint(3) as checkpoint:
        checkpoint.position                          # the last record that is in it
        async for page in checkpoint.pages():
            page.keys(), page.values(), page.ends()

A checkpoint stays on the node that made it, even if another node becomes master. Its description
(`about`) can go to another process, which continues with `kv.checkpoint_of(about)`.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import msgspec

from raftwood.base.errors import InvalidInput, ProtocolError, RaftwoodError, Unavailable
from raftwood.zeppelin.client.connection import NodeConnection
from raftwood.zeppelin.client.errors import ConnectionEnded, NotSent
from raftwood.zeppelin.client.requester import Requester
from raftwood.zeppelin.pages import Page
from raftwood.zeppelin.records import BinlogPosition
from raftwood.zeppelin.resp import ErrorAnswer, request
from raftwood.zeppelin.slots import SLOTS

if TYPE_CHECKING:
    import pyarrow

PAGE_BYTES: Final = 1 << 20
TTL_MS: Final = 60_000
"""From the last page request."""


class PartitionPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A partition and its master."""

    incarnation: int
    """The table's incarnation: a table that is dropped and made anew has another."""
    number: int
    first_slot: int
    last_slot: int
    master: str | None
    """`HOST:PORT`; None if there is no master."""

    @property
    def slots(self) -> range:
        return range(self.first_slot, self.last_slot + 1)


class CheckpointAbout(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a checkpoint, and its node."""

    id: str
    address: str
    """Address of the checkpoint's node."""
    incarnation: int
    """The table's incarnation."""
    partition: int
    position: BinlogPosition
    """The last record in it, which was acked when the checkpoint was made."""
    first_slot: int
    last_slot: int
    taken_ms: int
    """By the node's clock; pages leave out what had expired by then."""


class AsyncCheckpoint:
    """A checkpoint. Call `AsyncKv.checkpoint`, and `end` when done, or use `async with`."""

    def __init__(self, calls: Requester, about: CheckpointAbout) -> None:
        self._calls = calls
        self.about = about

    @property
    def partition(self) -> int:
        return self.about.partition

    @property
    def position(self) -> BinlogPosition:
        return self.about.position

    @property
    def slots(self) -> range:
        return range(self.about.first_slot, self.about.last_slot + 1)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        # If its node cannot be reached, it expires by itself.
        with suppress(RaftwoodError):
            await self.end()

    async def read(
        self,
        cursor: bytes = b"",
        *,
        bytes_max: int = PAGE_BYTES,
        tag: bytes | None = None,
        prefix: bytes = b"",
    ) -> Page:
        """Reads a page of about this size from a cursor; the same cursor gives the same page.

        A page may be empty before the last one, if few keys have the tag or prefix.
        """
        words = [b"CHECKPOINT", b"READ", self.about.id.encode(), cursor, b"%d" % bytes_max]
        words += [b"TAG", tag] if tag is not None else []
        words += [b"PREFIX", prefix] if prefix else []
        answer = await _ask(self._calls, self.about.address, words)
        try:
            next_cursor, data = answer
        except (TypeError, ValueError):
            raise _not_understood("READ") from None
        return Page.decoded(data, next_cursor)

    async def pages(
        self,
        cursor: bytes = b"",
        *,
        bytes_max: int = PAGE_BYTES,
        tag: bytes | None = None,
        prefix: bytes = b"",
    ) -> AsyncGenerator[Page, None]:
        """Yields all pages from a cursor on; fetches the next page while the caller uses one."""

        async def begin(start: bytes) -> Page:
            return await self.read(start, bytes_max=bytes_max, tag=tag, prefix=prefix)

        loop = asyncio.get_running_loop()
        coming: asyncio.Task[Page] | None = loop.create_task(begin(cursor))
        try:
            while coming is not None:
                page = await coming
                coming = loop.create_task(begin(page.next_cursor)) if page.next_cursor else None
                yield page
        finally:
            if coming is not None:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)

    async def arrow_pages(
        self,
        cursor: bytes = b"",
        *,
        bytes_max: int = PAGE_BYTES,
        tag: bytes | None = None,
        prefix: bytes = b"",
    ) -> "AsyncGenerator[pyarrow.RecordBatch, None]":
        """Yields batches with `key`, `value` and `expires`, null if a key does not expire."""
        from raftwood.zeppelin.client.arrow_rows import batch_of_page  # noqa: PLC0415 (an extra)

        async for page in self.pages(cursor, bytes_max=bytes_max, tag=tag, prefix=prefix):
            yield batch_of_page(page)

    async def renew(self) -> None:
        """Restarts its time to live, as reading does."""
        words = [b"CHECKPOINT", b"RENEW", self.about.id.encode()]
        await _ask(self._calls, self.about.address, words)

    async def end(self) -> None:
        """Releases the checkpoint on its node."""
        words = [b"CHECKPOINT", b"END", self.about.id.encode()]
        await _ask(self._calls, self.about.address, words)


async def partitions_of(calls: Requester) -> list[PartitionPlace]:
    """Returns the partitions as one node knows them."""
    answer = await calls.read(0, request([b"PARTITIONS"]))
    try:
        incarnation, told = answer
        return [
            PartitionPlace(
                incarnation=incarnation,
                number=number,
                first_slot=first,
                last_slot=last,
                master=None if master is None else master.decode(),
            )
            for number, first, last, master in told
        ]
    except (TypeError, ValueError, AttributeError):
        raise _not_understood("PARTITIONS") from None


async def begin_checkpoint(
    calls: Requester, partition: int, *, ttl_ms: int, group: str
) -> AsyncCheckpoint:
    """Takes a checkpoint on the node that serves the partition; retried like any other request."""
    places = {each.number: each for each in await partitions_of(calls)}
    if partition not in places:
        raise InvalidInput(f"there is no partition {partition}: the table has {len(places)}")
    # A node redirects by the partition's last slot; for the first slot it may leave out replicas
    # (`commands/cluster`).
    slot = places[partition].last_slot
    encoded = request([b"CHECKPOINT", b"BEGIN", b"%d" % partition, b"%d" % ttl_ms, group.encode()])
    attempts, nodes, reads = calls.attempts(), calls.nodes, True
    while True:
        seen = nodes.looks
        found: Any = await calls.reach(nodes.place(slot, reads=reads))
        reads = False
        answer = await found.ask(encoded) if isinstance(found, NodeConnection) else found
        if not isinstance(answer, ErrorAnswer):
            return AsyncCheckpoint(calls, _about(answer, found.address, partition))
        await attempts.after(_harmless(answer), nodes, seen)


def _about(answer: Any, address: str, partition: int) -> CheckpointAbout:
    try:
        identity, incarnation, epoch, sequence, first, last, taken_ms = answer
        if not 0 <= first <= last < SLOTS:
            raise ValueError
        return CheckpointAbout(
            id=identity.decode(),
            address=address,
            incarnation=incarnation,
            partition=partition,
            position=BinlogPosition(epoch, sequence),
            first_slot=first,
            last_slot=last,
            taken_ms=taken_ms,
        )
    except (TypeError, ValueError, AttributeError):
        raise _not_understood("BEGIN") from None


async def to_group(
    calls: Requester, verb: Literal["RENEW", "END"], group: str, addresses: Iterable[str]
) -> int:
    """Renews or ends all checkpoints of a group on some nodes; returns how many there were. On a
    node that cannot be reached they expire by themselves.
    """
    words = [b"CHECKPOINT", verb.encode(), b"GROUP", group.encode()]
    count = 0
    for address in addresses:
        with suppress(Unavailable):
            count += await _ask(calls, address, words)
    return count


async def _ask(calls: Requester, address: str, words: list[bytes]) -> Any:
    """Returns the answer of one certain node; retried while it cannot be reached."""
    attempts, nodes, encoded = calls.attempts(), calls.nodes, request(words)
    while True:
        seen = nodes.looks
        found: Any = await calls.reach(address)
        answer = await found.ask(encoded) if isinstance(found, NodeConnection) else found
        if not isinstance(answer, ErrorAnswer):
            return answer
        await attempts.after(_harmless(answer), nodes, seen, is_of_many=True)


def _harmless(answer: ErrorAnswer) -> ErrorAnswer:
    """A lost request may be repeated: at worst a checkpoint is left to expire."""
    return NotSent(answer.text) if isinstance(answer, ConnectionEnded) else answer


def _not_understood(command: str) -> ProtocolError:
    return ProtocolError(f"a node answered {command} of a checkpoint with something else")
