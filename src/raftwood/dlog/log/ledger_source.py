"""`LedgerSource`: opens a log's ledgers for reading, and rebuilds the producers' state from
them.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from raftwood.base.errors import InvalidConfiguration, StoreDamaged
from raftwood.base.position import Position, position_of_entry
from raftwood.dlog.ledgers.seams import LedgerReader, LedgerStore
from raftwood.dlog.log.entries import EntryHead, decode_head
from raftwood.dlog.log.meta import LedgerInfo, LogMeta
from raftwood.dlog.log.producers import DlogProducers

_READ_ENTRIES = 64


class LedgerSource(Protocol):
    """Opens a ledger of a log's list."""

    async def open(self, meta: LogMeta, info: LedgerInfo) -> LedgerReader: ...


class StoredLedgers:
    """A `LedgerSource`: all ledgers are in the store of ledgers."""

    def __init__(self, ledgers: LedgerStore) -> None:
        self._ledgers = ledgers

    async def open(self, meta: LogMeta, info: LedgerInfo) -> LedgerReader:
        if info.is_offloaded:
            raise InvalidConfiguration(
                f"ledger {info.ledger} was offloaded: set dlog.offload as it was then"
            )
        return await self._ledgers.open(
            info.ledger, recover=False, password=meta.config.ledger.password
        )


async def read_head(reader: LedgerReader, entry: int) -> EntryHead:
    found = await reader.read(first=entry, last=entry)
    return decode_head(found[0].data)[0]


async def closed_info(reader: LedgerReader, info: LedgerInfo) -> LedgerInfo:
    """Returns the list's record of a closed ledger, with its exact figures."""
    last = reader.last_confirmed
    times = (0, 0)
    if last >= 0:
        times = (await read_head(reader, 0)).time_ms, (await read_head(reader, last)).time_ms
    return replace(
        info,
        is_closed=True,
        last_entry=last,
        bytes=reader.length_bytes,
        first_ms=times[0],
        last_ms=times[1],
    )


async def rebuild_producers(
    source: LedgerSource, meta: LogMeta, ledgers: Sequence[LedgerInfo]
) -> tuple[DlogProducers, int, int]:
    """Rebuilds the table of producers from the last ledgers of a log; returns it, the time of the
    last entry, and how many bytes were ever appended.

    Goes back to the last complete snapshot, which is in the last ledger with messages.
    """
    producers = DlogProducers()
    last_ms, appended_bytes = 0, 0
    for info in reversed(ledgers):
        if info.last_entry < 0:
            continue
        last_ms = last_ms or info.last_ms
        reader = await source.open(meta, info)
        try:
            last = await read_head(reader, info.last_entry)
            appended_bytes = max(appended_bytes, last.appended_bytes)
            start = await _snapshot_start(reader, info.last_entry)
            if start is not None:
                await _replay(producers, reader, start, info)
                break
        finally:
            await reader.close()
    # Later entries hold pieces of a snapshot and no messages: they follow a complete snapshot.
    return producers, last_ms, appended_bytes


async def _snapshot_start(reader: LedgerReader, last: int) -> int | None:
    """The entry where the last complete snapshot of a ledger begins."""
    entry = last
    while entry >= 0:
        start = (await read_head(reader, entry)).snapshot_entry
        if start > entry:
            raise StoreDamaged(f"ledger {reader.ledger}: entry {entry} names a later snapshot")
        if start + (await read_head(reader, start)).snapshot_pieces_left <= last:
            return start
        entry = start - 1
    return None


async def _replay(
    producers: DlogProducers, reader: LedgerReader, start: int, info: LedgerInfo
) -> None:
    pieces: list[bytes | memoryview] | None = []
    for first in range(start, info.last_entry + 1, _READ_ENTRIES):
        last = min(first + _READ_ENTRIES - 1, info.last_entry)
        for entry in await reader.read(first=first, last=last):
            head = decode_head(entry.data)[0]
            if pieces is not None:
                pieces.append(bytes(head.snapshot))
                if head.snapshot_pieces_left == 0:
                    producers.load(pieces)
                    pieces = None
            add_runs(producers, head, position_of_entry(ledger=info.ledger, entry=entry.id))


def add_runs(producers: DlogProducers, head: EntryHead, position: Position) -> None:
    """Notes an entry's messages in the table of producers."""
    for run in head.runs:
        if run.producer:
            for number in range(run.count):
                producers.add(run.producer, run.first + number, Position(position + number))
        position = Position(position + run.count)
