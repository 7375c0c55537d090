"""5,000 crash images of a store's snapshots, and mutants that they must catch."""

import re
from collections.abc import Callable, Sequence

import pytest

from raftwood.base import files as seam
from raftwood.base.errors import RaftwoodError, StoreDamaged
from raftwood.base.files import Buffer, Completion, Operation
from raftwood.raft.host.snapshots import container, receiving, store, writing
from raftwood.simulation import RecordingFiles
from tests.kits.disk.images import Broken, ForgetfulFiles, RecorderFactory
from tests.kits.raft.snapshot_images import SnapshotImages

IMAGES = 5_000
SHARES = 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SHARES))
def test_snapshots_are_whole_or_absent_in_every_crash_image(seed: int) -> None:
    assert SnapshotImages(seed).check(limit=IMAGES // SHARES) == IMAGES // SHARES


def _is_caught(recorder: RecorderFactory = RecordingFiles) -> None:
    for seed in range(6):
        try:
            SnapshotImages(seed, recorder).check(limit=400)
        except (Broken, RaftwoodError, ExceptionGroup, OSError):
            return
    pytest.fail("no image showed the planted bug")


class _NoSync(ForgetfulFiles):
    @staticmethod
    def forgotten(operation: Operation) -> bool:
        return isinstance(operation, seam.DataSync)


class _NoDirectorySync(ForgetfulFiles):
    @staticmethod
    def forgotten(operation: Operation) -> bool:
        return isinstance(operation, seam.SyncDirectory)


class _SyncAfterRename(RecordingFiles):
    def submit(
        self, operations: Sequence[Operation], callback: Callable[[Completion], None]
    ) -> None:
        if len(operations) > 1 and isinstance(operations[1], seam.Rename):
            rename = operations[1]
            operations = (rename, seam.DataSync(rename.target), *operations[2:])
        super().submit(operations, callback)


@pytest.mark.parametrize("recorder", [_NoSync, _NoDirectorySync, _SyncAfterRename])
def test_a_forgotten_or_late_sync_is_caught(recorder: RecorderFactory) -> None:
    _is_caught(recorder)


def test_a_snapshot_written_under_its_own_name_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def named(self: store.SnapshotFiles) -> writing.PieceFile:
        path = self._path(next(self._numbers), 99)
        return writing.PieceFile(self._files, path, piece_bytes=self._piece_bytes)

    monkeypatch.setattr(store.SnapshotFiles, "_new_file", named)
    _is_caught()


def test_a_start_that_leaves_unfinished_files_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_SCRATCH", re.compile("nothing"))
    _is_caught()


def test_a_transfer_that_is_not_verified_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class Trusting(container.Decoder):
        def feed(self, data: Buffer) -> list[container.Part]:
            try:
                return super().feed(data)
            except StoreDamaged:
                if self.meta is None:
                    raise
                return []

        def finish(self) -> None:
            pass

    monkeypatch.setattr(receiving, "Decoder", Trusting)
    _is_caught()
