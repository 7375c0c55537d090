"""Spark's own servers as processes, from the package that pip installs: a cluster, and Connect."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import pyspark

from raftwood.pipeline.session import LOCAL, java_home
from tests.kits.pipeline.quick_java import QUICK_SPARK, quick_java
from tests.kits.pipeline.quick_python import python_of_spark

START_S_MAX = 600.0
STOP_S_MAX = 300.0
MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
WORKER = re.compile(r"(Successfully registered with master)")
CONNECT = re.compile(r"Spark Connect server started at: \S+:(\d+)")
HOME = str(Path(pyspark.__file__).parent)


class SparkServer:
    """Use it as a context manager; `address` is what a session is given."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self.address = ""

    def __enter__(self) -> Self:
        try:
            self.address = self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
            process.wait(STOP_S_MAX)

    def _begin(self) -> str:
        raise NotImplementedError

    def _python(self) -> dict[str, str]:
        return {"PYSPARK_PYTHON": sys.executable}

    def _start(
        self, name: str, *arguments: str, says: re.Pattern[str], memory: str = "256m"
    ) -> str:
        """Start a class of Spark's, and wait until it says that it serves; what it says then."""
        file = self._folder / f"{name}.log"
        with file.open("wb") as log:
            process = subprocess.Popen(
                (f"{HOME}/bin/spark-class", *arguments),
                stdout=log,
                stderr=log,
                env=os.environ
                | {
                    "JAVA_HOME": java_home(),
                    "SPARK_HOME": HOME,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "SPARK_DAEMON_MEMORY": memory,
                    "SPARK_DAEMON_JAVA_OPTS": quick_java(),
                    # Executors, and the Python workers below them, have it from here.
                    "PYTHONPATH": os.pathsep.join(sys.path),
                    **self._python(),
                },
            )
        self._processes.append(process)
        deadline = time.monotonic() + START_S_MAX
        while True:
            said = file.read_text(errors="replace")
            found = says.search(said)
            if found:
                return found.group(1)
            assert process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.1)


class SparkCluster(SparkServer):
    """A Master and a Worker."""

    def _begin(self) -> str:
        package = "org.apache.spark.deploy"
        here = ("--host", "127.0.0.1", "--webui-port", "0")
        master = (f"{package}.master.Master", *here, "--port", "0")
        address = self._start("master", *master, says=MASTER)
        room = ("--cores", "2", "--memory", "1g", "--work-dir", str(self._folder / "work"))
        worker = (f"{package}.worker.Worker", *here, *room, address)
        self._start("worker", *worker, says=WORKER)
        return address

    def executors(self) -> list[Path]:
        """Of all queries that ran here, the folder of each process that ran tasks."""
        return sorted((self._folder / "work").glob("app-*/*"))


class SparkConnectServer(SparkServer):
    """Clients of it have no Java."""

    def _begin(self) -> str:
        port = self._start(
            "connect",
            "org.apache.spark.deploy.SparkSubmit",
            *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
            *("--master", LOCAL),
            *("--conf", "spark.connect.grpc.binding.port=0"),
            *("--conf", "spark.ui.enabled=false"),
            *(word for each in QUICK_SPARK.items() for word in ("--conf", "=".join(each))),
            *("--conf", f"spark.local.dir={self._folder / 'scratch'}"),
            *("--conf", f"spark.sql.warehouse.dir={self._folder / 'warehouse'}"),
            "spark-internal",
            says=CONNECT,
            memory="768m",
        )
        return f"sc://127.0.0.1:{port}"

    def _python(self) -> dict[str, str]:
        return python_of_spark()
