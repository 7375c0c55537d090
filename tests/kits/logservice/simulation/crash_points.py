"""Crashes at chosen steps of the truncation worker: the power of the stores fails right there."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from raftwood.disk.segment_log import TruncateHead
from raftwood.raft.group_log import GroupState
from raftwood.raft.replica import Replica
from raftwood.raft.snapshot_files import SnapshotFiles
from raftwood.raft.snapshotter import Snapshotter
from raftwood.testing import PROCESS, ProcessEnded, Simulation

STEPS = (
    "before a snapshot is saved",
    "after a snapshot is saved, before it is noted",
    "after a snapshot is noted",
    "before the log is cut",
    "after the log is cut, before older snapshots are removed",
    "while older snapshots are removed",
    "before a snapshot is dropped",
    "after a snapshot is dropped, before it is removed",
)


class CrashPoints:
    """Arm some stores, and each loses its power the next time that it comes to the step."""

    def __init__(self, simulation: Simulation, shard: int) -> None:
        self._simulation = simulation
        self._shard = shard
        self._armed: dict[str, str] = {}
        self.crashed: list[str] = []

    def arm(self, step: str, stores: list[int]) -> None:
        self._armed = {f"s{store}": step for store in stores}

    def disarm(self) -> None:
        self._armed = {}

    @property
    def is_armed(self) -> bool:
        return bool(self._armed)

    def reach(self, step: str, shard: int) -> None:
        process = PROCESS.get()
        if process is None or shard != self._shard:
            return
        name = process.node.name
        if self._armed.get(name) == step:
            del self._armed[name]
            self.crashed.append(name)
            self._simulation.machines[name].power_off()
            raise ProcessEnded(step)

    @contextmanager
    def planted(self) -> Iterator[None]:
        reach = self.reach
        save, remove = SnapshotFiles._save, SnapshotFiles.remove
        write = Snapshotter._write

        async def saving(files: SnapshotFiles, meta: Any, *rest: Any) -> Any:
            reach(STEPS[0], meta.group)
            return await save(files, meta, *rest)

        async def removing(files: SnapshotFiles, group: int, index: int) -> None:
            await remove(files, group, index)
            reach(STEPS[5], group)

        async def writing(
            snapshotting: Snapshotter, replica: Replica, state: GroupState, *records: Any
        ) -> None:
            before, after = _steps_around(replica.storage.state, state, records)
            reach(before, replica.group)
            await write(snapshotting, replica, state, *records)
            reach(after, replica.group)

        with (
            mock.patch.object(SnapshotFiles, "_save", saving),
            mock.patch.object(SnapshotFiles, "remove", removing),
            mock.patch.object(Snapshotter, "_write", writing),
        ):
            yield


def _steps_around(old: GroupState, new: GroupState, records: tuple[Any, ...]) -> tuple[str, str]:
    if any(isinstance(each, TruncateHead) for each in records):
        return STEPS[3], STEPS[4]
    if len(new.snapshots) > len(old.snapshots):
        return STEPS[1], STEPS[2]
    return STEPS[6], STEPS[7]
