"""The simulated disk: the `Files` seam in virtual time, with the faults of real disks.

`SimulatedDisk` belongs to a node and lives through crashes; `SimulatedFiles` is one process's
access to it. Submissions that write run one after another; those that only read overtake them, as
with the real files' threads. Writes reach the page cache at once, and a sync takes its time, so
that power may fail in between: most bugs of a store need exactly that moment.
"""

import contextvars
import errno
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from raftwood.base import files
from raftwood.base.files import Completion, Operation
from raftwood.testing.file_system import DescriptorTable, Fate, FileSystem, normal_path

if TYPE_CHECKING:
    from raftwood.testing.loop import SimulatedLoop
    from raftwood.testing.nodes import Process


class DiskProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The speed of a disk, and how often it fails."""

    operation_s: tuple[float, float] = (0.00001, 0.0001)
    sync_s: tuple[float, float] = (0.0003, 0.002)
    bytes_per_s: float = 500e6
    stall_probability: float = 0.0
    stall_s: tuple[float, float] = (0.05, 1.0)
    write_error_probability: float = 0.0
    """A failed write leaves a beginning of its data."""
    sync_error_probability: float = 0.0


SLOW_DISK = DiskProfile(
    operation_s=(0.0005, 0.005), sync_s=(0.01, 0.1), bytes_per_s=20e6, stall_probability=0.01
)


class SimulatedDisk:
    """A machine's disk."""

    def __init__(
        self,
        loop: "SimulatedLoop",
        name: str,
        *,
        profile: DiskProfile | None = None,
        directories: Iterable[str] = ("/data",),
    ) -> None:
        self.loop = loop
        self.name = name
        self.profile = profile or DiskProfile()
        self.file_system = FileSystem(directories)
        self.random = loop.random_of(f"disk {name}")
        self._failing: list[tuple[type, str, int]] = []

    @property
    def capacity_bytes(self) -> int | None:
        return self.file_system.capacity_bytes

    @capacity_bytes.setter
    def capacity_bytes(self, value: int | None) -> None:
        self.file_system.capacity_bytes = value

    def power_loss(self, source: random.Random) -> None:
        """Keeps, loses or tears each change that was not synced."""
        self.file_system = self.file_system.after_power_loss(Fate(source))
        self.loop.trace("disk after power loss", self.name, len(self.file_system.files))

    def flip_bit(self, path: str, *, offset: int, bit: int = 0) -> None:
        self.file_system.flip_bit(path, offset=offset, bit=bit)
        self.loop.trace("bit flip", self.name, path, offset, bit)

    def cut(self, path: str, *, length: int) -> None:
        self.file_system.cut(path, length=length)
        self.loop.trace("file cut", self.name, path, length)

    def lose(self, path: str) -> None:
        self.file_system.lose(path)
        self.loop.trace("file lost", self.name, path)

    def fail_next(self, kind: type[Operation], path: str = "", *, error: int = errno.EIO) -> None:
        """Makes the next operation of a kind fail, on one path or (empty) on any."""
        self._failing.append((kind, path, error))

    def call_off_failures(self) -> None:
        """Cancels requested failures that have not happened yet."""
        self._failing.clear()

    def session(self, process: "Process") -> "SimulatedFiles":
        return SimulatedFiles(self, process)

    # Faults and times of one operation.

    def run(self, session: DescriptorTable, operation: Operation) -> Any:
        error = self._injected(operation)
        if error is None:
            return self.file_system.apply(session, operation)
        self.loop.trace("disk fault", self.name, type(operation).__name__, error)
        path = getattr(operation, "path", "")
        inode = session.opened.get(normal_path(path))
        if isinstance(operation, files.DataSync) and inode is not None:
            self.file_system.lose_pages(inode, Fate(self.random))
        elif isinstance(operation, files.Write) and inode is not None:
            data = b"".join(operation.buffers)
            short = data[: int(self.random.random() * len(data))]
            self.file_system.write_data(inode, operation.offset, short)
        raise OSError(error, f"injected failure of {type(operation).__name__}", path)

    def _injected(self, operation: Operation) -> int | None:
        if self._failing:
            for index, (kind, path, error) in enumerate(self._failing):
                if isinstance(operation, kind) and path in ("", getattr(operation, "path", "")):
                    del self._failing[index]
                    return error
        profile = self.profile
        if isinstance(operation, files.Write):
            probability = profile.write_error_probability
        elif isinstance(operation, files.DataSync):
            probability = profile.sync_error_probability
        else:
            return None
        return errno.EIO if probability and self.random.random() < probability else None

    def latency(self, operation: Operation) -> float:
        profile = self.profile
        if isinstance(operation, (files.DataSync, files.SyncDirectory)):
            low, high = profile.sync_s
            if profile.stall_probability and self.random.random() < profile.stall_probability:
                low, high = profile.stall_s
        else:
            low, high = profile.operation_s
        seconds = low + (high - low) * self.random.random()
        if isinstance(operation, files.Write):
            seconds += sum(map(len, operation.buffers)) / profile.bytes_per_s
        elif isinstance(operation, files.Read):
            inode = self.file_system.files.get(normal_path(operation.path))
            available = 0 if inode is None else inode.cached.length - operation.offset
            seconds += max(0, min(operation.length, available)) / profile.bytes_per_s
        return seconds


