"""500 crash images of a store's snapshots, and mutants that they must catch."""

import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import pytest

from raftwood.base import files as seam
from raftwood.base.errors import StoreDamaged
from raftwood.base.files import Buffer, Completion, Operation
from raftwood.raft import snapshot_files, snapshot_format
from raftwood.testing import RecordingFiles
from tests.kits.disk.images import ForgetfulFiles, RecorderFactory
from tests.kits.models import CATCHES, Mutant, Plant, replaced
from tests.kits.raft.snapshot_images import SnapshotImages

IMAGES = 500
SHARES = 5


@pytest.mark.parametrize("seed", range(SHARES))
def test_snapshots_are_whole_or_absent_in_every_crash_image(seed: int) -> None:
    assert SnapshotImages(seed).check(limit=IMAGES // SHARES) == IMAGES // SHARES


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


class _Trusting(snapshot_format.SnapshotDecoder):
    def feed(self, data: Buffer) -> list[snapshot_format.SnapshotFrame]:
        try:
            return super().feed(data)
        except StoreDamaged:
            if self.meta is None:
                raise
            return []

    def finish(self) -> None:
        pass


def _file_under_its_own_name(snapshots: snapshot_files.SnapshotFiles) -> snapshot_files.PieceFile:
    path = snapshots._path(next(snapshots._numbers), 99)
    return snapshot_files.PieceFile(snapshots._files, path, piece_bytes=snapshots._piece_bytes)


_CATCHES = (*CATCHES, ExceptionGroup, OSError)


def _mutant(plant: Plant = nullcontext, recorder: RecorderFactory = RecordingFiles) -> Mutant:
    return Mutant(
        lambda seed: SnapshotImages(seed, recorder).check(limit=400), plant, catches=_CATCHES
    )


MUTANTS = {
    "a forgotten sync": _mutant(recorder=_NoSync),
    "a forgotten sync of the directory": _mutant(recorder=_NoDirectorySync),
    "a sync after the rename": _mutant(recorder=_SyncAfterRename),
    "a snapshot written under its own name": _mutant(
        replaced(snapshot_files.SnapshotFiles, _new_file=_file_under_its_own_name)
    ),
    "a start that leaves unfinished files": _mutant(
        replaced(snapshot_files, _SCRATCH=re.compile("nothing"))
    ),
    "a transfer that is not verified": _mutant(replaced(snapshot_files, SnapshotDecoder=_Trusting)),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    MUTANTS[name].catch(seeds_max=6)
