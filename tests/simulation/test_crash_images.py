"""5,000 crash images of the log and of the data folder, and mutants that they must catch."""

from collections.abc import Callable
from typing import Any

import pytest

from raftwood.base import files as seam
from raftwood.base.errors import RaftwoodError
from raftwood.base.files import Operation
from raftwood.disk.segment_log import compaction, index, replay, scan
from raftwood.disk.segment_log import format as log_format
from tests.kits.disk.images import Broken, FolderImages, ForgetfulFiles, LogImages

IMAGES = 5_000
SHARES = 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SHARES))
def test_the_log_comes_back_from_every_crash_image(seed: int) -> None:
    assert LogImages(seed).check(limit=IMAGES // SHARES) == IMAGES // SHARES


@pytest.mark.slow
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


def _is_caught(make: Callable[[int], LogImages | FolderImages]) -> None:
    for seed in range(6):
        try:
            make(seed).check(limit=400)
        except (Broken, RaftwoodError, AssertionError, FileNotFoundError):
            return
    pytest.fail("no image showed the planted bug")


def test_a_log_without_sync_is_caught() -> None:
    _is_caught(lambda seed: LogImages(seed, _NoSync))


def test_a_directory_that_is_not_synced_is_caught() -> None:
    _is_caught(lambda seed: LogImages(seed, _NoDirectorySync))
    _is_caught(lambda seed: FolderImages(seed, _NoDirectorySync))


def test_a_stamp_that_is_not_synced_is_caught() -> None:
    _is_caught(lambda seed: FolderImages(seed, _NoStampSync))


def test_an_unchecked_checksum_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "record_is_intact", lambda *_: True)
    _is_caught(LogImages)


def test_an_accepted_torn_tail_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The records before the torn one are taken, though the write was to be all or nothing."""
    original = scan.records_of

    def lenient(data: Any, header: Any) -> Any:
        records = original(data, header)
        count = header.record_count
        while isinstance(records, scan.BadFlush) and count:
            count -= 1
            shorter = _first_records(data, header, count)
            records = original(data, shorter) if shorter is not None else records
        return [] if isinstance(records, scan.BadFlush) else records

    monkeypatch.setattr("raftwood.disk.segment_log.recovery.records_of", lenient)
    _is_caught(LogImages)


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


def test_an_index_off_by_one_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    original = index.GroupIndex.row_of
    monkeypatch.setattr(
        index.GroupIndex, "row_of", lambda self, number: max(original(self, number) - 1, 0)
    )
    _is_caught(LogImages)


def test_a_forgotten_truncation_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay._Rows, "cut_tail", lambda *_: None)
    _is_caught(LogImages)


def test_a_segment_removed_before_its_copies_are_durable_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def no_wait(_: compaction.Compactor) -> None:
        return

    monkeypatch.setattr(compaction.Compactor, "_all_durable", no_wait)
    monkeypatch.setattr(compaction.Compactor, "_barrier", no_wait)
    _is_caught(LogImages)