class _Submission:
    """Operations under way."""

    __slots__ = ("_callback", "_completion", "_context", "_files", "_operations", "_position",
                 "_results")  # fmt: skip

    def __init__(
        self,
        owner: "SimulatedFiles",
        operations: Sequence[Operation],
        callback: Callable[[Completion], None],
    ) -> None:
        self._files = owner
        self._operations = operations
        self._callback = callback
        self._context = contextvars.copy_context()
        self._position = 0
        self._results: list[Any] = []
        self._completion: Completion | None = None

    def go_on(self) -> None:
        """Runs until the next sync: a sync is done when its time is over, all else at its start."""
        owner = self._files
        if owner.ended:
            return
        disk = owner.disk
        waited = 0.0
        while self._completion is None and self._position < len(self._operations):
            operation = self._operations[self._position]
            waited += disk.latency(operation)
            if isinstance(operation, (files.DataSync, files.SyncDirectory)):
                disk.loop.kernel_later(waited, self._finish_sync)
                return
            self._run(operation)
        disk.loop.kernel_later(waited, self._finish)

    def _run(self, operation: Operation) -> None:
        self._position += 1
        try:
            self._results.append(self._files.disk.run(self._files.session, operation))
        except OSError as error:
            self._completion = Completion(self._results, error, operation)

    def _finish_sync(self) -> None:
        if not self._files.ended:
            self._run(self._operations[self._position])
            self.go_on()

    def _finish(self) -> None:
        owner = self._files
        if owner.ended:
            return
        completion = self._completion or Completion(self._results)
        owner.disk.loop.call_soon(self._callback, completion, context=self._context)
        owner.finished(self)


class SimulatedFiles:
    """One process's access to its disk; gone with the process."""

    def __init__(self, disk: SimulatedDisk, process: "Process") -> None:
        self.disk = disk
        self.session = DescriptorTable()
        self.ended = False
        self._process = process
        self._writing: deque[_Submission] = deque()
        process.resources[self] = None

    def submit(
        self, operations: Sequence[Operation], callback: Callable[[Completion], None]
    ) -> None:
        if self.ended:
            return
        submission = _Submission(self, list(operations), callback)
        if all(isinstance(operation, files.READING) for operation in operations):
            self.disk.loop.kernel_later(0.0, submission.go_on)
            return
        self._writing.append(submission)
        if len(self._writing) == 1:
            self.disk.loop.kernel_later(0.0, submission.go_on)

    def finished(self, submission: _Submission) -> None:
        if self._writing and self._writing[0] is submission:
            self._writing.popleft()
            if self._writing:
                self._writing[0].go_on()

    def process_ended(self, *, power_lost: bool) -> None:  # noqa: ARG002
        self.ended = True
        self.session.end()
