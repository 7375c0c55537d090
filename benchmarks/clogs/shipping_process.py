"""A process that ships, and the sink that counts: how long it took, and what it used."""

import contextlib
import os
import pathlib
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Final, Self

import msgspec

from benchmarks.clogs.shipping_sinks import Arrived, Listening
from benchmarks.harness.cluster import ClusterFailed

_SECONDS_MAX: Final = 600.0
_LOOK_S: Final = 0.02
_STOP_S_MAX: Final = 30.0


class Shipper:
    """A process that ships: how long it took, and what it used."""

    def __init__(self, command: list[str], environment: dict[str, str], own: pathlib.Path) -> None:
        self._log = own / "shipper.log"
        with self._log.open("wb") as log:
            self.began_s = time.monotonic()
            self._process = subprocess.Popen(
                command, env=environment, cwd=own, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.pid = self._process.pid
        self.ended_s = self.cpu_s = 0.0
        self.memory_bytes = 0
        self._status: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is None:
            self._signal(signal.SIGKILL)
            self._reap(0)

    def look(self) -> bool:
        """Note what it uses; whether it runs."""
        # What a child has used at the most, as wait4 tells it, counts its parent's memory in.
        self.memory_bytes = max(self.memory_bytes, _peak_bytes(self.pid))
        return self._status is None and not self._reap(os.WNOHANG)

    def wait(self) -> None:
        """Until it ends of itself, with status 0."""
        while self.look():
            if time.monotonic() > self.began_s + _SECONDS_MAX:
                raise ClusterFailed(f"it took over {_SECONDS_MAX:g} s: {self._last_words()}")
            time.sleep(_LOOK_S)
        if self._status:
            raise ClusterFailed(f"it ended with status {self._status}: {self._last_words()}")

    def end(self) -> None:
        self.look()
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + _STOP_S_MAX
        while not self._reap(os.WNOHANG):
            if time.monotonic() > deadline:
                raise ClusterFailed("it does not end when it is told to")
            time.sleep(_LOOK_S)

    def died(self) -> ClusterFailed:
        return ClusterFailed(f"it ended before all had arrived: {self._last_words()}")

    def _signal(self, number: int) -> None:
        # Not by `Popen`, which looks first whether it has ended, and then has what it used.
        os.kill(self.pid, number)

    def _reap(self, options: int) -> bool:
        pid, status, usage = os.wait4(self.pid, options)
        if not pid:
            return False
        self.ended_s = time.monotonic()
        self._status = self._process.returncode = os.waitstatus_to_exitcode(status)
        self.cpu_s = usage.ru_utime + usage.ru_stime
        return True

    def _last_words(self) -> str:
        return self._log.read_bytes()[-500:].decode(errors="replace").strip()


class CountingSink:
    """Of `shipping_sinks`, as a process."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None
        self._said = process.stdout
        self.port = msgspec.json.decode(self._said.readline(), type=Listening).port

    def arrived(self, shipper: Shipper) -> Arrived:
        """Once the last line has come."""
        deadline = time.monotonic() + _SECONDS_MAX
        is_over = False
        while not select.select([self._said], [], [], _LOOK_S)[0]:
            if is_over:
                raise shipper.died()
            if time.monotonic() > deadline:
                raise ClusterFailed(f"not all had arrived after {_SECONDS_MAX:g} s")
            is_over = not shipper.look()
        return msgspec.json.decode(self._said.readline(), type=Arrived)


@contextlib.contextmanager
def counting_sink(kind: str, expected: int) -> Iterator[CountingSink]:
    command = [sys.executable, "-m", "benchmarks.clogs.shipping_sinks", kind, str(expected)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
        try:
            yield CountingSink(process)
        finally:
            process.kill()


def _peak_bytes(pid: int) -> int:
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(found[0]) * 1024 if found else 0
