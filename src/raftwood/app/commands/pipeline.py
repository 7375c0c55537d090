"""`raftwood pipeline`: run the jobs of a TOML file on Spark, and look at how they are."""

import importlib.util
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import App, Parameter

from raftwood.app.job_display import JobDisplay
from raftwood.app.output import Format, time_text, write_rows
from raftwood.base.errors import InvalidConfiguration

if TYPE_CHECKING:
    from raftwood.pipeline.jobs.pipeline_file import Pipeline
    from raftwood.pipeline.jobs.progress import JobProgress

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
    from raftwood.pipeline.jobs.running import run_jobs  # noqa: PLC0415 (needs the extra)
    from raftwood.pipeline.jobs.spark_running import running_spark  # noqa: PLC0415

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
        from raftwood.pipeline.jobs.kinds import KINDS  # noqa: PLC0415 (needs the extra)

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
    from raftwood.pipeline.jobs.progress import JobState, read_status  # noqa: PLC0415

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
