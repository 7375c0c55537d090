"""500 crash images of the log and of the data folder, and mutants that they must catch."""

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import ANY

import msgspec
import pytest

from raftwood.base import files as seam
from raftwood.base.files import Operation
from raftwood.disk.segment_log import compaction, index, recovery, scan
from raftwood.disk.segment_log import format as log_format
from raftwood.disk.segment_log import scan as scan_module
from tests.kits.disk.images import FolderImages, ForgetfulFiles, LogImages
from tests.kits.models import CATCHES, Mutant, replaced

IMAGES = 500
SHARES = 5


@pytest.mark.parametrize("seed", range(SHARES))
def test_the_log_comes_back_from_every_crash_image(seed: int) -> None:
    assert LogImages(seed).check(limit=IMAGES // SHARES) == IMAGES // SHARES


@pytest.mark.parametrize("seed", range(2))
def test_the_data_folder_comes_back_from_every_crash_image(seed: int) -> None:
    assert FolderImages(seed).check(limit=IMAGES // 2) == IMAGES // 2


class _NoSync(ForgetfulFiles):
    @staticmethod
    def forgotten(operation: Operation) -> bool:
        return isinstance(operation, seam.DataSync) and operation.path.endswith(".segment")


class _NoDirectorySync(ForgetfulFiles):
    @staticmethod
    def forgotten(operation: Operation) -> bool:
        return isinstance(operation, seam.SyncDirectory)


class _NoStampSync(ForgetfulFiles):
    @staticmethod
    def forgotten(operation: Operation) -> bool:
        return isinstance(operation, seam.DataSync) and "IDENTITY" in operation.path


def _records_of_a_torn_tail(data: Any, header: Any) -> Any:
    """The records before the torn one are taken, though the write was to be all or nothing."""
    records = _records_of(data, header)
    count = header.record_count
    while isinstance(records, scan.BadFlush) and count:
        count -= 1
        shorter = _first_records(data, header, count)
        records = _records_of(data, shorter) if shorter is not None else records
    return [] if isinstance(records, scan.BadFlush) else records


def _flushes(
    data: Any, place: int, *, log_seed: int, previous_end: int | None, take: Any, records_of: Any
) -> scan.WholeFlushes:
    """As `whole_flushes`, with a planted bug in how a flush's records are read."""
    found = scan.WholeFlushes(place)
    while True:
        header = scan.flush_at(data, found.end, log_seed=log_seed, previous_end=previous_end)
        if isinstance(header, scan.BadFlush) or header.record_count == log_format.MARK_COUNT:
            return found
        records = records_of(data, header)
        if isinstance(records, scan.BadFlush):
            return found
        take([msgspec.structs.astuple(record) for record in records])
        found.end = previous_end = header.end
        found.flush_count += 1
        found.body_bytes += header.body_bytes
        found.oldest_segment = header.oldest_segment


def test_reading_a_log_by_records_finds_what_reading_it_whole_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else what the planted bug shows would not be the bug."""
    monkeypatch.setattr(recovery, "whole_flushes", partial(_flushes, records_of=_records_of))
    assert LogImages(0).check(limit=IMAGES // SHARES) == IMAGES // SHARES


def _first_records(data: Any, header: Any, count: int) -> Any:
    """The header of a flush that ends after its first records."""
    offset = start = log_format.offset_of(header.position) + log_format.FLUSH_HEADER_BYTES
    for _ in range(count):
        if offset + log_format.RECORD_HEADER_BYTES > len(data):
            return None
        payload_bytes = log_format.RECORD.unpack_from(data, offset)[4]
        offset += log_format.RECORD_HEADER_BYTES + payload_bytes
    return log_format.FlushHeader(
        header.position,
        header.previous_end,
        header.synced,
        offset - start,
        count,
        header.oldest_segment,
    )


_records_of = scan.records_of
_row_of = index.GroupIndex.row_of
_CATCHES = (*CATCHES, FileNotFoundError)


async def _no_wait(_: compaction.Compactor) -> None:
    return


def _log(seed: int) -> object:
    return LogImages(seed).check(limit=400)


def _recorded(
    kind: type[LogImages | FolderImages], recorder: type[ForgetfulFiles]
) -> Callable[[int], object]:
    return lambda seed: kind(seed, recorder).check(limit=400)


MUTANTS = {
    "a log without sync": Mutant(_recorded(LogImages, _NoSync), catches=_CATCHES),
    "a log whose directory is not synced": Mutant(
        _recorded(LogImages, _NoDirectorySync), catches=_CATCHES
    ),
    "a folder that is not synced": Mutant(
        _recorded(FolderImages, _NoDirectorySync), catches=_CATCHES
    ),
    "a stamp that is not synced": Mutant(_recorded(FolderImages, _NoStampSync), catches=_CATCHES),
    "an unchecked checksum": Mutant(
        _log, replaced(scan, record_is_intact=lambda *_: True, checksum_of=lambda *_: ANY)
    ),
    "an accepted torn tail": Mutant(
        _log,
        replaced(
            recovery,
            records_of=_records_of_a_torn_tail,
            whole_flushes=partial(_flushes, records_of=_records_of_a_torn_tail),
        ),
    ),
    "an index off by one": Mutant(
        _log,
        replaced(index.GroupIndex, row_of=lambda self, number: max(_row_of(self, number) - 1, 0)),
    ),
    "a forgotten truncation": Mutant(_log, replaced(scan_module._Rows, cut_tail=lambda *_: None)),
    "a segment removed before its copies are durable": Mutant(
        _log, replaced(compaction.Compactor, _all_durable=_no_wait, _barrier=_no_wait)
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    MUTANTS[name].catch(seeds_max=6)
