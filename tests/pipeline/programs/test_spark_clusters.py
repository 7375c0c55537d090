"""The pipeline where Spark runs in other ways: on a cluster of its own, and through Connect."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from tests.kits.pipeline.copying_query import Job
from tests.kits.pipeline.quick_java import quick_java
from tests.kits.pipeline.quick_python import python_of_spark
from tests.kits.pipeline.spark_cluster import SparkCluster, SparkConnectServer
from tests.kits.pipeline.standalone import Standalone
from tests.kits.pipeline.storm import (
    PROJECT,
    SINK,
    SOURCE,
    flaws,
    prepare_streams,
    stored,
)

ROWS = 200
COPY_S_MAX = 600.0


def copied_by(folder: Path, master: str) -> None:
    """A whole logstore is copied into another one, by a query that runs on that Spark."""
    with Standalone(folder) as server, server.client() as client:
        prepare_streams(client, ROWS, SINK)
        job = Job(
            access=server.access,
            source=f"{PROJECT}/{SOURCE}",
            sink=f"{PROJECT}/{SINK}",
            checkpoint=str(folder / "checkpoint"),
            scratch=str(folder / "scratch"),
            rows_per_batch=ROWS // 2,
            master=master,
        )
        file = folder / "job.json"
        file.write_bytes(msgspec.json.encode(job))
        quick_java()  # What the first one has to make is no part of the copy's time.
        ran = subprocess.run(
            (sys.executable, "-m", "tests.kits.pipeline.copying_query", str(file)),
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | python_of_spark(),
            capture_output=True,
            text=True,
            timeout=COPY_S_MAX,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr[-4000:]
        wanted = stored(client, SOURCE)
        assert wanted.total() == ROWS
        assert not flaws(stored(client, SINK), wanted)


def test_a_stream_is_copied_on_a_cluster_of_master_and_worker(tmp_path: Path) -> None:
    with SparkCluster(tmp_path) as cluster:
        copied_by(tmp_path, cluster.address)
        assert cluster.executors()


def test_a_stream_is_copied_through_spark_connect(tmp_path: Path) -> None:
    with SparkConnectServer(tmp_path) as server:
        copied_by(tmp_path, server.address)
