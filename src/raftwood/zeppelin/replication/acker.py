"""Tells one master how far this node is with all partitions that it follows there.

What has moved within one turn of the loop goes out in one call. Once in a while everything is told:
the master answers which of it it knows nothing of, and by that a slave learns that it is fed no
more.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from raftwood.base.errors import RaftwoodError
from raftwood.net import Channel, Payload
from raftwood.zeppelin.model import Gap, PartitionId
from raftwood.zeppelin.replication.wire import ACK, AckRequest, Standing

CALLS_MAX: Final = 8
"""Under way at a time: a master that is busy is told more at once."""
CALLS_FAR_MAX: Final = 64
APART_S: Final = 0.01
"""A master that is far is told so often, as if it were near: else it would hear nothing for most of
a round trip."""
CHECK_INTERVAL_S: Final = 1.0
_TIMEOUT_MS: Final = 3_000


class Acker:
    """Acks to one master."""

    def __init__(
        self,
        channel: Channel,
        *,
        standing_of: Callable[[PartitionId], Standing | None],
        on_answer: Callable[[Standing, int | None, Gap | None, int | None], None],
    ) -> None:
        """`standing_of` is None for a partition that is not fed by this master now. `on_answer`
        hears, of each standing, how many bytes that is behind, None where it is not fed, what is
        between the two, and up to which record all is done; the last two are None where the
        master does not say.
        """
        self._channel = channel
        self._standing_of = standing_of
        self._on_answer = on_answer
        self._followed: dict[PartitionId, None] = {}
        self._due: dict[PartitionId, None] = {}
        self._calls: dict[asyncio.Future[Payload], list[Standing]] = {}
        self._loop = asyncio.get_running_loop()
        self._flush_is_due = False
        self._called_at = 0.0
        self._later: asyncio.TimerHandle | None = None
        self._timer = self._loop.call_later(CHECK_INTERVAL_S, self._check)

    def follow(self, partition: PartitionId) -> None:
        self._followed[partition] = None

    def forget(self, partition: PartitionId) -> None:
        self._followed.pop(partition, None)
        self._due.pop(partition, None)

    def moved(self, partition: PartitionId) -> None:
        """Something of it has to be told, at the end of this turn."""
        self._due[partition] = None
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def tell_all(self) -> None:
        for partition in self._followed:
            self.moved(partition)

    def close(self) -> None:
        self._timer.cancel()
        self._cancel_later()
        self._followed.clear()
        self._due.clear()
        for call in [*self._calls]:
            call.cancel()

    def _check(self) -> None:
        self.tell_all()
        self._timer = self._loop.call_later(CHECK_INTERVAL_S, self._check)

    def _flush(self) -> None:
        self._flush_is_due = False
        self._cancel_later()
        if not self._due or self._has_to_wait():
            return
        due, self._due = self._due, {}
        standings = [
            standing for partition in due if (standing := self._standing_of(partition)) is not None
        ]
        if not standings:
            return
        try:
            call = self._channel.call(ACK, ACK.encode(AckRequest(standings)), _TIMEOUT_MS)
        except RaftwoodError:
            # There is no connection: everything is told when there is, or by the next check.
            return
        self._called_at = self._loop.time()
        self._calls[call] = standings
        call.add_done_callback(self._answered)

    def _has_to_wait(self) -> bool:
        """What is due waits for the answer of an earlier call, or for a moment."""
        if len(self._calls) < CALLS_MAX:
            return False
        due_at = self._called_at + APART_S
        if len(self._calls) < CALLS_FAR_MAX and self._loop.time() < due_at:
            self._later = self._loop.call_at(due_at, self._flush)
        return len(self._calls) >= CALLS_FAR_MAX or self._later is not None

    def _cancel_later(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None

    def _answered(self, call: "asyncio.Future[Payload]") -> None:
        told = self._calls.pop(call)
        if self._due and not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)
        if call.cancelled() or call.exception() is not None:
            return
        response = ACK.decode_response(call.result())
        gaps = response.gaps or [None] * len(told)
        done: list[int | None] = [*response.done] or [None] * len(told)
        for answer in zip(told, response.lags_bytes, gaps, done, strict=False):
            self._on_answer(*answer)
