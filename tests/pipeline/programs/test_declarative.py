"""The example that is declared: `spark-pipelines` runs it, and again for what has come since."""

import os
import shutil
import sys
from pathlib import Path

import pyspark

from raftwood.loghub.client import LogHubClient
from raftwood.pipeline.session import java_home
from raftwood_demos.pipeline_check import WebTruth
from raftwood_demos.standalone_process import StandaloneProcess
from raftwood_demos.web_logs import web_logs
from tests.kits.pipeline.processes import REPOSITORY, run
from tests.kits.pipeline.quick_java import QUICK_SPARK
from tests.kits.pipeline.quick_python import python_of_spark

SPARK_HOME = Path(pyspark.__file__).parent


def _project(folder: Path) -> Path:
    """A copy whose tables are in the test's own folder."""
    project = folder / "declarative"
    shutil.copytree(REPOSITORY / "examples" / "declarative", project)
    spec = project / "spark-pipeline.yml"
    text = spec.read_text()
    assert "file:///tmp/raftwood-declarative" in text
    spec.write_text(text.replace("file:///tmp/raftwood-declarative", f"file://{folder}/storage"))
    return project


def _ship(client: LogHubClient, truth: WebTruth, lines: list[str]) -> None:
    with client.producer("web", "access") as producer:
        for line in lines:
            producer.send({"message": line})
            truth.add(line)


def test_the_declared_pipeline_runs_and_writes_errors_to_a_stream(tmp_path: Path) -> None:
    project, truth = _project(tmp_path), WebTruth()
    lines = list(web_logs(3_000, seed=3, lines_per_minute=1_000))
    with StandaloneProcess(str(tmp_path / "raftwood")) as standalone:
        part = standalone.loghub
        with standalone.client() as client:
            client.create_project("web")
            for name in ("access", "errors"):
                client.create_logstore("web", name, shard_count=1)
            _ship(client, truth, lines)
            ended = run(
                *("run", "--conf", "spark.sql.catalogImplementation=hive"),
                *("--conf", "spark.ui.enabled=false"),
                *(word for each in QUICK_SPARK.items() for word in ("--conf", "=".join(each))),
                folder=project,
                before=(str(SPARK_HOME / "bin" / "spark-pipelines"),),
                SPARK_HOME=str(SPARK_HOME),
                SPARK_LOCAL_IP="127.0.0.1",
                JAVA_HOME=java_home(),
                PYTHONPATH=os.pathsep.join(filter(None, sys.path)),
                RAFTWOOD_LOGHUB_CLIENT__GATEWAYS=part.native,
                RAFTWOOD_LOGHUB_CLIENT__ACCESS_KEY=part.access_key,
                RAFTWOOD_LOGHUB_CLIENT__ACCESS_SECRET=part.access_secret,
                **python_of_spark(),
            )
            assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
            stored = [record.contents for record in client.reader("web", "errors")]
    assert len(stored) == truth.total.errors > 0
    assert {contents["status"] for contents in stored} <= {"500", "503"}
    assert list(project.glob("spark-warehouse/minutes/*.parquet"))
