"""What running jobs are at: a table on a terminal, a line for each change elsewhere."""

import os
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from raftwood.base.text import escaped

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from raftwood.pipeline.jobs.progress import JobProgress


class JobDisplay:
    """Use it as a context manager; what it writes goes to standard error."""

    def __init__(self, jobs: Sequence[str]) -> None:
        self._jobs = jobs
        self._last: dict[str, JobProgress] = {}
        self._lock = threading.Lock()
        """Jobs tell of themselves from threads of their own."""
        self._live: Live | None = None
        self._text = ""

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            # Loaded only where it is seen.
            from rich.console import Console  # noqa: PLC0415
            from rich.live import Live  # noqa: PLC0415

            color = None if os.environ.get("NO_COLOR") else "auto"
            console = Console(stderr=True, color_system=color)  # type: ignore[arg-type]
            self._live = Live(self._table(), console=console, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Something of all jobs."""
        with self._lock:
            self._text = text
            self._update(text)

    def show(self, progress: "JobProgress") -> None:
        with self._lock:
            self._text = ""
            self._last[progress.job] = progress
            self._update(progress_line(progress))

    def _update(self, line: str) -> None:
        if self._live is not None:
            self._live.update(self._table())
        else:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    def _table(self) -> "Table":
        from rich.box import SIMPLE_HEAD  # noqa: PLC0415
        from rich.table import Table  # noqa: PLC0415

        table = Table(box=SIMPLE_HEAD, pad_edge=False, caption=self._text or None)
        for title in ("job", "state", "rows", "rows/s", "lag (batches)", "late"):
            table.add_column(title, justify="left" if title in ("job", "state") else "right")
        for job in self._jobs:
            each = self._last.get(job)
            if each is None:
                table.add_row(job, "waiting")
            else:
                table.add_row(
                    job,
                    each.state.value,
                    f"{each.rows:,}",
                    f"{each.rows_per_s:,.0f}",
                    "-" if each.lag is None else f"{each.lag:,}",
                    f"{each.late:,}",
                )
        return table


def progress_line(progress: "JobProgress") -> str:
    """One change, as one line."""
    parts = [f"{progress.job}: {progress.state.value}"]
    if progress.batches or progress.rows:
        parts.append(f"{progress.rows:,} rows, {progress.rows_per_s:,.0f} rows/s")
    if progress.lag is not None:
        parts.append(f"{progress.lag:,} batches behind")
    if progress.late:
        parts.append(f"{progress.late:,} late")
    if progress.error:
        parts.append(escaped(progress.error))
    return ", ".join(parts)
