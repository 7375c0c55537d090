"""`raftwood pipeline`: run the jobs of a TOML file on Spark, and look at how they are."""

import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Self

import msgspec
from cyclopts import App, Parameter

from raftwood.base.errors import InvalidConfiguration
from raftwood.base.text import escaped
from raftwood.cli.output import Format, time_text, write_rows

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from raftwood.pipeline.jobs.job import JobProgress
    from raftwood.pipeline.jobs.pipeline_file import Pipeline


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


app = App(name="pipeline", help_format="plaintext")

File = Annotated[str, Parameter(help="TOML file; see docs/pipeline-jobs.md.")]
Output = Annotated[Format, Parameter(name="--format", help="How to print it.")]
_JOBS = {"job": "job", "kind": "kind", "from": "from", "to": "to", "trigger": "trigger"}
_KINDS = {"kind": "kind", "does": "does"}
_STATUS = {
    "job": "job",
    "kind": "kind",
    "state": "state",
    "rows": "rows",
    "rows_per_s": "rows/s",
    "lag": "lag (batches)",
    "late": "late",
    "batches": "micro-batches",
    "updated": "as of",
    "error": "error",
}


@app.command
def run(
    file: File,
    *jobs: Annotated[str, Parameter(help="Only these jobs of the file.")],
    output: Output = "text",
) -> int:
    """Run jobs: in the order of the file, those with an interval side by side until interrupted.

    Interrupted or told to end, jobs finish the micro-batch that they are at. Run again, each goes
    on where it was.
    """
    pipeline = _pipeline(file, needs_access=True)
    chosen = pipeline.chosen(jobs)
    from raftwood.pipeline.jobs.runner import (  # noqa: PLC0415
        run_jobs,
        running_spark,
    )

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with JobDisplay([job.name for job in chosen]) as display:
        display.say("starting Spark …")
        with running_spark(
            f"raftwood {pipeline.name}",
            folder=pipeline.folder,
            master=pipeline.spark.master,
            settings=pipeline.spark.settings,
        ) as spark:
            ended = run_jobs(spark, chosen, on_progress=display.show, stop=stop)
    _write_status(ended, output)
    return 0


@app.command(name="list")
def list_jobs(file: File | None = None, *, output: Output = "text") -> int:
    """List the jobs of a file; without one, the kinds of jobs that there are."""
    if file is None:
        _check_spark()
        from raftwood.pipeline.jobs.pipeline_file import KINDS  # noqa: PLC0415

        rows = [{"kind": kind, "does": does} for kind, (_, does) in KINDS.items()]
        write_rows(rows, _KINDS, output)
        return 0
    jobs = [{"job": job.name, **msgspec.to_builtins(job.options)} for job in _pipeline(file).jobs]
    write_rows(jobs, _JOBS, output)
    return 0


@app.command
def status(file: File, *, output: Output = "text") -> int:
    """How far each job of a file is, whoever runs it on this machine; status 1 if one failed."""
    pipeline = _pipeline(file)
    from raftwood.pipeline.jobs.job import JobState, read_status  # noqa: PLC0415

    found = [read_status(job.folder, job=job.name, kind=job.kind) for job in pipeline.jobs]
    _write_status(found, output)
    return 1 if any(each.state in (JobState.FAILED, JobState.LOST) for each in found) else 0


def _write_status(found: "list[JobProgress]", output: Format) -> None:
    rows: list[dict[str, Any]] = []
    for each in found:
        row = msgspec.to_builtins(each)
        row["updated"] = time_text(each.updated_ms / 1000) if each.updated_ms else None
        row["error"] = each.error or None
        rows.append(row)
    write_rows(rows, _STATUS, output)


def _pipeline(file: str, *, needs_access: bool = False) -> "Pipeline":
    _check_spark()
    from raftwood.pipeline.jobs.pipeline_file import read_pipeline  # noqa: PLC0415

    return read_pipeline(file, os.environ, needs_access=needs_access)


def _check_spark() -> None:
    if importlib.util.find_spec("pyspark") is None:
        raise InvalidConfiguration(
            "pipelines need Spark, which is not installed: pip install 'raftwood[spark]' "
            f"(for {sys.executable})"
        )
