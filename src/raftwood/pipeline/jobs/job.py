"""`Job`: what all jobs have: a name, options, a folder, a trigger, progress, an end.

    class Marked(Transform):
        def build(self, rows):
            return super().build(rows).withColumn("seen_by", lit("me"))

A file names a user's own class as `kind = "module:Class"`. A job reports its progress while it
runs, and keeps it in a small file for later.
"""

import importlib
import inspect
import os
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from raftwood.base.errors import InternalError, InvalidConfiguration, RaftwoodError
from raftwood.pipeline.options import StreamAccess, access_to
from raftwood.pipeline.spark import SPARK_ERRORS, reason_of

AVAILABLE_NOW: Final = "available-now"
ONCE: Final = "once"
_SECONDS: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}
_DURATION: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(second|minute|hour|day)s?\s*")


class Trigger(msgspec.Struct, frozen=True):
    """When a job runs; without `interval_s` it ends once it has processed what was there."""

    text: str
    interval_s: float | None = None

    def spark_arguments(self) -> dict[str, Any]:
        """Returns arguments for `DataStreamWriter.trigger`."""
        if self.interval_s is not None:
            return {"processingTime": self.text}
        return {"once": True} if self.text == ONCE else {"availableNow": True}


def parse_trigger(text: str) -> Trigger:
    if text in (AVAILABLE_NOW, ONCE):
        return Trigger(text)
    try:
        return Trigger(text, duration_s(text))
    except InvalidConfiguration as error:
        raise InvalidConfiguration(
            f"trigger {text!r}: give {AVAILABLE_NOW}, {ONCE}, or an interval such as '10 seconds'"
        ) from error


def duration_s(text: str) -> float:
    """Parses `90 seconds`, `1 minute`, `2 hours`, `1 day`."""
    found = _DURATION.fullmatch(text)
    if found is None or float(found[1]) <= 0:
        raise InvalidConfiguration(f"{text!r} is no time span: give one such as '90 seconds'")
    return float(found[1]) * _SECONDS[found[2]]


def named(text: str) -> Any:
    """Imports `module:name`; also finds modules beside the file."""
    module_name, colon, name = text.partition(":")
    if not (module_name and colon and name):
        raise InvalidConfiguration(f"{text!r} names nothing: write module:name")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InvalidConfiguration(
            f"{text!r}: module {module_name!r} cannot be loaded ({error}); put it beside the file, "
            "or install it"
        ) from error
    found = getattr(module, name, None)
    if found is None:
        raise InvalidConfiguration(f"{text!r}: module {module_name!r} has no {name!r}")
    if not module_name.startswith("raftwood."):
        # Spark's workers may not find the module, so its code is sent to them.
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return found


def function_named(text: str | None) -> Any:
    found = named(text or "")
    if not callable(found) or inspect.isclass(found):
        raise InvalidConfiguration(f"{text!r} is no function")
    return found


STATUS_FILE: Final = "status.json"


class JobState(StrEnum):
    """The state of a job's run."""

    NEW = "new"
    STARTING = "starting"
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"
    LOST = "lost"
    """Its process is gone, and left no final state."""


class JobProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the present run, or of the last one."""

    job: str
    kind: str
    state: JobState = JobState.NEW
    batches: int = 0
    rows: int = 0
    """Rows read in this run."""
    rows_per_s: float = 0.0
    """Rate of the last micro-batch."""
    lag: int | None = None
    """Stored batches of the stream that are not read yet, as of the last micro-batch."""
    late: int = 0
    """Rows behind the watermark that were left out, as Spark counts them: after it has joined those
    of one task and one window.
    """
    watermark: str | None = None
    updated_ms: int = 0
    pid: int = 0
    error: str = ""


def lag_of(source: Mapping[str, Any]) -> int | None:
    """Computes the lag from a source's part of Spark's progress: stored batches less those read."""
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
        return None  # the source is of another kind


def write_status(folder: str, progress: JobProgress) -> JobProgress:
    """Writes the status file atomically; returns the progress as written."""
    progress = msgspec.structs.replace(progress, updated_ms=time.time_ns() // 1_000_000)
    path = f"{folder}/{STATUS_FILE}"
    with open(f"{path}.new", "wb") as file:
        file.write(msgspec.json.encode(progress))
    os.replace(f"{path}.new", path)
    return progress


def read_status(folder: str, *, job: str, kind: str) -> JobProgress:
    """Reads the status of the last run; `new` for a job that never ran."""
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


STOP_S_MAX: Final = 30.0
"""How long a micro-batch under way may take before it is cancelled; the next run repeats it."""


class JobAccess(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The access of jobs to LogHub, and to Zeppelin if a job writes there."""

    gateways: str
    access_key: str
    access_secret: str
    zeppelin: dict[str, str] = {}
    """Options of Zeppelin's sink."""

    def options(self) -> dict[str, str]:
        """Returns options for Spark's source and sink."""
        return {
            "gateways": self.gateways,
            "accessKey": self.access_key,
            "accessSecret": self.access_secret,
        }

    def to(self, path: str) -> StreamAccess:
        """Returns the access to one logstore, given as PROJECT/LOGSTORE."""
        return access_to(
            path,
            gateways=self.gateways,
            access_key=self.access_key,
            access_secret=self.access_secret,
        )

    def __repr__(self) -> str:
        return f"Access({self.access_key} at {self.gateways})"


class JobOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of every job in a file."""

    kind: str
    source: str = msgspec.field(name="from")
    """PROJECT/LOGSTORE."""
    trigger: str = "available-now"
    """`available-now`, `once` (one micro-batch), or an interval such as `10 seconds`."""


Given = TypeVar("Given", bound=JobOptions)


class JobContext(msgspec.Struct, frozen=True):
    """What a run of a job receives."""

    spark: SparkSession
    on_progress: Callable[[JobProgress], None]
    stop: threading.Event


class Job(ABC, Generic[Given]):
    """A job made from a file's options; `run` it as often as needed, one run at a time."""

    kind: ClassVar[str]
    options_type: ClassVar[type[JobOptions]]

    def __init__(
        self, name: str, options: Given, *, access: JobAccess, folder: str, base: str = "."
    ) -> None:
        self.name = name
        self.options = options
        self.access = access
        self.folder = os.path.abspath(folder)
        """The folder of its checkpoint, its status and its other state."""
        self._base = os.path.abspath(base)
        self.trigger: Trigger = parse_trigger(options.trigger)
        self.progress = JobProgress(job=name, kind=self.kind)
        self._told: Callable[[JobProgress], None] = _nobody
        self.check()

    def check(self) -> None:
        """Raises an error for wrong options, before anything runs."""

    def run(self, context: JobContext) -> JobProgress:
        """Runs to the end, or until `stop` is set; returns the final progress."""
        os.makedirs(self.folder, exist_ok=True)
        self._told = context.on_progress
        self.progress = JobProgress(
            job=self.name, kind=self.kind, state=JobState.STARTING, pid=os.getpid()
        )
        self.tell()
        try:
            self.work(context)
        except RaftwoodError as error:
            self.tell(state=JobState.FAILED, error=error.message)
            raise
        except SPARK_ERRORS as error:
            message = (
                f"job {self.name!r} failed: {reason_of(error)}. Nothing is lost: mend the cause, "
                "and run it again with the same folder"
            )
            self.tell(state=JobState.FAILED, error=message)
            raise InternalError(message) from error
        except BaseException as error:
            self.tell(state=JobState.FAILED, error=str(error)[:500] or type(error).__name__)
            raise
        ended = JobState.STOPPED if context.stop.is_set() else JobState.DONE
        self.tell(state=ended)
        return self.progress

    @abstractmethod
    def work(self, context: JobContext) -> None:
        """Does the job's work, and reports progress by `tell`."""

    def tell(self, **changes: object) -> None:
        """Updates figures; they are in the status file on return."""
        self.progress = msgspec.structs.replace(self.progress, **changes)
        self.progress = write_status(self.folder, self.progress)
        self._told(self.progress)

    def place(self, text: str) -> str:
        """Resolves a folder or an address; a relative folder is beside the pipeline's file."""
        return text if "://" in text else os.path.join(self._base, text)

    def invalid(self, text: str) -> InvalidConfiguration:
        return InvalidConfiguration(f"job {self.name!r}: {text}")


def _nobody(_: JobProgress) -> None:
    pass
