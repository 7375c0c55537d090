"""What Spark says when something fails, in a line."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from raftwood.base.errors import InternalError

SPARK_ERRORS: Final = (PySparkException, Py4JError)


def reason_of(error: Exception) -> str:
    """Our own error where there is one in it, else Spark's first line that says something."""
    text = str(error).partition("=== Streaming Query ===")[0]
    lines = [line.strip(" :") for line in text.splitlines()]
    told = [line for line in lines if line and not line.startswith("An error occurred while call")]
    ours = [line.partition(": ")[2] for line in told if line.startswith("raftwood.")]
    return (ours[-1] if ours else told[0] if told else type(error).__name__)[:500]


@contextmanager
def spark_errors_told(what: str) -> Iterator[None]:
    """`InternalError` that says what failed, and why."""
    try:
        yield
    except SPARK_ERRORS as error:
        raise InternalError(f"{what} failed: {reason_of(error)}") from error
