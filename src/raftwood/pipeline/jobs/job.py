"""`Job`: what all jobs have, whatever they do: a name, options, a folder, progress, an end.

    class Marked(Transform):
        def build(self, rows):
            return super().build(rows).withColumn("seen_by", lit("me"))

A file names a class of a user's own as `kind = "module:Class"`.
"""

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Final, Generic, TypeVar

import msgspec
from pyspark.sql import SparkSession

from raftwood.base.errors import InternalError, InvalidConfiguration, RaftwoodError
from raftwood.pipeline.jobs.progress import JobProgress, JobState, write_status
from raftwood.pipeline.jobs.triggers import Trigger, parse_trigger
from raftwood.pipeline.options import StreamAccess, access_to
from raftwood.pipeline.spark_errors import SPARK_ERRORS, reason_of

STOP_S_MAX: Final = 30.0
"""How long a micro-batch under way may take before it is broken off; it is done anew next time."""


class Access(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How jobs reach LogHub, and Zeppelin where one writes there."""

    gateways: str
    access_key: str
    access_secret: str
    zeppelin: dict[str, str] = {}
    """As its sink takes them."""

    def options(self) -> dict[str, str]:
        """As Spark's source and sink take them."""
        return {
            "gateways": self.gateways,
            "accessKey": self.access_key,
            "accessSecret": self.access_secret,
        }

    def to(self, path: str) -> StreamAccess:
        """One logstore, by PROJECT/LOGSTORE."""
        return access_to(
            path,
            gateways=self.gateways,
            access_key=self.access_key,
            access_secret=self.access_secret,
        )

    def __repr__(self) -> str:
        return f"Access({self.access_key} at {self.gateways})"


class JobOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a file says of any job."""

    kind: str
    source: str = msgspec.field(name="from")
    """PROJECT/LOGSTORE."""
    trigger: str = "available-now"
    """`available-now`, `once` (one micro-batch), or an interval such as `10 seconds`."""


Given = TypeVar("Given", bound=JobOptions)


class JobContext(msgspec.Struct, frozen=True):
    """What a run of a job is given."""

    spark: SparkSession
    on_progress: Callable[[JobProgress], None]
    stop: threading.Event


class Job(ABC, Generic[Given]):
    """Made of what a file says; `run` it as often as need be, one run at a time."""

    kind: ClassVar[str]
    options_type: ClassVar[type[JobOptions]]

    def __init__(
        self, name: str, options: Given, *, access: Access, folder: str, base: str = "."
    ) -> None:
        self.name = name
        self.options = options
        self.access = access
        self.folder = os.path.abspath(folder)
        """For its checkpoint, its status and whatever else it remembers."""
        self._base = os.path.abspath(base)
        self.trigger: Trigger = parse_trigger(options.trigger)
        self.progress = JobProgress(job=name, kind=self.kind)
        self._told: Callable[[JobProgress], None] = _nobody
        self.check()

    def check(self) -> None:
        """Say what is wrong with the options, before anything runs."""

    def run(self, context: JobContext) -> JobProgress:
        """Run to the end, or until it is told to stop; what came of it."""
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
        """Do what the job is for, and `tell` how far it is."""

    def tell(self, **changes: object) -> None:
        """Note some figures; they are in the status file when this returns."""
        self.progress = msgspec.structs.replace(self.progress, **changes)
        self.progress = write_status(self.folder, self.progress)
        self._told(self.progress)

    def place(self, text: str) -> str:
        """A folder or an address; a folder without a full path is beside the pipeline's file."""
        return text if "://" in text else os.path.join(self._base, text)

    def invalid(self, text: str) -> InvalidConfiguration:
        return InvalidConfiguration(f"job {self.name!r}: {text}")


def _nobody(_: JobProgress) -> None:
    pass
