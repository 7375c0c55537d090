"""How far a job is: told while it runs, and kept in a small file for whoever asks later."""

import os
import time
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

STATUS_FILE: Final = "status.json"


class JobState(StrEnum):
    """Where a job stands in its life."""

    NEW = "new"
    STARTING = "starting"
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"
    LOST = "lost"
    """Its process is gone, and it did not say how it ended."""


class JobProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one run, the last one where it is over."""

    job: str
    kind: str
    state: JobState = JobState.NEW
    batches: int = 0
    rows: int = 0
    """Read in this run."""
    rows_per_s: float = 0.0
    """Of the last micro-batch."""
    lag: int | None = None
    """Stored batches of the stream that were not read yet, as of the last micro-batch."""
    late: int = 0
    """Rows that came behind the watermark and were left out, as Spark counts them: after it has
    joined those of one task and one window."""
    watermark: str | None = None
    updated_ms: int = 0
    pid: int = 0
    error: str = ""


def lag_of(source: Mapping[str, Any]) -> int | None:
    """From a source's part of Spark's progress: what was there, less what was read."""
    try:
        latest, end = source["latestOffset"], source["endOffset"]
        ahead, done = latest["shards"], end["shards"]
        ended = set(end["ended"])
        return sum(
            max(0, int(position) - int(done.get(shard, position)))
            for shard, position in ahead.items()
            if int(shard) not in ended
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None  # a source of another kind


def write_status(folder: str, progress: JobProgress) -> JobProgress:
    """Whole or not at all; as it was written."""
    progress = msgspec.structs.replace(progress, updated_ms=time.time_ns() // 1_000_000)
    path = f"{folder}/{STATUS_FILE}"
    with open(f"{path}.new", "wb") as file:
        file.write(msgspec.json.encode(progress))
    os.replace(f"{path}.new", path)
    return progress


def read_status(folder: str, *, job: str, kind: str) -> JobProgress:
    """Of the last run; of a job that never ran, that it is new."""
    try:
        with open(f"{folder}/{STATUS_FILE}", "rb") as file:
            found = msgspec.json.decode(file.read(), type=JobProgress)
    except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError):
        return JobProgress(job=job, kind=kind)
    if found.state in (JobState.STARTING, JobState.RUNNING) and not _is_alive(found.pid):
        return msgspec.structs.replace(found, state=JobState.LOST)
    return found


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
