"""Order of batches that a shipper has under way together: one that follows another waits for it.

A shipper sends the first batch of a file without a word: whatever was before it is stored. The next
ones *follow*: each is stored only behind the one before it, at the same place, as this receiver
has stored that one itself. Where it has not, `OutOfOrder` says so, and the shipper begins anew with
the first one that it has no ack for. So whatever is lost, late or refused, and by whichever
receivers a file's batches go, no batch is ever stored before the one in front of it.

What is known here may be forgotten at any time: it saves round trips, and no more.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from raftwood.clogs.errors import OutOfOrder
from raftwood.clogs.frames import Message

FOLLOWING_MAX: Final = 16
"""Batches of a file that a shipper may have under way here; told with each ack."""
_PRODUCERS_MAX: Final = 65_536


class _Producer:
    __slots__ = ("place", "sequence", "under_way")

    def __init__(self) -> None:
        self.place = ""
        """Where the last one is stored."""
        self.sequence = 0
        self.under_way: dict[int, asyncio.Future[None]] = {}
        """By sequence: done once it is stored, or not."""


class Ordering:
    """Of one receiver."""

    def __init__(self, *, producers_max: int = _PRODUCERS_MAX) -> None:
        self._producers: OrderedDict[tuple[str, bytes], _Producer] = OrderedDict()
        self._producers_max = producers_max

    async def store(self, key: str, message: Message, store: Callable[[], Awaitable[str]]) -> str:
        """Store a batch in its turn; `OutOfOrder` where the one before it is not stored here."""
        if message.is_resumed or not message.place:
            return await store()  # it is looked for in all places, and comes alone
        producer = self._producer(key, message)
        loop = asyncio.get_running_loop()
        before = producer.under_way.get(message.sequence - 1)
        if message.sequence in producer.under_way:
            mine = None  # it came twice: the log knows it once
        else:
            mine = producer.under_way[message.sequence] = loop.create_future()
        try:
            if message.follows:
                if before is not None:
                    await asyncio.wait([before])
                if not self.is_behind(key, message):
                    raise _out_of_order(message)
            place = await store()
            self.stored(key, message)
        finally:
            if mine is not None:
                del producer.under_way[message.sequence]
                mine.set_result(None)
        return place

    def is_behind(self, key: str, message: Message) -> bool:
        """Whether the batch before is known to be stored, at the same place."""
        known = self._producers.get((key, message.producer))
        return (
            known is not None
            and known.place == message.place
            and known.sequence >= message.sequence - 1
        )

    def stored(self, key: str, message: Message) -> None:
        """The batch is, and all before it are."""
        known = self._producer(key, message)
        if message.sequence > known.sequence:
            known.place, known.sequence = message.place, message.sequence

    def _producer(self, key: str, message: Message) -> _Producer:
        name = (key, message.producer)
        found = self._producers.get(name)
        if found is not None:
            self._producers.move_to_end(name)
            return found
        if len(self._producers) >= self._producers_max:
            # One that is in use notes what it stores in vain, and its next batch comes again.
            self._producers.popitem(last=False)
        found = self._producers[name] = _Producer()
        return found


def _out_of_order(message: Message) -> OutOfOrder:
    return OutOfOrder(
        f"batch {message.sequence} of file {message.name[:80]!r} follows one that is not stored "
        "here: send that one first"
    )
