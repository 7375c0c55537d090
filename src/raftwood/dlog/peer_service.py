"""`PeerService`: serves the logs that this process owns to others: appends, tails, seals.

`append_here`, `tail_here` and `seal_here` do the same for this process.
"""

import asyncio
from typing import Final

from raftwood.base.errors import RaftwoodError
from raftwood.base.position import Position, position_from_bytes, position_to_bytes
from raftwood.dlog.errors import NotOwner
from raftwood.dlog.log.entries import payload_parts
from raftwood.dlog.log.log_writer import LogWriter
from raftwood.dlog.owned_logs import OwnedLog, OwnedLogs
from raftwood.dlog.ownership import OwnershipPhase
from raftwood.dlog.peers import (
    APPEND,
    SEAL,
    TAIL,
    WAIT_MS_MAX,
    AppendRequest,
    LogRequest,
    Tail,
    TailRequest,
    decode_append,
    encode_appended,
)
from raftwood.net import Call, Payload, Service


def append_here(seat: OwnedLog, batch: AppendRequest) -> "asyncio.Future[Position]":
    """Appends a batch; batches of one turn of the loop share an entry."""
    writer = _writer(seat)
    try:
        future = writer.submit_parts(
            payload_parts(batch.pieces), producer=batch.producer, sequence=batch.sequence
        )
    except RaftwoodError:
        note_failure(seat, writer)
        raise
    future.add_done_callback(seat.acked)
    return future


def note_failure(seat: OwnedLog, writer: LogWriter) -> None:
    """Reports a writer that acks no more; the log is then given back."""
    if writer.has_given_up:
        seat.failed(writer)


def _writer(seat: OwnedLog) -> LogWriter:
    writer = seat.writer
    if writer is None:
        raise NotOwner(f"log {seat.name!r} is not owned here any more: look who owns it")
    return writer


async def tail_here(seats: OwnedLogs, seat: OwnedLog, *, after: Position, wait_ms: int) -> Tail:
    """Returns the log's end once it is above `after`, the log is sealed, or the time is over."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_ms / 1000
    while True:
        writer = _writer(seat)
        end = writer.next_position
        if end > after or writer.is_terminated or loop.time() >= deadline:
            break
        await seat.next_tail(deadline)
    if not seats.is_in_office:
        raise NotOwner(f"log {seat.name!r} is not owned here any more: look who owns it")
    return Tail(position_to_bytes(end), writer.is_terminated, writer.appended_bytes)


async def seal_here(seat: OwnedLog) -> Position:
    """Ends the log for ever."""
    writer = _writer(seat)
    try:
        await writer.terminate()
    except RaftwoodError:
        note_failure(seat, writer)
        raise
    seat.advanced()
    return writer.next_position


_OPENING_S_MAX: Final = 10.0


class PeerService:
    """Registers itself with a `Service`; the handshake has authenticated the peer."""

    def __init__(self, seats: OwnedLogs) -> None:
        self._seats = seats

    def register(self, service: Service) -> None:
        service.fast(APPEND, self._append)
        service.typed(TAIL, self._tail)
        service.typed(SEAL, self._seal)

    def _append(self, call: Call, payload: Payload) -> None:
        log, batches = decode_append(payload)
        seat = self._owned(log)
        _Answer(call, seat, batches)

    def _owned(self, log: str) -> OwnedLog:
        seat = self._seats.seat(log)
        if seat.writer is None or not self._seats.is_in_office:
            raise NotOwner(f"log {log!r} is not owned here: look who owns it")
        return seat

    async def _ready(self, log: str) -> OwnedLog:
        """Returns an owned log with its writer open: a peer may see our claim before it is."""
        seat = self._seats.seat(log)
        deadline = asyncio.get_running_loop().time() + _OPENING_S_MAX
        while (
            seat.rules.phase is OwnershipPhase.OPENING
            and asyncio.get_running_loop().time() < deadline
        ):
            await seat.changed(deadline)
        return self._owned(log)

    async def _tail(self, _: Call, request: TailRequest) -> Tail:
        seat = await self._ready(request.log)
        wait_ms = min(request.wait_ms, WAIT_MS_MAX)
        return await tail_here(
            self._seats, seat, after=position_from_bytes(request.after), wait_ms=wait_ms
        )

    async def _seal(self, _: Call, request: LogRequest) -> bytes:
        return position_to_bytes(await seal_here(await self._ready(request.log)))


class _Answer:
    """Collects the outcomes of one request's batches and replies at the last; needs no task."""

    __slots__ = ("_call", "_left", "_results", "_seat", "_writer")

    def __init__(self, call: Call, seat: OwnedLog, batches: list[AppendRequest]) -> None:
        self._call = call
        self._seat, self._writer = seat, seat.writer
        self._left = len(batches)
        self._results: list[Position | RaftwoodError] = [Position(0)] * len(batches)
        for place, batch in enumerate(batches):
            try:
                future = append_here(seat, batch)
            except RaftwoodError as error:
                self._settled(place, error)
            else:
                future.add_done_callback(lambda done, place=place: self._acked(place, done))  # type: ignore[misc]
        if not batches:
            call.reply(encode_appended(()))

    def _acked(self, place: int, done: "asyncio.Future[Position]") -> None:
        error = done.exception()
        assert error is None or isinstance(error, RaftwoodError)
        if error is not None and self._writer is not None:
            note_failure(self._seat, self._writer)
        self._settled(place, done.result() if error is None else error)

    def _settled(self, place: int, result: Position | RaftwoodError) -> None:
        self._results[place] = result
        self._left -= 1
        if not self._left:
            self._call.reply(encode_appended(self._results))
