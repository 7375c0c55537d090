"""A Spark cluster of processes: a Master and a Worker, from the package that pip installs."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import pyspark

from raftwood.pipeline.java import java_home

START_S_MAX = 90.0
STOP_S_MAX = 30.0
ADDRESS = re.compile(r"Starting Spark master at (spark://\S+)")
REGISTERED = re.compile(r"Successfully registered with master")


class SparkCluster:
    """Use it as a context manager; `address` is the master's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self.address: str

    def __enter__(self) -> Self:
        here = ("--host", "127.0.0.1", "--webui-port", "0")
        try:
            self._start("master", "org.apache.spark.deploy.master.Master", *here, "--port", "0")
            self.address = self._says("master", ADDRESS)
            worker = ("org.apache.spark.deploy.worker.Worker", *here, "--cores", "2")
            room = ("--memory", "1g", "--work-dir", str(self._folder / "work"))
            self._start("worker", *worker, *room, self.address)
            self._says("worker", REGISTERED)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
            process.wait(STOP_S_MAX)

    def _start(self, name: str, *arguments: str) -> None:
        home = str(Path(pyspark.__file__).parent)
        with self._log(name).open("wb") as log:
            process = subprocess.Popen(
                (f"{home}/bin/spark-class", *arguments),
                stdout=log,
                stderr=log,
                env=os.environ
                | {
                    "JAVA_HOME": java_home(),
                    "SPARK_HOME": home,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "SPARK_DAEMON_MEMORY": "256m",
                    # Executors, and the Python workers below them, have it from the Worker.
                    "PYTHONPATH": os.pathsep.join(sys.path),
                },
            )
        self._processes.append(process)

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _says(self, name: str, wanted: re.Pattern[str]) -> str:
        deadline = time.monotonic() + START_S_MAX
        while True:
            said = self._log(name).read_text(errors="replace")
            found = wanted.search(said)
            if found:
                return found.group(found.lastindex or 0)
            assert self._processes[-1].poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.05)
