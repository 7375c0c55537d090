"""`Gate`: holds the tasks of a micro-batch in its middle, so that a fault meets it there.

Tasks are in processes of Spark's, so the two sides meet in a folder: a task notes that it has begun
and that it waits, and is let on by a file that says how many chunks of its rows may go.
"""

import os
import time
from pathlib import Path

import msgspec

HELD_AT = 2
"""So many chunks of every task go, unless more are let on."""
ALL = 1_000_000
WAIT_S_MAX = 600.0
POLL_S = 0.01
_OPEN = "open"


class Task(msgspec.Struct, frozen=True):
    """One attempt of a task, and the process that it runs in."""

    batch: int
    partition: int
    attempt: int
    pid: int

    def name(self) -> str:
        return "-".join(map(str, msgspec.structs.astuple(self)))

    @classmethod
    def named(cls, name: str) -> "Task":
        return cls(*map(int, name.split("-")))


class Gate:
    """The same folder on both sides."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        for below in ("begun", "held", "let"):
            (self._folder / below).mkdir(parents=True, exist_ok=True)

    # What a task does

    def begin(self, *, batch: int, partition: int, attempt: int) -> Task:
        task = Task(batch, partition, attempt, os.getpid())
        (self._folder / "begun" / task.name()).touch()
        return task

    def wait(self, task: Task, chunk: int) -> None:
        """Until a chunk may go."""
        deadline = time.monotonic() + WAIT_S_MAX
        while chunk >= self._allowed(task.batch):
            (self._folder / "held" / task.name()).touch()
            assert time.monotonic() < deadline, f"nobody let {task} on"
            time.sleep(POLL_S)

    def _allowed(self, batch: int) -> int:
        for name in (str(batch), _OPEN):
            try:
                return int((self._folder / "let" / name).read_text())
            except FileNotFoundError:
                continue
        return HELD_AT

    # What the one who strikes does

    def begun(self, batch: int) -> list[Task]:
        return self._tasks("begun", batch)

    def held(self, batch: int) -> list[Task]:
        return self._tasks("held", batch)

    def _tasks(self, below: str, batch: int) -> list[Task]:
        found = [Task.named(each.name) for each in (self._folder / below).iterdir()]
        return sorted((each for each in found if each.batch == batch), key=Task.name)

    def let(self, batch: int | None, chunks: int = ALL) -> None:
        """So many chunks of every task of a micro-batch may go; without one, of all others."""
        name = _OPEN if batch is None else str(batch)
        unfinished = self._folder / "unfinished"
        unfinished.write_text(str(chunks))
        unfinished.rename(self._folder / "let" / name)
