"""Python for Spark's helpers: forked from a process that has loaded what they need.

Spark starts one for each question that it asks a source or a sink, and gives each ten seconds to
call back: on a busy machine one that loads everything anew is late.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from tests.kits.server.quick_commands import QuickCommands
from tests.kits.servers.shared import VARIABLE, shared


class QuickPython(QuickCommands):
    """One for all sessions of a run."""

    names = ("python",)
    modules = (
        "pandas",
        "pyspark.worker",
        "pyspark.sql.worker.commit_data_source_write",
        "pyspark.sql.worker.create_data_source",
        "pyspark.sql.worker.data_source_pushdown_filters",
        "pyspark.sql.worker.lookup_data_sources",
        "pyspark.sql.worker.plan_data_source_read",
        "pyspark.sql.worker.python_streaming_sink_runner",
        "pyspark.sql.worker.write_into_data_source",
        "raftwood.pipeline.zeppelin_source",
        "raftwood.pipeline.zeppelin_sink",
        "raftwood.pipeline.schema",
        "raftwood.pipeline.sink",
        "raftwood.pipeline.source",
        "raftwood.pipeline.range_reader",
        "raftwood.pipeline.source",
    )


def python_of_spark() -> dict[str, str]:
    """What tells Spark of it, in the environment of the process that starts Java.

    Outside a run of tests this is the plain Python. Forked helpers are not below Java's process.
    """
    in_tests = VARIABLE in os.environ
    python = f"{shared(QuickPython).path}/python" if in_tests else sys.executable
    return {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}


@contextmanager
def quick_python() -> Iterator[None]:
    """A session that begins in this block has it as long as it lasts."""
    with mock.patch.dict(os.environ, python_of_spark()):
        yield
