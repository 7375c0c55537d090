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
from raftwood.zeppelin.model import PartitionId
from raftwood.zeppelin.replication.wire import ACK, AckRequest, Standing

CALLS_MAX: Final = 8
CHECK_INTERVAL_S: Final = 1.0
_TIMEOUT_MS: Final = 3_000


class Acker:
    """Acks to one master."""

    def __init__(
        self,
        channel: Channel,
        *,
        standing_of: Callable[[PartitionId], Standing | None],
        on_answer: Callable[[Standing, int | None, int | None], None],
    ) -> None:
        """`standing_of` is None for a partition that is not fed by this master now. `on_answer`
        hears, of each standing, how many bytes that is behind, None where it is not fed, and up
        to which record all is done, None where the master does not say.
        """
        self._channel = channel
        self._standing_of = standing_of
        self._on_answer = on_answer
        self._followed: dict[PartitionId, None] = {}
        self._due: dict[PartitionId, None] = {}
        self._calls: dict[asyncio.Future[Payload], list[Standing]] = {}
        self._loop = asyncio.get_running_loop()
        self._flush_is_due = False
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
        self._followed.clear()
        self._due.clear()
        for call in [*self._calls]:
            call.cancel()

    def _check(self) -> None:
        self.tell_all()
        self._timer = self._loop.call_later(CHECK_INTERVAL_S, self._check)

    def _flush(self) -> None:
        self._flush_is_due = False
        # Beyond the bound what is due waits for the answer of an earlier call.
        if not self._due or len(self._calls) >= CALLS_MAX:
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
        self._calls[call] = standings
        call.add_done_callback(self._answered)

    def _answered(self, call: "asyncio.Future[Payload]") -> None:
        told = self._calls.pop(call)
        if self._due and not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)
        if call.cancelled() or call.exception() is not None:
            return
        response = ACK.decode_response(call.result())
        done: list[int | None] = [*response.done] or [None] * len(told)
        for standing, lag_bytes, reached in zip(told, response.lags_bytes, done, strict=False):
            self._on_answer(standing, lag_bytes, reached)
