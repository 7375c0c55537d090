"""`CopyingDriver`: the copying query as a process, and how far it is."""

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil

from raftwood.pipeline.offsets import StreamOffset
from raftwood.pipeline.session import LOCAL
from tests.kits.pipeline.copying_query import Job
from tests.kits.pipeline.quick_java import quick_java
from tests.kits.pipeline.quick_python import python_of_spark

STEP_S_MAX = 600.0
"""From a cold start to a first micro-batch, or what is left to its end, on a busy machine."""
POLL_S = 0.02


class CopyingDriver:
    """One after the other on the same checkpoint; `close` at the end."""

    def __init__(self, folder: Path, job: Job) -> None:
        folder.mkdir(exist_ok=True)
        self._job_file = folder / "job.json"
        self._job_file.write_bytes(msgspec.json.encode(job))
        self._checkpoint = Path(job.checkpoint)
        # On a cluster, a fault strikes the Java process that a worker is below.
        self._python = python_of_spark() if job.master == LOCAL else {}
        self._log = folder / "driver.log"
        quick_java()  # What the first one has to make is no part of a step's time.
        self._process: subprocess.Popen[bytes] | None = None
        self._orphans: list[psutil.Process] = []

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                (sys.executable, "-m", "tests.kits.pipeline.copying_query", str(self._job_file)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | self._python,
            )

    # How far it is

    def planned(self) -> int:
        """The last micro-batch that was begun."""
        return self._newest("offsets")

    def done(self) -> int:
        """The last micro-batch that has ended."""
        return self._newest("commits")

    def _newest(self, folder: str) -> int:
        found = self._checkpoint / folder
        names = [each.name for each in found.iterdir()] if found.exists() else []
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def end_of(self, batch: int) -> StreamOffset:
        """Where a micro-batch that was begun ends in the source."""
        text = (self._checkpoint / "offsets" / str(batch)).read_text()
        return StreamOffset.from_json(msgspec.json.decode(text.splitlines()[-1]))

    def wait_for(self, batch: int) -> None:
        """Until a micro-batch is done."""
        deadline = time.monotonic() + STEP_S_MAX
        while self.done() < batch:
            self.check_running()
            assert time.monotonic() < deadline, self.last_words()
            time.sleep(POLL_S)

    def wait(self) -> None:
        """Until all is copied."""
        assert self._process is not None
        assert self._process.wait(STEP_S_MAX) == 0, self.last_words()

    def check_running(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, self.last_words()

    def last_words(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    # Faults

    def kill(self) -> None:
        """Python and Java of the driver; the workers are left to find out by themselves."""
        assert self._process is not None
        below = psutil.Process(self._process.pid).children(recursive=True)
        java = [each for each in below if each.name() == "java"]
        self._orphans += [each for each in below if each not in java]
        for each in java:
            each.kill()
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        for each in self._orphans:
            if each.is_running():
                each.kill()
