"""A long command's progress with an estimate: a bar on a terminal, and nothing elsewhere."""

import sys
import time
from typing import TYPE_CHECKING, Self

from raftwood.app.output import size_text

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Bar:
    """Use it as a context manager; the bar is gone at its end."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._began = time.monotonic()
        self._first_bytes: int | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            # Loaded only where it is seen.
            from rich.console import Console  # noqa: PLC0415
            from rich.progress import (  # noqa: PLC0415
                BarColumn,
                Progress,
                TextColumn,
                TimeRemainingColumn,
            )

            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[text]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._progress.add_task(self._title, total=None, text="")
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def show(self, done: int, total: int, text: str, size: int) -> None:
        """So many parts of all, and so many bytes so far, which tell the rate."""
        if self._progress is None or self._task is None:
            return
        if self._first_bytes is None:
            self._first_bytes = size
        elapsed_s = time.monotonic() - self._began
        rate = (size - self._first_bytes) / elapsed_s if elapsed_s > 0 else 0.0
        self._progress.update(
            self._task, completed=done, total=total, text=f"{text}, {size_text(round(rate))}/s"
        )
