"""`SparkProcess`: a fresh Spark that does what it is told, and is gone afterwards."""

import pathlib
import subprocess
import sys
import threading
from typing import Final, Self

import msgspec

from benchmarks.harness.cluster import ClusterFailed
from benchmarks.pipeline.orders import Answer, Order

ORDER_S_MAX: Final = 300.0
LOG_TAIL_BYTES: Final = 2000


class SparkProcess:
    """Use it as a context manager."""

    def __init__(self, folder: pathlib.Path, *, jars: str = "") -> None:
        self._log = folder / "spark.log"
        self._command = [sys.executable, "-m", "benchmarks.pipeline.spark_work", f"--jars={jars}"]
        self._process: subprocess.Popen[str]

    def __enter__(self) -> Self:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()  # which ends it, and the Java below it
        try:
            self._process.wait(ORDER_S_MAX)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()

    def do(self, order: Order) -> Answer:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        limit = threading.Timer(ORDER_S_MAX, self._process.kill)
        limit.start()
        try:
            self._process.stdin.write(msgspec.json.encode(order).decode() + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            limit.cancel()
        if not line:
            end = self._log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
            raise ClusterFailed(f"Spark ended: {end}")
        return msgspec.json.decode(line, type=Answer)
