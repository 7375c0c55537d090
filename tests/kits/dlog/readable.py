"""Whether what was acked is read at once by another client, also behind crashes and rotations."""

from dataclasses import dataclass

from raftwood.base.position import Position
from raftwood.dlog.ledgers.metadata import LedgerConfig
from raftwood.dlog.log.dlogs import Dlogs
from raftwood.dlog.log.meta import LogConfig

_DIES_EVERY = 25
_ROTATES_EVERY = 10
CONFIG = LogConfig(ledger=LedgerConfig(), entries_max=_ROTATES_EVERY)


@dataclass(frozen=True)
class Readable:
    """How many reads were made right after an ack, and how many of them missed it."""

    reads: int
    missed: int
    of_dead_writers: int
    """Of the reads; the writer had stopped as a crash stops it."""
    ledgers: int


async def read_after_acks(writing: Dlogs, reading: Dlogs, name: str, *, times: int) -> Readable:
    """Append, then read what was acked: with a reader that was there before, or a new one."""
    await writing.create(name, CONFIG)
    writer = await writing.open_writer(name)
    kept = await reading.open_reader(name)
    missed = dead = 0
    for number in range(times):
        position = await writer.append(b"%d" % number)
        is_dead = number % _DIES_EVERY == _DIES_EVERY - 1
        if is_dead:
            await writer.abandon()
            dead += 1
        reader = kept if number % 2 else await reading.open_reader(name)
        found, _ = await reader.read(position, bytes_max=1)
        is_there = [bytes(each.message.payload) for each in found] == [b"%d" % number]
        end = (await reading.info(name)).next
        missed += not is_there or end < Position(position + 1)
        if reader is not kept:
            await reader.close()
        if is_dead:
            writer = await writing.open_writer(name)
    await writer.close()
    await kept.close()
    ledgers = len((await reading.info(name)).meta.ledgers)
    await writing.remove(name)
    return Readable(times, missed, dead, ledgers)
