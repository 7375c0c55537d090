"""What is done with a log whose writer is open in this process."""

import asyncio

from raftwood.base.errors import (
    RaftwoodError,
)
from raftwood.base.position import Position, position_to_bytes
from raftwood.dlog.errors import NotOwner
from raftwood.dlog.log.log_writer import LogWriter
from raftwood.dlog.shared.seat import Seat
from raftwood.dlog.shared.seats import Seats
from raftwood.dlog.shared.wire import Appended, Tail


def append_here(seat: Seat, batch: Appended) -> "asyncio.Future[Position]":
    """Shares an entry with whatever else comes in this loop turn."""
    writer = _writer(seat)
    try:
        future = writer.submit(batch.data, producer=batch.producer, sequence=batch.sequence)
    except RaftwoodError:
        note_failure(seat, writer)
        raise
    future.add_done_callback(seat.acked)
    return future


def note_failure(seat: Seat, writer: LogWriter) -> None:
    """A writer that acks no more is given back; others refuse one request, or end in order."""
    if writer.has_given_up:
        seat.failed(writer)


def _writer(seat: Seat) -> LogWriter:
    writer = seat.writer
    if writer is None:
        raise NotOwner(f"log {seat.name!r} is not owned here any more: look who owns it")
    return writer


async def tail_here(seats: Seats, seat: Seat, *, after: Position, wait_ms: int) -> Tail:
    """Where the log ends, once that is behind a position, the log is sealed or the time is over."""
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


async def seal_here(seat: Seat) -> Position:
    """End the log for ever."""
    writer = _writer(seat)
    try:
        await writer.terminate()
    except RaftwoodError:
        note_failure(seat, writer)
        raise
    seat.advanced()
    return writer.next_position
