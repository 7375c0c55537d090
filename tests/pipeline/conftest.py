"""One Spark and one server for all tests of a process: both take long to start."""

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from raftwood.pipeline.session import DELTA, spark_session
from tests.kits.install.cache import NotInstalled
from tests.kits.pipeline.delta import delta_jars
from tests.kits.pipeline.kit import Hub
from tests.kits.pipeline.quick_java import QUICK_SPARK, quick_java
from tests.kits.pipeline.quick_python import quick_python
from tests.kits.pipeline.standalone import Standalone
from tests.kits.resources import loops

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GRACE_S = 30.0


@pytest.fixture(autouse=True)
def _nothing_leaks() -> Iterator[None]:
    """Spark's workers, sockets and threads stay for the next test: only ours are counted."""
    before = _ours()
    yield
    deadline = time.monotonic() + _GRACE_S
    while left := _ours() - before:
        assert time.monotonic() < deadline, f"left behind: {', '.join(sorted(left))}"
        time.sleep(0.01)


def _ours() -> set[str]:
    threads = {
        f"{thread.name} {thread.ident}"
        for thread in threading.enumerate()
        if thread.name.startswith("raftwood")
    }
    return threads | loops()


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("standalone")) as running:
        yield running


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    folder = tmp_path_factory.mktemp("spark")
    try:
        delta = {**DELTA, "spark.jars": delta_jars()}
    except NotInstalled:
        delta = {}
    with quick_python():
        session = spark_session(
            "tests",
            settings={
                **delta,
                "spark.sql.warehouse.dir": str(folder / "warehouse"),
                "spark.local.dir": str(folder),
                "spark.driver.memory": "768m",
                "spark.driver.extraJavaOptions": quick_java(),
                "spark.sql.streaming.pollingDelay": "50ms",
                **QUICK_SPARK,
                "spark.sql.shuffle.partitions": "2",
                "spark.databricks.delta.snapshotPartitions": "2",
            },
            log_level="ERROR",
        )
    gateway = session.sparkContext._gateway
    yield session
    session.stop()
    # Spark leaves its Java running for the next session of the process.
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(30)


@pytest.fixture
def hub(standalone: Standalone, spark: "SparkSession") -> Iterator[Hub]:
    """A logstore of the test's own, and ways to fill and read it."""
    with standalone.client() as client:
        yield Hub(standalone, client, spark)
