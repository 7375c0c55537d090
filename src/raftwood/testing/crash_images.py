"""Crash images: record a store's disk operations, then recover from every moment of them.

    recording = RecordingFiles()
    runner = ImageRunner()
    runner.run(use_store(recording))            # the store calls recording.mark(...) on each ack
    for image in crash_images(recording.journal, seed=1):
        survivors = runner.run(recover(image.files))
        check(survivors, acked=image.marks)

For every boundary between two operations, and inside writes, images are built by keeping, losing,
tearing and reordering what was not synced, contents and names alike.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Self, TypeVar

import msgspec

from raftwood.base import files
from raftwood.base.files import Completion, Operation
from raftwood.testing.errors import Leaked
from raftwood.testing.file_system import (
    DescriptorTable,
    Fate,
    FileSystem,
    KeepAll,
    LoseAll,
    LoseData,
    LoseDirectories,
    TearLast,
    normal_path,
)
from raftwood.testing.loop import SimulatedLoop

Result = TypeVar("Result")


class ImmediateFiles:
    """The `Files` seam over memory: runs operations at once, answers in the loop's next turn."""

    def __init__(self, file_system: FileSystem | None = None) -> None:
        self.file_system = FileSystem(("/data",)) if file_system is None else file_system
        self.session = DescriptorTable()

    def submit(
        self, operations: Sequence[Operation], callback: Callable[[Completion], None]
    ) -> None:
        completion = self._run(operations)
        asyncio.get_running_loop().call_soon(callback, completion)

    def _run(self, operations: Sequence[Operation]) -> Completion:
        results: list[Any] = []
        for operation in operations:
            try:
                results.append(self._apply(operation))
            except OSError as error:
                return Completion(results, error, operation)
        return Completion(results)

    def _apply(self, operation: Operation) -> Any:
        return self.file_system.apply(self.session, operation)


class Journal(msgspec.Struct):
    """The operations, and how much had been answered and marked before each."""

    initial: FileSystem
    operations: list[Operation] = []
    completed_before: list[int] = []
    marks_before: list[int] = []
    completed: int = 0
    marks: list[Any] = []


class RecordingFiles(ImmediateFiles):
    """Runs operations and records them."""

    def __init__(self, file_system: FileSystem | None = None) -> None:
        super().__init__(file_system)
        self.journal = Journal(initial=self.file_system.after_power_loss(LoseAll(random.Random(0))))

    def mark(self, value: Any) -> None:
        """Notes that something was promised; images after this moment carry the mark."""
        self.journal.marks.append(value)

    def submit(
        self, operations: Sequence[Operation], callback: Callable[[Completion], None]
    ) -> None:
        completion = self._run(operations)

        def answer() -> None:
            self.journal.completed += 1
            callback(completion)

        asyncio.get_running_loop().call_soon(answer)

    def _apply(self, operation: Operation) -> Any:
        journal = self.journal
        if isinstance(operation, files.Write):
            # The caller may reuse its buffers.
            data = b"".join(operation.buffers)
            operation = files.Write(operation.path, operation.offset, (data,))
        if not isinstance(operation, files.READING):
            journal.operations.append(operation)
            journal.completed_before.append(journal.completed)
            journal.marks_before.append(len(journal.marks))
        return self.file_system.apply(self.session, operation)


class CrashImage(msgspec.Struct, kw_only=True):
    """A possible state of the disk after a crash."""

    point: int
    """How many operations had begun."""
    kind: str
    completed: int
    """How many submissions had been answered, counted from 0 in their order."""
    marks: Sequence[Any]
    """The marks set so far."""
    file_system: FileSystem

    @property
    def files(self) -> ImmediateFiles:
        return ImmediateFiles(self.file_system)


def crash_images(
    journal: Journal, *, seed: int, per_point: int = 4, inside_writes: int = 2
) -> Iterator[CrashImage]:
    """Yields images for every point, deterministic from the seed.

    Each point gives the planned kinds (those that differ from one another there) and `per_point`
    random ones; each write, `inside_writes` more from its middle.
    """
    source = random.Random(f"crash images {seed}")
    # Replayed on a copy, so that a journal can be enumerated again.
    file_system = journal.initial.after_power_loss(LoseAll(source))
    session = DescriptorTable()
    total = len(journal.operations)
    for point in range(total + 1):
        at_end = point == total
        completed = journal.completed if at_end else journal.completed_before[point]
        marks = journal.marks[: None if at_end else journal.marks_before[point]]

        def image(kind: str, fate: Fate) -> CrashImage:
            return CrashImage(
                point=point,  # noqa: B023  called within this turn
                kind=kind,
                completed=completed,  # noqa: B023
                marks=marks,  # noqa: B023
                file_system=file_system.after_power_loss(fate),
            )

        for kind, fate in _fates(file_system, source, per_point):
            yield image(kind, fate)
        if at_end:
            return
        operation = journal.operations[point]
        if isinstance(operation, files.Write):
            yield from _inside(
                file_system, session, operation, image, source=source, count=inside_writes
            )
        try:
            file_system.apply(session, operation)
        except OSError:
            # It failed during the recording, too, and left the disk unchanged.
            continue


def _fates(
    file_system: FileSystem, source: random.Random, per_point: int
) -> Iterable[tuple[str, Fate]]:
    names_pending = bool(file_system.name_changes)
    data_pending = any(inode.changes for inode in file_system.files.values()) or any(
        inode.changes for inode in file_system.durable_files.values()
    )
    yield "nothing unsynced kept", LoseAll(source)
    if names_pending:
        yield "unsynced names lost", LoseDirectories(source)
    if data_pending:
        yield "unsynced contents lost", LoseData(source)
        yield "last write torn", TearLast(source)
    if names_pending or data_pending:
        yield "all kept", KeepAll(source)
        for _ in range(per_point):
            yield "random", Fate(source)


def _inside(
    file_system: FileSystem,
    session: DescriptorTable,
    operation: files.Write,
    image: Callable[[str, Fate], CrashImage],
    *,
    source: random.Random,
    count: int,
) -> Iterator[CrashImage]:
    """A crash during a write: only a part of it has reached even the cache."""
    inode = session.opened.get(normal_path(operation.path))
    data = b"".join(operation.buffers)
    if inode is None or len(data) < 2:
        return
    for number in range(count):
        part = data[: source.randrange(1, len(data))]
        change = files.Write(operation.path, operation.offset, (part,))
        before = inode.cached.copy()
        file_system.apply(session, change)
        yield image("inside a write", KeepAll(source) if number == 0 else Fate(source))
        inode.changes.pop()
        inode.cached = before


class ImageRunner:
    """Runs coroutines over immediate files, thousands per second, on one reused loop."""

    def __init__(self) -> None:
        self._loop = SimulatedLoop("images", virtual_seconds_max=1e9, steps_max=10**12)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Runs a coroutine to its end, and drops what it leaves behind as a crash would.

        Raises Deadlock if the coroutine waits for what never comes, an error if a callback
        fails.
        """
        loop = self._loop
        try:
            result = loop.run_until_complete(coroutine)
        finally:
            loop.drop_everything()
            errors, loop.errors = loop.errors, []
        if errors:
            raise Leaked("\n".join(errors))
        return result

    def close(self) -> None:
        self._loop.close()
