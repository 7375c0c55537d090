"""`CopyingDriver`: the copying query as a process: how far it is, and who works for it."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

from tests.pipeline.copying_query import Job

BATCH_S_MAX = 600.0
POLL_S = 0.02
LOST_TASK = "Lost task"


class Ended(Exception):
    """The query has copied all before what was waited for."""


class CopyingDriver:
    """One after the other on the same checkpoint; `close` at the end."""

    def __init__(self, folder: Path, job: Job) -> None:
        folder.mkdir(exist_ok=True)
        self._job_file = folder / "job.json"
        self._job_file.write_bytes(msgspec.json.encode(job))
        self._checkpoint = Path(job.checkpoint)
        self._log = folder / "driver.log"
        self._process: subprocess.Popen[bytes]
        self._orphans: list[psutil.Process] = []

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                (sys.executable, "-m", "tests.pipeline.copying_query", str(self._job_file)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            )

    # How far it is

    def newest(self, folder: str) -> int:
        """The number of the last micro-batch that was planned (offsets), or is done (commits)."""
        found = self._checkpoint / folder
        names = [each.name for each in found.iterdir()] if found.exists() else []
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def in_mid_batch(self, after: int) -> int:
        """Wait for a micro-batch with a greater number that is under way."""
        deadline = time.monotonic() + BATCH_S_MAX
        while True:
            planned = self.newest("offsets")
            if planned > after and self.newest("commits") < planned:
                return planned
            status = self._process.poll()
            if status == 0:
                raise Ended
            assert status is None, self.last_words()
            assert time.monotonic() < deadline, self.last_words()
            time.sleep(POLL_S)

    def busy_workers(self, batch: int) -> list[psutil.Process]:
        """Python processes that run tasks of a micro-batch, as soon as there are some; none where
        it is done before.
        """
        before = {each.pid: _cpu_s(each) for each in self._workers()}
        while self.newest("commits") < batch and self._process.poll() is None:
            busy = [each for each in self._workers() if _cpu_s(each) > before.get(each.pid, 0.0)]
            if busy:
                return busy
            time.sleep(POLL_S)
        return []

    def _workers(self) -> list[psutil.Process]:
        """Below the one that forks them."""
        found = []
        for each in psutil.Process(self._process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                parent = each.parent()
                if _runs_tasks(each) and parent is not None and _runs_tasks(parent):
                    found.append(each)
        return found

    def wait(self) -> None:
        """Until all is copied."""
        assert self._process.wait(BATCH_S_MAX) == 0, self.last_words()

    def last_words(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    def lost_tasks(self) -> int:
        return self._log.read_text(errors="replace").count(LOST_TASK)

    def loses_a_task(self, before: int, batch: int) -> bool:
        """Whether tasks of a micro-batch fail, which had been so many before."""
        deadline = time.monotonic() + BATCH_S_MAX
        while self.lost_tasks() == before:
            if self.newest("commits") >= batch:
                return False
            assert time.monotonic() < deadline, self.last_words()
            time.sleep(POLL_S)
        return True

    # Faults

    def kill(self) -> None:
        """Python and Java of the driver; the workers are left to find out by themselves."""
        below = psutil.Process(self._process.pid).children(recursive=True)
        java = [each for each in below if each.name() == "java"]
        self._orphans += [each for each in below if each not in java]
        for each in java:
            each.kill()
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()
        for each in self._orphans:
            if each.is_running():
                each.kill()


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def _runs_tasks(process: psutil.Process) -> bool:
    return process.cmdline()[-2:] == ["pyspark.daemon", "pyspark.worker"]
